from __future__ import annotations

import gzip
import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.runtime.agents import adder, chatter
from tests.warm import PROGRAM, Talking, queenright

LOOP = {
    "dataset": "made",
    "run_id": "one",
    "steps": [
        {"kind": "tool", "name": "search", "turn": n, "args_hash": "a", "result_hash": "b", "is_error": False}
        for n in range(8)
    ],
}


def test_evaluate_prints_one_object_per_run(tmp_path: Path) -> None:
    file = tmp_path / "runs.jsonl.gz"
    file.write_bytes(gzip.compress((json.dumps(LOOP) + "\n").encode()))

    done = queenright("evaluate", str(file), "--json", cwd=tmp_path)

    assert done.returncode == 0, done.stderr
    [line] = done.stdout.splitlines()
    result = json.loads(line)
    assert (result["dataset"], result["run_id"]) == ("made", "one")
    assert {"kind", "severity", "step", "evidence"} <= result["findings"][0].keys()
    assert result["findings"][0]["kind"] == "doom_loop"


def test_evaluate_escapes_control_characters(tmp_path: Path) -> None:
    step = {"kind": "tool", "name": "b\x1b[2J\u202e\udc80\n", "args": "x", "result_excerpt": "y"}
    file = tmp_path / "runs.jsonl"
    file.write_text(json.dumps({"dataset": "d", "run_id": "\x1b]0;r", "steps": [step] * 3}))

    lines, objects = (queenright("evaluate", str(file), *more, cwd=tmp_path) for more in ([], ["--json"]))

    assert (lines.returncode, objects.returncode) == (0, 0), lines.stderr + objects.stderr
    assert "\x1b" not in lines.stdout + objects.stdout
    assert "\u202e" not in lines.stdout
    assert "? was called 3 times" in lines.stdout
    assert json.loads(objects.stdout)["findings"][0]["kind"] == "doom_loop"


@pytest.mark.parametrize("content", [b"{bad", b"[1, 2]", b"\x1f\x8bgarbage", b"\xff\xfe"])
def test_evaluate_names_the_broken_line_of_a_file(tmp_path: Path, content: bytes) -> None:
    file = tmp_path / ("runs.jsonl.gz" if content.startswith(b"\x1f") else "runs.jsonl")
    file.write_bytes(content)

    result = queenright("evaluate", str(file), cwd=tmp_path)

    assert result.returncode == 1
    assert "Traceback" not in result.stderr
    assert file.name in result.stderr


def test_evaluate_of_a_missing_file_is_a_usage_error(tmp_path: Path) -> None:
    result = queenright("evaluate", "nowhere.jsonl", cwd=tmp_path)

    assert result.returncode == 2
    assert "nowhere.jsonl" in result.stderr


def test_config_check_answers_with_its_exit_code(tmp_path: Path) -> None:
    (tmp_path / "bad.yaml").write_text("htp: {}", encoding="utf-8")

    good = queenright("config", "check", cwd=tmp_path)
    bad = queenright("config", "check", "-c", "bad.yaml", cwd=tmp_path)

    assert (good.returncode, bad.returncode) == (0, 1)
    assert "htp" in bad.stderr
    assert "http?" in bad.stderr


def test_unreachable_service_error_has_a_remedy(tmp_path: Path) -> None:
    result = queenright("list", "--url", "http://127.0.0.1:9", cwd=tmp_path)

    assert result.returncode == 1
    assert "`queenright up`" in result.stderr


def test_audit_verify_without_a_log_is_a_usage_error_with_the_path(tmp_path: Path) -> None:
    result = queenright("audit", "verify", cwd=tmp_path)

    assert result.returncode == 2
    assert ".queenright/queenright.db" in result.stderr


CLI = (".app", ".command_table", ".lazy_group")
"""Modules that the program imports to show its help."""


def test_commands_import_lazily(tmp_path: Path) -> None:
    script = (
        "import sys, queenright.cli; print(*(m for m in sys.modules if m.startswith(('queenright.', 'mcp'))))"
    )
    result = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)

    imported = result.stdout.split()
    assert imported == ["queenright.cli"]


IMPORTED_LATER = """
import gc, os, pkgutil, sys
# What is not ours is imported by all of them alike.
import fastapi, fastapi.openapi.docs, fastapi.templating, httpx, prometheus_client.exposition
import prometheus_client.openmetrics.exposition, prometheus_client.parser, pydantic.json_schema
import pydantic_settings, rich.live, rich.markdown, rich.prompt, sqlalchemy.dialects.postgresql
import sqlalchemy.dialects.sqlite.aiosqlite, stamina, typer, uvicorn.protocols.http.httptools_impl, yaml
import opentelemetry.sdk._logs.export, opentelemetry.sdk.trace.export
import opentelemetry.proto.collector.logs.v1.logs_service_pb2
import opentelemetry.proto.collector.metrics.v1.metrics_service_pb2
import opentelemetry.proto.collector.trace.v1.trace_service_pb2
import queenright.cli

gc.disable()
gc.freeze()
for module in pkgutil.walk_packages(queenright.cli.__path__, "queenright.cli."):
    if os.fork() == 0:
        __import__(module.name)
        os._exit(0)
    assert os.wait()[1] == 0, module.name
    print(module.name)
"""


