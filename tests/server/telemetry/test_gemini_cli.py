"""Recorded Gemini CLI sessions: several sources report one run, in any order."""

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
from tests.server.telemetry.replay import UNKNOWN_PROCESS, replay, split_record, summarize

PATHS = sorted((FOLDER / "gemini-cli").glob("*.json"))
HOOKS = "/hooks/gemini-cli"
SHELL = "run_shell_command"
NOW_NS = 1_767_225_600 * 10**9


def load_records(name: str, *, without: str = "") -> list[Record]:
    """Return the records of a fixture in order of arrival."""
    records = load_fixture(FOLDER / "gemini-cli" / f"{name}.json").records
    return [record for record in records if not (without and record.path.startswith(without))]


def list_event_types(events: list[AgentEvent]) -> list[str]:
    return [event.type.value for event in sorted(events, key=lambda event: event.time)]


def summarize_without_ids(events: list[AgentEvent]) -> dict[str, Any]:
    """Return the summary without the ids of tool calls, which the client does not send."""
    summary = summarize(events)
    tools = Counter[tuple[str, str]]()
    for (tool, _, outcome), count in summary["tools"].items():
        tools[tool, outcome] += count
    return summary | {"tools": tools}


def read_hook(call: dict[str, Any]) -> dict[str, Any]:
    observation = CLIENT.read_hook({"session_id": "s", **call}, UNKNOWN_PROCESS, NOW_NS)
    assert observation is not None
    return observation.data


@pytest.mark.parametrize("name", [path.stem for path in PATHS])
def test_call_reported_by_several_sources_is_counted_once(name: str) -> None:
    """B84: log records, spans and hook calls of one session belong to one run."""
    all_events = replay(load_records(name))
    all_of_them = summarize_without_ids(all_events)
    logs = [record for record in load_records(name) if record.path == "/v1/logs"]
    log_summary, hook_summary = (
        summarize_without_ids(replay(logs)),
        summarize_without_ids(replay(load_records(name, without="/v1"))),
    )

    ids = [event.data["call_id"] for event in all_events if event.type == "tool_call_completed"]
    assert len(ids) == len(set(ids))
    assert set(ids) <= {
        candidate.data["call_id"] for candidate in all_events if candidate.type == "tool_call_started"
    }
    assert all_of_them["agents"] == (2 if name == "two_at_once" else 1)
    # The spans of the client add no calls.
    assert summarize_without_ids(replay(load_records(name, without="/v1/traces"))) == all_of_them
    for fixture_summary in (log_summary, hook_summary):
        assert fixture_summary["agents"] == all_of_them["agents"]
        assert fixture_summary["tools"].total() == all_of_them["tools"].total()
    assert hook_summary["tools"] == all_of_them["tools"]
    assert log_summary["failed model calls"] == all_of_them["failed model calls"]
    if name != "loop":  # The guard of this fixture truncates model responses, which then have no log record.
        assert log_summary["model calls"] == all_of_them["model calls"]
        assert log_summary["tokens"] == all_of_them["tokens"]


@given(path=st.sampled_from(PATHS), seed=st.integers(0, 2**32))
def test_order_splits_repeats_and_delays_of_records_change_nothing(path: Path, seed: int) -> None:
    """B84: hook calls arrive immediately. OTLP records may arrive late, in pieces and more than once."""
    given_records, rng = load_fixture(path).records, Random(seed)
    expected_summary = summarize_without_ids(replay(given_records))
    moved_records = []
    for record in given_records:
        if record.path == HOOKS:
            moved_records += [record] * rng.choice((1, 1, 2))
            continue
        for part in split_record(record):
            for _ in range(rng.choice((1, 1, 2))):
                late_record = Record(record.at + rng.uniform(0.0, 10.0), part.path, part.body)
                moved_records.append(late_record)
    moved_records.sort(key=lambda record: record.at)

    assert summarize_without_ids(replay(moved_records)) == expected_summary


@given(path=st.sampled_from(PATHS), seed=st.integers(0, 2**32))
def test_lost_hook_calls_cause_no_loss_of_tool_calls(path: Path, seed: int) -> None:
    """B84: hooks fail open, so any hook call may be missing. The log reports the calls that ended."""
    rng = Random(seed)
    remaining_records = [
        record for record in load_fixture(path).records if record.path != HOOKS or rng.random() < 0.7
    ]
    logs = [record for record in load_fixture(path).records if record.path == "/v1/logs"]

    assert (
        summarize_without_ids(replay(remaining_records))["tools"].total()
        == summarize_without_ids(replay(logs))["tools"].total()
    )


