"""Sub-agents of one Claude Code session: each has its own calls."""

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


def hook(at: float, name: str, **data: Any) -> Record:
    return Record(at, "/hooks/claude-code", {"hook_event_name": name, "session_id": "s", **data})


def call(at: float, tool: str, arguments: dict[str, Any], result: Any, **caller: str) -> list[Record]:
    of_call = {"tool_name": tool, "tool_input": arguments, "tool_use_id": f"toolu_{at}", **caller}
    return [
        hook(at, "PreToolUse", **of_call),
        hook(at + 0.5, "PostToolUse", **of_call, tool_response=result),
    ]


def find_findings(*calls: list[Record]) -> list[Finding]:
    monitor = HealthMonitor(HealthSettings())
    begin = [hook(0.0, "SessionStart"), hook(0.0, "UserPromptSubmit", prompt="go")]
    for event in replay([*begin, *(record for records in calls for record in records)]):
        monitor.apply(event, event.time)
    [worker] = monitor.workers()
    return [
        finding
        for finding in worker.findings
        if finding.kind in (FindingKind.DOOM_LOOP, FindingKind.ZERO_PROGRESS)
    ]


def subagent(number: int) -> dict[str, str]:
    return {"agent_id": f"agent{number}", "agent_type": "Explore"}


def test_subagents_that_start_with_the_same_call_are_not_a_loop() -> None:
    calls = []
    for number in range(8):
        at, caller = 10.0 * number + 1.0, subagent(number)
        calls += [
            call(at, "Bash", {"command": "git status"}, {"stdout": "clean"}, **caller),
            call(at + 2, "Read", {"file_path": "/CLAUDE.md"}, {"file": "rules"}, **caller),
            call(at + 4, "Read", {"file_path": f"/{number}.py"}, {"file": f"text {number}"}, **caller),
        ]

    assert find_findings(*calls) == []


def test_parallel_subagents_that_make_the_same_call_are_not_a_loop() -> None:
    reads = [
        call(1.0 + n, "Read", {"file_path": "/CLAUDE.md"}, {"file": "rules"}, **subagent(n)) for n in range(8)
    ]

    assert find_findings(*reads) == []


def test_one_subagent_that_repeats_its_call_is_a_loop() -> None:
    searches = [
        call(1.0 + n, "Grep", {"pattern": "foo"}, {"matches": ["a.py"]}, **subagent(1)) for n in range(8)
    ]

    assert FindingKind.DOOM_LOOP in {one.kind for one in find_findings(*searches)}


def test_agent_that_repeats_a_call_without_subagents_is_a_loop() -> None:
    searches = [call(1.0 + n, "Grep", {"pattern": "foo"}, {"matches": ["a.py"]}) for n in range(8)]

    assert FindingKind.DOOM_LOOP in {one.kind for one in find_findings(*searches)}


def test_agent_that_starts_the_same_subagent_again_is_a_loop() -> None:
    starts = [call(1.0 + n, "Agent", {"prompt": "fix it"}, {"text": "cannot"}) for n in range(8)]

    assert FindingKind.DOOM_LOOP in {one.kind for one in find_findings(*starts)}


def find_stalls(client: str, tool: str, *calls: list[Record], until: float) -> list[tuple[float, str]]:
    """Return when a session that waits for its sub-agent in a call of ``tool`` stalled, and the evidence."""
    begin = [hook(0.0, "SessionStart"), hook(0.0, "UserPromptSubmit", prompt="go")]
    begin.append(hook(0.5, "PreToolUse", tool_name=tool, tool_input={"prompt": "go"}, tool_use_id="toolu_0"))
    records = [*begin, *(record for records in calls for record in records)]
    events = replay([replace(record, path=f"/hooks/{client}") for record in records])
    monitor, clock_times = HealthMonitor(HealthSettings()), list[AgentEvent]()
    started = events[0].time
    for event in events:
        clock_times += monitor.advance(event.time) + monitor.apply(event, event.time)
    clock_times += monitor.advance(started + until)
    opened = [event for event in clock_times if event.type is EventType.FINDING_OPENED]
    return [(event.time - started, event.data["evidence"]) for event in opened if event.data["ticket"]]


@pytest.mark.parametrize(
    ("client", "tool"), [("claude-code", "Agent"), ("claude-code", "Task"), ("codex", "wait_agent")]
)
def test_session_that_waits_for_its_subagent_stalls_only_if_both_are_silent(client: str, tool: str) -> None:
    calls = [
        call(480.0 * n, "Read", {"file_path": f"/{n}.py"}, {"file": f"text {n}"}, **subagent(1))
        for n in range(1, 8)
    ]
    last = 480.0 * 7 + 0.5

    assert find_stalls(client, tool, *calls, until=last + 599.0) == []
    [(at, evidence)] = find_stalls(client, tool, *calls, until=last + 600.0)

    assert at == pytest.approx(last + 600.0)
    assert evidence == f"nothing happened for 10 min in a call of {tool}"
