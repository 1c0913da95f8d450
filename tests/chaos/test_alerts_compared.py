"""The messages that one of two Alertmanagers may and may not repeat."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest

from queenright.alerting.notification import alert_key
from queenright.alerting.recorder import RecordedMessage, Recorder
from queenright.server.settings import Settings
from tests.chaos.alerts_compared import Fire, is_allowed_repeat
from tests.chaos.faulty_proxy import FaultyProxy, ForwardedPost

A, B = 9093, 9193
LABELS = {"agent": "bee"}
BEGAN = 1000.0


def forwarded_post(at: float, *, ended: bool = False, began: float = BEGAN) -> ForwardedPost:
    ends = at - 0.1 if ended else at + 3600
    stamps = {"startsAt": began, "endsAt": ends}
    return ForwardedPost(
        at,
        {"labels": LABELS} | {name: datetime.fromtimestamp(t, UTC).isoformat() for name, t in stamps.items()},
    )


def message_at(port: int, at: float, status: str) -> RecordedMessage:
    body = {"attachments": [{"url": f"http://bee:{port}/#/silences/new"}]}
    return RecordedMessage(time=at, channel="slack", status=status, title="bee", text="", path="", body=body)


def is_excused_repeat(
    at_a: list[ForwardedPost], at_b: list[ForwardedPost], before: RecordedMessage, message: RecordedMessage
) -> bool:
    ways = [FaultyProxy(1, A), FaultyProxy(2, B)]
    for way, posts in zip(ways, (at_a, at_b), strict=True):
        way.taken = posts
    fire = Fire(Settings(), ways, [A, B], [], Recorder(), peer_timeout=1.0)
    return is_allowed_repeat(fire, before, message, {alert_key(LABELS)})


BEGINNING, END = forwarded_post(1001), forwarded_post(1010, ended=True)


@pytest.mark.parametrize(
    ("end_at_b", "is_excused"),
    [([], True), ([forwarded_post(1028, ended=True)], True), ([forwarded_post(1011, ended=True)], False)],
    ids=["it never got the end", "it got the end during an evaluation", "it got the end long before"],
)
def test_peer_that_missed_a_resolve_may_fire_again(end_at_b: list[ForwardedPost], is_excused: bool) -> None:
    before, message = message_at(A, 1020, "resolved"), message_at(B, 1030, "firing")

    assert is_excused_repeat([BEGINNING, END], [BEGINNING, *end_at_b], before, message) is is_excused


def test_condition_starting_after_an_end_is_a_separate_page() -> None:
    second_start = forwarded_post(1025, began=1024)

    assert not is_excused_repeat(
        [BEGINNING, END, second_start],
        [BEGINNING, END, second_start],
        message_at(A, 1020, "resolved"),
        message_at(B, 1030, "firing"),
    )


def test_alert_is_not_repeated_by_its_sender_or_while_firing() -> None:
    assert not is_excused_repeat(
        [BEGINNING], [BEGINNING], message_at(A, 1002, "firing"), message_at(A, 1003, "firing")
    )
    assert not is_excused_repeat(
        [BEGINNING], [BEGINNING], message_at(A, 1002, "firing"), message_at(B, 1012, "firing")
    )


def test_both_peers_may_report_a_start_simultaneously() -> None:
    assert is_excused_repeat(
        [BEGINNING], [BEGINNING], message_at(A, 1002, "firing"), message_at(B, 1002.3, "firing")
    )
