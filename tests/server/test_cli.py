from __future__ import annotations

import gzip
import json
import subprocess
import sys
from pathlib import Path

import pytest


def queenright(*arguments: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    program = Path(sys.executable).with_name("queenright")
    return subprocess.run([program, *arguments], cwd=cwd, capture_output=True, text=True, check=False)


LOOP = {
    "dataset": "made",
    "run_id": "one",
    "steps": [
        {"kind": "tool", "name": "search", "turn": n, "args_hash": "a", "result_hash": "b", "is_error": False}
        for n in range(8)
    ],
}


def test_evaluate_prints_one_object_a_run(tmp_path: Path) -> None:
    file = tmp_path / "runs.jsonl.gz"
    file.write_bytes(gzip.compress((json.dumps(LOOP) + "\n").encode()))

    done = queenright("evaluate", str(file), "--json", cwd=tmp_path)

    assert done.returncode == 0, done.stderr
    [line] = done.stdout.splitlines()
    result = json.loads(line)
    assert (result["dataset"], result["run_id"]) == ("made", "one")
    assert {"kind", "severity", "step", "evidence"} <= result["findings"][0].keys()
    assert result["findings"][0]["kind"] == "doom_loop"


@pytest.mark.parametrize("content", [b"{bad", b"[1, 2]", b"\x1f\x8bgarbage", b"\xff\xfe"])
def test_evaluate_says_where_a_file_is_broken(tmp_path: Path, content: bytes) -> None:
    file = tmp_path / ("runs.jsonl.gz" if content.startswith(b"\x1f") else "runs.jsonl")
    file.write_bytes(content)

    done = queenright("evaluate", str(file), cwd=tmp_path)

    assert done.returncode == 1
    assert "Traceback" not in done.stderr
    assert file.name in done.stderr


def test_evaluate_of_a_file_that_is_not_there_is_misuse(tmp_path: Path) -> None:
    done = queenright("evaluate", "nowhere.jsonl", cwd=tmp_path)

    assert done.returncode == 2
    assert "nowhere.jsonl" in done.stderr


@pytest.mark.parametrize(
    "command",
    [
        ["up"],
        ["serve"],
        ["evaluate"],
        ["tickets"],
        ["list"],
        ["audit", "verify"],
        ["config", "check"],
        ["config", "show"],
    ],
)
def test_every_command_has_help_with_an_example(tmp_path: Path, command: list[str]) -> None:
    done = queenright(*command, "--help", cwd=tmp_path)

    assert done.returncode == 0
    assert "Example: queenright " + command[0] in " ".join(done.stdout.split())


def test_config_check_answers_with_its_exit_code(tmp_path: Path) -> None:
    (tmp_path / "bad.yaml").write_text("htp: {}", encoding="utf-8")

    good = queenright("config", "check", cwd=tmp_path)
    bad = queenright("config", "check", "-c", "bad.yaml", cwd=tmp_path)

    assert (good.returncode, bad.returncode) == (0, 1)
    assert "htp: no such setting. Did you mean http?" in bad.stderr


def test_nobody_there_is_said_with_the_way_out(tmp_path: Path) -> None:
    done = queenright("list", "--url", "http://127.0.0.1:9", cwd=tmp_path)

    assert done.returncode == 1
    assert "Start one with `queenright up`" in done.stderr


def test_audit_verify_of_no_log_says_where_it_looked(tmp_path: Path) -> None:
    done = queenright("audit", "verify", cwd=tmp_path)

    assert done.returncode == 1
    assert ".queenright/queenright.db" in done.stderr
