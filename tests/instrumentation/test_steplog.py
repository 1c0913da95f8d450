"""The step log."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest
from prometheus_client import CollectorRegistry

from queenright.instrumentation import Telemetry, Worker
from queenright.instrumentation.drop_counter import DROPPED
from queenright.instrumentation.fingerprint import fingerprint
from queenright.instrumentation.steplog import StepLog, format_iso, get_step_log_path
from tests.instrumentation.parts import Clock, Script
from tests.isolation import environment


def read_lines(storage: Path, session_id: str) -> list[dict[str, Any]]:
    text = get_step_log_path(storage, session_id).read_text(encoding="utf-8")
    return [json.loads(line) for line in text.splitlines()]


def test_step_is_one_line_with_calls_times_and_ids(
    telemetry: Telemetry, registry: CollectorRegistry, clock: Clock, tmp_path: Path
) -> None:
    with Worker(
        "bee", session_id="s1", telemetry=telemetry, registry=registry, storage=tmp_path, clock=clock
    ) as worker:
        with worker.step("forager") as step:
            with step.llm("gpt") as llm:
                llm.usage(10, 2)
            with step.tool("search", {"q": "clover"}, call_id="call_1") as call:
                clock.now += 1.5
                call.result("a field")
            step.verdict("ACCEPT", "good")
        with pytest.raises(KeyError), worker.step("forager"):
            raise KeyError("secret=abcdef")

    first, second = read_lines(tmp_path, "s1")
    assert first["agent_id"] == "bee"
    assert first["session_id"] == "s1"
    assert first["incarnation_id"] == worker.incarnation_id
    assert (first["node_id"], first["step_index"], first["verdict"]) == ("forager", 0, "ACCEPT")
    assert (first["input_tokens"], first["output_tokens"]) == (10, 2)
    assert first["feedback"] is None, "content is off by default"
    assert (len(first["trace_id"]), len(first["span_id"])) == (32, 16)
    assert datetime.fromisoformat(first["ended_at"]).timestamp() == pytest.approx(clock.now, abs=0.001)
    [call_line] = first["tool_calls"]
    assert call_line["tool_name"] == "search"
    assert call_line["call_id"] == "call_1"
    assert call_line["outcome"] == "ok"
    assert call_line["args_hash"] == fingerprint({"q": "clover"})
    assert call_line["result_hash"] == fingerprint("a field")
    assert second["error_type"] == "KeyError"
    assert "abcdef" not in second["error"]
    assert second["trace_id"] == first["trace_id"]


def test_torn_line_does_not_hide_the_next_line(tmp_path: Path) -> None:
    """B6: only the half-written last line is lost."""
    path = tmp_path / "log.jsonl"
    path.write_bytes(b'{"step_index":0}\n{"step_ind')

    log = StepLog(path)
    log.append({"step_index": 2})
    log.append({"step_index": 3})
    log.close()

    assert path.read_bytes() == b'{"step_index":0}\n{"step_ind\n{"step_index":2}\n{"step_index":3}\n'


def test_every_step_before_a_kill_is_in_the_log(tmp_path: Path) -> None:
    """B33: counted steps survive `kill -9`."""
    source = f"""
import os, signal
from queenright.instrumentation import Worker
with Worker("bee", session_id="s1", storage={str(tmp_path)!r}) as worker:
    for number in range(3):
        with worker.step("forager") as step:
            step.verdict("RETRY")
    os.kill(os.getpid(), signal.SIGKILL)
"""
    result = subprocess.run(
        [sys.executable, "-c", source],
        env=environment(),
        capture_output=True,
        timeout=60,
        check=False,
    )

    assert result.returncode == -signal.SIGKILL
    assert [line["step_index"] for line in read_lines(tmp_path, "s1")] == [0, 1, 2]


def test_lines_of_several_processes_do_not_mix(run_script: Script, tmp_path: Path) -> None:
    """B82: a forked child writes to the log of its parent's worker."""
    result = run_script(f"""
import os
from queenright.instrumentation import Worker
with Worker("bee", session_id="s1", storage={str(tmp_path)!r}) as worker:
    children = []
    for child in range(3):
        pid = os.fork()
        if pid == 0:
            for _ in range(200):
                with worker.step("x" * 500):
                    pass
            os._exit(0)
        children.append(pid)
    for pid in children:
        os.waitpid(pid, 0)
""")

    assert result.returncode == 0, result.stderr
    assert len(read_lines(tmp_path, "s1")) == 600


def test_full_disk_drops_the_line_and_counts_it(tmp_path: Path) -> None:
    """B81: a step log that cannot be written does not affect the agent."""
    before = DROPPED.get_count("steps")
    log = StepLog(tmp_path / "log.jsonl")
    full_device = os.open("/dev/full", os.O_WRONLY)
    os.dup2(full_device, log._file)
    os.close(full_device)

    log.append({"step_index": 0})
    log.close()

    assert DROPPED.get_count("steps") == before + 1


def test_unusable_storage_does_not_affect_the_agent(
    telemetry: Telemetry, registry: CollectorRegistry, tmp_path: Path
) -> None:
    """B81: the worker continues without a step log."""
    (tmp_path / "file").write_text("not a folder")

    worker = Worker("bee", telemetry=telemetry, registry=registry, storage=tmp_path / "file")
    with worker, worker.step("forager") as step:
        step.verdict("ACCEPT")


def test_environment_variable_sets_the_storage(
    telemetry: Telemetry, registry: CollectorRegistry, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("QUEENRIGHT_STORAGE", str(tmp_path))

    with (
        Worker("bee", session_id="s1", telemetry=telemetry, registry=registry) as worker,
        worker.step("forager"),
    ):
        pass

    assert len(read_lines(tmp_path, "s1")) == 1


@pytest.mark.parametrize("time", [0.0, 1_767_225_599.9996, 1_767_225_600.0, 1_767_225_600.25])
def test_times_are_iso_8601_in_utc(time: float) -> None:
    assert datetime.fromisoformat(format_iso(time)).timestamp() == pytest.approx(time, abs=0.001)
