from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest

from queenright.health.findings import FindingKind
from queenright.health.monitoring.monitor import HealthMonitor
from queenright.health.monitoring.steplog import StepLogReader
from queenright.health.monitoring.worker_summary import summarise
from queenright.health.settings import HealthSettings
from queenright.instrumentation import Worker
from queenright.instrumentation.identity import InvalidSessionIdError, check_session_id
from queenright.instrumentation.steplog import get_step_log_path
from queenright.runtime.events import EventType


def make_row(index: int = 0, verdict: str | None = "CONTINUE", **extra_fields: Any) -> str:
    fields = {
        "agent_id": "a",
        "session_id": "s",
        "incarnation_id": "i",
        "node_id": "n",
        "step_index": index,
        "verdict": verdict,
        "ended_at": f"2026-01-01T10:00:{index % 60:02d}.000+00:00",
    }
    return json.dumps({**fields, **extra_fields}) + "\n"


def append_text(path: Path, text: str) -> None:
    with path.open("a") as file:
        file.write(text)


@pytest.fixture
def log(tmp_path: Path) -> Path:
    return tmp_path / "tool_logs.jsonl"


def test_row_becomes_its_calls_its_tokens_and_its_step(log: Path) -> None:
    call = {
        "tool_name": "search",
        "args_hash": "aa",
        "result_hash": "bb",
        "outcome": "error",
        "error_type": "KeyError",
        "ended_at": "2026-01-01T10:00:00.500+00:00",
    }
    log.write_text(make_row(3, "RETRY", tool_calls=[call], input_tokens=5, output_tokens=2, feedback="again"))
    tool, llm, step = StepLogReader(log).read()

    assert tool.type is EventType.TOOL_CALL_COMPLETED
    assert tool.data == {
        "tool": "search",
        "turn": "n:3",
        "args_hash": "aa",
        "result_hash": "bb",
        "outcome": "error",
        "error_type": "KeyError",
    }
    assert llm.data == {"input_tokens": 5, "output_tokens": 2}
    assert step.data == {"index": 3, "verdict": "RETRY", "text": "again"}
    assert step.time - tool.time == 2.5
    assert (step.agent_id, step.session_id, step.incarnation_id, step.node_id) == ("a", "s", "i", "n")


def test_rows_of_the_older_format_are_read(log: Path) -> None:
    call = {"tool_use_id": "1", "tool_name": "t", "tool_input": {"q": 1}, "result": "r", "is_error": True}
    rows = [make_row(n, None, tool_calls=[call], llm_text="hm", error="boom") for n in range(2)]
    log.write_text("".join(rows))
    events = StepLogReader(log).read()

    first, second = (event.data for event in events if event.type is EventType.TOOL_CALL_COMPLETED)
    assert first["outcome"] == "error"
    assert (first["args_hash"], first["result_hash"]) == (second["args_hash"], second["result_hash"])
    assert events[-1].data["error"] == "boom"


def test_lines_that_are_not_steps_are_skipped_and_counted(log: Path) -> None:
    """B6: corrupt, truncated, blank or non-object lines are skipped and counted, never raised."""
    invalid_lines = [
        "\n",
        "[1, 2]\n",
        '{"step_index": 1, "verd\n',
        "null\n",
        '"text"\n',
        "\x00\xff\n",
        "{}\n",
        "[" * 9000 + "\n",
    ]
    log.write_bytes("".join([make_row(0), *invalid_lines, make_row(1)]).encode("latin-1"))
    reader = StepLogReader(log)

    assert [event.data["index"] for event in reader.read()] == [0, 1]
    assert reader.skipped_lines == len(invalid_lines)


def test_partial_last_line_is_read_once_complete(log: Path) -> None:
    """B6: a partial last line is read again next time."""
    line = make_row(1)
    append_text(log, make_row(0) + line[:20])
    reader = StepLogReader(log)
    assert len(reader.read()) == 1
    assert reader.read() == []
    append_text(log, line[20:])

    assert [event.data["index"] for event in reader.read()] == [1]
    assert reader.skipped_lines == 0


