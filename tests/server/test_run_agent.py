"""`queenright run`: resumed after a kill, guarded, and the lines that it prints."""

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
from tests.warm import PROGRAM, Command, Talking, queenright

SAME = "with the same arguments and result"
RUN = ("run", "agent", "--storage", "here")


def test_killed_run_resumes_where_it_was(tmp_path: Path) -> None:
    chatter(tmp_path / "agent")
    with Talking(*RUN, cwd=tmp_path) as running:
        text = b""
        while not text.endswith(b"> "):
            text += os.read(running.stdout.fileno(), 4096)
        running.send_signal(signal.SIGKILL)
    session = text.decode().splitlines()[0].removeprefix("session ")

    result = queenright(*RUN, "--resume", session, cwd=tmp_path, typed="Ada\nAda\n")

    assert result.returncode == 0, result.stderr
    assert result.stdout.splitlines()[:2] == [f"session {session}", "resumed"]
    assert "  name: Ada" in result.stdout.splitlines()


def run_looper(tmp_path: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    return queenright("run", "agent", "--storage", "here", "--no-telemetry", *arguments, cwd=tmp_path)


def test_looping_agent_is_warned_and_then_stopped(tmp_path: Path) -> None:
    looping_agent(tmp_path / "agent")

    result = run_looper(tmp_path)

    parts = sorted((tmp_path / "here").glob("sessions/*/conversations/work/parts/*.json"))
    warnings = [text for part in parts if "going in circles" in (text := part.read_text(encoding="utf-8"))]
    assert result.returncode == 1
    assert "double" in warnings[0]
    assert "3 times" in warnings[0]
    assert "work: escalated: " in result.stdout
    assert 15 < result.stdout.count("work: double ok") < 30


def test_guard_follows_the_settings(tmp_path: Path) -> None:
    looping_agent(tmp_path / "agent")
    exempt = "health_monitoring: {loops: {exempt_tools: [double]}}"
    (tmp_path / "queenright.yaml").write_text(exempt, encoding="utf-8")
    (tmp_path / "strict.yaml").write_text("{}", encoding="utf-8")
    (tmp_path / "bad.yaml").write_text("health: {}", encoding="utf-8")

    default, named, bad = (
        run_looper(tmp_path),
        run_looper(tmp_path, "-c", "strict.yaml"),
        run_looper(tmp_path, "-c", "bad.yaml"),
    )

    assert default.stdout.count("work: double ok") == 30
    assert "work: escalated: " not in default.stdout
    assert "work: escalated: " in named.stdout
    assert (bad.returncode, bad.stdout) == (1, "")
    assert "bad.yaml" in bad.stderr


def test_missing_input_is_a_usage_error_with_a_remedy(tmp_path: Path) -> None:
    """B99: nothing runs; an existing session may have the input."""
    adder(tmp_path / "agent")

    result = run_looper(tmp_path, "--input", '{"b": 2}')

    assert (result.returncode, result.stdout) == (2, "")
    assert "input 'a' is missing: node 'add' needs a, b, but got 'b'" in result.stderr
    assert "--input" in result.stderr
    session = run_looper(tmp_path, "--input", '{"a": 1, "b": 2}').stdout.split()[1]
    resumed = run_looper(tmp_path, "--session", session, "--input", '{"b": 3}')
    assert "  sum: 4" in resumed.stdout.splitlines()


def test_run_with_input_refused_by_its_first_node_is_cancelled(tmp_path: Path) -> None:
    """B99: the function refuses the input; the run did not fail, and cannot be resumed."""
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
    Run with redirected streams; return the exit code, and the text on stdout and stderr.

    Args:
        out: Where stdout goes: 1 as usual, another descriptor, or None: it is closed.
        err: The same for stderr; 1: the same as stdout.
        file_bytes: Maximum size of a file.
    """
    files = [tmp_path / "out", tmp_path / "err"]
    with files[0].open("wb") as first, files[1].open("wb") as second, open(os.devnull, "rb") as read_nothing:
        usual = {1: first.fileno() if out == 1 else out, 2: second.fileno(), None: None}
        streams = (read_nothing.fileno(), usual.get(out, out), usual.get(err, err))
        command = (*RUN, "--no-telemetry", *arguments)
        code = Command(*command, cwd=tmp_path, streams=streams, file_bytes=file_bytes).wait()
    text, errors = (path.read_text(encoding="utf-8") for path in files)
    return code, text, errors


@pytest.mark.parametrize(
    ("storage", "limit", "reason"),
    [
        ("a_file", None, "Not a directory"),
        ("a_file/x", None, "Not a directory"),
        ("/proc/nowhere", None, "No such file or directory"),
        ("here", 0, "File too large"),  # like a full disk: nothing can be written
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
    with open(reader, encoding="utf-8") as reading:
        # The output goes to a pipe, which has no size limit.
        code, _, _ = run_with_streams(tmp_path, *arguments, out=writer, err=writer, file_bytes=limit)
        os.close(writer)
        result = reading.read()

    assert code == 1
    assert "Traceback" not in result
    assert f"{storage}: {reason}" in result
    assert "--resume" not in result


PRINTS = """
import os, subprocess, sys
print("while it is loaded")

def add(a, b):
    print("printed")
    os.write(1, b"written\\n")
    subprocess.run(["echo", "by a child"], check=True)
    sys.stdout.write("and left behind")
    return a + b
"""


def test_stdout_has_only_the_result(tmp_path: Path) -> None:
    adder(tmp_path / "agent", PRINTS)

    result = run_looper(tmp_path, "--json", "--input", '{"a": 1, "b": 2}')

    assert result.returncode == 0
    assert json.loads(result.stdout)["outputs"] == {"sum": 3}
    for words in ("while it is loaded", "printed", "written", "by a child", "and left behind"):
        assert words in result.stderr


@pytest.mark.parametrize("kind", ["def", "async def"])
def test_agent_that_exits_the_program_has_failed(tmp_path: Path, kind: str) -> None:
    adder(tmp_path / "agent", f"import sys\n\n{kind} add(a, b):\n    sys.exit(0)\n")

    result = run_looper(tmp_path, "--input", '{"a": 1, "b": 2}')

    assert result.returncode == 1
    assert "node 'add' failed: SystemExit: 0" in result.stdout
    assert "Traceback" not in result.stderr


def read_first_line(reading: int) -> str:
    """Read as ``head -1`` does."""
    result = subprocess.run(["head", "-1"], stdin=reading, stdout=subprocess.PIPE, text=True, check=True)
    os.close(reading)
    return result.stdout


def read_nothing(reading: int) -> str:
    """Read as ``true`` does."""
    os.close(reading)
    return ""


@pytest.mark.parametrize(("b", "code"), [(2, 0), (0, 1)])
@pytest.mark.parametrize(
    ("reader", "both", "as_json"),
    [
        (read_first_line, False, ()),
        (read_first_line, True, ()),
        (read_nothing, False, ()),
        (read_nothing, False, ("--json",)),
    ],
)
def test_closed_reader_does_not_change_the_run(
    tmp_path: Path, b: int, code: int, reader: Callable[[int], str], both: bool, as_json: tuple[str, ...]
) -> None:
    adder(tmp_path / "agent", "def add(a, b):\n    print('x' * 99999, flush=True)\n    return a / b\n")
    reader_end, writer_end = os.pipe()
    with ThreadPoolExecutor() as pool:
        read = pool.submit(reader, reader_end)
        if reader is read_nothing:
            read.result()
        returncode, _, output = run_with_streams(
            tmp_path,
            *as_json,
            "--input",
            json.dumps({"a": 1, "b": b}),
            out=writer_end,
            err=writer_end if both else 2,
        )
        os.close(writer_end)
        output += read.result()

    assert returncode == code
    assert "Broken" not in output
    assert "Traceback" not in output


@pytest.mark.parametrize("as_json", [(), ("--json",)])
def test_result_lost_on_a_full_disk_is_a_failure(tmp_path: Path, as_json: tuple[str, ...]) -> None:
    adder(tmp_path / "agent")

    with open("/dev/full", "wb") as full:
        code, _, output = run_with_streams(
            tmp_path, *as_json, "--input", '{"a": 1, "b": 2}', out=full.fileno()
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


@pytest.mark.parametrize(("redirected", "code"), [(">&- 2>&-", 0), ("2>errors | true", 0), (">/dev/full", 1)])
def test_streams_closed_at_the_start_do_not_change_the_run(
    tmp_path: Path, redirected: str, code: int
) -> None:
    """As started from a shell: the program with all its imports."""
    adder(tmp_path / "agent")
    command = f'{PROGRAM} {" ".join(RUN)} --no-telemetry --input \'{{"a": 1, "b": 2}}\' {redirected}'

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
    ("replies", "judges", "expected"),
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
            f"node 'work' was escalated: double was called 20 times {SAME} in a row",
        ),
    ],
)
def test_outcome_of_a_node_is_printed_once(
    tmp_path: Path, replies: list[dict[str, Any]], judges: str, expected: str
) -> None:
    spec = json.loads(json.dumps(TALKER))
    spec["graph"]["nodes"][0]["conversation_judge"] = "strict" if judges else ""
    write_agent(talker(tmp_path / "agent"), spec, replies, **({"judges": judges} if judges else {}))

    result = run_looper(tmp_path)

    status, reason, session = result.stdout.splitlines()[-3:]
    name = session.split()[1]
    assert (result.returncode, status, reason) == (1, "failed", f"  {expected}")
    assert f"queenright run agent --resume {name} --storage here\n" in result.stderr


UNCANCELLABLE = """
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
    path = adder(tmp_path / "agent", UNCANCELLABLE)
    command = [*RUN, "--no-telemetry", "--input", '{"a": 1, "b": 2}']
    with Talking(*command, cwd=tmp_path) as running:
        for word in (b"begun\n", b"not yet\n"):
            assert running.stderr.readline() == word
            running.send_signal(number)
        output = running.stderr.read().decode()
    [session] = (tmp_path / "here" / "sessions").iterdir()
    (path / "functions.py").write_text("def add(a, b):\n    return a + b\n", encoding="utf-8")
    resumed = output.rpartition(": ")[2].split()[2:]
    result = run_looper(tmp_path, *resumed[1:3])

    resume = f"queenright run agent --resume {session.name} --storage here"
    assert running.wait() == code
    assert resume in output
    assert "  sum: 3" in result.stdout.splitlines(), result.stderr


BLOCKED = """
import asyncio

def hold():
    open("begun", "w").close()
    open("go").close()

async def add(a, b):
    await asyncio.to_thread(hold)
    return a + b
"""


@pytest.mark.parametrize("nohup", [False, True])
def test_closed_terminal_pauses_the_run_unless_told_to_continue(tmp_path: Path, nohup: bool) -> None:
    adder(tmp_path / "agent", BLOCKED)
    for name in ("begun", "go"):
        os.mkfifo(tmp_path / name)
    command = [*RUN, "--no-telemetry", "--input", '{"a": 1, "b": 2}']
    ignored = (signal.SIGHUP,) if nohup else ()
    with open(os.devnull, "rb") as read_nothing:
        running = Talking(*command, cwd=tmp_path, stdin=read_nothing.fileno(), ignored=ignored)
    with running:
        (tmp_path / "begun").read_bytes()
        running.send_signal(signal.SIGHUP)
        running.send_signal(signal.SIGHUP)
        (tmp_path / "go").write_bytes(b"")
        out, errors = (stream.read().decode() for stream in (running.stdout, running.stderr))

    assert running.wait() == (0 if nohup else 1), errors
    assert ("completed" if nohup else "paused") in out.splitlines()
    assert ("Paused. Resume with: " in errors) is not nohup


class TelemetryCollector(BaseHTTPRequestHandler):
    """Accepts telemetry, and stores it."""

    received: list[tuple[str, bytes]]

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["content-length"]))
        self.received.append((self.path, body))
        self.send_response(200)
        self.end_headers()

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002
        pass


