"""The gateway: a fleet in three partitions responds like a fleet in one partition."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import itertools
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, Final
from zlib import crc32

import httpx
import pytest
from httpx import ASGITransport
from starlette.types import ASGIApp, Receive, Scope, Send

from queenright.api.attention import AttentionItem
from queenright.api.examples import make_example
from queenright.runtime.events import AgentEvent
from queenright.server.app import create_app
from queenright.server.cluster.gateway.gateway import Gateway
from queenright.server.cluster.gateway.pages import RowOrderMiddleware
from queenright.server.cluster.gateway.summaries import Json, get_merge, merge_fields
from queenright.server.http.problems import make_problem_response
from queenright.server.service import Service
from queenright.server.serving import run_service
from tests.server.conftest import demo_settings, looping
from tests.server.test_fleet_list import make_run

PARTITIONS: Final = 3
AGENTS: Final = 40
_URL: Final = "http://127.0.0.1:8420"


def find_partition(agent_id: str, namespace: str = "") -> int:
    return crc32(f"{namespace}{agent_id}".encode()) % PARTITIONS


async def unowned_app(scope: Scope, receive: Receive, send: Send) -> None:
    await make_problem_response(503, "no process monitors the workers")(scope, receive, send)


async def skip_sleep(seconds: float) -> None:
    await asyncio.sleep(0)


def make_gateway(apps: Callable[[], Sequence[ASGIApp | None]]) -> Gateway:
    """Return a gateway that does not sleep between attempts."""
    return Gateway(apps, find_partition, unowned_app, clock=itertools.count().__next__, sleep=skip_sleep)


@contextlib.asynccontextmanager
async def run_demo_service(storage: Path) -> AsyncIterator[tuple[Service, ASGIApp]]:
    settings = demo_settings(storage)
    async with run_service(settings, "http://127.0.0.1:4318") as service:
        yield service, RowOrderMiddleware(create_app(service, bind_address="127.0.0.1"))


def make_client(app: ASGIApp) -> httpx.AsyncClient:
    transport = ASGITransport(app, client=("127.0.0.1", 50_000))
    return httpx.AsyncClient(transport=transport, base_url=_URL, timeout=60)


@dataclasses.dataclass
class Fleets:
    """The same agents in one service, and in three services behind a gateway."""

    single_client: httpx.AsyncClient
    gateway_client: httpx.AsyncClient
    services: Sequence[Service]
    apps: list[ASGIApp | None]
    gateway: Gateway


@pytest.fixture
async def fleets(tmp_path: Path) -> AsyncIterator[Fleets]:
    async with contextlib.AsyncExitStack() as stack:
        single_service, single_app = await stack.enter_async_context(run_demo_service(tmp_path / "one"))
        partition_services = [
            await stack.enter_async_context(run_demo_service(tmp_path / str(n))) for n in range(PARTITIONS)
        ]
        apps: list[ASGIApp | None] = [app for _, app in partition_services]
        gateway = make_gateway(lambda: apps)
        clock_time = single_service.clock()
        events = list(make_fleet_events(clock_time))
        await single_service.ingest(events)
        for number, (service, _) in enumerate(partition_services):
            await service.ingest([event for event in events if find_partition(event.agent_id) == number])
        yield Fleets(
            await stack.enter_async_context(make_client(single_app)),
            await stack.enter_async_context(make_client(gateway)),
            [service for service, _ in partition_services],
            apps,
            gateway,
        )


def make_fleet_events(now: float) -> Iterator[AgentEvent]:
    yield from itertools.chain.from_iterable(make_run(number, now) for number in range(AGENTS))
    for number in range(6):
        yield from looping(now, agent=f"looper-{number}")


def make_incident_part(opened_at: float, *names: str, **fields: Any) -> Json:
    """Return a partition's part of an incident. Its tickets were opened at intervals of one second."""
    agents = {name: opened_at + number for number, name in enumerate(names)}
    ticket_ids = [f"ticket-{opened_time:.0f}" for opened_time in agents.values()]
    return {
        "incident_id": ticket_ids[0],
        "cause": "provider:anthropic",
        "group": "provider:anthropic",
        "opened_at": opened_at,
        "severity": "high",
        "workers": len(names),
        "ticket_ids": ticket_ids,
        "agents": agents,
        "text": f"{names[0]} fails",
        "text_at": opened_at,
        "open_tickets": len(names),
        "closed_at": None,
        "is_handled": True,
        "can_acknowledge": False,
        **fields,
    }


