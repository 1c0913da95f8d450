"""The list of sessions: filters, orders, counts and pages, which the service computes."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from queenright import api
from queenright.health.monitoring.monitor import WorkerHealth
from queenright.runtime.events import AgentEvent, EventType
from queenright.server.service import Service
from queenright.server.serving import RunningService
from queenright.server.settings import Settings
from queenright.server.views.worker_rows import make_agent_row
from tests.server.conftest import demo_settings

AGENTS = 10_000
PAGE = 60
RANKS = {"failing": 0, "stuck": 1, "degraded": 2, "healthy": 3}


@pytest.fixture
def settings(tmp_path: Path) -> Settings:
    """Return settings with which no action is taken about failing agents."""
    base_settings = demo_settings(tmp_path / "storage")
    health = base_settings.health_monitoring
    idle_health = health.model_copy(
        update={"intervention": health.intervention.model_copy(update={"enabled": False})}
    )
    return base_settings.model_copy(update={"health_monitoring": idle_health})


def make_run(number: int, clock_time: float) -> Iterator[AgentEvent]:
    """Return the events of one agent, whose properties follow from its number."""
    names = {"agent_id": f"agent-{number:05}", "session_id": f"session-{number}"}

    def make_event(kind: EventType, ago: float, **data: Any) -> AgentEvent:
        return AgentEvent(type=kind, time=clock_time - ago, data=data, incarnation_id="one", **names)

    origin = {"owner": f"user-{number % 71:02}", "repository": "website" if number % 4 else ""}
    yield make_event(EventType.EXECUTION_STARTED, 50, start_records=True, framework="test", **origin)
    yield make_event(
        EventType.LLM_CALL_COMPLETED, 45, input_tokens=number % 97, cost_usd=(number % 13) / 100, model="m"
    )
    # This is not the order of the names, because the numbers repeat after 61.
    yield make_event(
        EventType.TOOL_CALL_COMPLETED, 40 - number % 61 / 2, tool="search", result_hash=f"{number}"
    )
    if number % 50 == 7:
        yield make_event(EventType.CIRCUIT_BREAKER_STATE_CHANGED, 5, name="search", to="open")
    elif number % 5 == 1:
        yield make_event(EventType.WORKER_WAITING, 5, reason="user_input", question=f"Deploy build {number}?")
    elif number % 5 == 2:
        yield make_event(EventType.WORKER_WAITING, 5, reason="paused")
    elif number % 5 == 3:
        yield make_event(EventType.EXECUTION_COMPLETED, 5)


def add_agents(running: RunningService, count: int) -> None:
    clock_time = running.service.clock()
    for event in itertools.chain.from_iterable(make_run(number, clock_time) for number in range(count)):
        running.service.monitor.apply(event, clock_time)


async def read_list(http: httpx.AsyncClient, **params: Any) -> dict[str, Any]:
    response = await http.get("/api/agents", params=params)
    assert response.status_code == 200, response.text
    body: dict[str, Any] = response.json()
    return body


async def read_all_pages(http: httpx.AsyncClient, limit: int, **params: Any) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = []
    while True:
        page = await read_list(http, limit=limit, **params)
        assert len(page["agents"]) <= limit
        rows += page["agents"]
        if page["next"] is None:
            assert page["total"] == len(rows)
            return rows
        params["cursor"] = page["next"]


def get_rank(row: dict[str, Any]) -> int:
    return 4 if row["ended"] and row["state"] != "failing" else RANKS[row["state"]]


async def test_ten_thousand_agents_are_paged_in_order_by_the_service(
    running: RunningService, http: httpx.AsyncClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    """
    B113: a page has 60 rows, worst first, and each session is listed once. Rows are built for one page only.
    """
    add_agents(running, AGENTS)
    built_rows = Counter[str]()

    def make_row(service: Service, worker: WorkerHealth) -> api.AgentRow:
        built_rows["rows"] += 1
        return make_agent_row(service, worker)

    monkeypatch.setattr("queenright.server.routes.workers.make_agent_row", make_row)

    rows: list[dict[str, Any]] = []
    params: dict[str, Any] = {"limit": PAGE}
    for _ in range(10):
        page = await read_list(http, **params)
        rows += page["agents"]
        params["cursor"] = page["next"]
    last_rows = (await read_list(http, limit=PAGE, sort="-attention"))["agents"]

    assert page["total"] == AGENTS
    assert built_rows["rows"] == 11 * PAGE
    expected_workers = sorted(running.service.monitor.workers(), key=sort_by_urgency)
    assert [row["session_id"] for row in rows] == [
        item.vitals.session_id for item in expected_workers[: 10 * PAGE]
    ]
    assert [row["session_id"] for row in last_rows] == [
        item.vitals.session_id for item in expected_workers[: -PAGE - 1 : -1]
    ]
    assert {row["state"] for row in rows[:200]} == {"failing"}


def sort_by_urgency(worker: WorkerHealth) -> tuple[int, float, str]:
    """
    Return the sort key: health, worst first, then the longest time without progress, and ended sessions last.
    """
    vitals = worker.vitals
    if vitals.has_ended:
        return 4, -(vitals.ended_at or 0.0), vitals.agent_id
    return RANKS[worker.state.value], vitals.last_progress or 0.0, vitals.agent_id


async def test_failed_session_has_a_reason_and_a_completed_one_has_none(
    running: RunningService, http: httpx.AsyncClient
) -> None:
    endings: list[tuple[EventType, dict[str, Any]]] = [
        (EventType.EXECUTION_FAILED, {"error_type": "OSError", "error": "the disk is full"}),
        (EventType.EXECUTION_COMPLETED, {}),
    ]
    for kind, data in endings:
        event = AgentEvent(type=kind, time=running.service.clock(), agent_id=kind, session_id="s", data=data)
        await running.service.ingest([event])

    reasons = {row["outcome"]: row["reason"] for row in (await read_list(http))["agents"]}

    assert reasons == {"failed": "the session has failed: the disk is full", "completed": ""}


async def test_filters_and_counts_cover_the_whole_fleet(
    running: RunningService, http: httpx.AsyncClient
) -> None:
    """B113: filters and counts apply before paging."""
    add_agents(running, 1_000)
    first_page = await read_list(http, limit=1)
    failing_list = await read_list(http, health="failing", limit=1000)
    waiting_list = await read_list(http, activity="waiting, paused", limit=1000)
    owner_list = await read_list(http, owner="user-03", limit=1000)
    page = await read_list(http, search="deploy BUILD 11", limit=1000)
    found_by_session = await read_list(http, search="SESSION-999")
    found_by_owner = await read_list(http, search="user-70", limit=1000)
    filtered_list = await read_list(http, owner="user-03", health="ended", repository="website", limit=1000)

    assert (first_page["total"], len(first_page["agents"])) == (1_000, 1)
    assert first_page["counts"]["health"] == {
        "failing": 20, "stuck": 0, "degraded": 0, "healthy": 780, "ended": 200
    }  # fmt: skip
    assert sum(first_page["counts"]["activity"].values()) == 800
    assert len(first_page["counts"]["owner"]) == 50, "the most frequent values"
    assert first_page["counts"]["repository"] == {"website": 750}
    assert {row["state"] for row in failing_list["agents"]} == {"failing"}
    assert failing_list["total"] == len(failing_list["agents"]) == 20
    # A facet ignores its own filter, so that other values can be chosen.
    assert failing_list["counts"]["health"] == first_page["counts"]["health"]
    assert sum(failing_list["counts"]["activity"].values()) == 20
    kinds = {row["waiting"] for row in waiting_list["agents"]}
    assert kinds == {"user_input", "paused"}
    activity = first_page["counts"]["activity"]
    assert waiting_list["total"] == activity["waiting"] + activity["paused"]
    assert {row["owner"] for row in owner_list["agents"]} == {"user-03"}
    assert owner_list["total"] == first_page["counts"]["owner"]["user-03"]
    questions = {f"Deploy build {number}?" for number in (11, 111, 116)}
    assert {row["question"] for row in page["agents"]} == questions
    assert [row["agent_id"] for row in found_by_session["agents"]] == ["agent-00999"]
    assert {row["owner"] for row in found_by_owner["agents"]} == {"user-70"}, (
        "a value outside the counted ones can be chosen too"
    )
    assert (
        filtered_list["total"]
        == len(filtered_list["agents"])
        == filtered_list["counts"]["health"]["ended"]
        > 0
    )
    assert filtered_list["total"] < owner_list["total"]


@pytest.mark.parametrize(
    ("sort", "key"),
    [
        ("agent", lambda row: row["agent_id"]),
        ("progress", lambda row: row["last_progress"]),
        ("tokens", lambda row: row["tokens"]),
        ("cost", lambda row: row["cost_usd"]),
        ("attention", get_rank),
        ("-attention", lambda row: -get_rank(row)),
        ("activity", lambda row: ["working", "waiting", "paused", "idle", ""].index(get_kind(row))),
    ],
)
async def test_each_order_can_be_reversed(
    running: RunningService, http: httpx.AsyncClient, sort: str, key: Any
) -> None:
    """B113: the service sorts in both directions."""
    add_agents(running, 150)

    rows = await read_all_pages(http, 40, sort=sort)
    reverse = await read_all_pages(http, 40, sort=sort[1:] if sort.startswith("-") else f"-{sort}")

    keys = [key(row) for row in rows]
    assert keys == sorted(keys)
    assert len(set(map(str, keys))) > 1
    assert [row["session_id"] for row in reverse] == [row["session_id"] for row in rows][::-1]


def get_kind(row: dict[str, Any]) -> str:
    assert row["activity"].startswith(row["activity_kind"])
    return str(row["activity_kind"])


async def test_cursor_stays_valid_while_sessions_start_and_end(
    running: RunningService, http: httpx.AsyncClient
) -> None:
    """B113: a cursor is a position, not a number of rows."""
    add_agents(running, 30)
    first_page = await read_list(http, sort="agent", limit=10)
    clock_time = running.service.clock()
    running.service.monitor.forget(("agent-00009", "session-9"))  # This is the last row of the page.
    for event in make_run(30, clock_time):
        running.service.monitor.apply(event, clock_time)

    second_page = await read_list(http, sort="agent", limit=100, cursor=first_page["next"])

    assert [row["agent_id"] for row in second_page["agents"]] == [
        f"agent-{number:05}" for number in range(10, 31)
    ]


async def test_unknown_values_and_cursors_of_another_order_are_rejected(
    running: RunningService, http: httpx.AsyncClient
) -> None:
    add_agents(running, 3)
    cursor = (await read_list(http, sort="agent", limit=1))["next"]

    for params in ({"health": "sleepy"}, {"activity": "working,odd"}, {"sort": "size"}):
        response = await http.get("/api/agents", params=params)
        assert response.status_code == 422, params
        assert next(iter(params)) in response.json()["title"]
    other_response = await http.get("/api/agents", params={"sort": "tokens", "cursor": cursor})
    assert other_response.status_code == 400
    assert "agents by tokens" in other_response.json()["title"]
