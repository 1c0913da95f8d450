"""Silences of real Alertmanagers, and the alerts that they match."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator, Callable
from time import time as now
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from queenright.alerting.alertmanager import (
    AlertmanagerClient,
    PeerUnavailableError,
    PostedAlert,
    SilenceNotFoundError,
)
from queenright.alerting.callbacks.alertmanager import dedup_key, parse_notification
from queenright.alerting.notification import alert_key
from queenright.alerting.notification_rules import enqueue
from queenright.alerting.peer_silences import (
    InvalidAnswerError,
    NewSilence,
    PeerSilences,
    PeerView,
    Silence,
    describe_unknown_peers,
    find_active_silence,
    read_answers,
)
from queenright.alerting.settings import AlertingSettings
from queenright.alerting.silencing import NoPeerError, NothingToSilenceError, SilenceWatch
from queenright.health.store.store import Store
from tests.alerting.conftest import ServedPeer
from tests.alerting.parts import make_ticket
from tests.alerting.real import RealAlertmanager
from tests.waiting import until

MATCHERS: list[tuple[str, str, bool, bool, bool]] = [
    # name, value, isRegex, isEqual, whether agent="researcher", cause="doom_loop" is silenced
    ("agent", "researcher", False, True, True),
    ("agent", "research", False, True, False),
    ("agent", "writer", False, False, True),
    ("agent", "researcher", False, False, False),
    ("agent", "resea.*|nobody", True, True, True),
    ("agent", "search", True, True, False),  # anchored at both ends
    ("agent", "(?i)RESEARCHER", True, True, True),
    ("agent", "writer|w.*", True, False, True),
    ("agent", "r[a-z]+", True, False, False),
    ("no_such_label", "", False, True, True),
    ("no_such_label", ".+", True, False, True),
]


@contextlib.asynccontextmanager
async def make_watch(
    store: Store, clock: Callable[[], float], *urls: str
) -> AsyncIterator[tuple[SilenceWatch, AlertmanagerClient]]:
    client = AlertmanagerClient()
    settings = AlertingSettings(alertmanager_urls=urls)
    yield SilenceWatch(store, settings, client, clock=clock), client
    await client.aclose()


def make_alert_labels(**extra_labels: str) -> dict[str, str]:
    labels = {"alertname": "QueenrightIntervention", "agent": "researcher", "cause": "doom_loop"}
    return labels | {"severity": "critical", "source": "queen", "cluster": "default"} | extra_labels


def make_posted_alert(labels: dict[str, str], **annotations: str) -> PostedAlert:
    return PostedAlert(labels=labels, annotations=annotations, starts_at=now() - 1, ends_at=now() + 600)


async def test_silence_matches_what_alertmanager_reports(alertmanager: RealAlertmanager) -> None:
    client, peer = AlertmanagerClient(), alertmanager.address
    alert, other = make_alert_labels(), make_alert_labels(agent="other", cause="stall")
    await client.post_alerts(
        peer,
        [
            make_posted_alert(alert),
            make_posted_alert(other),
            make_posted_alert(make_alert_labels(source="monitor")),
        ],
    )
    for name, value, is_regex, is_equal, expected in MATCHERS:
        matcher = {"name": name, "value": value, "isRegex": is_regex, "isEqual": is_equal}
        body = NewSilence(by="ada", comment="c", starts_at=now(), ends_at=now() + 600).to_dict()
        # Alertmanager requires one matcher that does not match the empty string.
        body["matchers"] = [matcher, {"name": "cause", "value": "doom_loop", "isRegex": False}]
        created_id = json.loads(await client._request("POST", peer, "/api/v2/silences", body))["silenceID"]

        peer_silences = await client.silences(peer)
        views = [PeerView(peer=peer.name, answer=peer_silences, read_at=now())]

        assert (find_active_silence(alert, views, now()) is not None) is expected, matcher
        assert find_active_silence(other, views, now()) is None
        [created_silence] = [silence for silence in peer_silences.silences if silence.id == created_id]
        assert (created_silence.by, created_silence.comment, created_silence.state) == ("ada", "c", "active")
        await client.expire(peer, created_id)
        assert created_id not in {silence.id for silence in (await client.silences(peer)).silences}
    with pytest.raises(SilenceNotFoundError):
        await client.expire(peer, "00000000-0000-4000-8000-000000000000")
    with pytest.raises(SilenceNotFoundError):
        await client.expire(peer, "nope")
    await client.aclose()


async def test_ticket_is_silenced_and_notified_again(alertmanager: RealAlertmanager, store: Store) -> None:
    """
    B41: this holds for any severity and each reminder; without an answer the state is unknown, never "none".
    """
    settings = AlertingSettings(alertmanager_urls=(alertmanager.url,))
    async with make_watch(store, now, alertmanager.url) as (watch, client):
        assert watch.unknown == f"{alertmanager.url} has not answered yet"
        with pytest.raises(NothingToSilenceError):
            await watch.add("ticket-1", by="ada", comment="c", seconds=60)
        await store.transact(lambda conn: enqueue(conn, make_ticket(), settings, now()))
        await watch.read_notifications()
        alert = watch._labels["ticket-1"]
        risen_labels = alert | {"ticket_severity": "critical", "reminder": "1"}
        await client.post_alerts(
            alertmanager.address, [make_posted_alert(alert), make_posted_alert(risen_labels)]
        )

        silence_id, peer = await watch.add("ticket-1", by="ada", comment="known, see chat", seconds=7200)

        active_silence = watch.find_silence("ticket-1")
        assert active_silence is not None
        assert (active_silence.silence_id, active_silence.by, active_silence.comment) == (
            silence_id,
            "ada",
            "known, see chat",
        )
        assert active_silence.until - now() == pytest.approx(7200, abs=60)
        assert find_active_silence(risen_labels, watch.views(), now()) is not None
        assert (peer, watch.unknown) == (alertmanager.url, "")
        [(silence, peers, tickets)] = watch.silences()
        assert (silence.id, peers, tickets) == (silence_id, [alertmanager.url], ["ticket-1"])
        assert 'agent="researcher"' in silence.matchers

        await watch.expire(silence_id)
        assert (watch.find_silence("ticket-1"), watch.silences()) == (None, [])

        await watch.add("ticket-1", by="ada", comment="c", seconds=7200)
        await alertmanager.child.stop()
        await watch.read_peers()
        assert watch.find_silence("ticket-1") is not None
        assert watch.unknown == f"{alertmanager.url} cannot be reached"
        with pytest.raises(PeerUnavailableError):
            await watch.add("ticket-1", by="ada", comment="c", seconds=60)


async def test_dedup_key_is_the_hash_of_the_group_key(
    alertmanager: RealAlertmanager,
) -> None:
    """An incident finds its ticket by this key, in both versions."""
    computed_labels = make_alert_labels()
    client = AlertmanagerClient()
    posted_alert = make_posted_alert(computed_labels, summary="s.", ticket_id="ticket-1", description="d")
    await client.post_alerts(alertmanager.address, [posted_alert])
    incidents = [message for message in alertmanager.recorder.messages if message.channel == "pagerduty"]

    def has_incident() -> bool:
        incidents[:] = [
            message for message in alertmanager.recorder.messages if message.channel == "pagerduty"
        ]
        return bool(incidents and alertmanager.receivers.notification_posts)

    await until(has_incident, "PagerDuty and Queenright are notified")
    await client.aclose()

    actual = alertmanager.receivers.notification_posts[0]
    assert incidents[0].body["dedup_key"] == dedup_key(actual["groupKey"])
    message = parse_notification(json.dumps(actual).encode())
    assert (message.receiver, message.dedup_key) == ("slack-and-pagerduty", dedup_key(actual["groupKey"]))
    [alert] = message.alerts
    assert (alert.ticket_id, alert.alert_key, alert.status) == (
        "ticket-1",
        alert_key(computed_labels),
        "firing",
    )


# -- several peers, and their responses -----------------------------------------------------------


def make_silence(name: str, *, ends: float = 100.0, starts: float = 0.0) -> Silence:
    return Silence(id=name, by=name, comment="", state="active", starts_at=starts, ends_at=ends, matchers=())


def make_view(
    peer: str, *silences: Silence, error: str = "", labels: dict[str, str] | None = None
) -> PeerView:
    peer_silences = PeerSilences(
        silences=silences,
        silence_ids_by_labels={
            frozenset((labels or make_alert_labels()).items()): tuple(active.id for active in silences)
        }
        if silences
        else {},
    )
    return PeerView(peer=peer, answer=peer_silences, read_at=0.0, error=error)


def find_end(*views: PeerView, at: float = 50.0) -> float | None:
    active_silence = find_active_silence(make_alert_labels(), views, at)
    return None if active_silence is None else active_silence.until


def test_alert_is_silenced_only_if_every_peer_silences_it() -> None:
    first_silence, second_silence = make_silence("a", ends=100), make_silence("b", ends=70)

    assert find_end(make_view("one", first_silence), make_view("two", first_silence)) == 100
    assert find_end(make_view("one", first_silence), make_view("two", second_silence)) == 70
    assert find_end(make_view("one", first_silence, second_silence)) == 100
    assert find_end(make_view("one", first_silence), make_view("two")) is None
    assert find_end(make_view("one")) is None
    assert find_end() is None


def test_unanswered_peer_is_ignored_and_last_answer_is_used() -> None:
    first_silence = make_silence("a")
    unanswered_view = PeerView(peer="two", error="cannot be reached")

    assert find_end(make_view("one", first_silence), unanswered_view) == 100
    assert find_end(unanswered_view) is None
    assert find_end(make_view("one", first_silence, error="cannot be reached")) == 100
    assert (
        describe_unknown_peers([make_view("one", first_silence), unanswered_view]) == "two cannot be reached"
    )


def test_expired_or_pending_silence_does_not_apply() -> None:
    assert find_end(make_view("one", make_silence("a", ends=50))) is None
    assert find_end(make_view("one", make_silence("a", starts=51))) is None
    assert find_end(make_view("one", make_silence("a"), labels=make_alert_labels(reminder="1"))) is None


def test_texts_from_alertmanager_are_masked_and_on_one_line() -> None:
    silence_json: dict[str, Any] = {
        "id": "1",
        "status": {"state": "active"},
        "matchers": [{"name": "agent", "value": 'a"b', "isRegex": True, "isEqual": False}],
        "startsAt": "2026-01-01T00:00:00.000Z",
        "endsAt": "2026-01-01T01:00:00.000Z",
        "createdBy": "a\x1b[2Jda",
        "comment": "key sk-" + "a1B2" * 12 + "\nsecond line",
    }
    ended_json = silence_json | {"id": "2", "status": {"state": "expired"}}

    [parsed_silence] = read_answers(json.dumps([silence_json, ended_json]).encode(), b"[]").silences

    assert "a1B2" not in parsed_silence.comment
    assert "\n" not in parsed_silence.comment
    assert parsed_silence.by.isprintable()
    assert parsed_silence.matchers == ('agent!~"a\\"b"',)
    assert parsed_silence.ends_at - parsed_silence.starts_at == 3600


@given(st.one_of(st.binary(max_size=50), st.sampled_from([b"{}", b"[1]", b'[{"id": 1}]', b"null"])))
def test_invalid_lists_are_rejected(body: bytes) -> None:
    with pytest.raises(InvalidAnswerError):
        read_answers(body, b"[")


async def test_other_server_is_unknown(peer: ServedPeer, store: Store) -> None:
    async with make_watch(store, now, peer.url) as (watch, _):
        await watch.read_peers()
        assert "other than lists of silences and alerts" in watch.unknown
        assert watch.silences() == []
    async with make_watch(store, now) as (watch, _):
        await watch.read_peers()
        assert watch.unknown == ""
        with pytest.raises(NoPeerError):
            await watch.expire("x")


async def test_unresponsive_peer_is_polled_again_soon(
    peer: ServedPeer, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("queenright.alerting.silencing.RETRY_SECONDS", 0.01)
    peer.peer.response_body = b"starting"
    async with make_watch(store, now, peer.url) as (watch, _):
        polling_task = asyncio.create_task(watch.run())
        await until(lambda: "other than" in watch.unknown, "the peer was polled")

        peer.peer.response_body = b"[]"

        await until(lambda: not watch.unknown, "the peer was polled again", seconds=10)
        polling_task.cancel()
        await asyncio.gather(polling_task, return_exceptions=True)
