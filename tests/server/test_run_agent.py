"""`queenright run`: resuming after a kill, the guard, and the printed lines."""

from __future__ import annotations

import io
import json
import os
import signal
import subprocess
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any

import pytest

from queenright.cli.terminal.conversation import RunProgress
from queenright.runtime.events import AgentEvent, EventType
from queenright.runtime.storage.files import lock_file
from tests.runtime.agents import TALKER, TALKS, adder, chatter, keeper, looping_agent, talker, write_agent
from tests.warm import PROGRAM, Command, InteractiveCommand, queenright

REPEATED = "with the same arguments and result"
RUN_COMMAND = ("run", "agent", "--storage", "here")


def test_killed_run_resumes_at_its_last_checkpoint(tmp_path: Path) -> None:
    chatter(tmp_path / "agent")
    with InteractiveCommand(*RUN_COMMAND, cwd=tmp_path) as running:
        output = b""
        while not output.endswith(b"> "):
            output += os.read(running.stdout.fileno(), 4096)
        running.send_signal(signal.SIGKILL)
    session = output.decode().splitlines()[0].removeprefix("session ")

    result = queenright(*RUN_COMMAND, "--resume", session, cwd=tmp_path, typed="Ada\nAda\n")

    assert result.returncode == 0, result.stderr
    assert result.stdout.splitlines()[:2] == [f"session {session}", "resumed"]
    assert "  name: Ada" in result.stdout.splitlines()