ENDED_PART: Final = {
    "open_tickets": 0,
    "text": "",
    "text_at": None,
    "is_handled": False,
    "can_acknowledge": True,
}
"""An unacknowledged part whose sessions have ended."""


def list_attention_items(*incidents: Json) -> list[Json]:
    """Merge one partition response per incident part, and return the attention items."""
    responses = [{"items": [], "total": 0, "incidents": [incident]} for incident in incidents]
    response = get_merge("/api/attention")(responses)
    items: list[Json] = response["items"]
    assert response["total"] == len(items)
    return items


def test_incident_of_several_partitions_names_its_first_twenty_agents() -> None:
    """An agent with sessions in several partitions is listed once."""
    bees, wasps = [f"bee-{number}" for number in range(24)], ["bee-0", "wasp-0", "wasp-1"]

    [item] = list_attention_items(make_incident_part(10, *bees), make_incident_part(5, *wasps))

    assert item["agents"] == [*wasps, *bees[1:18]]
    assert (item["agents_more"], item["workers"], item["since"]) == (6, 27, 5)
    assert item["item_id"] == item["ticket_id"] == "ticket-5"
    assert (item["title"], item["text"]) == ("Model provider anthropic", "bee-0 fails")


def test_ticket_of_a_cross_partition_incident_is_not_a_separate_item() -> None:
    tickets = [
        make_example(AttentionItem) | {"kind": "ticket", "item_id": ticket_id, "ticket_id": ticket_id}
        for ticket_id in ("ticket-5", "ticket-7")
    ]
    other_fields = {"cause": "tool:search", "group": "tool:search"}
    responses: list[Json] = [
        {
            "items": [],
            "total": 300,
            "tickets": tickets,
            "incidents": [make_incident_part(5, "a"), make_incident_part(7, "a", **other_fields)],
        },
        {"items": [], "total": 0, "incidents": [make_incident_part(6, "b")]},
    ]

    response = get_merge("/api/attention")(responses)
    of_agent = get_merge("/api/attention")([part | {"has_incident_items": False} for part in responses])

    assert {item["item_id"]: item["kind"] for item in response["items"]} == {
        "ticket-5": "incident",
        "ticket-7": "ticket",
    }
    assert response["total"] == 302
    assert [item["item_id"] for item in of_agent["items"]] == ["ticket-7"]
    assert of_agent["total"] == 301


@pytest.mark.parametrize(
    ("first_part", "second_part", "text"),
    [
        ({"text": "", "text_at": None}, {}, "b fails"),
        ({"text": "", "text_at": None}, {"text": "", "text_at": None}, None),
        ({"text": "", "text_at": None}, ENDED_PART, None),
        (ENDED_PART, {}, "b fails"),
        (ENDED_PART, ENDED_PART, "All workers of this incident have ended. Nobody has acknowledged it."),
        (ENDED_PART | {"closed_at": 5.5}, {}, None),
    ],
    ids=[
        "acknowledged",
        "both acknowledged",
        "acknowledged and ended",
        "ended",
        "both ended",
        "closed before",
    ],
)
def test_incident_of_several_partitions_needs_attention(
    first_part: Json, second_part: Json, text: str | None
) -> None:
    """
    The incident needs attention while an open ticket is unacknowledged, or if all its workers have ended and
    nobody has acknowledged it.
    """
    items = list_attention_items(
        make_incident_part(5, "a", **first_part), make_incident_part(6, "b", **second_part)
    )

    assert [item["text"] for item in items] == ([] if text is None else [text])


def test_attention_response_of_an_older_version_is_merged() -> None:
    """Such responses occur during an upgrade."""
    incident = make_example(AttentionItem) | {"kind": "incident", "item_id": "ticket-1", "since": 1.0}
    responses = [
        {"items": [incident], "total": 1},
        {"items": [], "total": 0, "incidents": [make_incident_part(5, "a")]},
    ]

    assert get_merge("/api/attention")(responses) == {"items": [incident], "total": 1}


