"""The gateway's responses for three partitions equal those of one service with the same agents."""

from __future__ import annotations

import contextlib
import re
from collections.abc import AsyncIterator, Sequence
from typing import Any, Final

import httpx
import pytest
import pytest_asyncio
from fastapi.routing import iter_route_contexts
from starlette.types import ASGIApp

from queenright.health.breakers.circuit_breaker import CircuitOpenError
from queenright.server.app import create_routes
from queenright.server.cluster.gateway.gateway import Gateway
from queenright.server.cluster.gateway.kinds import RouteKind, classify_route
from tests.cluster.test_gateway import (
    PARTITIONS,
    Fleets,
    find_partition,
    make_client,
    make_gateway,
    read_all_pages,
    run_demo_service,
    unowned_app,
)
from tests.server.conftest import looping
from tests.server.test_fleet_list import make_run

pytestmark = pytest.mark.asyncio(loop_scope="module")

LOOPERS: Final = tuple(
    next(name for number in range(99) if find_partition(name := f"looper-{number}") == partition)
    for partition in range(PARTITIONS)
)
"""One in each partition, which is too few for a storm."""
_LOOPER: Final = LOOPERS[-1]
_WORKER: Final = f"/api/agents/{_LOOPER}"

ROUTES: Final = {
    RouteKind.SUMMARY: "status telemetry attention incidents providers silences breakers/x",
    RouteKind.PAGE: "agents agents/health agents/x/escalations agents/x/history approvals audit breakers"
    " escalations interventions judge/checks notifications permissions recoveries tickets",
    RouteKind.STREAM: "events agents/x/events",
    RouteKind.FIRST: "discover POST:agents",
    RouteKind.HEARTBEAT: "POST:heartbeats",
    RouteKind.POLL: "agents/x/instructions",
    RouteKind.CLICK: "POST:slack/actions",
    RouteKind.ALL: "POST:/-/reload POST:alertmanager/webhook"
    " POST:alertmanager/notifications POST:pagerduty/webhook POST:breakers/x/reset",
    RouteKind.AGENT: "agents/x",
    RouteKind.ANY: "/healthz /readyz /metrics /openapi.json /docs version caller settings cluster"
    " POST:deadman /login POST:/login POST:/logout emergency-stop PUT:emergency-stop",
}
"""The API's routes by kind, except those of one ticket, agent and so on; GET unless a method is given."""
_FIND: Final = re.compile(
    r"/api/(tickets|approvals|escalations|permissions|recoveries|silences)(/x.*)?|/api/recoveries"
)


def list_routes() -> list[tuple[str, str]]:
    """Return the method and path of each route."""
    return [
        (method, re.sub(r"\{\w+(:\w+)?\}", "x", route.path or ""))
        for route in iter_route_contexts(create_routes().routes)
        for method in sorted((route.methods or set()) - {"HEAD"})
    ]


def find_expected_kind(method: str, path: str) -> RouteKind | None:
    for kind, paths in ROUTES.items():
        for entry in paths.split():
            entry_method, _, name = entry.rpartition(":")
            if (entry_method or "GET", name if name.startswith("/") else f"/api/{name}") == (method, path):
                return kind
    if path.startswith("/api/agents/x"):
        return RouteKind.SESSION
    if _FIND.fullmatch(path):
        return RouteKind.FIND
    # Pages belong to the console or redirect to it.
    return None if path.startswith(("/api/", "/-/")) and path != "/api/" else RouteKind.ANY


async def test_every_route_has_a_kind() -> None:
    """A new API route must be added to this table and to the gateway."""
    for method, path in list_routes():
        assert classify_route(method, path) is find_expected_kind(method, path), (method, path)


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def fleets(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Fleets]:
    folder = tmp_path_factory.mktemp("fleets")
    async with contextlib.AsyncExitStack() as stack:
        single_service, one_app = await stack.enter_async_context(run_demo_service(folder / "one"))
        partition_services = [
            await stack.enter_async_context(run_demo_service(folder / str(n))) for n in range(PARTITIONS)
        ]
        apps = [app for _, app in partition_services]
        clock_time = single_service.clock()
        events = [event for number in range(20) for event in make_run(number, clock_time)]
        events += [event for name in LOOPERS for event in looping(clock_time, agent=name)]
        await single_service.ingest(events)
        for number, (service, _) in enumerate(partition_services):
            await service.ingest([event for event in events if find_partition(event.agent_id) == number])
        gateway = Gateway(lambda: apps, find_partition, unowned_app)
        fleets = Fleets(
            await stack.enter_async_context(make_client(one_app)),
            await stack.enter_async_context(make_client(gateway)),
            [service for service, _ in partition_services],
            list(apps),
            gateway,
        )
        for http in (fleets.single_client, fleets.gateway_client):
            await wait_for_decisions(http)
        yield fleets


async def wait_for_decisions(http: httpx.AsyncClient) -> None:
    """Wait until all tickets are decided and notified, because responses change until then."""
    while not await is_decided(http):
        pass