def run_looper(tmp_path: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    return queenright("run", "agent", "--storage", "here", "--no-telemetry", *arguments, cwd=tmp_path)


def test_looping_agent_is_warned_and_then_stopped(tmp_path: Path) -> None:
    looping_agent(tmp_path / "agent")

    result = run_looper(tmp_path)

    part_files = sorted((tmp_path / "here").glob("sessions/*/conversations/work/parts/*.json"))
    warnings = [
        part_text
        for part_file in part_files
        if "going in circles" in (part_text := part_file.read_text(encoding="utf-8"))
    ]
    assert result.returncode == 1
    assert "double" in warnings[0]
    assert "3 times" in warnings[0]
    assert "work: escalated: " in result.stdout
    assert 15 < result.stdout.count("work: double ok") < 30


def test_guard_follows_the_settings(tmp_path: Path) -> None:
    looping_agent(tmp_path / "agent")
    exempt_settings = "health_monitoring: {loops: {exempt_tools: [double]}}"
    (tmp_path / "queenright.yaml").write_text(exempt_settings, encoding="utf-8")
    (tmp_path / "strict.yaml").write_text("{}", encoding="utf-8")
    (tmp_path / "bad.yaml").write_text("health: {}", encoding="utf-8")

    default_result, strict_result, invalid_result = (
        run_looper(tmp_path),
        run_looper(tmp_path, "-c", "strict.yaml"),
        run_looper(tmp_path, "-c", "bad.yaml"),
    )

    assert default_result.stdout.count("work: double ok") == 30
    assert "work: escalated: " not in default_result.stdout
    assert "work: escalated: " in strict_result.stdout
    assert (invalid_result.returncode, invalid_result.stdout) == (1, "")
    assert "bad.yaml" in invalid_result.stderr


def test_missing_input_is_a_usage_error_with_a_remedy(tmp_path: Path) -> None:
    """B99: nothing runs. An existing session may contain the input."""
    adder(tmp_path / "agent")

    result = run_looper(tmp_path, "--input", '{"b": 2}')

    assert (result.returncode, result.stdout) == (2, "")
    assert "input 'a' is missing: node 'add' needs a, b, but got 'b'" in result.stderr
    assert "--input" in result.stderr
    session = run_looper(tmp_path, "--input", '{"a": 1, "b": 2}').stdout.split()[1]
    resumed_result = run_looper(tmp_path, "--session", session, "--input", '{"b": 3}')
    assert "  sum: 4" in resumed_result.stdout.splitlines()


def test_run_whose_input_is_rejected_by_its_first_node_is_cancelled(tmp_path: Path) -> None:
    """B99: the function rejects the input. The run has not failed, and cannot be resumed."""
    adder(
        tmp_path / "agent",
        "from queenright.runtime.inputs import InvalidInputError\n\n\n"
        "def add(a, b):\n    raise InvalidInputError(f'a: {a} is too large; at most 9')\n",
    )

    result = run_looper(tmp_path, "--input", '{"a": 10, "b": 2}')

    assert result.returncode == 1
    assert "cancelled" in result.stdout
    assert "a: 10 is too large; at most 9" in result.stdout
    assert "--resume" not in result.stderr
    assert "queenright run agent" in result.stderr


def test_agent_with_lifecycle_tools_loads_a_neighbouring_agent(tmp_path: Path) -> None:
    """004: `queenright run` gives the lifecycle tools to an agent whose nodes name them."""
    adder(tmp_path / "adder")
    keeper(tmp_path / "keeper")

    result = queenright("run", "keeper", "--storage", "here", "--no-telemetry", "--json", cwd=tmp_path)

    assert result.returncode == 0, result.stderr
    assert json.loads(result.stdout)["outputs"] == {"answer": "started"}
    assert (tmp_path / "here" / "graphs" / "adder" / "sessions").is_dir()


def test_session_of_another_process_is_not_changed(tmp_path: Path) -> None:
    path = adder(tmp_path / "agent", "def add(a, b):\n    return a / b\n")
    session = run_looper(tmp_path, "--input", '{"a": 1, "b": 0}').stdout.split()[1]
    (path / "functions.py").write_text("def add(a, b):\n    return a + b\n", encoding="utf-8")
    folder = tmp_path / "here" / "sessions" / session
    with lock_file(folder / ".lock", wait=False):
        result = run_looper(tmp_path, "--session", session, "--input", '{"a": 1, "b": 2}')

    assert result.returncode == 1
    assert f"Session '{session}' is busy" in result.stdout
    assert "Traceback" not in result.stderr
    assert "--resume" not in result.stdout + result.stderr


def run_with_streams(
    tmp_path: Path, *arguments: str, out: int | None = 1, err: int | None = 2, file_bytes: int | None = None
) -> tuple[int, str, str]:
    """
    Run with redirected streams, and return the exit code, and the text on stdout and stderr.

    Args:
        out: Where stdout goes: 1 as usual, another descriptor, or None for a closed stdout.
        err: The same for stderr; 1 is the same file as stdout.
        file_bytes: Maximum size of a file.
    """
    files = [tmp_path / "out", tmp_path / "err"]
    with (
        files[0].open("wb") as out_file,
        files[1].open("wb") as err_file,
        open(os.devnull, "rb") as null_file,
    ):
        default_streams = {1: out_file.fileno() if out == 1 else out, 2: err_file.fileno(), None: None}
        streams = (null_file.fileno(), default_streams.get(out, out), default_streams.get(err, err))
        command = (*RUN_COMMAND, "--no-telemetry", *arguments)
        code = Command(*command, cwd=tmp_path, streams=streams, file_bytes=file_bytes).wait()
    out_text, err_text = (path.read_text(encoding="utf-8") for path in files)
    return code, out_text, err_text


@pytest.mark.parametrize(
    ("storage", "limit", "reason"),
    [
        ("a_file", None, "Not a directory"),
        ("a_file/x", None, "Not a directory"),
        ("/proc/nowhere", None, "No such file or directory"),
        ("here", 0, "File too large"),  # as on a full disk, nothing can be written
    ],
)
@pytest.mark.parametrize("as_json", [(), ("--json",)])
def test_unusable_storage_is_reported_without_a_traceback(
    tmp_path: Path, storage: str, limit: int | None, reason: str, as_json: tuple[str, ...]
) -> None:
    adder(tmp_path / "agent")
    (tmp_path / "a_file").write_text("", encoding="utf-8")
    arguments = ("--storage", storage, *as_json, "--input", '{"a": 1, "b": 2}')

    reader, writer = os.pipe()
    with open(reader, encoding="utf-8") as pipe_file:
        # The output goes to a pipe, because a pipe has no size limit.
        code, _, _ = run_with_streams(tmp_path, *arguments, out=writer, err=writer, file_bytes=limit)
        os.close(writer)
        result = pipe_file.read()

    assert code == 1
    assert "Traceback" not in result
    assert f"{storage}: {reason}" in result
    assert "--resume" not in result


PRINTING_CODE = """
import os, subprocess, sys
print("while it is loaded")

def add(a, b):
    print("printed")
    os.write(1, b"written\\n")
    subprocess.run(["echo", "by a child"], check=True)
    sys.stdout.write("and left behind")
    return a + b
"""


def test_stdout_contains_only_the_result(tmp_path: Path) -> None:
    adder(tmp_path / "agent", PRINTING_CODE)

    result = run_looper(tmp_path, "--json", "--input", '{"a": 1, "b": 2}')

    assert result.returncode == 0
    assert json.loads(result.stdout)["outputs"] == {"sum": 3}
    for printed_text in ("while it is loaded", "printed", "written", "by a child", "and left behind"):
        assert printed_text in result.stderr


@pytest.mark.parametrize("kind", ["def", "async def"])
def test_agent_that_exits_the_program_is_a_failed_run(tmp_path: Path, kind: str) -> None:
    adder(tmp_path / "agent", f"import sys\n\n{kind} add(a, b):\n    sys.exit(0)\n")

    result = run_looper(tmp_path, "--input", '{"a": 1, "b": 2}')

    assert result.returncode == 1
    assert "node 'add' failed: SystemExit: 0" in result.stdout
    assert "Traceback" not in result.stderr


def read_first_line(descriptor: int) -> str:
    """Read the first line and close the pipe, as ``head -1`` does."""
    result = subprocess.run(["head", "-1"], stdin=descriptor, stdout=subprocess.PIPE, text=True, check=True)
    os.close(descriptor)
    return result.stdout


def read_nothing(descriptor: int) -> str:
    """Close the pipe without reading, as ``true`` does."""
    os.close(descriptor)
    return ""


@pytest.mark.parametrize(("divisor", "code"), [(2, 0), (0, 1)])
@pytest.mark.parametrize(
    ("reader", "has_both_streams", "as_json"),
    [
        (read_first_line, False, ()),
        (read_first_line, True, ()),
        (read_nothing, False, ()),
        (read_nothing, False, ("--json",)),
    ],
)
def test_closed_reader_does_not_change_the_run(
    tmp_path: Path,
    divisor: int,
    code: int,
    reader: Callable[[int], str],
    has_both_streams: bool,
    as_json: tuple[str, ...],
) -> None:
    adder(tmp_path / "agent", "def add(a, b):\n    print('x' * 99999, flush=True)\n    return a / b\n")
    reader_end, writer_end = os.pipe()
    with ThreadPoolExecutor() as pool:
        read_task = pool.submit(reader, reader_end)
        if reader is read_nothing:
            read_task.result()
        returncode, _, output = run_with_streams(
            tmp_path,
            *as_json,
            "--input",
            json.dumps({"a": 1, "b": divisor}),
            out=writer_end,
            err=writer_end if has_both_streams else 2,
        )
        os.close(writer_end)
        output += read_task.result()

    assert returncode == code
    assert "Broken" not in output
    assert "Traceback" not in output


@pytest.mark.parametrize("as_json", [(), ("--json",)])
def test_result_that_a_full_disk_loses_is_a_failure(tmp_path: Path, as_json: tuple[str, ...]) -> None:
    adder(tmp_path / "agent")

    with open("/dev/full", "wb") as full_device:
        code, _, output = run_with_streams(
            tmp_path, *as_json, "--input", '{"a": 1, "b": 2}', out=full_device.fileno()
        )

    assert code == 1
    assert "No space left on device" in output.splitlines()[-1]


@pytest.mark.parametrize(
    ("out", "err", "as_json"),
    [(None, 2, ()), (1, None, ()), (None, None, ()), (None, 2, ("--json",)), (1, None, ("--json",))],
)
def test_closed_stream_does_not_change_the_run(
    tmp_path: Path, out: int | None, err: int | None, as_json: tuple[str, ...]
) -> None:
    adder(tmp_path / "agent")

    code, _, output = run_with_streams(tmp_path, *as_json, "--input", '{"a": 1, "b": 2}', out=out, err=err)

    assert code == 0
    assert "Traceback" not in output


@pytest.mark.parametrize(
    ("redirection", "code"), [(">&- 2>&-", 0), ("2>errors | true", 0), (">/dev/full", 1)]
)
def test_streams_that_are_closed_at_the_start_do_not_change_the_run(
    tmp_path: Path, redirection: str, code: int
) -> None:
    """Start the program as a shell does, with all its imports."""
    adder(tmp_path / "agent")
    command = f'{PROGRAM} {" ".join(RUN_COMMAND)} --no-telemetry --input \'{{"a": 1, "b": 2}}\' {redirection}'

    result = subprocess.run(
        ["bash", "-c", f"{command}; exit ${{PIPESTATUS[0]}}"],
        cwd=tmp_path,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
    )

    assert result.returncode == code
    assert "Traceback" not in result.stderr
    assert "Broken" not in result.stderr


@pytest.mark.parametrize(
    ("replies", "judges", "expected_line"),
    [
        ([], "", "node 'work' got no answer: scripted: the script is exhausted, replies given: 0"),
        (
            [{"text": "hm"}] * 22,
            "",
            "node 'work' was escalated: 20 bad steps since the last ACCEPT, 19 of them repeats",
        ),
        (
            TALKS,
            "def strict(turn):\n    raise ValueError('oops')\n",
            "node 'work' failed: the judge failed: ValueError: oops",
        ),
        (
            TALKS[:1] * 30,
            "",
            f"node 'work' was escalated: double was called 20 times {REPEATED} in a row",
        ),
    ],
)
def test_outcome_of_a_node_is_printed_once(
    tmp_path: Path, replies: list[dict[str, Any]], judges: str, expected_line: str
) -> None:
    spec = json.loads(json.dumps(TALKER))
    spec["graph"]["nodes"][0]["conversation_judge"] = "strict" if judges else ""
    write_agent(talker(tmp_path / "agent"), spec, replies, **({"judges": judges} if judges else {}))

    result = run_looper(tmp_path)

    status, reason, session = result.stdout.splitlines()[-3:]
    session_name = session.split()[1]
    assert (result.returncode, status, reason) == (1, "failed", f"  {expected_line}")
    assert f"queenright run agent --resume {session_name} --storage here\n" in result.stderr


UNCANCELLABLE_CODE = """
import asyncio, sys

async def add(a, b):
    print("begun", file=sys.stderr, flush=True)
    try:
        await asyncio.Event().wait()
    finally:
        print("not yet", file=sys.stderr, flush=True)
        await asyncio.Event().wait()
"""


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_second_signal_exits_immediately_with_a_resume_command(
    tmp_path: Path, number: signal.Signals, code: int
) -> None:
    path = adder(tmp_path / "agent", UNCANCELLABLE_CODE)
    command = [*RUN_COMMAND, "--no-telemetry", "--input", '{"a": 1, "b": 2}']
    with InteractiveCommand(*command, cwd=tmp_path) as running:
        for word in (b"begun\n", b"not yet\n"):
            assert running.stderr.readline() == word
            running.send_signal(number)
        output = running.stderr.read().decode()
    [session] = (tmp_path / "here" / "sessions").iterdir()
    (path / "functions.py").write_text("def add(a, b):\n    return a + b\n", encoding="utf-8")
    resume_arguments = output.rpartition(": ")[2].split()[2:]
    result = run_looper(tmp_path, *resume_arguments[1:3])

    resume = f"queenright run agent --resume {session.name} --storage here"
    assert running.wait() == code
    assert resume in output
    assert "  sum: 3" in result.stdout.splitlines(), result.stderr


BLOCKED_CODE = """
import asyncio

def hold():
    open("begun", "w").close()
    open("go").close()

async def add(a, b):
    await asyncio.to_thread(hold)
    return a + b
"""


@pytest.mark.parametrize("nohup", [False, True])
def test_closed_terminal_pauses_the_run_unless_it_runs_under_nohup(tmp_path: Path, nohup: bool) -> None:
    adder(tmp_path / "agent", BLOCKED_CODE)
    for name in ("begun", "go"):
        os.mkfifo(tmp_path / name)
    command = [*RUN_COMMAND, "--no-telemetry", "--input", '{"a": 1, "b": 2}']
    ignored_signals = (signal.SIGHUP,) if nohup else ()
    with open(os.devnull, "rb") as null_file:
        running = InteractiveCommand(
            *command, cwd=tmp_path, stdin=null_file.fileno(), ignored=ignored_signals
        )
    with running:
        (tmp_path / "begun").read_bytes()
        running.send_signal(signal.SIGHUP)
        running.send_signal(signal.SIGHUP)
        (tmp_path / "go").write_bytes(b"")
        out_text, err_text = (stream.read().decode() for stream in (running.stdout, running.stderr))

    assert running.wait() == (0 if nohup else 1), err_text
    assert ("completed" if nohup else "paused") in out_text.splitlines()
    assert ("Paused. Resume with: " in err_text) is not nohup


class TelemetryCollector(BaseHTTPRequestHandler):
    """An HTTP handler that accepts telemetry and stores it."""

    received_requests: list[tuple[str, bytes]]

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["content-length"]))
        self.received_requests.append((self.path, body))
        self.send_response(200)
        self.end_headers()

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002
        pass


