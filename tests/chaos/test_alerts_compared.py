"""The messages that one of two Alertmanagers may and may not repeat."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest

from queenright.alerting.notification import alert_key
from queenright.alerting.recorder import RecordedMessage, Recorder
from queenright.server.settings import Settings
from tests.chaos.alerts_compared import ObservedAlerts, is_allowed_repeat
from tests.chaos.faulty_proxy import FaultyProxy, ForwardedPost

A, B = 9093, 9193
LABELS = {"agent": "bee"}
START = 1000.0


def make_post(at: float, *, has_ended: bool = False, started_at: float = START) -> ForwardedPost:
    ends_at = at - 0.1 if has_ended else at + 3600
    times = {"startsAt": started_at, "endsAt": ends_at}
    return ForwardedPost(
        at,
        {"labels": LABELS}
        | {name: datetime.fromtimestamp(seconds, UTC).isoformat() for name, seconds in times.items()},
    )


def make_message(port: int, at: float, status: str) -> RecordedMessage:
    body = {"attachments": [{"url": f"http://bee:{port}/#/silences/new"}]}
    return RecordedMessage(time=at, channel="slack", status=status, title="bee", text="", path="", body=body)


def is_excused_repeat(
    posts_at_a: list[ForwardedPost],
    posts_at_b: list[ForwardedPost],
    previous: RecordedMessage,
    message: RecordedMessage,
) -> bool:
    proxies = [FaultyProxy(1, A), FaultyProxy(2, B)]
    for proxy, posts in zip(proxies, (posts_at_a, posts_at_b), strict=True):
        proxy.accepted_posts = posts
    observed = ObservedAlerts(Settings(), proxies, [A, B], [], Recorder(), peer_timeout=1.0)
    return is_allowed_repeat(observed, previous, message, {alert_key(LABELS)})


START_POST, END_POST = make_post(1001), make_post(1010, has_ended=True)


@pytest.mark.parametrize(
    ("end_at_b", "is_excused"),
    [([], True), ([make_post(1028, has_ended=True)], True), ([make_post(1011, has_ended=True)], False)],
    ids=["end never arrived", "end arrived during an evaluation", "end arrived long before"],
)
def test_peer_that_missed_a_resolve_may_fire_again(end_at_b: list[ForwardedPost], is_excused: bool) -> None:
    previous, message = make_message(A, 1020, "resolved"), make_message(B, 1030, "firing")

    assert is_excused_repeat([START_POST, END_POST], [START_POST, *end_at_b], previous, message) is is_excused


def test_condition_starting_after_an_end_is_a_separate_page() -> None:
    second_start = make_post(1025, started_at=1024)

    assert not is_excused_repeat(
        [START_POST, END_POST, second_start],
        [START_POST, END_POST, second_start],
        make_message(A, 1020, "resolved"),
        make_message(B, 1030, "firing"),
    )


def test_alert_is_not_repeated_by_its_sender_or_while_firing() -> None:
    assert not is_excused_repeat(
        [START_POST], [START_POST], make_message(A, 1002, "firing"), make_message(A, 1003, "firing")
    )
    assert not is_excused_repeat(
        [START_POST], [START_POST], make_message(A, 1002, "firing"), make_message(B, 1012, "firing")
    )


def test_both_peers_may_report_a_start_simultaneously() -> None:
    assert is_excused_repeat(
        [START_POST], [START_POST], make_message(A, 1002, "firing"), make_message(B, 1002.3, "firing")
    )