def test_each_command_module_can_be_imported_first() -> None:
    result = subprocess.run(
        [sys.executable, "-c", IMPORTED_LATER], capture_output=True, text=True, check=False
    )

    assert result.returncode == 0, result.stderr
    assert {f"queenright.cli{part}" for part in CLI} < set(result.stdout.split())


def test_command_with_all_imports_gives_the_same_output(tmp_path: Path) -> None:
    """
    In a fresh process as users start it; other tests fork it from a process that has imported everything.
    """
    for arguments in (["list", "--url", "http://127.0.0.1:9"], ["config", "show"], ["run", "nowhere"]):
        cold = subprocess.run(
            [PROGRAM, *arguments], cwd=tmp_path, capture_output=True, text=True, check=False
        )
        warm = queenright(*arguments, cwd=tmp_path)

        assert (cold.returncode, cold.stdout, cold.stderr) == (warm.returncode, warm.stdout, warm.stderr)


def test_run_shows_progress_and_outcome(tmp_path: Path) -> None:
    adder(tmp_path / "agent")

    done = queenright(
        "run", "agent", "--input", '{"a": 1, "b": 2}', "--storage", "here", "--no-telemetry", cwd=tmp_path
    )

    assert (done.returncode, done.stderr) == (0, "")
    output, *middle, result = done.stdout.splitlines()
    assert middle == ["add: done", "completed", "  sum: 3"]
    session = output.removeprefix("session ")
    assert result == f"Session {session} in here/sessions/{session}"
    assert (tmp_path / "here" / "sessions" / session / "state.json").is_file()


def test_run_prints_only_json_on_stdout(tmp_path: Path) -> None:
    adder(tmp_path / "agent")
    (tmp_path / "given.json").write_text('{"a": 40, "b": 2}', encoding="utf-8")

    done = queenright("run", "agent", "--input", "@given.json", "--storage", "here", "--json", cwd=tmp_path)

    result = json.loads(done.stdout)
    assert done.returncode == 0
    assert (result["agent"], result["status"], result["outputs"]) == ("adder", "completed", {"sum": 42})
    assert (result["error"], result["path"]) == ("", ["add"])
    assert "add: done" in done.stderr


def test_failed_run_has_a_reason_and_a_retry_command(tmp_path: Path) -> None:
    path = adder(tmp_path / "agent", "def add(a, b):\n    return a / b\n")
    arguments = ("run", "agent", "--storage", "here")

    failed = queenright(*arguments, "--input", '{"a": 1, "b": 0}', cwd=tmp_path)
    [retried] = [line.partition(": ")[2] for line in failed.stderr.splitlines() if "Retry" in line]
    (path / "functions.py").write_text("def add(a, b):\n    return 'repaired'\n", encoding="utf-8")
    repaired = queenright(*retried.split()[1:], cwd=tmp_path)

    assert failed.returncode == 1
    assert "division by zero" in failed.stdout
    assert repaired.returncode == 0
    assert "sum: repaired" in repaired.stdout


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (["nowhere"], "There is no agent at nowhere"),
        (["agent", "--input", "{"], "--input is not JSON"),
        (["agent", "--input", "[1]"], "must be a JSON object"),
        (["agent", "--input", "@nowhere.json"], "--input @nowhere.json cannot be read: No such file or dir"),
        (["agent", "--input", "@agent"], "--input @agent cannot be read: Is a directory."),
        (["agent", "--input", "@/dev/zero"], "--input @/dev/zero is longer than 10 MB"),
        (["agent", "--input", '{"a": NaN}'], "--input is not JSON: JSON has no NaN"),
        (["agent", "--input", '{"a": 1e999}'], "--input is not JSON: the number 1e999 is too large"),
        (["agent", "--input", "@deep.json"], "--input @deep.json is nested too deep"),
        (["agent", "--input", "@deeper.json"], "--input @deeper.json is nested too deep"),
        (["agent", "--input", ""], "--input is not JSON"),
        (["agent", "--session", ""], "--session is empty"),
        (["agent", "--resume", ""], "--resume is empty"),
        (["agent", "--resume", "", "--session", "a"], "--resume is empty"),
        (["agent", "--entry-point", ""], "--entry-point is empty"),
        (["agent", "--model", " "], "--model is empty"),
        (["agent", "--entry-point", "x"], "There is no entry point 'x'; choose one of: start"),
        (["agent", "--session", "a", "--resume", "b"], "use one of them"),
        (["agent", "--resume", "b", "--input", "{}"], "are for a new run"),
    ],
)
def test_run_misused_is_exit_code_2(tmp_path: Path, arguments: list[str], expected: str) -> None:
    adder(tmp_path / "agent")
    for name, depth in (("deep", 900), ("deeper", 100_000)):
        (tmp_path / f"{name}.json").write_text('{"a":' * depth + "1" + "}" * depth, encoding="utf-8")

    result = queenright("run", *arguments, "--storage", "here", cwd=tmp_path)

    assert result.returncode == 2
    assert expected in result.stderr
    assert len(result.stderr.splitlines()) == 1
    assert not (tmp_path / "here").exists()