@pytest.mark.parametrize("rotation", ["replaced", "cut"])
def test_rotated_log_is_read_from_its_start(log: Path, rotation: str) -> None:
    """B6: a rotated log is read from its start."""
    append_text(log, make_row(0) + make_row(1))
    reader = StepLogReader(log)
    reader.read()
    if rotation == "replaced":
        new_log = log.with_name("fresh")
        new_log.write_text(make_row(7) + make_row(8) + make_row(9))
        os.replace(new_log, log)
    else:
        log.write_text(make_row(7))

    assert reader.read()[0].data["index"] == 7


def test_missing_step_log_is_empty(log: Path) -> None:
    reader = StepLogReader(log)
    assert reader.read() == []
    append_text(log, make_row(0))
    assert len(reader.read()) == 1


def test_only_new_lines_are_read(log: Path) -> None:
    """B7: after the first read of a 1 GB step log, only the new part is read."""
    log.write_text(make_row(0))
    with log.open("r+b") as file:
        file.truncate(1_000_000_000)
    append_text(log, "\n" + make_row(1))
    reader = StepLogReader(log)
    monitor = HealthMonitor(HealthSettings())
    events = []
    while new := reader.read():
        events += new
    read_before = reader.offset
    append_text(log, make_row(2))

    events += (new := reader.read())
    for event in events:
        monitor.apply(event, event.time)

    assert read_before == log.stat().st_size - len(make_row(2))
    assert [event.data["index"] for event in new] == [2]
    assert reader.skipped_lines == 1  # a gigabyte in the middle without a line break
    health = monitor.get("a", "s")
    assert health is not None
    assert summarise(health, health.vitals.last_activity)["total_steps"] == 3


def test_line_longer_than_a_chunk_is_skipped(log: Path) -> None:
    append_text(log, make_row(0) + make_row(1, text="x" * 3000) + make_row(2))
    reader = StepLogReader(log)
    events = reader.read(limit=1000) + reader.read(limit=1000)

    assert [event.data["index"] for event in events] == [0, 2]
    assert reader.skipped_lines == 1


@pytest.mark.parametrize("session", ["../other", "a/b", "..", ".", "", "a\\b", "a\0b"])
def test_session_id_with_a_path_is_refused(session: str) -> None:
    """B8: a session id with a path separator or ``..`` is refused with a clear error."""
    with pytest.raises(InvalidSessionIdError, match="is refused"):
        check_session_id(session)


@pytest.mark.parametrize("mark", [{"kind": "compaction"}, {"type": "compaction"}, {"is_compaction": True}])
def test_compaction_changes_no_count_and_no_clock(log: Path, mark: dict[str, Any]) -> None:
    """B10: compaction rows change no count and no clock."""
    log.write_text(make_row(0, "RETRY") + make_row(9, "RETRY", **mark))
    reader = StepLogReader(log)

    assert [event.data["index"] for event in reader.read()] == [0]
    assert reader.skipped_lines == 0


def test_secrets_in_a_log_are_masked(log: Path) -> None:
    """B16: secrets are redacted."""
    log.write_text(make_row(0, None, error="401: api_key=sk-abcdefghijklmnop1234"))
    [step] = StepLogReader(log).read()

    assert "sk-abcdefghijklmnop1234" not in step.data["error"]


def test_step_log_of_a_worker_round_trips(tmp_path: Path) -> None:
    with Worker("bee", storage=tmp_path, endpoint="http://127.0.0.1:9") as worker:
        for _ in range(3):
            with worker.step("work") as step:
                with step.tool("search", {"q": "hive"}) as call:
                    call.result("nothing")
                step.verdict("RETRY")
        session = worker.session_id
    monitor = HealthMonitor(HealthSettings())
    for event in StepLogReader(get_step_log_path(tmp_path, session)).read():
        monitor.apply(event, event.time)
    health = monitor.get("bee", session)

    assert get_step_log_path(tmp_path, session).exists()
    assert health is not None
    assert health.vitals.steps_since_last_accept == 3
    assert {finding.kind for finding in health.findings} == {FindingKind.DOOM_LOOP}
