"""Recorded Claude Code sessions: several sources report one run, in any order."""

from __future__ import annotations

from collections import Counter
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from queenright.runtime.events import AgentEvent
from tests.clients.fixtures import FOLDER, Record, load_fixture
from tests.server.telemetry.replay import replay, split_record, summarize

PATHS = sorted((FOLDER / "claude-code").glob("*.json"))
HOOKS = "/hooks/claude-code"


def load_records(name: str, *, without: str = "") -> list[Record]:
    """Return the records of a fixture in order of arrival."""
    records = load_fixture(FOLDER / "claude-code" / f"{name}.json").records
    return [record for record in records if not (without and record.path.startswith(without))]


def list_event_types(events: list[AgentEvent]) -> list[str]:
    return [event.type.value for event in sorted(events, key=lambda event: event.time)]


@pytest.mark.parametrize("name", [path.stem for path in PATHS])
def test_call_reported_by_several_sources_is_counted_once(name: str) -> None:
    """B84: log records, spans and hook calls of one session belong to one run."""
    all_sources = summarize(replay(load_records(name)))
    otlp = summarize(replay(load_records(name, without=HOOKS)))
    logs = summarize(replay([record for record in load_records(name) if record.path == "/v1/logs"]))

    assert all_sources["agents"] == (2 if name == "two_at_once" else 1)
    # The client was killed before it sent log records or spans.
    for subset in (otlp, logs) if name != "killed" else ():
        assert subset["agents"] == all_sources["agents"]
        for figure in ("steps", "model calls", "failed model calls", "tokens", "cost", "tools"):
            assert subset[figure] == all_sources[figure], figure


@given(path=st.sampled_from(PATHS), seed=st.integers(0, 2**32))
def test_order_splits_repeats_and_delays_of_records_change_nothing(path: object, seed: int) -> None:
    """B84: hook calls arrive immediately. OTLP records may arrive late, in pieces and more than once."""
    given_records, rng = load_fixture(path).records, Random(seed)  # type: ignore[arg-type]
    expected_summary = summarize(replay(given_records))
    moved_records = []
    for record in given_records:
        if record.path == HOOKS:
            moved_records.append(record)
            continue
        for part in split_record(record):
            for _ in range(rng.choice((1, 1, 2))):
                late_record = Record(record.at + rng.uniform(0.0, 10.0), part.path, part.body)
                moved_records.append(late_record)
    moved_records.sort(key=lambda record: record.at)

    assert summarize(replay(moved_records)) == expected_summary


def test_tools_steps_tokens_and_failures_of_a_healthy_session_are_counted() -> None:
    """B89: a command that exited with status 2 is a failed call."""
    events = replay(load_records("healthy"))

    assert summarize(events) == {
        "agents": 1,
        "names": ["claude-code/project"],
        "steps": 4,
        "tools": Counter(
            {
                ("Bash", "toolu_0001", "ok"): 1,
                ("Bash", "toolu_0002", "error"): 1,
                ("Bash", "toolu_0003", "ok"): 1,
            }
        ),
        "model calls": 4,
        "failed model calls": 0,
        "tokens": 4 * 1020,
        "cost": 0.0176,
        "outcome": ["execution_completed"],
        "MCP servers": Counter(),
    }
    assert {event.agent_id for event in events} == {"claude-code/project"}


def test_session_waits_for_the_user_after_its_turn() -> None:
    """B95: log records alone, which do not report the end of a session, are enough."""
    for given_records in (load_records("healthy", without=HOOKS), load_records("healthy")[:-2]):
        changes = [
            event
            for event in list_event_types(replay(given_records))
            if event in ("worker_waiting", "llm_call_started")
        ]
        assert changes[-1] == "worker_waiting"


def test_permission_request_waits_from_its_start() -> None:
    """B93: the wait starts with the request."""
    events = replay(load_records("permission"))

    [wait] = [event for event in events if event.type == "worker_waiting"]
    [start_event] = [event for event in events if event.type == "tool_call_started"]
    assert wait.data == {"reason": "user_input", "tool": "Bash", "question": "Bash: touch new.txt"}
    assert 0 <= wait.time - start_event.time < 1