@pytest.mark.parametrize("option", ["--telemetry", "--no-telemetry"])
def test_telemetry_of_a_run_is_delivered_when_it_ends(tmp_path: Path, option: str) -> None:
    talker(tmp_path / "agent")
    handler = type("Handler", (TelemetryCollector,), {"received": []})
    with HTTPServer(("127.0.0.1", 0), handler) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        environment = {**os.environ, "OTEL_EXPORTER_OTLP_ENDPOINT": f"http://127.0.0.1:{server.server_port}"}
        result = queenright("run", "agent", "--storage", "here", option, cwd=tmp_path, env=environment)
        server.shutdown()
        thread.join()

    received: list[tuple[str, bytes]] = handler.received  # type: ignore[attr-defined]
    spans = b"".join(body for path, body in received if path == "/v1/traces")
    assert (result.returncode, result.stderr) == (0, "")
    if option == "--telemetry":
        for name in (b"invoke_agent talker", b"step work", b"execute_tool double", b"chat scripted"):
            assert name in spans
    else:
        assert received == []


def test_circuit_breaker_of_a_run_is_in_its_telemetry(tmp_path: Path) -> None:
    """The service monitors the breaker of a run that it does not execute."""
    write_agent(
        talker(tmp_path / "agent"),
        TALKER,
        TALKS[:1] * 3 + TALKS,
        tools="def double(number: int) -> str:\n    raise OSError('the disk is full')\n",
    )
    handler = type("Handler", (TelemetryCollector,), {"received": []})
    with HTTPServer(("127.0.0.1", 0), handler) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        environment = {**os.environ, "OTEL_EXPORTER_OTLP_ENDPOINT": f"http://127.0.0.1:{server.server_port}"}
        queenright("run", "agent", "--storage", "here", cwd=tmp_path, env=environment)
        server.shutdown()
        thread.join()

    received: list[tuple[str, bytes]] = handler.received  # type: ignore[attr-defined]
    logs = b"".join(body for path, body in received if path == "/v1/logs")
    assert b"queenright.circuit_breaker" in logs
    assert b"tool_execution:talker:double" in logs


