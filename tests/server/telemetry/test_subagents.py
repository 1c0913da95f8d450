"""Sub-agents of one Claude Code session. Each sub-agent has its own calls."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from queenright.health.findings import Finding, FindingKind
from queenright.health.monitoring.monitor import HealthMonitor
from queenright.health.settings import HealthSettings
from queenright.runtime.events import AgentEvent, EventType
from tests.clients.fixtures import Record
from tests.server.telemetry.replay import replay


def make_hook_record(seconds: float, name: str, **data: Any) -> Record:
    return Record(seconds, "/hooks/claude-code", {"hook_event_name": name, "session_id": "s", **data})


def make_call_records(
    seconds: float, tool: str, arguments: dict[str, Any], result: Any, **caller: str
) -> list[Record]:
    of_call = {"tool_name": tool, "tool_input": arguments, "tool_use_id": f"toolu_{seconds}", **caller}
    return [
        make_hook_record(seconds, "PreToolUse", **of_call),
        make_hook_record(seconds + 0.5, "PostToolUse", **of_call, tool_response=result),
    ]


def find_findings(*calls: list[Record]) -> list[Finding]:
    monitor = HealthMonitor(HealthSettings())
    begin = [make_hook_record(0.0, "SessionStart"), make_hook_record(0.0, "UserPromptSubmit", prompt="go")]
    for event in replay([*begin, *(record for records in calls for record in records)]):
        monitor.apply(event, event.time)
    [worker] = monitor.workers()
    return [
        finding
        for finding in worker.findings
        if finding.kind in (FindingKind.DOOM_LOOP, FindingKind.ZERO_PROGRESS)
    ]


def make_caller(number: int) -> dict[str, str]:
    return {"agent_id": f"agent{number}", "agent_type": "Explore"}


def test_subagents_that_start_with_the_same_call_are_not_a_loop() -> None:
    calls = []
    for number in range(8):
        seconds, caller = 10.0 * number + 1.0, make_caller(number)
        calls += [
            make_call_records(seconds, "Bash", {"command": "git status"}, {"stdout": "clean"}, **caller),
            make_call_records(seconds + 2, "Read", {"file_path": "/CLAUDE.md"}, {"file": "rules"}, **caller),
            make_call_records(
                seconds + 4, "Read", {"file_path": f"/{number}.py"}, {"file": f"text {number}"}, **caller
            ),
        ]

    assert find_findings(*calls) == []


def test_parallel_subagents_that_make_the_same_call_are_not_a_loop() -> None:
    reads = [
        make_call_records(
            1.0 + index, "Read", {"file_path": "/CLAUDE.md"}, {"file": "rules"}, **make_caller(index)
        )
        for index in range(8)
    ]

    assert find_findings(*reads) == []


def test_single_subagent_that_repeats_its_call_is_a_loop() -> None:
    searches = [
        make_call_records(1.0 + index, "Grep", {"pattern": "foo"}, {"matches": ["a.py"]}, **make_caller(1))
        for index in range(8)
    ]

    assert FindingKind.DOOM_LOOP in {finding.kind for finding in find_findings(*searches)}


def test_agent_that_repeats_a_call_without_subagents_is_a_loop() -> None:
    searches = [
        make_call_records(1.0 + index, "Grep", {"pattern": "foo"}, {"matches": ["a.py"]})
        for index in range(8)
    ]

    assert FindingKind.DOOM_LOOP in {finding.kind for finding in find_findings(*searches)}


def test_agent_that_starts_the_same_subagent_repeatedly_is_a_loop() -> None:
    starts = [
        make_call_records(1.0 + index, "Agent", {"prompt": "fix it"}, {"text": "cannot"})
        for index in range(8)
    ]

    assert FindingKind.DOOM_LOOP in {finding.kind for finding in find_findings(*starts)}


def find_stalls(client: str, tool: str, *calls: list[Record], end_time: float) -> list[tuple[float, str]]:
    """Return when a session that waits for its sub-agent in a call of ``tool`` stalled, and the evidence."""
    session_start = [
        make_hook_record(0.0, "SessionStart"),
        make_hook_record(0.0, "UserPromptSubmit", prompt="go"),
    ]
    session_start.append(
        make_hook_record(
            0.5, "PreToolUse", tool_name=tool, tool_input={"prompt": "go"}, tool_use_id="toolu_0"
        )
    )
    records = [*session_start, *(record for records in calls for record in records)]
    events = replay([replace(record, path=f"/hooks/{client}") for record in records])
    monitor, clock_times = HealthMonitor(HealthSettings()), list[AgentEvent]()
    start_time = events[0].time
    for event in events:
        clock_times += monitor.advance(event.time) + monitor.apply(event, event.time)
    clock_times += monitor.advance(start_time + end_time)
    opened_findings = [event for event in clock_times if event.type is EventType.FINDING_OPENED]
    return [
        (event.time - start_time, event.data["evidence"]) for event in opened_findings if event.data["ticket"]
    ]


@pytest.mark.parametrize(
    ("client", "tool"), [("claude-code", "Agent"), ("claude-code", "Task"), ("codex", "wait_agent")]
)
def test_session_that_waits_for_its_subagent_stalls_only_if_both_are_silent(client: str, tool: str) -> None:
    calls = [
        make_call_records(
            480.0 * index, "Read", {"file_path": f"/{index}.py"}, {"file": f"text {index}"}, **make_caller(1)
        )
        for index in range(1, 8)
    ]
    last_call_time = 480.0 * 7 + 0.5

    assert find_stalls(client, tool, *calls, end_time=last_call_time + 599.0) == []
    [(stalled_at, evidence)] = find_stalls(client, tool, *calls, end_time=last_call_time + 600.0)

    assert stalled_at == pytest.approx(last_call_time + 600.0)
    assert evidence == f"nothing happened for 10 min in a call of {tool}"
