"""Bars are on a terminal's stderr, and nowhere else."""

from __future__ import annotations

import json
import os
import pty
import subprocess
from pathlib import Path

from tests.warm import PROGRAM, queenright

RUN = {"dataset": "d", "run_id": "r", "steps": [{"kind": "tool", "name": "b", "args": "x"}]}


def test_a_bar_is_shown_on_a_terminal_while_stdout_stays_as_it_is(tmp_path: Path) -> None:
    (tmp_path / "runs.jsonl").write_text((json.dumps(RUN) + "\n") * 3)
    ours, theirs = pty.openpty()
    command = [str(PROGRAM), "evaluate", "runs.jsonl", "--json"]
    env = os.environ | {"TERM": "xterm", "COLUMNS": "100"}

    done = subprocess.run(command, cwd=tmp_path, stdout=subprocess.PIPE, stderr=theirs, env=env, check=True)

    shown = os.read(ours, 65536)
    os.close(ours)
    os.close(theirs)
    assert b"Looking at runs" in shown
    assert [json.loads(line)["run_id"] for line in done.stdout.splitlines()] == ["r", "r", "r"]


def test_there_is_no_bar_in_a_pipe(tmp_path: Path) -> None:
    (tmp_path / "runs.jsonl").write_text(json.dumps(RUN) + "\n")

    done = queenright("evaluate", "runs.jsonl", cwd=tmp_path)

    assert (done.returncode, done.stderr) == (0, "")
