"""Recorded Codex CLI sessions: several sources report one run, in any order."""

from __future__ import annotations

from pathlib import Path
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from queenright.runtime.events import AgentEvent, EventType
from queenright.server.telemetry.client_sessions import ClientSession
from queenright.server.telemetry.dialects.codex import CLIENT
from queenright.server.telemetry.process import Process
from queenright.server.telemetry.runs import TracedRun
from tests.clients.fixtures import FOLDER, Record, load_fixture
from tests.server.telemetry.replay import UNKNOWN_PROCESS, replay, split_record, summarize

HOOKS = "/hooks/codex"
PATHS = sorted((FOLDER / "codex").glob("*.json"))


def load_records(name: str, *, without: str = "") -> list[Record]:
    records = load_fixture(FOLDER / "codex" / f"{name}.json").records
    return [record for record in records if not (without and record.path.startswith(without))]


def list_event_types(events: list[AgentEvent]) -> list[str]:
    return [event.type.value for event in sorted(events, key=lambda event: event.time)]


@pytest.mark.parametrize("name", ["healthy", "healthy-code"])
def test_log_records_alone_give_steps_tokens_and_failed_commands(name: str) -> None:
    """
    B89: the client reports success for a command that exited with status 2. Code around a tool is not a call.
    """
    events = replay(load_records(name, without=HOOKS))
    summary = summarize(events)

    assert (summary["agents"], summary["steps"], summary["tokens"]) == (1, 4, 4 * 1020)
    tools = [event.data for event in events if event.type == "tool_call_completed"]
    assert [(tool["tool"], tool.get("error_type")) for tool in tools] == [
        ("exec_command", None),
        ("exec_command", "exit_code_2"),
        ("exec_command", None),
    ]


@pytest.mark.parametrize("name", ["healthy", "healthy-code"])
def test_call_reported_by_several_sources_is_counted_once(name: str) -> None:
    """B84: log records and hook calls of one session belong to one run."""
    call_data = [event.data for event in replay(load_records(name)) if event.type == "tool_call_completed"]
    ids = [data["call_id"] for data in call_data if not data.get("amends")]

    assert len(ids) == len(set(ids)) == 3
    assert summarize(replay(load_records(name)))["outcome"] == ["execution_completed"]


@pytest.mark.parametrize("name", ["hang_first", "hang_later", "killed"])
@pytest.mark.parametrize("without", ["", HOOKS, "/v1"])
def test_command_that_hangs_is_reported_as_open(name: str, without: str) -> None:
    """B94: this holds even though `exec_command` has returned and is polled."""
    events = replay(load_records(name, without=without))

    started_ids = {event.data["call_id"] for event in events if event.type == "tool_call_started"}
    ended_ids = {event.data["call_id"] for event in events if event.type == "tool_call_completed"}
    assert len(started_ids - ended_ids) == 1
    assert "write_stdin" not in {event.data.get("tool") for event in events}


@pytest.mark.parametrize("is_late", [False, True])
def test_command_that_exits_while_it_is_polled_ends(is_late: bool) -> None:
    """B84, B89: in either order of the records, the end belongs to the call that started the command."""
    base = {"event.name": "codex.tool_result", "conversation.id": "s", "success": "true"}
    first_record = base | {
        "tool_name": "exec_command",
        "call_id": "call_1",
        "arguments": '{"cmd": "make"}',
        "output": "Chunk ID: a\nWall time: 10.0 seconds\nProcess running with session ID 7\nOutput:\n",
    }
    last_record = base | {
        "tool_name": "write_stdin",
        "call_id": "call_2",
        "arguments": '{"session_id": 7, "chars": ""}',
        "output": "Chunk ID: b\nWall time: 5.0 seconds\nProcess exited with code 2\nOutput:\nno\n",
    }
    observations = [
        CLIENT.read_log(observation, UNKNOWN_PROCESS, second * 10**9)
        for observation, second in ((first_record, 10), (last_record, 15))
    ]
    session = ClientSession(TracedRun("a", "s", "s"))
    changes = [
        change
        for observation in (observations[::-1] if is_late else observations)
        if observation
        for change in session.apply(observation, observation.end or observation.start)
    ]

    calls = [item.data for item in changes if item.type is EventType.TOOL_CALL_COMPLETED]
    assert [(item["call_id"], item["tool"], item["error_type"]) for item in calls] == [
        ("call_1", "exec_command", "exit_code_2")
    ]
    assert calls[0]["args_hash"]


@pytest.mark.parametrize("name", ["loop", "loop-code"])
@pytest.mark.parametrize("without", ["", HOOKS, "/v1"])
def test_loop_repeats_one_call_with_one_result(name: str, without: str) -> None:
    """B26: chunk id and wall time, which change, are not part of the result."""
    calls = [
        event.data
        for event in replay(load_records(name, without=without))
        if event.type == "tool_call_completed"
    ]

    assert len(calls) >= 4
    assert len({call["args_hash"] for call in calls}) == 1
    if without:
        assert len({call["result_hash"] for call in calls}) == 1