def event(type_: EventType, node: str = "work", **data: Any) -> AgentEvent:
    return AgentEvent(type=type_, time=0, session_id="s1", graph_id="g", node_id=node, data=data)


@pytest.mark.parametrize(
    ("expected", "line"),
    [
        (event(EventType.TOOL_CALL_COMPLETED, tool="search", outcome="ok"), "work: search ok\n"),
        (
            event(EventType.TOOL_CALL_COMPLETED, tool="search", outcome="timeout", error="no answer"),
            "work: search timeout: no answer\n",
        ),
        (
            event(EventType.LLM_CALL_COMPLETED, model="m", error_type="TransientModelError", error="429"),
            "work: m failed: 429\n",
        ),
        (event(EventType.LLM_CALL_COMPLETED, model="m", output_tokens=3), ""),
        (event(EventType.WORKER_WAITING, reason="backoff"), "work: backing off before a retry\n"),
        (event(EventType.WORKER_WAITING, reason=None), ""),
        (
            event(EventType.STEP_COMPLETED, index=2, verdict="RETRY", text="say the year"),
            "work: turn 2 retry: say the year\n",
        ),
        (event(EventType.STEP_COMPLETED, index=2, verdict="ACCEPT"), ""),
        (
            event(EventType.NODE_LOOP_COMPLETED, outcome="escalated", error="a loop"),
            "work: escalated: a loop\n",
        ),
        (event(EventType.NODE_LOOP_COMPLETED, outcome="no_answer", error="429"), "work: no answer: 429\n"),
    ],
)
def test_event_is_at_most_one_line(expected: AgentEvent, line: str) -> None:
    out = io.StringIO()

    RunProgress(out, "g").handle_event(expected)

    assert out.getvalue() == line


