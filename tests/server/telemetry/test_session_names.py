"""Names of coding agents' sessions, combined from sources that each know a part of the name."""

from __future__ import annotations

from itertools import permutations
from typing import Any

import pytest

from queenright.instrumentation.identity import NAME_LIMIT
from queenright.runtime.events import EventType
from queenright.server.telemetry.assembler import Assembler
from tests.clients.fixtures import BEGAN, Record
from tests.server.otlp.framework_spans import list_workers
from tests.server.telemetry.replay import decode_record, replay

HOST = {"host.name": "laptop"}
PERSON = {**HOST, "user.name": "ada"}


def make_hook_record(folder: str) -> Record:
    call = {"hook_event_name": "UserPromptSubmit", "session_id": "s", "cwd": folder}
    return Record(0.0, "/hooks/claude-code", call)


def make_log_record(resource: dict[str, str], seconds: int = 0) -> Record:
    def make_attributes(values: dict[str, str]) -> list[dict[str, Any]]:
        return [{"key": key, "value": {"stringValue": value}} for key, value in values.items()]

    record = {
        "timeUnixNano": str(int((BEGAN + seconds) * 1e9)),
        "attributes": make_attributes({"event.name": "user_prompt", "session.id": "s", "prompt.id": "p"}),
    }
    scope = {"scope": {"name": "com.anthropic.claude_code.events"}, "logRecords": [record]}
    group = {"resource": {"attributes": make_attributes(resource)}, "scopeLogs": [scope]}
    return Record(0.0, "/v1/logs", {"resourceLogs": [group]})


@pytest.mark.parametrize("order", list(permutations(range(3))))
def test_name_combines_the_parts_that_each_source_knows(order: tuple[int, ...]) -> None:
    """B84: the order of the sources does not matter."""
    sources = [make_hook_record("/home/ada/website"), make_log_record(HOST), make_log_record(PERSON, 1)]

    events = replay([sources[index] for index in order])

    assert list_workers(events) == {("claude-code/ada@laptop/website", "s")}


def test_change_of_the_working_folder_does_not_rename_the_session() -> None:
    events = replay([make_hook_record("/home/ada/website"), make_hook_record("/home/ada/website/src")])

    assert {event.agent_id for event in events} == {"claude-code/website"}


@pytest.mark.parametrize("path", ["C:\\ada\\website\\", "/home/ada/website/", "website"])
def test_folder_is_the_last_component_of_a_path_on_any_system(path: str) -> None:
    assert list_workers(replay([make_hook_record(path)])) == {("claude-code/website", "s")}


@pytest.mark.parametrize(
    ("name", "expected_names"),
    [
        ("claude-code", ["claude-code/laptop"]),
        ("claude-code/website", []),
        ("claude-code/ada@laptop/website", []),
    ],
)
def test_name_from_before_a_restart_is_kept_until_more_is_known(name: str, expected_names: list[str]) -> None:
    assembler = Assembler()
    assembler.sessions.reset("claude-code", "s", name, ended_at=None, has_failed=False)

    events = decode_record(make_log_record(HOST), assembler).events

    agent_ids = {event.data["agent_id"] for event in events if event.type is EventType.AGENT_RENAMED}
    assert agent_ids == set(expected_names)
    assert list_workers(events) == {([*expected_names, name][0], "s")}


def test_long_names_are_truncated_and_stay_distinct() -> None:
    folders = ["a" * 199 + letter for letter in "bc"]
    names = {
        list_workers(replay([make_hook_record(f"/home/{folder}"), make_log_record(PERSON)])).pop()[0]
        for folder in folders
    }

    assert len(names) == 2
    assert {len(name) for name in names} == {NAME_LIMIT}