def test_notice_of_several_partitions_is_shown_once() -> None:
    """It is also shown if the first partition does not report it."""
    notices: list[list[str]] = [[], ["The rules replace the judge."], ["The rules replace the judge."]]

    assert merge_fields([{"notices": partition_notices} for partition_notices in notices]) == {
        "notices": notices[1]
    }


async def read_all_pages(
    http: httpx.AsyncClient, path: str, name: str, **params: Any
) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = []
    while True:
        response = await http.get(path, params=params)
        assert response.status_code == 200, response.text
        page = response.json()
        rows += page[name]
        if page["next"] is None:
            return rows
        params["cursor"] = page["next"]


async def test_pages_of_agents_equal_those_of_one_service(fleets: Fleets) -> None:
    for sort in ("attention", "agent", "-agent", "progress", "-cost", "tokens"):
        expected_rows = [
            row["session_id"]
            for row in await read_all_pages(
                fleets.single_client, "/api/agents", "agents", sort=sort, limit=100
            )
        ]
        assert len(expected_rows) == AGENTS + 6
        for limit in (1, 7, 1000):
            rows = await read_all_pages(
                fleets.gateway_client, "/api/agents", "agents", sort=sort, limit=limit
            )
            assert [row["session_id"] for row in rows] == expected_rows, sort


async def test_list_waits_for_a_partition_that_is_being_handed_over(fleets: Fleets) -> None:
    """B120: a rolling upgrade causes no error."""
    request_numbers = itertools.count()
    handed_over = [*fleets.apps[:1], None, *fleets.apps[2:]]
    gateway = make_gateway(lambda: handed_over if next(request_numbers) < 3 else fleets.apps)
    async with make_client(gateway) as http:
        assert (await http.get("/api/agents")).json()["total"] == AGENTS + 6


async def test_agent_with_sessions_in_several_partitions_is_shown_completely(fleets: Fleets) -> None:
    clock_time = fleets.services[0].clock()
    for number, service in enumerate(fleets.services):
        events = (
            dataclasses.replace(event, session_id=f"s{number}")
            for event in looping(clock_time, agent="team/a")
        )
        await service.ingest(list(events))
    detail = (await fleets.gateway_client.get("/api/agents/team%2Fa")).json()
    assert sorted(row["session_id"] for row in detail["sessions"]) == ["s0", "s1", "s2"]


async def test_heartbeat_of_a_new_worker_reaches_the_partition_of_its_telemetry(fleets: Fleets) -> None:
    """
    B116: otherwise the worker would exist twice, and the worker that the heartbeats created would become
    silent.
    """
    for number in range(9):
        beat = {"agent_id": f"early-{number}", "session_id": "s", "serviceName": f"shop-{number}"}
        if number % 2:
            beat["serviceNamespace"] = "eu"
        assert (await fleets.gateway_client.post("/api/heartbeats", json=beat)).status_code == 202
        namespace = beat.get("serviceNamespace", "")
        services_with_worker = [
            service.monitor.get(f"early-{number}") is not None for service in fleets.services
        ]
        assert services_with_worker.index(True) == find_partition(f"shop-{number}", namespace)
        assert sum(services_with_worker) == 1


async def test_heartbeat_without_a_session_belongs_to_the_latest_session(fleets: Fleets) -> None:
    """This holds whichever partition knows an older session of the agent."""
    for latest_partition in range(PARTITIONS):
        agent = f"courier-{latest_partition}"
        for number in sorted(range(PARTITIONS), key=latest_partition.__eq__):
            events = looping(fleets.services[0].clock(), agent=agent)
            await fleets.services[number].ingest(
                [dataclasses.replace(event, session_id=f"s{number}") for event in events]
            )

        assert (
            await fleets.gateway_client.post("/api/heartbeats", json={"agent_id": agent})
        ).status_code == 202

        accepting_partitions = []
        for app in fleets.apps:
            assert app is not None
            async with make_client(app) as http:
                accepting_partitions.append(
                    (await http.get(f"/api/agents/{agent}/heartbeat")).status_code == 200
                )
        assert accepting_partitions == [number == latest_partition for number in range(PARTITIONS)]
