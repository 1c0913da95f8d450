from __future__ import annotations

import contextlib
import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from queenright.alerting.callbacks.alertmanager import InvalidWebhookError, SymptomAlert, parse_symptoms

ALERT = {"status": "firing", "labels": {"alertname": "QueenrightLoop", "agent": "a"}, "annotations": {}}


def make_body(**changes: Any) -> str:
    return json.dumps({"version": "4", "status": "firing", "receiver": "judge", "alerts": [ALERT]} | changes)


def test_every_alert_of_a_group_is_read() -> None:
    other = {"status": "resolved", "labels": {"alertname": "QueenrightErrorRate"}}
    assert parse_symptoms(make_body(alerts=[ALERT, other])) == [
        SymptomAlert(alertname="QueenrightLoop", agent="a", status="firing"),
        SymptomAlert(alertname="QueenrightErrorRate", agent="", status="resolved"),
    ]


@pytest.mark.parametrize(
    ("text", "field"),
    [
        ("", "the body"),
        ("[]", "the body"),
        ("{", "the body"),
        (make_body(version="3"), "version"),
        (make_body(version=4), "version"),
        (make_body(alerts=None), "alerts"),
        (make_body(alerts={}), "alerts"),
        (make_body(alerts=["x"]), "alerts.0"),
        (make_body(alerts=[ALERT | {"status": "maybe"}]), "alerts.0.status"),
        (make_body(alerts=[{"status": "firing"}]), "alerts.0.labels"),
        (make_body(alerts=[ALERT | {"labels": {"agent": "a"}}]), "alerts.0.labels.alertname"),
        (make_body(alerts=[ALERT | {"labels": {"alertname": "x", "agent": 1}}]), "alerts.0.labels.agent"),
    ],
)
def test_invalid_field_is_named(text: str, field: str) -> None:
    with pytest.raises(InvalidWebhookError, match=rf"^{field}: ") as error_info:
        parse_symptoms(text)
    assert isinstance(error_info.value, ValueError)


@given(st.binary(max_size=200))
def test_invalid_body_raises_only_the_webhook_error(raw: bytes) -> None:
    with contextlib.suppress(InvalidWebhookError):
        parse_symptoms(raw)
