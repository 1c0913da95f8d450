"""The timeline of a session: steps with start and end, pages, open work and its clock."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx
import pytest

from queenright.health.detection.deadlines import list_detector_clocks
from queenright.health.detection.detectors import detect
from queenright.runtime.events import AgentEvent, EventType
from queenright.server.serving import RunningService
from queenright.server.settings import Settings
from tests.server.conftest import demo_settings, looping
from tests.server.test_app import wait_for_ticket

Send = Callable[..., Any]


@pytest.fixture
def settings(tmp_path: Path) -> Settings:
    """Return settings with which only the test decides."""
    return demo_settings(tmp_path / "storage", orchestrator="none")


def make_event(kind: EventType, event_time: float, **data: object) -> AgentEvent:
    return AgentEvent(
        type=kind,
        time=event_time,
        agent_id="coder",
        session_id="s1",
        incarnation_id="i1",
        node_id="n",
        data=data,
    )


async def read_steps(http: httpx.AsyncClient, agent: str = "coder", **query: Any) -> dict[str, Any]:
    response = await http.get(f"/api/agents/{agent}/steps", params=query)
    assert response.status_code == 200, response.text
    body: dict[str, Any] = response.json()
    return body


def make_start_event(event_time: float) -> AgentEvent:
    return make_event(EventType.EXECUTION_STARTED, event_time, framework="test", start_records=True)


async def test_start_and_end_events_are_one_step_with_a_duration(
    running: RunningService, http: httpx.AsyncClient
) -> None:
    start_time = running.service.clock() - 30
    call = {"tool": "grep", "call_id": "c1"}
    await running.service.ingest(
        [
            make_start_event(start_time),
            make_event(EventType.LLM_CALL_STARTED, start_time + 1, model="m"),
            make_event(
                EventType.LLM_CALL_COMPLETED,
                start_time + 4,
                model="m",
                input_tokens=90,
                output_tokens=7,
                cost_usd=0.5,
            ),
            make_event(EventType.TOOL_CALL_STARTED, start_time + 5, **call),
            make_event(EventType.TOOL_CALL_STARTED, start_time + 5.5, tool="grep", call_id="c2"),
            make_event(
                EventType.TOOL_CALL_COMPLETED, start_time + 6, tool="grep", call_id="c2", outcome="ok"
            ),
            make_event(
                EventType.TOOL_CALL_COMPLETED,
                start_time + 8,
                **call,
                outcome="error",
                error="token=sk-live-1234567890abcdef",
            ),
        ]
    )

    timeline = await read_steps(http)

    items = timeline["items"]
    assert [(item["kind"], item["name"], item["phase"]) for item in items] == [
        ("started", "test", "instant"),
        ("turn", "m", "done"),
        ("tool", "grep", "done"),
        ("tool", "grep", "failed"),
    ]
    assert (items[1]["tokens_in"], items[1]["tokens_out"], items[1]["cost_usd"]) == (90, 7, 0.5)
    assert items[3]["ended_at"] - items[3]["started_at"] == pytest.approx(3)
    assert "sk-live" not in items[3]["text"]
    assert timeline["session_id"] == "s1"
    assert timeline["incarnation_id"] == "i1"


async def test_work_without_a_reported_end_ends_with_the_next_start_or_the_run(
    running: RunningService, http: httpx.AsyncClient
) -> None:
    """Hook calls report the request to a model, but not its response."""
    start_time = running.service.clock() - 30
    await running.service.ingest(
        [
            make_start_event(start_time),
            make_event(EventType.LLM_CALL_STARTED, start_time + 1),
            make_event(EventType.TOOL_CALL_STARTED, start_time + 3, tool="Read", call_id="c1"),
            make_event(
                EventType.TOOL_CALL_COMPLETED, start_time + 4, tool="Read", call_id="c1", outcome="ok"
            ),
            make_event(EventType.LLM_CALL_STARTED, start_time + 4),
            make_event(EventType.TOOL_CALL_STARTED, start_time + 6, tool="Bash", call_id="c2"),
            make_event(EventType.EXECUTION_COMPLETED, start_time + 9),
        ]
    )

    work = [item for item in (await read_steps(http))["items"] if item["kind"] in ("turn", "tool")]

    assert [(item["kind"], item["phase"]) for item in work] == 2 * [("turn", "done"), ("tool", "done")]
    assert [round(item["ended_at"] - item["started_at"]) for item in work] == [2, 1, 2, 3]


async def test_identical_calls_have_the_same_signature(
    running: RunningService, http: httpx.AsyncClient
) -> None:
    start_time = running.service.clock() - 30
    call_data = {"tool": "search", "args_hash": "a" * 16, "result_hash": "b" * 16, "outcome": "ok"}
    await running.service.ingest(
        [
            make_start_event(start_time),
            make_event(EventType.TOOL_CALL_COMPLETED, start_time + 1, **call_data, turn="1"),
            make_event(EventType.TOOL_CALL_COMPLETED, start_time + 2, **call_data, turn="2"),
            make_event(
                EventType.TOOL_CALL_COMPLETED, start_time + 3, **{**call_data, "result_hash": "c" * 16}
            ),
            make_event(EventType.TOOL_CALL_COMPLETED, start_time + 4, tool="search"),
        ]
    )

    first_signature, second_signature, other_signature, unknown_signature = [
        item["signature"] for item in (await read_steps(http))["items"][1:]
    ]

    assert first_signature == second_signature != other_signature
    assert unknown_signature == ""


async def test_open_work_has_the_clock_of_its_detector(
    running: RunningService, http: httpx.AsyncClient
) -> None:
    start_time = running.service.clock() - 30
    await running.service.ingest(
        [
            make_start_event(start_time),
            make_event(EventType.TOOL_CALL_STARTED, start_time + 5, tool="bash", call_id="c", timeout=120),
        ]
    )

    timeline = await read_steps(http)

    [open_step] = timeline["open"]
    [item] = [item for item in timeline["items"] if item["kind"] == "tool"]
    assert (open_step["step_id"], open_step["phase"], open_step["name"]) == (item["step_id"], "open", "bash")
    assert open_step["limit_seconds"] == pytest.approx(120)
    assert open_step["fires_at"] == pytest.approx(start_time + 125)
    assert open_step["reason"] == "timeout declared by the tool"
    assert "stall" in [clock["detector"] for clock in timeline["clocks"]]
    worker = running.service.monitor.get("coder")
    assert worker is not None
    health = running.service.settings.health_monitoring
    for clock in list_detector_clocks(worker.vitals, health):
        kinds_before = {row.kind for row in detect(worker.vitals, health, clock.due - 0.01)}
        kinds_after = {row.kind for row in detect(worker.vitals, health, clock.due)}
        assert (clock.kind in kinds_before, clock.kind in kinds_after) == (False, True)


async def test_timeline_shows_the_number_of_repeats_until_a_loop(
    running: RunningService, http: httpx.AsyncClient
) -> None:
    start_time = running.service.clock() - 30
    call_data = {"tool": "search", "args_hash": "a" * 16, "result_hash": "b" * 16, "outcome": "ok"}
    calls = [
        make_event(EventType.TOOL_CALL_COMPLETED, start_time + number, **call_data, turn=str(number))
        for number in (1, 2, 3)
    ]
    worker = make_start_event(start_time)

    await running.service.ingest([worker, *calls[:2]])
    counts_before = (await read_steps(http))["counts"]
    await running.service.ingest(calls[2:])
    counts_after = (await read_steps(http))["counts"]

    assert counts_before[0] == {
        "detector": "doom_loop",
        "value": 2,
        "limit": 3,
        "text": "identical calls in a row: search",
    }
    assert (counts_after[0]["value"], counts_after[0]["limit"]) == (3, 3)
    coder = running.service.monitor.get("coder")
    assert coder is not None
    assert "doom_loop" in {finding.kind for finding in coder.findings}


async def test_wait_ends_with_the_answer_and_keeps_its_id(
    running: RunningService, http: httpx.AsyncClient
) -> None:
    start_time = running.service.clock() - 30
    question = "Which branch? token=sk-live-1234567890abcdef"
    await running.service.ingest(
        [
            make_start_event(start_time),
            make_event(EventType.WORKER_WAITING, start_time + 5, reason="user_input", question=question),
        ]
    )
    waiting_timeline = await read_steps(http)
    await running.service.ingest([make_event(EventType.CLIENT_INPUT_RECEIVED, start_time + 9)])
    later_timeline = await read_steps(http, after=waiting_timeline["last"])

    [open_step] = waiting_timeline["open"]
    assert (open_step["kind"], open_step["name"], open_step["fires_at"]) == ("wait", "user_input", None)
    assert "Which branch?" in open_step["text"]
    assert "sk-live" not in open_step["text"]
    [wait, answer_item] = later_timeline["items"]
    assert (wait["step_id"], wait["phase"], wait["ended_at"]) == (
        open_step["step_id"],
        "done",
        answer_item["at"],
    )
    assert [row["name"] for row in later_timeline["open"]] == ["between steps"]


@pytest.mark.parametrize("limit", [1, 3, 7])
async def test_pages_contain_each_step_once(
    limit: int, running: RunningService, http: httpx.AsyncClient
) -> None:
    start_time = running.service.clock() - 100
    events = [make_start_event(start_time)]
    for number in range(12):
        call = {"tool": f"t{number}", "call_id": f"c{number}"}
        events += [
            make_event(EventType.TOOL_CALL_STARTED, start_time + number, **call),
            make_event(EventType.TOOL_CALL_COMPLETED, start_time + number + 0.5, **call),
        ]
    # One call runs concurrently with all other calls.
    events.insert(1, make_event(EventType.TOOL_CALL_STARTED, start_time, tool="slow", call_id="slow"))
    events.append(make_event(EventType.TOOL_CALL_COMPLETED, start_time + 20, tool="slow", call_id="slow"))
    await running.service.ingest(events)
    all_ids = [item["step_id"] for item in (await read_steps(http))["items"]]

    page = await read_steps(http, limit=limit)
    backwards = [item["step_id"] for item in page["items"]]
    while page["more"]:
        page = await read_steps(http, limit=limit, before=page["first"])
        assert len(page["items"]) <= limit
        backwards = [item["step_id"] for item in page["items"]] + backwards
    forwards = [all_ids[0]]
    page = {"more": True, "last": all_ids[0]}
    while page["more"]:
        page = await read_steps(http, limit=limit, after=page["last"])
        forwards += [item["step_id"] for item in page["items"]]

    assert len(all_ids) == len(set(all_ids)) == 14
    assert backwards == all_ids
    assert forwards == all_ids


async def test_late_end_of_an_earlier_step_does_not_end_a_newer_step(
    running: RunningService, http: httpx.AsyncClient
) -> None:
    """In a batch, start records arrive before the spans of earlier steps that ended in the batch."""
    start_time = running.service.clock() - 30
    await running.service.ingest(
        [
            make_start_event(start_time),
            make_event(EventType.STEP_STARTED, start_time + 2, index=2),
            make_event(EventType.TOOL_CALL_STARTED, start_time + 2, tool="build", call_id="c1", timeout=1200),
            make_event(EventType.STEP_COMPLETED, start_time + 1, index=1, duration=0.5),
        ]
    )

    timeline = await read_steps(http)

    turns = [(item["name"], item["phase"]) for item in timeline["items"] if item["kind"] == "turn"]
    assert turns == [("step 2", "open"), ("step 1", "done")]
    assert [(step["name"], step["limit_seconds"]) for step in timeline["open"]] == [("build", 1200)]


async def test_findings_tickets_and_interventions_are_in_the_timeline(
    running: RunningService, http: httpx.AsyncClient
) -> None:
    await running.service.ingest(list(looping(running.service.clock())))
    await http.post("/api/agents/looper/nudge", json={"message": "Stop.", "by": "ada"})

    timeline = await read_steps(http, "looper")

    kinds = {item["kind"] for item in timeline["items"]}
    assert {"finding", "state", "intervention", "tool", "turn"} <= kinds
    [loop] = [item for item in timeline["items"] if item["name"] == "doom_loop"][:1]
    assert loop["severity"]
    assert "search was called" in loop["text"]


async def test_finding_starts_when_the_condition_of_its_ticket_began(
    running: RunningService, http: httpx.AsyncClient
) -> None:
    """This also holds for the first of several findings that become more severe."""
    ticket_id = await wait_for_ticket(running)

    ticket = (await http.get(f"/api/tickets/{ticket_id}")).json()
    [finding] = (await http.get("/api/agents/looper/health")).json()["findings"][:1]
    opened_findings = [
        item for item in (await read_steps(http, "looper"))["items"] if item["type"] == "finding_opened"
    ]

    onsets = {item["started_at"] for item in opened_findings if item["name"] == ticket["kind"]}
    assert onsets == {ticket["trouble_since"], finding["since"]}
    assert all(item["started_at"] < item["at"] for item in opened_findings)


async def test_unknown_worker_or_step_is_a_404(running: RunningService, http: httpx.AsyncClient) -> None:
    await running.service.ingest([make_start_event(running.service.clock())])

    assert (await http.get("/api/agents/nobody/steps")).status_code == 404
    assert (await http.get("/api/agents/coder/steps?session_id=no")).status_code == 404
    assert (await http.get("/api/agents/coder/steps?after=no")).status_code == 404
