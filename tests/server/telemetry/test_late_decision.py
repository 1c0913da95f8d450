"""A permission decision that the client's log reports late, while sub-agents continue to work."""

from __future__ import annotations

from typing import Any

from tests.clients.fixtures import FOLDER, Record, load_fixture
from tests.server.telemetry.replay import split_record
from tests.server.telemetry.test_recall import RecordedService


def get_decision(record: Record) -> bool:
    return "tool_decision" in str(record.body)


def test_late_decision_ends_its_wait() -> None:
    """B93: after the decision, time counts for the tool, so a hang is found."""
    records = list(load_fixture(FOLDER / "claude-code" / "permission_granted.json").records)
    hooks = [record for record in records if "/hooks/" in record.path]
    names = [hook.body["hook_event_name"] for hook in hooks]
    result = hooks[: names.index("PermissionRequest") + 1]
    [decision_record] = [
        single_record
        for record in records
        for single_record in split_record(record)
        if get_decision(single_record)
    ]
    previous_body = result[-2].body
    subagent_body: dict[str, Any] = previous_body | {
        "tool_use_id": "other",
        "tool_name": "WebFetch",
        "agent_id": "a1",
    }
    session = RecordedService()

    session.ingest_records([*result, Record(13.9, result[-2].path, subagent_body)])
    wait_times = session.list_waits()
    session.ingest_records([Record(14.0, decision_record.path, decision_record.body)])

    assert (wait_times, session.list_waits()) == (["user_input"], [None])