def test_streamed_text_is_not_repeated_as_the_question() -> None:
    out = io.StringIO()
    progress = RunProgress(out, "g")

    for piece in ("Who ", "are you?"):
        progress.handle_event(event(EventType.CLIENT_OUTPUT_DELTA, text=piece))
    progress.handle_event(event(EventType.CLIENT_INPUT_REQUESTED, question="Who are you?"))
    progress.handle_event(event(EventType.CLIENT_INPUT_REQUESTED, question="And now?"))

    assert out.getvalue() == "Who are you?\nAnd now?\n"
    assert progress.input_requests.qsize() == 2


def test_speaker_is_named_when_several_speak() -> None:
    out = io.StringIO()
    progress = RunProgress(out, "g", has_speaker_names=True)

    progress.handle_event(event(EventType.CLIENT_OUTPUT_DELTA, "one", text="Good "))
    progress.handle_event(event(EventType.CLIENT_OUTPUT_DELTA, "one", text="day.\n"))
    progress.handle_event(event(EventType.TOOL_CALL_COMPLETED, "one", tool="look", outcome="ok"))
    progress.handle_event(event(EventType.CLIENT_OUTPUT_DELTA, "one", text="I looked"))
    progress.handle_event(event(EventType.CLIENT_OUTPUT_DELTA, "two", text="So did I"))
    progress.handle_event(event(EventType.CLIENT_INPUT_REQUESTED, "one", question="And you?"))

    assert out.getvalue() == ("one: Good day.\none: look ok\none: I looked\ntwo: So did I\none: And you?\n")


def test_other_graph_is_named() -> None:
    out = io.StringIO()
    progress = RunProgress(out, "mine")

    progress.handle_event(event(EventType.EXECUTION_STARTED, ""))
    progress.handle_event(event(EventType.CLIENT_OUTPUT_DELTA, "one", text="Good day."))
    progress.handle_event(event(EventType.TOOL_CALL_COMPLETED, "two", tool="look", outcome="ok"))

    assert out.getvalue() == "g: session s1\ng/one: Good day.\ng/two: look ok\n"


def test_model_output_cannot_control_the_terminal() -> None:
    out = io.StringIO()

    RunProgress(out, "g").handle_event(event(EventType.CLIENT_OUTPUT_DELTA, text="a\x1b[2Jb\rc\x9bd\te\n"))

    assert out.getvalue() == "a[2Jbcd\te\n"


@pytest.mark.parametrize("option", ["--storage", "--config"])
def test_empty_path_is_a_mistake_and_not_this_folder(tmp_path: Path, option: str) -> None:
    """Such as from a script's unset variable."""
    adder(tmp_path / "agent")

    result = queenright("run", "agent", option, "", "--input", "{}", cwd=tmp_path)

    assert result.returncode == 2
    assert "is empty" in result.stderr
    assert [path.name for path in tmp_path.iterdir()] == ["agent"]