@pytest.mark.parametrize("option", ["--telemetry", "--no-telemetry"])
def test_telemetry_of_a_run_is_delivered_when_it_ends(tmp_path: Path, option: str) -> None:
    talker(tmp_path / "agent")
    handler = type("Handler", (TelemetryCollector,), {"received_requests": []})
    with HTTPServer(("127.0.0.1", 0), handler) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        environment = {**os.environ, "OTEL_EXPORTER_OTLP_ENDPOINT": f"http://127.0.0.1:{server.server_port}"}
        result = queenright("run", "agent", "--storage", "here", option, cwd=tmp_path, env=environment)
        server.shutdown()
        thread.join()

    received_requests: list[tuple[str, bytes]] = handler.received_requests  # type: ignore[attr-defined]
    spans = b"".join(body for path, body in received_requests if path == "/v1/traces")
    assert (result.returncode, result.stderr) == (0, "")
    if option == "--telemetry":
        for name in (b"invoke_agent talker", b"step work", b"execute_tool double", b"chat scripted"):
            assert name in spans
    else:
        assert received_requests == []


def test_telemetry_of_a_run_contains_its_circuit_breaker(tmp_path: Path) -> None:
    """The service monitors the breaker of a run that it does not execute."""
    write_agent(
        talker(tmp_path / "agent"),
        TALKER,
        TALKS[:1] * 3 + TALKS,
        tools="def double(number: int) -> str:\n    raise OSError('the disk is full')\n",
    )
    handler = type("Handler", (TelemetryCollector,), {"received_requests": []})
    with HTTPServer(("127.0.0.1", 0), handler) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        environment = {**os.environ, "OTEL_EXPORTER_OTLP_ENDPOINT": f"http://127.0.0.1:{server.server_port}"}
        queenright("run", "agent", "--storage", "here", cwd=tmp_path, env=environment)
        server.shutdown()
        thread.join()

    received_requests: list[tuple[str, bytes]] = handler.received_requests  # type: ignore[attr-defined]
    logs = b"".join(body for path, body in received_requests if path == "/v1/logs")
    assert b"queenright.circuit_breaker" in logs
    assert b"tool_execution:talker:double" in logs


