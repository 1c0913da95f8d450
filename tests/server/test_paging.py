"""Paged lists over HTTP, while entries are added."""

from __future__ import annotations

import asyncio
import base64
import contextlib
import json
from pathlib import Path
from typing import Any

import httpx
import pytest
from hypothesis import given
from hypothesis import strategies as st

from queenright.client import Queenright
from queenright.runtime.events import AgentEvent, EventType
from queenright.server.routes.pagination import InvalidCursorError, decode_cursor, encode_cursor
from queenright.server.serving import RunningService
from queenright.server.settings import Settings
from tests.server.conftest import demo_settings, looping

LISTS = {
    "agents": "/api/agents",
    "health of agents": "/api/agents/health",
    "interventions": "/api/interventions",
    "escalations": "/api/escalations",
    "recoveries": "/api/recoveries",
    "breakers": "/api/breakers",
    "tickets": "/api/tickets",
    "notifications": "/api/notifications",
    "history": "/api/agents/bee/history",
}


@pytest.fixture
def settings(tmp_path: Path) -> Settings:
    return demo_settings(tmp_path / "storage", orchestrator="none")


async def read_all_pages(
    http: httpx.AsyncClient, path: str, name: str, size: int, between_pages: Any = None, **query: Any
) -> list[list[dict[str, Any]]]:
    pages, cursor = [], None
    while True:
        params = {"limit": size} | query | ({"cursor": cursor} if cursor else {})
        response = await http.get(path, params=params)
        assert response.status_code == 200, response.text
        pages.append(response.json()[name])
        cursor = response.json()["next"]
        if cursor is None:
            return pages
        assert len(pages[-1]) == size
        if between_pages is not None:
            await between_pages()


async def test_invalid_cursor_is_rejected_with_a_reason(http: httpx.AsyncClient) -> None:
    for path in LISTS.values():
        for cursor in ("", "x", "é", "WyJhZ2VudHMiXQ", encode_cursor("other", 1.0, "x"), "W" * 900):
            response = await http.get(path, params={"cursor": cursor})

            assert response.status_code == 400, (path, cursor)
            assert "`next`" in response.json()["title"]


async def test_page_size_of_zero_is_rejected(http: httpx.AsyncClient) -> None:
    for path in LISTS.values():
        for limit in ("0", "1001", "x"):
            assert (await http.get(path, params={"limit": limit})).status_code == 422, (path, limit)


async def test_each_agent_is_listed_once_while_others_start(
    running: RunningService, http: httpx.AsyncClient
) -> None:
    """002 §11: the health of all agents can be read."""
    names = ["a", "b/c", "d", "health", "z"]
    for name in names:
        await running.service.ingest(list(looping(running.service.clock(), agent=name, times=1)))
    running.service.breakers.get("tool_execution", "d", "search")

    async def start_another() -> None:
        number = len(running.service.workers())
        await running.service.ingest(list(looping(running.service.clock(), agent=f"a{number:03d}", times=1)))

    for path, order in (("/api/agents", {"sort": "agent"}), ("/api/agents/health", {})):
        rows = [
            row
            for page in await read_all_pages(http, path, "agents", 2, start_another, **order)
            for row in page
        ]
        agent_ids = [row["agent_id"] for row in rows]
        assert [name for name in agent_ids if name in names] == names
        assert agent_ids == sorted(set(agent_ids))

    health_by_agent = {row["agent_id"]: row for row in rows}
    assert [circuit_breaker["name"] for circuit_breaker in health_by_agent["d"]["circuit_breakers"]] == [
        "tool_execution:d:search"
    ]
    assert health_by_agent["d"]["metrics"]["tool_call_count"] == 1
    assert health_by_agent["d"]["signals"]
    single = (await http.get("/api/agents/d/health")).json()
    assert health_by_agent["d"].keys() == single.keys()
    assert (await http.get("/api/agents/health/health")).json()["agent_id"] == "health"