def test_granted_permission_ends_the_wait_of_a_hanging_tool() -> None:
    """
    B93: a tool that hangs after it got permission is not waiting, although no log record shows when the wait
    ended.
    """
    granted_records = [
        record for piece in load_records("permission_granted") for record in split_record(piece)
    ]
    is_decided = [record for record in granted_records if "tool_decision" in str(record.body)]
    unfinished = [
        record for record in granted_records if record.path == HOOKS and "PostToolUse" not in str(record.body)
    ]
    hanging_records = [
        record for record in unfinished if record.body["hook_event_name"] not in ("Stop", "SessionEnd")
    ]

    assert [event.data["reason"] for event in replay(hanging_records) if event.type == "worker_waiting"] == [
        "user_input"
    ]
    events = replay([*hanging_records, *is_decided])
    assert [event.data["reason"] for event in events if event.type == "worker_waiting"] == [
        "user_input",
        None,
    ]
    assert list_event_types(events).count("tool_call_started") == 1
    assert "tool_call_completed" not in list_event_types(events)


@pytest.mark.parametrize("name", ["hang_first", "hang_first-traces", "hang_first-details"])
@pytest.mark.parametrize("without", ["", HOOKS, "/v1"])
def test_tool_that_hangs_in_the_first_call_is_reported_as_open(name: str, without: str) -> None:
    types = list_event_types(replay(load_records(name, without=without)))

    assert types.count("tool_call_started") == 1
    assert "tool_call_completed" not in types


def test_loop_repeats_one_call_with_one_result() -> None:
    """B26: hook calls report the results that log records omit."""
    for name, without in (("loop", ""), ("loop", "/v1"), ("loop-traces", "")):
        calls = [
            event.data
            for event in replay(load_records(name, without=without))
            if event.type == "tool_call_completed"
        ]
        assert len(calls) >= 5
        assert len({(call["args_hash"], call["result_hash"]) for call in calls}) == 1
    without_content = [
        event.data
        for event in replay(load_records("loop", without=HOOKS))
        if event.type == "tool_call_completed"
    ]
    assert {call.get("result_hash") for call in without_content} == {None}


@pytest.mark.parametrize("name", [path.stem for path in PATHS if "provider" in path.stem])
def test_failing_provider_causes_a_failed_call_and_a_failed_run(name: str) -> None:
    summary = summarize(replay(load_records(name)))

    assert summary["failed model calls"] == 1
    assert summary["outcome"] == ["execution_failed"]


def test_concurrent_sessions_are_separate_runs() -> None:
    events = replay(load_records("two_at_once"))

    assert len({event.session_id for event in events}) == 2
    assert list_event_types(events).count("execution_completed") == 2


def test_failed_mcp_server_is_reported_after_the_session_starts() -> None:
    """The server failed before the first prompt, and its log record arrived at the end."""
    expected_data = {
        "status": "failed",
        "transport": "stdio",
        "scope": "user",
        "error_type": "ENOENT",
        "duration": 0.082,
    }
    for given_records in (
        load_records("mcp_missing"),
        load_records("mcp_missing", without=HOOKS),
        [piece for record in load_records("mcp_missing") for piece in split_record(record)],
    ):
        events = replay(given_records)
        [server_event] = [event for event in events if event.type == "mcp_server_changed"]
        assert server_event.data == expected_data
        assert summarize(events)["steps"] == 4


def test_report_of_an_mcp_server_alone_starts_no_session() -> None:
    """A client that is not used is waiting. One that exits only disconnects."""
    [server_records] = [
        piece
        for record in load_records("mcp_missing")
        for piece in split_record(record)
        if "claude_code.mcp_server_connection" in str(piece.body)
    ]

    assert replay([server_records]) == []
    hook_records = [record for record in load_records("mcp_missing") if record.path == HOOKS]
    events = replay([*hook_records, server_records])
    assert [event.type.value for event in events[-2:]] == ["execution_completed", "mcp_server_changed"]