def make_event(type_: EventType, node: str = "work", **data: Any) -> AgentEvent:
    return AgentEvent(type=type_, time=0, session_id="s1", graph_id="g", node_id=node, data=data)


@pytest.mark.parametrize(
    ("agent_event", "line"),
    [
        (make_event(EventType.TOOL_CALL_COMPLETED, tool="search", outcome="ok"), "work: search ok\n"),
        (
            make_event(EventType.TOOL_CALL_COMPLETED, tool="search", outcome="timeout", error="no answer"),
            "work: search timeout: no answer\n",
        ),
        (
            make_event(
                EventType.LLM_CALL_COMPLETED, model="m", error_type="TransientModelError", error="429"
            ),
            "work: m failed: 429\n",
        ),
        (make_event(EventType.LLM_CALL_COMPLETED, model="m", output_tokens=3), ""),
        (make_event(EventType.WORKER_WAITING, reason="backoff"), "work: backing off before a retry\n"),
        (make_event(EventType.WORKER_WAITING, reason=None), ""),
        (
            make_event(EventType.STEP_COMPLETED, index=2, verdict="RETRY", text="say the year"),
            "work: turn 2 retry: say the year\n",
        ),
        (make_event(EventType.STEP_COMPLETED, index=2, verdict="ACCEPT"), ""),
        (
            make_event(EventType.NODE_LOOP_COMPLETED, outcome="escalated", error="a loop"),
            "work: escalated: a loop\n",
        ),
        (
            make_event(EventType.NODE_LOOP_COMPLETED, outcome="no_answer", error="429"),
            "work: no answer: 429\n",
        ),
    ],
)
def test_printed_event_is_at_most_one_line(agent_event: AgentEvent, line: str) -> None:
    output = io.StringIO()

    RunProgress(output, "g").handle_event(agent_event)

    assert output.getvalue() == line