def test_tools_steps_tokens_and_failures_of_a_healthy_session_are_counted() -> None:
    """B89: the client reports success for a command that exited with status 2."""
    events = replay(load_records("healthy"))

    assert summarize_without_ids(events) == {
        "agents": 1,
        "names": ["gemini-cli/workstation/project"],
        "steps": 4,  # One of the five model calls chooses the model.
        "tools": Counter({(SHELL, "ok"): 2, (SHELL, "error"): 1}),
        "model calls": 5,
        "failed model calls": 0,
        "tokens": 5 * 1020,
        "cost": 0,
        "outcome": ["execution_completed"],
        "MCP servers": Counter(),
    }
    [failed_call] = [
        event.data
        for event in events
        if event.type == "tool_call_completed" and event.data["outcome"] == "error"
    ]
    assert failed_call["error_type"] == "exit_code_2"
    assert "No such file" in failed_call["error"]
    assert failed_call["duration"] > 0
    assert events[-1].agent_id == "gemini-cli/workstation/project"


def test_session_waits_for_the_user_after_its_turn() -> None:
    """B95: log records alone, which do not report the end of the session, are enough."""
    without_end = [
        record
        for record in load_records("healthy")
        if record.path != HOOKS or record.body["hook_event_name"] != "SessionEnd"
    ]
    for given_records in (load_records("healthy", without=HOOKS), without_end):
        types = list_event_types(replay(given_records))
        assert [event_type for event_type in types if event_type in ("worker_waiting", "llm_call_started")][
            -1
        ] == "worker_waiting"
        assert types.count("worker_waiting") == 1


def test_permission_request_waits_from_its_start() -> None:
    """B93: log records that arrive after the request do not end the wait."""
    events = replay(load_records("permission"))

    [wait] = [event for event in events if event.type == "worker_waiting"]
    [start_time] = [event for event in events if event.type == "tool_call_started"]
    assert wait.data == {"reason": "user_input", "question": "touch new.txt"}
    assert 0 <= wait.time - start_time.time < 1
    assert list_event_types(events)[-2:] == ["worker_waiting", "execution_completed"]


def test_permitted_tool_call_ends() -> None:
    """B93: both the wait and the tool call end."""
    types = list_event_types(replay(load_records("permission_granted")))

    assert types.index("worker_waiting") < types.index("tool_call_completed")
    assert types[-2:] == ["worker_waiting", "execution_completed"]


@pytest.mark.parametrize("name", ["hang_first", "hang_later", "killed"])
@pytest.mark.parametrize("without", ["", HOOKS, "/v1"])
def test_tool_that_hangs_is_reported_as_open(name: str, without: str) -> None:
    """B94: it is open until the client exits, with only logs, only hooks, or both."""
    events = replay(load_records(name, without=without))

    started_ids = {event.data["call_id"] for event in events if event.type == "tool_call_started"}
    ended_ids = {event.data["call_id"] for event in events if event.type == "tool_call_completed"}
    assert len(started_ids - ended_ids) == 1
    assert ended_ids < started_ids
    assert len(ended_ids) == {"hang_first": 0, "hang_later": 2, "killed": 1}[name]
    kinds = [
        kind
        for kind in list_event_types(events)
        if not kind.startswith("execution") and kind != "agent_renamed"
    ]
    assert kinds[-1] == "tool_call_started"


def test_concurrent_equal_calls_are_separate_and_end_in_the_order_of_their_starts() -> None:
    """B84: without ids, the call that started first ends first."""
    call = {"session_id": "s", "tool_name": SHELL, "tool_input": {"command": "date"}}
    times = [(0, "BeforeTool", "00.001"), (0, "BeforeTool", "00.001001"), (1, "AfterTool", "01.0")]
    given_records = [
        Record(
            10.0 + received_at,
            HOOKS,
            call | {"hook_event_name": name, "timestamp": f"2026-01-01T00:00:{time}Z"},
        )
        for received_at, name, time in times
    ]

    events = replay(given_records)

    first_id, second_id = [event.data["call_id"] for event in events if event.type == "tool_call_started"]
    assert first_id != second_id
    assert [event.data["call_id"] for event in events if event.type == "tool_call_completed"] == [first_id]


def test_tool_that_runs_during_a_restart_of_the_service_ends() -> None:
    """B94: the new service has not received the start, so the end closes an open call of the same tool."""
    given_records = load_records("healthy")
    restart = next(
        index
        for index, record in enumerate(given_records)
        if record.body.get("hook_event_name") == "BeforeTool"
    )
    events_before = replay(given_records[: restart + 1])
    vitals = VitalSigns(events_before[0].agent_id, events_before[0].session_id, events_before[0].time)
    for event in events_before:
        vitals.apply(event, event.time)
    assert vitals.open_tools

    for event in replay(given_records[restart + 1 : restart + 2]):
        vitals.apply(event, event.time)

    assert vitals.tool_calls_total == 1
    assert not vitals.open_tools