async def is_decided(http: httpx.AsyncClient) -> bool:
    notifications = (await http.get("/api/notifications")).json()["notifications"]
    tickets = (await http.get("/api/tickets")).json()["tickets"]
    decided_tickets = [ticket for ticket in tickets if ticket["triaged_at"] is not None]
    return len(notifications) == len(decided_tickets) == len(LOOPERS)


def normalize_response(value: Any) -> Any:
    """Return a response without the values that differ between services: times, ages and generated ids."""
    if isinstance(value, dict):
        return {
            name: normalize_response(field)
            for name, field in value.items()
            if name not in ("seq", "id", "hash")
        }
    if isinstance(value, list):
        return [normalize_response(item) for item in value]
    if isinstance(value, float):
        return "number"
    if isinstance(value, str):
        value = re.sub(r"[0-9a-f]{8}-?[0-9a-f]{4}-?[0-9a-f]{4}-?[0-9a-f]{4}-?[0-9a-f]{12}", "id", value)
        value = re.sub(r", seen \d+ times", "", value)
        return re.sub(r"\d+(:\d\d)* (s|min|UTC)\b|\d\d:\d\d(:\d\d)? UTC", "time", value)
    return value


@pytest.mark.parametrize(
    "path",
    [
        "/api/agents",
        "/api/agents?state=healthy",
        "/api/agents/health",
        "/api/interventions",
        "/api/escalations",
        "/api/approvals",
        "/api/permissions",
        "/api/recoveries",
        "/api/incidents",
        f"/api/attention?session_id={_LOOPER}-session&agent_id={_LOOPER}",
        "/api/telemetry",
        "/api/silences",
        "/api/version",
        "/api/caller",
        "/api/emergency-stop",
        _WORKER,
        f"{_WORKER}/health",
        f"{_WORKER}/health?session_id={_LOOPER}-session",
        f"{_WORKER}/history",
        f"{_WORKER}/history?limit=3",
        f"{_WORKER}/steps",
        f"{_WORKER}/heartbeat",
        f"{_WORKER}/stats",
        f"{_WORKER}/entry-points",
        "/api/agents/nobody",
        "/api/agents/nobody/health",
        "/api/agents/nobody/history",
        f"{_WORKER}/health?session_id=none",
        "/api/tickets/none",
        "/api/tickets/none/timeline",
        "/api/breakers/none",
        "/api/recoveries/none",
        "/api/agents?limit=0",
        "/api/agents?cursor=none",
        "/api/agents?sort=none",
        "/api/tickets?status=none",
        "/api/none",
        "/openapi.json",
    ],
)
async def test_response_equals_that_of_one_service(fleets: Fleets, path: str) -> None:
    """B120: this holds for every route."""
    single_response, gateway_response = (
        await fleets.single_client.get(path),
        await fleets.gateway_client.get(path),
    )

    assert (gateway_response.status_code, gateway_response.headers["content-type"]) == (
        single_response.status_code,
        single_response.headers["content-type"],
    )
    assert normalize_response(gateway_response.json()) == normalize_response(single_response.json())
    assert set(gateway_response.headers) == set(single_response.headers)


@pytest.mark.parametrize("path", ["/", "/console", "/docs", "/login", f"/agents/{_LOOPER}", "/tickets/none"])
async def test_page_equals_that_of_one_service(fleets: Fleets, path: str) -> None:
    page = {"Accept": "text/html"}
    single_response, gateway_response = (
        await fleets.single_client.get(path, headers=page),
        await fleets.gateway_client.get(path, headers=page),
    )

    assert (gateway_response.status_code, gateway_response.headers.get("location")) == (
        single_response.status_code,
        single_response.headers.get("location"),
    )
    assert gateway_response.text == single_response.text


@pytest.mark.parametrize("name", ["tickets", "notifications"])
async def test_rows_of_several_partitions_equal_those_of_one_service(fleets: Fleets, name: str) -> None:
    """The order of the judges' decisions is arbitrary."""
    for http in (fleets.single_client, fleets.gateway_client):
        rows = (await http.get(f"/api/{name}")).json()[name]
        assert sorted(row["agent_id"] for row in rows) == sorted(LOOPERS)


async def test_ticket_of_any_partition_is_found(fleets: Fleets) -> None:
    for ticket in (await fleets.gateway_client.get("/api/tickets")).json()["tickets"]:
        path = f"/api/tickets/{ticket['ticket_id']}"
        assert (await fleets.gateway_client.get(path)).json()["agent_id"] == ticket["agent_id"]
        assert (await fleets.gateway_client.get(f"{path}/timeline")).status_code == 200
        response = await fleets.gateway_client.post(f"{path}/acknowledge", json={"by": "ada"})
        assert (response.status_code, response.json()["acknowledged_by"]) == (200, "ada")