def test_streamed_text_is_not_repeated_as_the_question() -> None:
    output = io.StringIO()
    progress = RunProgress(output, "g")

    for piece in ("Who ", "are you?"):
        progress.handle_event(make_event(EventType.CLIENT_OUTPUT_DELTA, text=piece))
    progress.handle_event(make_event(EventType.CLIENT_INPUT_REQUESTED, question="Who are you?"))
    progress.handle_event(make_event(EventType.CLIENT_INPUT_REQUESTED, question="And now?"))

    assert output.getvalue() == "Who are you?\nAnd now?\n"
    assert progress.input_requests.qsize() == 2


def test_speaker_is_named_if_several_nodes_speak() -> None:
    output = io.StringIO()
    progress = RunProgress(output, "g", has_speaker_names=True)

    progress.handle_event(make_event(EventType.CLIENT_OUTPUT_DELTA, "one", text="Good "))
    progress.handle_event(make_event(EventType.CLIENT_OUTPUT_DELTA, "one", text="day.\n"))
    progress.handle_event(make_event(EventType.TOOL_CALL_COMPLETED, "one", tool="look", outcome="ok"))
    progress.handle_event(make_event(EventType.CLIENT_OUTPUT_DELTA, "one", text="I looked"))
    progress.handle_event(make_event(EventType.CLIENT_OUTPUT_DELTA, "two", text="So did I"))
    progress.handle_event(make_event(EventType.CLIENT_INPUT_REQUESTED, "one", question="And you?"))

    assert output.getvalue() == (
        "one: Good day.\none: look ok\none: I looked\ntwo: So did I\none: And you?\n"
    )


