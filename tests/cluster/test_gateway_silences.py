"""Silences of a fleet whose partitions share a real Alertmanager."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import httpx
import pytest
from starlette.types import ASGIApp

from queenright.server.app import create_app
from queenright.server.cluster.gateway.pages import RowOrderMiddleware
from queenright.server.cluster.gateway.summaries import get_merge
from queenright.server.service import Service
from queenright.server.serving import run_service
from tests.alerting.real import real_alertmanager, run_receivers
from tests.cluster.test_gateway import make_client, make_gateway
from tests.server.conftest import demo_settings, looping
from tests.waiting import until

ALL_ALERTS = {"name": "alertname", "value": ".+", "isRegex": True, "isEqual": True}


class Fleet(NamedTuple):
    """Two partitions with one ticket each, and their silences."""

    services: Sequence[Service]
    apps: list[ASGIApp | None]
    http: httpx.AsyncClient
    alertmanager_url: str

    async def silence_all(self) -> str:
        """Silence all alerts in Alertmanager, and return the id of the silence."""
        body = {
            "matchers": [ALL_ALERTS],
            "startsAt": "2020-01-01T00:00:00Z",
            "endsAt": "2100-01-01T00:00:00Z",
            "createdBy": "ada",
            "comment": "maintenance",
        }
        async with httpx.AsyncClient(trust_env=False) as http:
            response = await http.post(f"{self.alertmanager_url}/api/v2/silences", json=body)
        return str(response.json()["silenceID"])

    async def list_silences(self) -> dict[str, Any]:
        response: dict[str, Any] = (await self.http.get("/api/silences")).json()
        return response

    async def read_until_silenced(self) -> list[str]:
        """Wait until each partition has read that its ticket is silenced, and return the tickets."""
        tickets = []
        for service in self.services:
            [ticket] = service.tickets.open_tickets()
            while service.silences.find_silence(ticket.ticket_id) is None:
                await service.silences.read_notifications()
                await service.silences.read_peers()
            tickets.append(ticket.ticket_id)
        return sorted(tickets)


@pytest.fixture
async def fleet(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Fleet]:
    # A partition reads the silences only when a test asks for it.
    monkeypatch.setattr("queenright.alerting.silencing.POLL_SECONDS", 3600)
    async with contextlib.AsyncExitStack() as stack:
        recorder = await stack.enter_async_context(run_receivers())
        alertmanager = await stack.enter_async_context(real_alertmanager(tmp_path / "am", recorder))
        services: list[Service] = []
        apps: list[ASGIApp | None] = []
        for number in range(2):
            alerting_settings = demo_settings(tmp_path / str(number))
            alerting_block = alerting_settings.alerting.model_copy(
                update={"alertmanager_urls": (alertmanager.url,)}
            )
            settings = alerting_settings.model_copy(update={"alerting": alerting_block})
            service = await stack.enter_async_context(run_service(settings, "http://127.0.0.1:4318"))
            await service.ingest(list(looping(service.clock(), agent=f"looper-{number}")))
            services.append(service)
            apps.append(RowOrderMiddleware(create_app(service, bind_address="127.0.0.1")))
        count_posts = recorder.count_messages
        await until(lambda: count_posts("looper-0") and count_posts("looper-1"), "each ticket is notified")
        http = await stack.enter_async_context(make_client(make_gateway(lambda: apps)))
        yield Fleet(services, apps, http, alertmanager.url)


async def test_silence_lists_the_tickets_of_all_partitions(fleet: Fleet) -> None:
    silence_id = await fleet.silence_all()
    tickets = await fleet.read_until_silenced()

    silences = await fleet.list_silences()

    [silence] = silences["silences"]
    assert (silence["silence_id"], silence["tickets"]) == (silence_id, tickets)
    assert (silence["comment"], silence["peers"]) == ("maintenance", [fleet.alertmanager_url])
    [peer] = silences["peers"]
    assert (peer["peer"], peer["error"], silences["unknown"]) == (fleet.alertmanager_url, None, "")
    assert peer["read_at"] == min(
        view.read_at or 0.0
        for partition_service in fleet.services
        for view in partition_service.silences.views()
    )


async def test_expired_silence_disappears_before_other_partitions_poll(fleet: Fleet) -> None:
    """
    Each partition polls Alertmanager twice a minute, but a partition that expires a silence updates at once.
    """
    silence_id = await fleet.silence_all()
    await fleet.read_until_silenced()

    assert (await fleet.http.delete(f"/api/silences/{silence_id}")).status_code == 204

    assert len(fleet.services[1].silences.silences()) == 1
    assert (await fleet.list_silences())["silences"] == []


async def test_peer_that_one_partition_cannot_reach_is_unknown(fleet: Fleet) -> None:
    """The silence may match tickets of that partition too."""
    await fleet.silence_all()
    await fleet.read_until_silenced()
    [view] = fleet.services[1].silences._views
    fleet.services[1].silences._views = [type(view)(peer=view.peer, error="cannot be reached")]

    silences = await fleet.list_silences()

    assert silences["unknown"] == f"{fleet.alertmanager_url} cannot be reached"
    assert [(peer["read_at"], peer["error"]) for peer in silences["peers"]] == [(None, "cannot be reached")]
    assert [len(silence["tickets"]) for silence in silences["silences"]] == [1]


def test_silence_has_the_most_recently_read_end() -> None:
    """The silence was extended after the first partition had read it."""

    def make_response(read_at: float, ends_at: float, ticket_id: str) -> dict[str, Any]:
        silence = {"silence_id": "s", "ends_at": ends_at, "peers": ["am"], "tickets": [ticket_id]}
        return {"peers": [{"peer": "am", "read_at": read_at, "error": None}], "silences": [silence]}

    merge = get_merge("/api/silences")
    responses = [make_response(10.0, 100.0, "t1"), make_response(20.0, 5000.0, "t2")]

    for values in (responses, responses[::-1]):
        [row] = merge(values)["silences"]
        assert row == {"silence_id": "s", "ends_at": 5000.0, "peers": ["am"], "tickets": ["t1", "t2"]}