@pytest.mark.parametrize("name", ["provider_429", "provider_500", "provider_529"])
def test_failing_provider_causes_failed_calls_and_a_failed_run(name: str) -> None:
    summary = summarize(replay(load_records(name)))

    assert summary["failed model calls"] == (1 if name == "provider_429" else 29)
    assert summary["outcome"] == ["execution_failed"]


def test_permission_request_waits_for_the_user() -> None:
    """B93: the wait starts with the request and ends with the decision."""
    assert "worker_waiting" in list_event_types(replay(load_records("permission", without="/v1")))


def test_session_waits_for_the_user_after_its_turn() -> None:
    """B95: after a turn, the session waits for the user."""
    assert list_event_types(replay(load_records("healthy", without="/v1")))[-2:] == [
        "worker_waiting",
        "execution_completed",
    ]


@pytest.mark.parametrize("name", ["healthy", "permission"])
def test_log_records_alone_distinguish_a_wait_from_a_hang(name: str) -> None:
    """B93, B95: no record reports a wait, but a session whose model has answered waits unless a tool runs."""
    events = replay(load_records(name, without=HOOKS))
    for session in {event.session_id for event in events}:
        assert (
            list_event_types([event for event in events if event.session_id == session])[-1]
            == "worker_waiting"
        )


def test_concurrent_sessions_are_separate_runs() -> None:
    assert summarize(replay(load_records("two_at_once")))["agents"] == 2


@pytest.mark.parametrize(
    ("tool", "output", "error_type"),
    [
        ("submit", "Not accepted.", "not accepted"),
        ("read_file", "Not accepted.", None),
        ("submit", "ok", None),
    ],
)
def test_failure_visible_only_in_the_output_is_a_failure(
    tool: str, output: str, error_type: str | None
) -> None:
    record = {
        "event.name": "codex.tool_result",
        "conversation.id": "s",
        "success": "true",
        "call_id": "call_1",
    }
    observation = CLIENT.read_log(record | {"tool_name": tool, "output": output}, UNKNOWN_PROCESS, 1)

    assert observation is not None
    assert observation.data.get("error_type") == error_type


def test_nudges_and_stops_are_sent_in_responses_to_hook_calls() -> None:
    nudge = CLIENT.instruction_answer("PostToolUse", "nudge", "Try it.")
    assert nudge["hookSpecificOutput"]["additionalContext"] == "Try it."
    stop = CLIENT.instruction_answer("PreToolUse", "terminate", "It loops.")["hookSpecificOutput"]
    assert (stop["permissionDecision"], stop["permissionDecisionReason"]) == ("deny", "It loops.")
    assert CLIENT.instruction_answer("PostToolUse", "terminate", "It loops.") == {}


def test_records_without_a_session_are_rejected() -> None:
    with pytest.raises(ValueError, match=r"conversation\.id"):
        CLIENT.read_log({"event.name": "codex.tool_result"}, UNKNOWN_PROCESS, 1)
    with pytest.raises(ValueError, match="session_id"):
        CLIENT.read_hook({"hook_event_name": "Stop"}, UNKNOWN_PROCESS, 1)


@given(path=st.sampled_from(PATHS), seed=st.integers(0, 2**32))
def test_order_splits_repeats_and_delays_of_records_change_nothing(path: Path, seed: int) -> None:
    """B84: hook calls arrive immediately. OTLP records may arrive late, in pieces and more than once."""
    given_records, rng = load_fixture(path).records, Random(seed)
    expected_summary = summarize(replay(given_records))
    moved_records = []
    for record in given_records:
        if record.path == HOOKS:
            moved_records += [record] * rng.choice((1, 1, 2))
            continue
        for part in split_record(record):
            for _ in range(rng.choice((1, 1, 2))):
                moved_records.append(Record(record.at + rng.uniform(0.0, 10.0), part.path, part.body))
    moved_records.sort(key=lambda record: record.at)
    summary = summarize(replay(moved_records))

    if path.stem == "provider_429":  # The only failure of the session may arrive after its end.
        del summary["outcome"], expected_summary["outcome"]
    assert summary == expected_summary


def test_failed_command_stays_failed_if_its_hook_call_arrives_first() -> None:
    """B89: the later log record does not replace the failure."""
    assert "error" in {outcome for _, _, outcome in summarize(replay(load_records("healthy")))["tools"]}


def test_session_is_renamed_once_its_user_is_known(monkeypatch: pytest.MonkeyPatch) -> None:
    """B86: log records name the host, and hook calls name the user and the folder, in either order."""
    person = Process("", "", "", False, owner="ada@workstation")
    monkeypatch.setattr("tests.server.telemetry.replay.UNKNOWN_PROCESS", person)
    given_records = load_records("healthy")
    logs = [record for record in given_records if record.path == "/v1/logs"]
    hooks = [record for record in given_records if record.path != "/v1/logs"]

    for order in (logs + hooks, hooks + logs):
        assert summarize(replay(order))["names"] == ["codex/ada@workstation/project"]
