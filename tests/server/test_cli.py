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
from tests.warm import PROGRAM, InteractiveCommand, queenright

LOOP_STEPS = {
    "dataset": "made",
    "run_id": "one",
    "steps": [
        {"kind": "tool", "name": "search", "turn": n, "args_hash": "a", "result_hash": "b", "is_error": False}
        for n in range(8)
    ],
}


def test_evaluate_prints_one_object_per_run(tmp_path: Path) -> None:
    file = tmp_path / "runs.jsonl.gz"
    file.write_bytes(gzip.compress((json.dumps(LOOP_STEPS) + "\n").encode()))

    completed = queenright("evaluate", str(file), "--json", cwd=tmp_path)

    assert completed.returncode == 0, completed.stderr
    [line] = completed.stdout.splitlines()
    result = json.loads(line)
    assert (result["dataset"], result["run_id"]) == ("made", "one")
    assert {"kind", "severity", "step", "evidence"} <= result["findings"][0].keys()
    assert result["findings"][0]["kind"] == "doom_loop"


def test_evaluate_escapes_control_characters(tmp_path: Path) -> None:
    step = {"kind": "tool", "name": "b\x1b[2J\u202e\udc80\n", "args": "x", "result_excerpt": "y"}
    file = tmp_path / "runs.jsonl"
    file.write_text(json.dumps({"dataset": "d", "run_id": "\x1b]0;r", "steps": [step] * 3}))

    lines, objects = (
        queenright("evaluate", str(file), *options, cwd=tmp_path) for options in ([], ["--json"])
    )

    assert (lines.returncode, objects.returncode) == (0, 0), lines.stderr + objects.stderr
    assert "\x1b" not in lines.stdout + objects.stdout
    assert "\u202e" not in lines.stdout
    assert "? was called 3 times" in lines.stdout
    assert json.loads(objects.stdout)["findings"][0]["kind"] == "doom_loop"


@pytest.mark.parametrize("content", [b"{bad", b"[1, 2]", b"\x1f\x8bgarbage", b"\xff\xfe"])
def test_evaluate_names_the_invalid_line_of_a_file(tmp_path: Path, content: bytes) -> None:
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


def test_config_check_returns_its_result_as_exit_code(tmp_path: Path) -> None:
    (tmp_path / "bad.yaml").write_text("htp: {}", encoding="utf-8")

    valid_result = queenright("config", "check", cwd=tmp_path)
    invalid_result = queenright("config", "check", "-c", "bad.yaml", cwd=tmp_path)

    assert (valid_result.returncode, invalid_result.returncode) == (0, 1)
    assert "htp" in invalid_result.stderr
    assert "http?" in invalid_result.stderr


def test_unreachable_service_error_names_a_remedy(tmp_path: Path) -> None:
    result = queenright("list", "--url", "http://127.0.0.1:9", cwd=tmp_path)

    assert result.returncode == 1
    assert "`queenright up`" in result.stderr


def test_audit_verify_without_a_log_is_a_usage_error_that_names_the_path(tmp_path: Path) -> None:
    result = queenright("audit", "verify", cwd=tmp_path)

    assert result.returncode == 2
    assert ".queenright/queenright.db" in result.stderr


HELP_MODULES = (".app", ".command_table", ".lazy_group")
"""Submodules of `queenright.cli` that the program imports to show its help."""


def test_commands_import_lazily(tmp_path: Path) -> None:
    script = (
        "import sys, queenright.cli; print(*(m for m in sys.modules if m.startswith(('queenright.', 'mcp'))))"
    )
    result = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)

    imported_modules = result.stdout.split()
    assert imported_modules == ["queenright.cli"]


