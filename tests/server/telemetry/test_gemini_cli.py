"""Recorded Gemini CLI sessions: several sources give one run in any order."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from random import Random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from queenright.health.vitals.vital_signs import VitalSigns
from queenright.runtime.events import AgentEvent
from queenright.server.telemetry.dialects.gemini_cli import CLIENT
from tests.clients.fixtures import FOLDER, Record, load_fixture
from tests.server.telemetry.replay import UNKNOWN_PROCESS, replay, split, summarize

PATHS = sorted((FOLDER / "gemini-cli").glob("*.json"))
HOOKS = "/hooks/gemini-cli"
SHELL = "run_shell_command"
NOW = 1_767_225_600 * 10**9


def load_records(name: str, *, without: str = "") -> list[Record]:
    """Return the records of a fixture in order of arrival."""
    found = load_fixture(FOLDER / "gemini-cli" / f"{name}.json").records
    return [record for record in found if not (without and record.path.startswith(without))]


def event_types(events: list[AgentEvent]) -> list[str]:
    return [event.type.value for event in sorted(events, key=lambda event: event.time)]


def summarize_without_ids(events: list[AgentEvent]) -> dict[str, Any]:
    """Return the summary without tool call ids, which the client does not have."""
    found = summarize(events)
    tools = Counter[tuple[str, str]]()
    for (tool, _, outcome), count in found["tools"].items():
        tools[tool, outcome] += count
    return found | {"tools": tools}


def read_hook(call: dict[str, Any]) -> dict[str, Any]:
    observation = CLIENT.read_hook({"session_id": "s", **call}, UNKNOWN_PROCESS, NOW)
    assert observation is not None
    return observation.data


@pytest.mark.parametrize("name", [path.stem for path in PATHS])
def test_call_reported_by_several_sources_counts_once(name: str) -> None:
    """B84: log records, spans and hook calls of one session are one run."""
    everything = replay(load_records(name))
    all_of_them = summarize_without_ids(everything)
    logs = [record for record in load_records(name) if record.path == "/v1/logs"]
    of_logs, of_hooks = (
        summarize_without_ids(replay(logs)),
        summarize_without_ids(replay(load_records(name, without="/v1"))),
    )

    ids = [event.data["call_id"] for event in everything if event.type == "tool_call_completed"]
    assert len(ids) == len(set(ids))
    assert set(ids) <= {e.data["call_id"] for e in everything if e.type == "tool_call_started"}
    assert all_of_them["agents"] == (2 if name == "two_at_once" else 1)
    # The client's spans add nothing.
    assert summarize_without_ids(replay(load_records(name, without="/v1/traces"))) == all_of_them
    for fewer in (of_logs, of_hooks):
        assert fewer["agents"] == all_of_them["agents"]
        assert fewer["tools"].total() == all_of_them["tools"].total()
    assert of_hooks["tools"] == all_of_them["tools"]
    assert of_logs["failed model calls"] == all_of_them["failed model calls"]
    if name != "loop":  # the guard of this fixture truncates model responses, which then have no log record
        assert of_logs["model calls"] == all_of_them["model calls"]
        assert of_logs["tokens"] == all_of_them["tokens"]


@given(path=st.sampled_from(PATHS), seed=st.integers(0, 2**32))
def test_order_splits_repeats_and_delays_change_nothing(path: Path, seed: int) -> None:
    """B84: hook calls arrive at once; OTLP records may arrive late, in pieces and more than once."""
    given_records, chance = load_fixture(path).records, Random(seed)
    expected = summarize_without_ids(replay(given_records))
    moved = []
    for record in given_records:
        if record.path == HOOKS:
            moved += [record] * chance.choice((1, 1, 2))
            continue
        for piece in split(record):
            for _ in range(chance.choice((1, 1, 2))):
                late = Record(record.at + chance.uniform(0.0, 10.0), piece.path, piece.body)
                moved.append(late)
    moved.sort(key=lambda record: record.at)

    assert summarize_without_ids(replay(moved)) == expected


@given(path=st.sampled_from(PATHS), seed=st.integers(0, 2**32))
def test_lost_hook_calls_lose_no_tool_call(path: Path, seed: int) -> None:
    """B84: hooks fail open, so any hook call may be missing; the log reports calls that ended."""
    chance = Random(seed)
    remaining = [
        record for record in load_fixture(path).records if record.path != HOOKS or chance.random() < 0.7
    ]
    logs = [record for record in load_fixture(path).records if record.path == "/v1/logs"]

    assert (
        summarize_without_ids(replay(remaining))["tools"].total()
        == summarize_without_ids(replay(logs))["tools"].total()
    )


def test_tools_steps_tokens_and_failures_of_a_healthy_session_are_counted() -> None:
    """B89: the client reports success for a command that exited with 2."""
    events = replay(load_records("healthy"))

    assert summarize_without_ids(events) == {
        "agents": 1,
        "names": ["gemini-cli/workstation/project"],
        "steps": 4,  # one of the five model calls chooses the model
        "tools": Counter({(SHELL, "ok"): 2, (SHELL, "error"): 1}),
        "model calls": 5,
        "failed model calls": 0,
        "tokens": 5 * 1020,
        "cost": 0,
        "outcome": ["execution_completed"],
        "MCP servers": Counter(),
    }
    [failed] = [e.data for e in events if e.type == "tool_call_completed" and e.data["outcome"] == "error"]
    assert failed["error_type"] == "exit_code_2"
    assert "No such file" in failed["error"]
    assert failed["duration"] > 0
    assert events[-1].agent_id == "gemini-cli/workstation/project"


def test_ended_turn_waits_for_the_user() -> None:
    """B95: also with only log records, which do not report the end of the session."""
    without_end = [
        r for r in load_records("healthy") if r.path != HOOKS or r.body["hook_event_name"] != "SessionEnd"
    ]
    for given_records in (load_records("healthy", without=HOOKS), without_end):
        found = event_types(replay(given_records))
        assert [one for one in found if one in ("worker_waiting", "llm_call_started")][-1] == "worker_waiting"
        assert found.count("worker_waiting") == 1


def test_permission_request_is_a_wait_from_its_start() -> None:
    """B93: log records that arrive after the request do not end the wait."""
    events = replay(load_records("permission"))

    [wait] = [event for event in events if event.type == "worker_waiting"]
    [began] = [event for event in events if event.type == "tool_call_started"]
    assert wait.data == {"reason": "user_input", "question": "touch new.txt"}
    assert 0 <= wait.time - began.time < 1
    assert event_types(events)[-2:] == ["worker_waiting", "execution_completed"]


def test_permitted_tool_call_ends() -> None:
    """B93: the wait and the tool call both end."""
    found = event_types(replay(load_records("permission_granted")))

    assert found.index("worker_waiting") < found.index("tool_call_completed")
    assert found[-2:] == ["worker_waiting", "execution_completed"]


@pytest.mark.parametrize("name", ["hang_first", "hang_later", "killed"])
@pytest.mark.parametrize("without", ["", HOOKS, "/v1"])
def test_tool_that_hangs_is_open(name: str, without: str) -> None:
    """B94: until the client exits, with only logs, only hooks, or both."""
    events = replay(load_records(name, without=without))

    began = {event.data["call_id"] for event in events if event.type == "tool_call_started"}
    ended = {event.data["call_id"] for event in events if event.type == "tool_call_completed"}
    assert len(began - ended) == 1
    assert ended < began
    assert len(ended) == {"hang_first": 0, "hang_later": 2, "killed": 1}[name]
    kinds = [one for one in event_types(events) if not one.startswith("execution") and one != "agent_renamed"]
    assert kinds[-1] == "tool_call_started"


def test_concurrent_equal_calls_are_separate_and_end_in_their_order() -> None:
    """B84: without ids, the call that started first ends first."""
    call = {"session_id": "s", "tool_name": SHELL, "tool_input": {"command": "date"}}
    times = [(0, "BeforeTool", "00.001"), (0, "BeforeTool", "00.001001"), (1, "AfterTool", "01.0")]
    given_records = [
        Record(10.0 + at, HOOKS, call | {"hook_event_name": name, "timestamp": f"2026-01-01T00:00:{time}Z"})
        for at, name, time in times
    ]

    events = replay(given_records)

    first, second = [e.data["call_id"] for e in events if e.type == "tool_call_started"]
    assert first != second
    assert [e.data["call_id"] for e in events if e.type == "tool_call_completed"] == [first]


def test_tool_that_runs_during_a_restart_ends() -> None:
    """B94: the new service has not seen the start; the end closes an open call of the same tool."""
    given_records = load_records("healthy")
    restart = next(
        index for index, one in enumerate(given_records) if one.body.get("hook_event_name") == "BeforeTool"
    )
    before = replay(given_records[: restart + 1])
    vitals = VitalSigns(before[0].agent_id, before[0].session_id, before[0].time)
    for event in before:
        vitals.apply(event, event.time)
    assert vitals.open_tools

    for event in replay(given_records[restart + 1 : restart + 2]):
        vitals.apply(event, event.time)

    assert vitals.tool_calls_total == 1
    assert not vitals.open_tools


def test_killed_session_reports_no_end() -> None:
    assert summarize_without_ids(replay(load_records("killed")))["outcome"] == []


@pytest.mark.parametrize(("name", "repeats"), [("loop", 4), ("loop-unguarded", 8)])
@pytest.mark.parametrize("without", ["", "/v1"])
def test_loop_repeats_one_call_with_one_result(name: str, repeats: int, without: str) -> None:
    """B26: the changing process id is not part of the result."""
    calls = [e.data for e in replay(load_records(name, without=without)) if e.type == "tool_call_completed"]

    assert len(calls) == repeats
    assert len({(call["args_hash"], call["result_hash"]) for call in calls}) == 1


def test_log_records_alone_give_arguments_and_no_result() -> None:
    calls = [e.data for e in replay(load_records("loop", without=HOOKS)) if e.type == "tool_call_completed"]

    assert len({call["args_hash"] for call in calls}) == 1
    assert {call.get("result_hash") for call in calls} == {None}


@pytest.mark.parametrize("name", [path.stem for path in PATHS if "provider" in path.stem])
def test_failing_provider_is_failed_calls_and_a_failed_run(name: str) -> None:
    events = replay(load_records(name))

    assert summarize_without_ids(events)["failed model calls"] >= 14
    assert summarize_without_ids(events)["outcome"] == ["execution_failed"]
    failed = [e.data for e in events if e.type == "llm_call_completed"]
    assert {one["error_type"] for one in failed} == {name.removeprefix("provider_")}


def test_model_call_is_open_from_its_request() -> None:
    """The client reports its requests to the model: a request without an answer is an open call."""
    found = []
    for record in load_records("healthy", without=HOOKS):
        for piece in split(record):
            if piece.path == "/v1/logs":
                found.append(piece)
                if "API request to gemini-3.8-flash" in str(piece.body):
                    assert event_types(replay(found))[-1] == "llm_call_started"
                    return
    pytest.fail("the fixture has no request")


def test_concurrent_sessions_are_separate() -> None:
    events = replay(load_records("two_at_once"))

    assert len({event.session_id for event in events}) == 2
    assert event_types(events).count("execution_completed") == 2


def test_records_after_a_session_end_do_not_reopen_it() -> None:
    """B84: the last log records are exported after the last hook call, and some end after it."""
    given_records = load_records("healthy")
    hooks = [record for record in given_records if record.path == HOOKS]
    logs = [record for record in given_records if record.path != HOOKS]

    assert event_types(replay(hooks + logs)).count("execution_started") == 1
    assert summarize_without_ids(replay(hooks + logs)) == summarize_without_ids(replay(given_records))


def test_nudges_and_stops_are_answers_to_hook_calls_after_a_tool() -> None:
    assert CLIENT.instruction_answer("AfterTool", "nudge", "Try another way.") == {
        "hookSpecificOutput": {"hookEventName": "AfterTool", "additionalContext": "Try another way."}
    }
    assert CLIENT.instruction_answer("AfterTool", "terminate", "It loops.") == {
        "continue": False,
        "stopReason": "It loops.",
    }
    for event in ("BeforeTool", "AfterModel", "AfterAgent", "SessionEnd", "Notification"):
        assert CLIENT.instruction_answer(event, "nudge", "Try another way.") == {}
        assert CLIENT.instruction_answer(event, "terminate", "It loops.") == {}


@pytest.mark.parametrize(
    ("response", "outcome"),
    [
        ({"llmContent": "Output: x\nExit Code: 2\nProcess Group PGID: 7"}, "error"),
        ({"llmContent": "Output: x\nExit Code: 0"}, "ok"),
        ({"llmContent": "Output: x\nSignal: SIGKILL"}, "error"),
        ({"llmContent": "No file.", "error": {"message": "No file.", "type": "file_not_found"}}, "error"),
        ({"llmContent": "", "error": "refused"}, "error"),
        ({"llmContent": [{"text": "Exit Code: 2"}]}, "ok"),
        ({"llmContent": "zsh: command not found: Let"}, "error"),
        ({"llmContent": "Not accepted."}, "error"),
        ("text", "ok"),
        (None, "ok"),
    ],
)
def test_outcome_of_a_tool_is_in_its_result(response: Any, outcome: str) -> None:
    """B89: the exit code or signal in the result decides."""
    call = {"hook_event_name": "AfterTool", "tool_name": SHELL, "tool_response": response}

    assert read_hook(call)["outcome"] == outcome


def test_secrets_in_a_failed_result_are_masked() -> None:
    text = "Output: Authorization: Bearer sk-abcdefghijklmnopqrstuvwxyz012345\nExit Code: 1"
    data = read_hook(
        {"hook_event_name": "AfterTool", "tool_name": SHELL, "tool_response": {"llmContent": text}}
    )

    assert "abcdefghijklmnopqrstuvwxyz" not in str(data)


@given(
    st.dictionaries(
        st.sampled_from(
            (
                *("hook_event_name", "timestamp", "tool_name", "tool_input", "tool_response"),
                *("llm_request", "llm_response", "notification_type", "cwd"),
            )
        ),
        st.sampled_from(["BeforeTool", "AfterTool", "AfterModel", "Notification", "ToolPermission"])
        | st.recursive(
            st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
            lambda inner: (
                st.lists(inner, max_size=3)
                | st.dictionaries(
                    st.sampled_from(["candidates", "finishReason", "llmContent", "error", "usageMetadata"]),
                    inner,
                    max_size=3,
                )
            ),
            max_leaves=8,
        ),
    )
)
def test_malformed_hook_calls_are_read_ignored_or_refused(call: dict[str, Any]) -> None:
    try:
        observation = CLIENT.read_hook({"session_id": "s", **call}, UNKNOWN_PROCESS, NOW)
    except ValueError:
        return  # refused

    assert observation is None or observation.start <= NOW


def test_records_without_a_session_are_refused() -> None:
    with pytest.raises(ValueError, match="session_id"):
        CLIENT.read_hook({"hook_event_name": "AfterTool"}, UNKNOWN_PROCESS, NOW)
    with pytest.raises(ValueError, match=r"session\.id"):
        CLIENT.read_log({"event.name": "gemini_cli.tool_call"}, UNKNOWN_PROCESS, NOW)