async def test_interventions_are_listed_once_newest_first_while_others_start(
    running: RunningService, http: httpx.AsyncClient
) -> None:
    await running.service.ingest(list(looping(running.service.clock(), agent="bee", times=1)))

    async def add_nudge() -> str:
        return str((await http.post("/api/agents/bee/nudge")).json()["intervention_id"])

    existing_ids = [await add_nudge() for _ in range(5)]
    rows = [
        row
        for page in await read_all_pages(http, LISTS["interventions"], "interventions", 2, add_nudge)
        for row in page
    ]

    assert [row["intervention_id"] for row in rows] == existing_ids[::-1]


async def test_history_is_read_back_from_its_end_each_page_oldest_first(
    running: RunningService, http: httpx.AsyncClient
) -> None:
    clock_time = running.service.clock()
    await running.service.ingest(list(looping(clock_time, agent="bee", times=1)))

    async def record_escalation(number: int) -> None:
        event = AgentEvent(
            type=EventType.ESCALATION_TRIGGERED,
            time=clock_time + number / 1000,
            agent_id="bee",
            session_id="bee-session",
            data={"reason": str(number)},
        )
        await running.service.store.append([event])

    for number in range(5):
        await record_escalation(number)
    pages = await read_all_pages(http, LISTS["history"], "history", 2, lambda: record_escalation(100))

    reasons = [[entry["reason"] for entry in page] for page in pages]
    assert reasons == [["3", "4"], ["1", "2"], ["0"]]


async def test_breakers_are_listed_by_name_and_filtered_by_state(
    running: RunningService, http: httpx.AsyncClient
) -> None:
    for target in "abcde":
        breaker = running.service.breakers.get("tool_execution", "bee", target)
        while target in "be" and breaker.state.value == "closed":
            breaker.admit().record_failure("x")

    every = [
        breaker_row["target"]
        for page in await read_all_pages(http, LISTS["breakers"], "breakers", 2)
        for breaker_row in page
    ]
    open_breakers = await read_all_pages(http, LISTS["breakers"], "breakers", 1, open=True)

    assert every == list("abcde")
    assert [breaker_row["target"] for page in open_breakers for breaker_row in page] == ["b", "e"]


positions = st.one_of(
    st.tuples(
        st.floats(allow_nan=False, allow_infinity=False, max_value=1e12, min_value=0), st.text("é\"'/x")
    ),
    st.tuples(st.integers(0, 2**63 - 1)),
)


@given(positions)
def test_decoded_cursor_equals_the_encoded_position(position: tuple[Any, ...]) -> None:
    kinds = [type(item) for item in position]

    assert decode_cursor(encode_cursor("things", *position), "things", *kinds) == position


@given(
    st.one_of(st.text(), st.binary().map(lambda raw: encode_cursor("things", str(raw))), st.text('Wy"[]1,eN'))
)
def test_any_cursor_is_decoded_or_rejected(cursor: str) -> None:
    with contextlib.suppress(InvalidCursorError):
        decode_cursor(cursor, "agents", float, str)


@pytest.mark.parametrize(
    "position", [("nan",), (True,), (2**63,), ("a\0",), ("\ud800",), (None,), ([1],), (1, 2)], ids=repr
)
@pytest.mark.parametrize("kind", [int, float, str])
def test_position_of_another_type_is_rejected(position: tuple[Any, ...], kind: type[Any]) -> None:
    if kind is str and position == ("nan",):
        return
    cursor = base64.urlsafe_b64encode(json.dumps(["agents", *position]).encode()).decode()
    with pytest.raises(InvalidCursorError):
        decode_cursor(cursor, "agents", kind)


async def test_command_line_client_reads_all_pages(running: RunningService) -> None:
    for number in range(1003):
        running.service.breakers.get("tool_execution", "bee", f"t{number}")

    with Queenright(running.url) as service:
        breakers = await asyncio.to_thread(lambda: list(service.breakers.list()))

    assert len({breaker.name for breaker in breakers}) == 1003