LAZY_MODULES = """
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
    result = subprocess.run([sys.executable, "-c", LAZY_MODULES], capture_output=True, text=True, check=False)

    assert result.returncode == 0, result.stderr
    assert {f"queenright.cli{module}" for module in HELP_MODULES} < set(result.stdout.split())


def test_command_with_all_imports_gives_the_same_output(tmp_path: Path) -> None:
    """Compare a fresh process, as users start it, with the forked process that other tests use."""
    for arguments in (["list", "--url", "http://127.0.0.1:9"], ["config", "show"], ["run", "nowhere"]):
        cold_result = subprocess.run(
            [PROGRAM, *arguments], cwd=tmp_path, capture_output=True, text=True, check=False
        )
        warm_result = queenright(*arguments, cwd=tmp_path)

        assert (cold_result.returncode, cold_result.stdout, cold_result.stderr) == (
            warm_result.returncode,
            warm_result.stdout,
            warm_result.stderr,
        )


def test_run_shows_progress_and_outcome(tmp_path: Path) -> None:
    adder(tmp_path / "agent")

    completed = queenright(
        "run", "agent", "--input", '{"a": 1, "b": 2}', "--storage", "here", "--no-telemetry", cwd=tmp_path
    )

    assert (completed.returncode, completed.stderr) == (0, "")
    output, *progress, result = completed.stdout.splitlines()
    assert progress == ["add: done", "completed", "  sum: 3"]
    session = output.removeprefix("session ")
    assert result == f"Session {session} in here/sessions/{session}"
    assert (tmp_path / "here" / "sessions" / session / "state.json").is_file()


def test_run_prints_only_json_on_stdout(tmp_path: Path) -> None:
    adder(tmp_path / "agent")
    (tmp_path / "given.json").write_text('{"a": 40, "b": 2}', encoding="utf-8")

    completed = queenright(
        "run", "agent", "--input", "@given.json", "--storage", "here", "--json", cwd=tmp_path
    )

    result = json.loads(completed.stdout)
    assert completed.returncode == 0
    assert (result["agent"], result["status"], result["outputs"]) == ("adder", "completed", {"sum": 42})
    assert (result["error"], result["path"]) == ("", ["add"])
    assert "add: done" in completed.stderr


def test_failed_run_has_a_reason_and_a_retry_command(tmp_path: Path) -> None:
    path = adder(tmp_path / "agent", "def add(a, b):\n    return a / b\n")
    arguments = ("run", "agent", "--storage", "here")

    failed_result = queenright(*arguments, "--input", '{"a": 1, "b": 0}', cwd=tmp_path)
    [retry_command] = [
        line.partition(": ")[2] for line in failed_result.stderr.splitlines() if "Retry" in line
    ]
    (path / "functions.py").write_text("def add(a, b):\n    return 'repaired'\n", encoding="utf-8")
    repaired_result = queenright(*retry_command.split()[1:], cwd=tmp_path)

    assert failed_result.returncode == 1
    assert "division by zero" in failed_result.stdout
    assert repaired_result.returncode == 0
    assert "sum: repaired" in repaired_result.stdout


@pytest.mark.parametrize(
    ("arguments", "expected_error"),
    [
        (["nowhere"], "There is no agent at nowhere"),
        (["agent", "--input", "{"], "--input is not JSON"),
        (["agent", "--input", "[1]"], "must be a JSON object"),
        (["agent", "--input", "@nowhere.json"], "--input @nowhere.json cannot be read: No such file or dir"),
        (["agent", "--input", "@agent"], "--input @agent cannot be read: Is a directory."),
        (["agent", "--input", "@/dev/zero"], "--input @/dev/zero is longer than 10 MB"),
        (["agent", "--input", '{"a": NaN}'], "--input is not JSON: JSON has no NaN"),
        (["agent", "--input", '{"a": 1e999}'], "--input is not JSON: the number 1e999 is too large"),
        (["agent", "--input", "@deep.json"], "--input @deep.json is nested too deeply"),
        (["agent", "--input", "@deeper.json"], "--input @deeper.json is nested too deeply"),
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
def test_wrong_use_of_run_exits_with_2(tmp_path: Path, arguments: list[str], expected_error: str) -> None:
    adder(tmp_path / "agent")
    for name, depth in (("deep", 900), ("deeper", 100_000)):
        (tmp_path / f"{name}.json").write_text('{"a":' * depth + "1" + "}" * depth, encoding="utf-8")

    result = queenright("run", *arguments, "--storage", "here", cwd=tmp_path)

    assert result.returncode == 2
    assert expected_error in result.stderr
    assert len(result.stderr.splitlines()) == 1
    assert not (tmp_path / "here").exists()


def test_run_of_an_unknown_agent_exits_with_1(tmp_path: Path) -> None:
    adder(tmp_path / "agent")
    (tmp_path / "empty").mkdir()

    empty = queenright("run", "empty", cwd=tmp_path)

    assert empty.returncode == 1
    assert "has no agent.json or agent.py" in empty.stderr
    assert "Traceback" not in empty.stderr


@pytest.mark.parametrize("option", ["--resume", "--session"])
@pytest.mark.parametrize(
    ("session", "expected_error"),
    [("session_x", "There is no session 'session_x'"), ("../x", "Session id '../x' is refused")],
)
def test_unknown_session_is_one_line_without_a_resume_command(
    tmp_path: Path, option: str, session: str, expected_error: str
) -> None:
    adder(tmp_path / "agent")

    result = queenright("run", "agent", "--storage", "here", "--no-telemetry", option, session, cwd=tmp_path)

    assert (result.returncode, result.stdout) == (1, "")
    [line] = result.stderr.splitlines()
    assert line.startswith(f"queenright: {expected_error}")


def test_client_facing_node_prints_messages_and_reads_answers(tmp_path: Path) -> None:
    chatter(tmp_path / "agent")

    result = queenright("run", "agent", "--storage", "here", cwd=tmp_path, typed="Ada\n")

    assert result.returncode == 0, result.stderr
    assert result.stdout.count("Hello, who are you?\n> ") == 1
    assert "  name: Ada\n" in result.stdout


def test_run_without_a_terminal_pauses_with_a_resume_command(tmp_path: Path) -> None:
    chatter(tmp_path / "agent")

    paused_result = queenright("run", "agent", "--storage", "here", cwd=tmp_path)
    [resume] = [
        line.partition(": ")[2] for line in paused_result.stderr.splitlines() if line.startswith("Paused.")
    ]
    # A new process starts the script again, so the agent asks once more.
    result = queenright(*resume.split()[1:], cwd=tmp_path, typed="Ada\nAda\n")

    assert paused_result.returncode == 1
    assert "stdin has ended" in paused_result.stdout
    assert result.returncode == 0, result.stderr
    assert "resumed" in result.stdout
    assert "  name: Ada\n" in result.stdout


def test_ctrl_c_pauses_the_run(tmp_path: Path) -> None:
    chatter(tmp_path / "agent")
    command = ("run", "agent", "--storage", "here", "--json")
    with InteractiveCommand(*command, cwd=tmp_path) as running:
        stderr_output = b""
        while not stderr_output.endswith(b"> "):
            stderr_output += os.read(running.stderr.fileno(), 4096)
        running.send_signal(signal.SIGINT)
        remaining_output, result = running.stderr.read().decode(), json.loads(running.stdout.read())
        code = running.wait()

    assert code == 1
    assert result["status"] == "paused"
    assert f"queenright run agent --resume {result['session_id']} --storage here" in remaining_output
    assert "Traceback" not in remaining_output


def test_ctrl_c_before_the_agent_has_started_leaves_no_process(tmp_path: Path) -> None:
    path = adder(tmp_path / "agent")
    server = "import os, sys; open('pid', 'w').write(str(os.getpid())); sys.stdin.read()"
    servers = {"servers": {"silent": {"command": "python", "args": ["-c", server]}}}
    (path / "mcp_servers.json").write_text(json.dumps(servers), encoding="utf-8")
    os.mkfifo(path / "pid")
    command = ("run", "agent", "--storage", "here")
    with InteractiveCommand(*command, cwd=tmp_path) as running:
        pid = (path / "pid").read_text(encoding="utf-8")
        running.send_signal(signal.SIGINT)
        output = running.stderr.read().decode()

    assert running.wait() == 1
    assert output.startswith("queenright: Stopped")
    assert not Path(f"/proc/{pid}").exists()
