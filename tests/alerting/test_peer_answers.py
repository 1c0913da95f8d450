"""Invalid responses in place of Alertmanager's are cheap to read and never mean "no silences"."""

from __future__ import annotations

import gzip
import json
from collections.abc import AsyncIterator, Callable, Coroutine
from typing import Any

import pytest

from queenright.alerting.alertmanager import (
    MAX_LIST_BYTES,
    AlertmanagerClient,
    PeerUnavailableError,
    PostedAlert,
)
from queenright.alerting.peer import PeerAddress
from queenright.alerting.peer_silences import (
    MAX_ITEMS,
    InvalidAnswerError,
    NewSilence,
    PeerSilences,
    read_answers,
)
from queenright.alerting.settings import AlertingSettings
from queenright.alerting.silencing import SilenceWatch
from queenright.health.store.store import Store
from tests.alerting.conftest import ServedPeer
from tests.alerting.parts import T0

ApiCall = Callable[[AlertmanagerClient, PeerAddress], Coroutine[Any, Any, object]]

ALERT = PostedAlert(labels={"agent": "a"}, annotations={}, starts_at=T0, ends_at=T0 + 60)
SILENCE = NewSilence(labels={"agent": "a"}, by="ada", comment="c", starts_at=T0, ends_at=T0 + 60)
LIST_CALLS: dict[str, ApiCall] = {
    "silences": lambda client, peer: client.silences(peer),
    "alerts": lambda client, peer: client.alerts(peer),
    "status": lambda client, peer: client.status(peer),
    "silence": lambda client, peer: client.silence(peer, SILENCE),
}


@pytest.fixture
async def client() -> AsyncIterator[AlertmanagerClient]:
    new_client = AlertmanagerClient()
    yield new_client
    await new_client.aclose()


INVALID_RESPONSES = {
    "nothing": b"",
    "html": b"<html>Log in</html>",
    "null": b"null",
    "list": b"[1]",
    "number": b'{"silenceID": 7}',
    "labels": b'[{"labels": 1}]',
    "deep": b"[" * 50_000,
}


@pytest.mark.parametrize(
    ("call", "description"),
    [
        pytest.param(call, description, id=f"{call}-{name}")
        for call in LIST_CALLS
        for name, description in INVALID_RESPONSES.items()
        # An object, as a status is.
        if (call, name) != ("status", "number")
    ],
)
async def test_invalid_response_is_described(
    peer: ServedPeer, client: AlertmanagerClient, call: str, description: bytes
) -> None:
    peer.peer.response_body = description

    with pytest.raises(
        PeerUnavailableError, match=f"^Alertmanager {peer.url}: answered something other than "
    ):
        await LIST_CALLS[call](client, PeerAddress.parse(peer.url))


@pytest.mark.parametrize("call", [*LIST_CALLS, "post"])
async def test_endless_answer_is_read_up_to_a_limit(
    peer: ServedPeer, client: AlertmanagerClient, call: str
) -> None:
    peer.peer.response_body, peer.peer.is_endless = b'[{"id":"x"},' * 10_000, True

    async def post_alert(client: AlertmanagerClient, peer: PeerAddress) -> None:
        await client.post_alerts(peer, [ALERT])

    call_api: ApiCall = LIST_CALLS.get(call, post_alert)
    with pytest.raises(PeerUnavailableError, match=r"answered with more than \d+ KiB"):
        await call_api(client, PeerAddress.parse(peer.url))


async def test_large_response_is_unknown(peer: ServedPeer, store: Store) -> None:
    client = AlertmanagerClient()
    settings = AlertingSettings(alertmanager_urls=(peer.url,))
    watch = SilenceWatch(store, settings, client, clock=lambda: T0)
    for oversized_body in (
        b"[" + b'{"id":"x"},' * 2_000_000 + b"{}]",
        b"[" + b'{"id":"x"},' * 200_000 + b"{}]",
    ):
        peer.peer.response_body = oversized_body
        await watch.read_peers()
        assert watch.unknown.startswith(f"{peer.url} answer")
        assert watch.views()[0].answer is None
    peer.peer.response_body = b"[]"
    await watch.read_peers()
    assert (watch.unknown, watch.silences()) == ("", [])
    await client.aclose()


async def test_compressed_response_is_not_expanded(peer: ServedPeer, client: AlertmanagerClient) -> None:
    peer.peer.response_body = gzip.compress(b"[" + b" " * 10 * MAX_LIST_BYTES + b"]")
    peer.peer.extra_headers = [(b"content-encoding", b"gzip")]

    with pytest.raises(PeerUnavailableError, match="lists of silences"):
        await client.silences(PeerAddress.parse(peer.url))


async def test_login_page_does_not_accept_alerts(peer: ServedPeer, client: AlertmanagerClient) -> None:
    """Otherwise nobody would be notified, and nothing would show it."""
    peer.peer.response_body, peer.peer.content_type = b"<html>Log in</html>", b"Text/HTML; charset=utf-8"
    address = PeerAddress.parse(peer.url)

    with pytest.raises(PeerUnavailableError, match="answered with a web page"):
        await client.post_alerts(address, [ALERT])


def make_silence(number: int) -> dict[str, Any]:
    return {
        "id": str(number),
        "status": {"state": "active"},
        "matchers": [],
        "startsAt": "2026-01-01T00:00:00Z",
        "endsAt": "2026-01-01T01:00:00Z",
    }


def test_response_with_too_many_items_is_refused() -> None:
    longest_list = json.dumps([make_silence(number) for number in range(MAX_ITEMS)]).encode()
    oversized_list = json.dumps([make_silence(number) for number in range(MAX_ITEMS + 1)]).encode()

    assert len(read_answers(longest_list, b"[]").silences) == MAX_ITEMS
    with pytest.raises(InvalidAnswerError, match=f"at most {MAX_ITEMS:,}"):
        read_answers(oversized_list, b"[]")


def test_first_of_several_faults_is_named() -> None:
    with pytest.raises(InvalidAnswerError, match=r"^0\.status: "):
        read_answers(b'[{"id":"x"},{"id":1}]', b"[]")


def test_empty_answer_silences_nothing() -> None:
    assert read_answers(b"[]", b"[]") == PeerSilences()