def test_killed_session_has_no_end_event() -> None:
    assert summarize_without_ids(replay(load_records("killed")))["outcome"] == []


@pytest.mark.parametrize(("name", "repeats"), [("loop", 4), ("loop-unguarded", 8)])
@pytest.mark.parametrize("without", ["", "/v1"])
def test_loop_repeats_one_call_with_one_result(name: str, repeats: int, without: str) -> None:
    """B26: the process id, which changes, is not part of the result."""
    calls = [
        event.data
        for event in replay(load_records(name, without=without))
        if event.type == "tool_call_completed"
    ]

    assert len(calls) == repeats
    assert len({(call["args_hash"], call["result_hash"]) for call in calls}) == 1


def test_log_records_alone_give_arguments_but_no_result() -> None:
    calls = [
        event.data
        for event in replay(load_records("loop", without=HOOKS))
        if event.type == "tool_call_completed"
    ]

    assert len({call["args_hash"] for call in calls}) == 1
    assert {call.get("result_hash") for call in calls} == {None}


@pytest.mark.parametrize("name", [path.stem for path in PATHS if "provider" in path.stem])
def test_failing_provider_causes_failed_calls_and_a_failed_run(name: str) -> None:
    events = replay(load_records(name))

    assert summarize_without_ids(events)["failed model calls"] >= 14
    assert summarize_without_ids(events)["outcome"] == ["execution_failed"]
    model_calls = [event.data for event in events if event.type == "llm_call_completed"]
    assert {call_data["error_type"] for call_data in model_calls} == {name.removeprefix("provider_")}


def test_model_call_is_open_from_its_request_on() -> None:
    """The client reports its requests to the model. A request without a response is an open call."""
    records = []
    for record in load_records("healthy", without=HOOKS):
        for part in split_record(record):
            if part.path == "/v1/logs":
                records.append(part)
                if "API request to gemini-3.8-flash" in str(part.body):
                    assert list_event_types(replay(records))[-1] == "llm_call_started"
                    return
    pytest.fail("the fixture has no request")


def test_concurrent_sessions_are_separate_runs() -> None:
    events = replay(load_records("two_at_once"))

    assert len({event.session_id for event in events}) == 2
    assert list_event_types(events).count("execution_completed") == 2


def test_records_after_a_session_end_do_not_reopen_it() -> None:
    """
    B84: the last log records are exported after the last hook call, and some of them are also from a later
    time.
    """
    given_records = load_records("healthy")
    hooks = [record for record in given_records if record.path == HOOKS]
    logs = [record for record in given_records if record.path != HOOKS]

    assert list_event_types(replay(hooks + logs)).count("execution_started") == 1
    assert summarize_without_ids(replay(hooks + logs)) == summarize_without_ids(replay(given_records))


def test_nudges_and_stops_are_sent_in_responses_to_hook_calls_after_a_tool() -> None:
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
def test_outcome_of_a_tool_call_is_read_from_its_result(response: Any, outcome: str) -> None:
    """B89: the exit status or signal in the result decides."""
    call = {"hook_event_name": "AfterTool", "tool_name": SHELL, "tool_response": response}

    assert read_hook(call)["outcome"] == outcome


def test_secrets_in_a_failed_result_are_masked() -> None:
    output = "Output: Authorization: Bearer sk-abcdefghijklmnopqrstuvwxyz012345\nExit Code: 1"
    data = read_hook(
        {"hook_event_name": "AfterTool", "tool_name": SHELL, "tool_response": {"llmContent": output}}
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
def test_malformed_hook_calls_are_read_ignored_or_rejected(call: dict[str, Any]) -> None:
    try:
        observation = CLIENT.read_hook({"session_id": "s", **call}, UNKNOWN_PROCESS, NOW_NS)
    except ValueError:
        return  # The call is rejected.

    assert observation is None or observation.start <= NOW_NS


def test_records_without_a_session_are_rejected() -> None:
    with pytest.raises(ValueError, match="session_id"):
        CLIENT.read_hook({"hook_event_name": "AfterTool"}, UNKNOWN_PROCESS, NOW_NS)
    with pytest.raises(ValueError, match=r"session\.id"):
        CLIENT.read_log({"event.name": "gemini_cli.tool_call"}, UNKNOWN_PROCESS, NOW_NS)
