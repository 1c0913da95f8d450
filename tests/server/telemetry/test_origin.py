"""
The user or team that an agent works for, and its repository, as read from resources, log records and hook
calls.
"""

from __future__ import annotations

from typing import Any

import pytest
from opentelemetry.proto.common.v1.common_pb2 import AnyValue, KeyValue
from opentelemetry.proto.resource.v1.resource_pb2 import Resource

from queenright.runtime.events import EventType
from queenright.server.telemetry.process import Process
from tests.clients.fixtures import Record
from tests.server.telemetry.replay import replay


def make_resource(**attributes: str) -> Process:
    pairs = [
        KeyValue(key=key.replace("_", "."), value=AnyValue(string_value=value))
        for key, value in attributes.items()
    ]
    return Process.from_resource(Resource(attributes=pairs))


@pytest.mark.parametrize(
    ("attributes", "user"),
    [
        ({"user_name": "ada", "host_name": "laptop"}, "ada@laptop"),
        ({"user_name": "ada", "user_email": "ada@example.org"}, "ada"),
        ({"host_name": "pod-7f9", "user_email": "ada@example.org"}, "ada@example.org"),
        ({"host_name": "pod-7f9", "enduser_id": "customer-3", "service_namespace": "shop"}, "customer-3"),
        ({"host_name": "pod-7f9", "service_namespace": "shop"}, "shop"),
        ({"host_name": "pod-7f9"}, ""),
    ],
)
def test_owner_is_a_user_or_a_team_and_not_a_host(attributes: dict[str, str], user: str) -> None:
    assert make_resource(**attributes).user == user


@pytest.mark.parametrize(
    ("attributes", "repository"),
    [
        ({"vcs_repository_name": "website"}, "website"),
        ({"vcs_repository_url_full": "https://ada:hunter2@example.org/shop/website.git"}, "website"),
        ({"vcs_repository_url_full": "git@example.org:shop/website.git"}, "website"),
        ({}, ""),
    ],
)
def test_repository_is_the_name_without_credentials(attributes: dict[str, str], repository: str) -> None:
    resource = make_resource(**attributes)

    assert resource.repository == repository
    assert "hunter2" not in repr(resource)


def test_secret_in_an_owner_is_masked() -> None:
    """B129: the owner is masked like any other text."""
    secret = "ghp_" + "a1B2c3D4e5F6" * 3

    assert secret not in repr(make_resource(user_email=secret, vcs_repository_name=secret))


def make_log_record(**attributes: str) -> Record:
    """Return a log record of Claude Code that contains a prompt."""
    values = {"event.name": "user_prompt", "session.id": "s", "prompt.id": "p", **attributes}
    record: dict[str, Any] = {
        "timeUnixNano": "1767225600000000000",
        "body": {"stringValue": "claude_code.user_prompt"},
        "attributes": [{"key": key, "value": {"stringValue": value}} for key, value in values.items()],
    }
    scope = {"scope": {"name": "com.anthropic.claude_code.events"}, "logRecords": [record]}
    return Record(0.0, "/v1/logs", {"resourceLogs": [{"resource": {"attributes": []}, "scopeLogs": [scope]}]})


def test_session_of_a_coding_agent_starts_with_its_user_and_folder() -> None:
    hook = {"hook_event_name": "UserPromptSubmit", "session_id": "s", "cwd": "/home/ada/website"}
    log = make_log_record(**{"user.email": "ada@example.org"})

    events = replay([log, Record(1.0, "/hooks/claude-code", hook)])

    [start_event] = [event for event in events if event.type is EventType.EXECUTION_STARTED]
    assert start_event.data["owner"] == "ada@example.org"
    assert start_event.agent_id == "claude-code", "the name does not contain the email address"