def test_run_of_an_unknown_agent_or_session_exits_with_1(tmp_path: Path) -> None:
    adder(tmp_path / "agent")
    (tmp_path / "empty").mkdir()

    empty = queenright("run", "empty", cwd=tmp_path)

    assert empty.returncode == 1
    assert "has no agent.json or agent.py" in empty.stderr
    assert "Traceback" not in empty.stderr


@pytest.mark.parametrize("option", ["--resume", "--session"])
@pytest.mark.parametrize(
    ("session", "expected"),
    [("session_x", "There is no session 'session_x'"), ("../x", "Session id '../x' is refused")],
)
def test_unknown_session_is_one_line_without_a_resume_command(
    tmp_path: Path, option: str, session: str, expected: str
) -> None:
    adder(tmp_path / "agent")

    result = queenright("run", "agent", "--storage", "here", "--no-telemetry", option, session, cwd=tmp_path)

    assert (result.returncode, result.stdout) == (1, "")
    [line] = result.stderr.splitlines()
    assert line.startswith(f"queenright: {expected}")


def test_client_facing_node_prints_messages_and_reads_answers(tmp_path: Path) -> None:
    chatter(tmp_path / "agent")

    result = queenright("run", "agent", "--storage", "here", cwd=tmp_path, typed="Ada\n")

    assert result.returncode == 0, result.stderr
    assert result.stdout.count("Hello, who are you?\n> ") == 1
    assert "  name: Ada\n" in result.stdout


def test_run_without_a_terminal_pauses_with_a_resume_command(tmp_path: Path) -> None:
    chatter(tmp_path / "agent")

    paused = queenright("run", "agent", "--storage", "here", cwd=tmp_path)
    [resume] = [line.partition(": ")[2] for line in paused.stderr.splitlines() if line.startswith("Paused.")]
    # In a new process the script starts again, so it asks once more.
    result = queenright(*resume.split()[1:], cwd=tmp_path, typed="Ada\nAda\n")

    assert paused.returncode == 1
    assert "stdin is at its end" in paused.stdout
    assert result.returncode == 0, result.stderr
    assert "resumed" in result.stdout
    assert "  name: Ada\n" in result.stdout


def test_ctrl_c_pauses_the_run(tmp_path: Path) -> None:
    chatter(tmp_path / "agent")
    command = ("run", "agent", "--storage", "here", "--json")
    with Talking(*command, cwd=tmp_path) as running:
        text = b""
        while not text.endswith(b"> "):
            text += os.read(running.stderr.fileno(), 4096)
        running.send_signal(signal.SIGINT)
        remaining_output, result = running.stderr.read().decode(), json.loads(running.stdout.read())
        code = running.wait()

    assert code == 1
    assert result["status"] == "paused"
    assert f"queenright run agent --resume {result['session_id']} --storage here" in remaining_output
    assert "Traceback" not in remaining_output


def test_ctrl_c_before_the_agent_has_started_leaves_nothing_behind(tmp_path: Path) -> None:
    path = adder(tmp_path / "agent")
    server = "import os, sys; open('pid', 'w').write(str(os.getpid())); sys.stdin.read()"
    servers = {"servers": {"silent": {"command": "python", "args": ["-c", server]}}}
    (path / "mcp_servers.json").write_text(json.dumps(servers), encoding="utf-8")
    os.mkfifo(path / "pid")
    command = ("run", "agent", "--storage", "here")
    with Talking(*command, cwd=tmp_path) as running:
        pid = (path / "pid").read_text(encoding="utf-8")
        running.send_signal(signal.SIGINT)
        output = running.stderr.read().decode()

    assert running.wait() == 1
    assert output.startswith("queenright: Stopped")
    assert not Path(f"/proc/{pid}").exists()