def test_additional_graph_is_named() -> None:
    output = io.StringIO()
    progress = RunProgress(output, "mine")

    progress.handle_event(make_event(EventType.EXECUTION_STARTED, ""))
    progress.handle_event(make_event(EventType.CLIENT_OUTPUT_DELTA, "one", text="Good day."))
    progress.handle_event(make_event(EventType.TOOL_CALL_COMPLETED, "two", tool="look", outcome="ok"))

    assert output.getvalue() == "g: session s1\ng/one: Good day.\ng/two: look ok\n"


def test_model_output_cannot_control_the_terminal() -> None:
    output = io.StringIO()

    RunProgress(output, "g").handle_event(
        make_event(EventType.CLIENT_OUTPUT_DELTA, text="a\x1b[2Jb\rc\x9bd\te\n")
    )

    assert output.getvalue() == "a[2Jbcd\te\n"


@pytest.mark.parametrize("option", ["--storage", "--config"])
def test_empty_path_is_a_usage_error(tmp_path: Path, option: str) -> None:
    """An example is an unset variable in a script. It must not mean the current folder."""
    adder(tmp_path / "agent")

    result = queenright("run", "agent", option, "", "--input", "{}", cwd=tmp_path)

    assert result.returncode == 2
    assert "is empty" in result.stderr
    assert [path.name for path in tmp_path.iterdir()] == ["agent"]
