"""Progress bars are only shown on a terminal's stderr."""

from __future__ import annotations

import json
import os
import pty
from collections.abc import Iterator
from pathlib import Path

from tests.warm import Command, queenright

RUN = {"dataset": "d", "run_id": "r", "steps": [{"kind": "tool", "name": "b", "args": "x"}]}


def read_to_end(terminal: int) -> Iterator[bytes]:
    """Yield the output of a terminal. Each read may return only a part."""
    while True:
        try:
            yield os.read(terminal, 65536)
        except OSError:  # EIO: the end of the output
            return


def test_progress_bar_on_a_terminal_does_not_change_stdout(tmp_path: Path) -> None:
    (tmp_path / "runs.jsonl").write_text((json.dumps(RUN) + "\n") * 3)
    controller, terminal = pty.openpty()
    env = os.environ | {"TERM": "xterm", "COLUMNS": "100"}

    with (tmp_path / "out").open("w+b") as stdout_file, open(os.devnull, "rb") as null_file:
        streams = (null_file.fileno(), stdout_file.fileno(), terminal)
        code = Command("evaluate", "runs.jsonl", "--json", cwd=tmp_path, env=env, streams=streams).wait()
        stdout_file.seek(0)
        stdout_bytes = stdout_file.read()

    os.close(terminal)
    terminal_output = b"".join(read_to_end(controller))
    os.close(controller)
    assert code == 0
    assert b"Evaluating runs" in terminal_output
    assert [json.loads(line)["run_id"] for line in stdout_bytes.splitlines()] == ["r", "r", "r"]


def test_pipe_gets_no_progress_bar(tmp_path: Path) -> None:
    (tmp_path / "runs.jsonl").write_text(json.dumps(RUN) + "\n")

    result = queenright("evaluate", "runs.jsonl", cwd=tmp_path)

    assert (result.returncode, result.stderr) == (0, "")
