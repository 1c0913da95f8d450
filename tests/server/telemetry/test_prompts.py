"""User prompts to a coding agent. Each prompt is one event, whatever the number of sources."""

from __future__ import annotations

from typing import Any

import pytest

from queenright.health.findings import FindingKind, Severity
from queenright.health.monitoring.monitor import HealthMonitor
from queenright.health.settings import HealthSettings
from queenright.runtime.events import EventType
from tests.clients.fixtures import FOLDER, Record, load_fixture
from tests.server.telemetry.replay import replay

PROMPT_HOOKS = {"claude-code": "UserPromptSubmit", "codex": "UserPromptSubmit", "gemini-cli": "BeforeAgent"}
PATHS = sorted(path for client in PROMPT_HOOKS for path in (FOLDER / client).glob("*.json"))


def make_hook_record(seconds: float, name: str, **data: Any) -> Record:
    return Record(seconds, "/hooks/claude-code", {"hook_event_name": name, "session_id": "s", **data})


def make_deploy_records(count: int, *, has_prompts: bool, **prompt: Any) -> list[Record]:
    """
    Return the hook calls of a session that runs `make deploy` ``count`` times, with or without a prompt each
    time.
    """
    records = [
        make_hook_record(0.0, "SessionStart"),
        make_hook_record(1.0, "UserPromptSubmit", prompt="deploy"),
    ]
    for number in range(count):
        call = {
            "tool_name": "Bash",
            "tool_input": {"command": "make deploy"},
            "tool_use_id": f"toolu_{number}",
        }
        seconds = 10.0 * number + 10.0
        if has_prompts:
            records.append(make_hook_record(seconds, "UserPromptSubmit", prompt="again", **prompt))
        records += [
            make_hook_record(seconds + 1, "PreToolUse", **call, **prompt),
            make_hook_record(
                seconds + 2, "PostToolUse", **call, tool_response={"stdout": "deployed"}, **prompt
            ),
        ]
        if has_prompts:
            records.append(make_hook_record(seconds + 3, "Stop"))
    return records


def find_loop(records: list[Record]) -> Severity | None:
    """Return the severity of the loop after the last tool call; None if there is no loop."""
    monitor = HealthMonitor(HealthSettings())
    for event in replay(records):
        monitor.apply(event, event.time)
    [worker] = monitor.workers()
    return next(
        (finding.severity for finding in worker.findings if finding.kind is FindingKind.DOOM_LOOP), None
    )


def find_prompts(records: list[Record]) -> int:
    return sum(event.type is EventType.CLIENT_INPUT_RECEIVED for event in replay(records))


def test_call_repeated_at_the_users_request_is_not_a_loop() -> None:
    assert find_loop(make_deploy_records(6, has_prompts=True)) is None


def test_call_repeated_within_a_turn_is_a_loop() -> None:
    assert find_loop(make_deploy_records(6, has_prompts=False)) is Severity.HIGH


def test_prompts_of_a_subagent_do_not_end_a_loop() -> None:
    assert (
        find_loop(make_deploy_records(6, has_prompts=True, agent_id="a1", agent_type="Explore"))
        is Severity.HIGH
    )


@pytest.mark.parametrize("path", PATHS, ids=lambda path: f"{path.parent.name}-{path.stem}")
def test_prompt_reported_by_several_sources_is_one_event(path: Any) -> None:
    records = list(load_fixture(path).records)
    hooks = [record.body for record in records if record.path.startswith("/hooks/")]
    sessions = [
        call["session_id"] for call in hooks if call["hook_event_name"] == PROMPT_HOOKS[path.parent.name]
    ]
    # The client in this fixture was killed before it sent log records.
    sources = ["", "/hooks/"] if path.stem == "killed" else ["", "/hooks/", "/v1/logs"]

    for source in sources:
        source_records = [record for record in records if record.path.startswith(source)]
        prompts = [event for event in replay(source_records) if event.type is EventType.CLIENT_INPUT_RECEIVED]

        session_ids = [event.session_id for event in prompts if event.session_id in sessions]
        assert sorted(session_ids) == sorted(sessions), source


@pytest.mark.parametrize("order", [1, -1])
def test_prompt_reported_with_and_without_its_id_is_one_event(order: int) -> None:
    log = Record(
        2.0,
        "/v1/logs",
        {
            "resourceLogs": [
                {
                    "scopeLogs": [
                        {
                            "scope": {"name": "com.anthropic.claude_code.events"},
                            "logRecords": [
                                {
                                    "timeUnixNano": "1767225601900000000",
                                    "attributes": [
                                        {"key": key, "value": {"stringValue": value}}
                                        for key, value in {
                                            "event.name": "user_prompt",
                                            "session.id": "s",
                                            "prompt.id": "p",
                                        }.items()
                                    ],
                                }
                            ],
                        }
                    ]
                }
            ]
        },
    )
    records = [make_hook_record(2.0, "UserPromptSubmit", prompt="go"), log][::order]

    assert find_prompts([make_hook_record(0.0, "SessionStart"), *records]) == 1
    assert (
        find_prompts(
            [
                make_hook_record(0.0, "SessionStart"),
                *records,
                make_hook_record(3.0, "UserPromptSubmit", prompt="go"),
            ]
        )
        == 2
    )