@pytest.mark.parametrize(
    ("name", "path"),
    [
        ("agents", "/api/agents"),
        ("agents", "/api/agents?sort=-agent"),
        ("tickets", "/api/tickets"),
        ("notifications", "/api/notifications"),
        ("breakers", "/api/breakers"),
        ("history", f"{_WORKER}/history"),
        ("tickets", f"{_WORKER}/escalations"),
        ("events", "/api/audit?type=execution_started"),
    ],
)
@pytest.mark.parametrize("limit", range(1, 8))
async def test_pages_of_any_size_contain_all_rows(fleets: Fleets, name: str, path: str, limit: int) -> None:
    path, _, query = path.partition("?")
    parameters = dict(pair.split("=") for pair in query.split("&") if pair)
    full_list = (await fleets.gateway_client.get(path, params=parameters)).json()
    pages = await list_pages(fleets.gateway_client, path, name, parameters | {"limit": str(limit)})

    is_backwards = path.endswith("/history")
    rows = [row for page in (pages[::-1] if is_backwards else pages) for row in page]
    assert full_list["next"] is None
    assert [get_row_id(row) for row in rows] == [get_row_id(row) for row in full_list[name]]
    assert rows
    assert all(len(page) == limit for page in pages[:-1])


async def list_pages(
    http: httpx.AsyncClient, path: str, name: str, parameters: dict[str, str]
) -> Sequence[list[dict[str, Any]]]:
    pages: list[list[dict[str, Any]]] = []
    while True:
        response = await http.get(path, params=parameters)
        assert response.status_code == 200, response.text
        pages.append(response.json()[name])
        if response.json()["next"] is None:
            return pages
        parameters = parameters | {"cursor": response.json()["next"]}


def get_row_id(row: dict[str, Any]) -> Any:
    return [row.get(name) for name in ("id", "ticket_id", "agent_id", "session_id", "name", "seq")]


async def test_audit_log_merges_the_rows_of_all_partitions_in_order(fleets: Fleets) -> None:
    partition_rows = [
        await read_all_pages(http, "/api/audit", "events", limit=50)
        for http in (fleets.gateway_client, *map(list_audit_rows, fleets.apps))
    ]
    merged_ids = [row["id"] for row in partition_rows[0]]

    assert len(set(merged_ids)) == len(merged_ids)
    for number, rows in enumerate(partition_rows[1:]):
        # Newer rows are listed first.
        ids = [row["id"] for row in rows if row["id"] in set(merged_ids)]
        assert len(ids) > 20
        assert [id_ for id_ in merged_ids if id_ in set(ids)] == ids
        assert {row["partition"] for row in partition_rows[0] if row["id"] in set(ids)} == {number}


def list_audit_rows(app: ASGIApp | None) -> httpx.AsyncClient:
    assert app is not None
    return make_client(app)


async def test_unowned_partition_makes_lists_fail_but_not_sessions_of_others(fleets: Fleets) -> None:
    unowned_number = (find_partition(_LOOPER) + 1) % PARTITIONS
    apps = [None if number == unowned_number else app for number, app in enumerate(fleets.apps)]
    async with make_client(make_gateway(lambda: apps)) as http:
        assert (await http.get("/api/agents")).status_code == 503
        assert (await http.get("/api/status")).status_code == 503
        assert (await http.get("/api/events")).status_code == 503
        assert (await http.get(f"{_WORKER}/health")).status_code == 200
        assert (await http.get("/api/tickets/none")).status_code == 503
        assert (await http.get("/openapi.json")).status_code == 200


async def test_breaker_of_several_partitions_is_listed_once(fleets: Fleets) -> None:
    """The partitions call the same models. The breaker is shown in the worst of the partitions' states."""
    name = "external_api::maps"
    breakers = [service.breakers.get("external_api", "", "maps") for service in fleets.services]
    for _ in range(10):
        with contextlib.suppress(ZeroDivisionError, CircuitOpenError):
            breakers[-1].call(lambda: 1 // 0)
    assert [breaker.state.value for breaker in breakers] == ["closed", "closed", "open"]

    names = [
        [row for page in pages for row in page if row["name"] == name]
        for limit in (1, 2, 1000)
        for pages in [
            await list_pages(fleets.gateway_client, "/api/breakers", "breakers", {"limit": str(limit)})
        ]
    ]
    assert [[row["state"] for row in rows] for rows in names] == [["open"]] * 3
    assert (await fleets.gateway_client.get(f"/api/breakers/{name}")).json()["state"] == "open"
    reset = await fleets.gateway_client.post(f"/api/breakers/{name}/reset", json={"by": "ada"})
    assert (reset.status_code, reset.json()["state"]) == (200, "closed")
    assert [breaker.state.value for breaker in breakers] == ["closed", "closed", "closed"]


async def test_breaker_of_one_partition_is_reset_in_that_partition(fleets: Fleets) -> None:
    name = f"tool_execution:{_LOOPER}:search"
    breaker = fleets.services[find_partition(_LOOPER)].breakers.get("tool_execution", _LOOPER, "search")
    for _ in range(10):
        with contextlib.suppress(ZeroDivisionError, CircuitOpenError):
            breaker.call(lambda: 1 // 0)

    assert (await fleets.gateway_client.get(f"/api/breakers/{name}")).json()["state"] == "open"
    response = await fleets.gateway_client.post(f"/api/breakers/{name}/reset")
    assert (response.status_code, response.json()["state"], breaker.state.value) == (200, "closed", "closed")
    assert (await fleets.gateway_client.post("/api/breakers/none/reset")).status_code == 404
