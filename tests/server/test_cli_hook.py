"""`queenright hook`, which coding agents run: real HTTP and the real program."""

from __future__ import annotations

import asyncio
import json
import os
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx
import pytest

from queenright.cli.hook import LIMIT
from queenright.server.serving import RunningService, serving
from tests.server.test_permissions import answering_settings as answering_permissions
from tests.waiting import until
from tests.warm import PROGRAM

CALL = {"hook_event_name": "UserPromptSubmit", "session_id": "s-1", "cwd": "/home/ada/honey"}
NEXT = "Content-Length: 18\r\n\r\n"
STOP = '{"continue":false}'
CHUNKED = (
    f"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\n{STOP[:5]}\r\nd\r\n{STOP[5:]}\r\n0\r\n\r\n"
)


def run_hook(
    *words: str | Path, call: bytes = b"{}", env: dict[str, str] | None = None
) -> tuple[bytes, float]:
    """Run the hook; return its output and duration. It prints no error and exits with 0."""
    start = time.monotonic()
    result = subprocess.run(
        [PROGRAM, "hook", *words], input=call, capture_output=True, check=False, timeout=60, env=env
    )
    assert (result.returncode, result.stderr) == (0, b"")
    return result.stdout, time.monotonic() - start


@contextmanager
def serve_answer(answer: str | None) -> Iterator[tuple[str, list[bytes]]]:
    """Serve one connection with an answer, or with none; yield the address, and the request."""
    calls: list[bytes] = []
    with socket.create_server(("127.0.0.1", 0)) as listener:
        stop = threading.Event()

        def serve() -> None:
            connection = listener.accept()[0]
            with connection:
                calls.append(connection.recv(1 << 16))
                if answer is None:
                    stop.wait(60)
                else:
                    connection.sendall(answer.encode())

        thread = threading.Thread(target=serve, daemon=True)
        thread.start()
        try:
            yield f"http://127.0.0.1:{listener.getsockname()[1]}", calls
        finally:
            stop.set()
            thread.join(60)


@pytest.mark.parametrize(("client", "path"), [("claude-code", "claude-code"), ("gemini", "gemini-cli")])
async def test_call_reaches_the_service(running: RunningService, client: str, path: str) -> None:
    call = json.dumps({**CALL, "hook_event_name": "SessionStart"}).encode()

    out, _ = await asyncio.to_thread(
        run_hook,
        client,
        "--otlp-url",
        running.otlp_url,
        call=call,
        env={**os.environ, "USER": "ada lovelace"},
    )

    async with httpx.AsyncClient(base_url=running.url, verify=False, trust_env=False) as http:
        [agent] = (await http.get("/api/agents")).json()["agents"]
    assert out == b""
    assert agent["framework"] == path
    assert agent["agent_id"] == f"{path}/ada lovelace@{socket.gethostname()}/honey"


@pytest.mark.parametrize(
    "answer",
    [
        f"HTTP/1.1 200 OK\r\n{NEXT}{STOP}",
        f"HTTP/1.1 200 OK\r\n\r\n{STOP}",
        CHUNKED,
    ],
    ids=["length", "until the connection closes", "chunked"],
)
def test_answer_is_printed(answer: str, tmp_path: Path) -> None:
    token = tmp_path / "token"
    token.write_text("honey\n")
    with serve_answer(answer) as (url, calls):
        out, _ = run_hook("codex", "--otlp-url", f"{url}/base/", "--token-file", token, call=b'{"a": 1}')

    assert json.loads(out) == {"continue": False}
    assert calls[0].startswith(b"POST /base/hooks/codex?user=")
    assert b"\r\nAuthorization: Bearer honey\r\n" in calls[0]
    assert calls[0].endswith(b'\r\n\r\n{"a": 1}')


@pytest.mark.parametrize(
    "answer",
    [
        None,
        "",
        "nonsense",
        f"HTTP/1.1 503 Service Unavailable\r\n{NEXT}{STOP}",
        f"HTTP/1.1 200 OK\r\n{NEXT}{STOP[:9]}",
        "HTTP/1.1 200 OK\r\n\r\n<html>",
        "HTTP/1.1 200 OK\r\n\r\n[1]",
        "HTTP/1.1 200 OK\r\n\r\n{}",
    ],
)
def test_confused_service_does_not_affect_the_agent(answer: str | None) -> None:
    """Hooks fail open: the agent gets no answer and no error, and waits no longer than the limit."""
    with serve_answer(answer) as (url, _):
        out, seconds = run_hook("codex", "--otlp-url", url)

    assert out == b""
    # The limit is 0.9 s; the rest is for a busy machine.
    assert seconds < 10


STARTED_ANSWER = "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n1\r\n \r\n"


async def test_hook_waits_for_the_answer_of_a_person(tmp_path: Path) -> None:
    """B93: the service holds the answer back, and has sent the start of it."""
    call = {**CALL, "hook_event_name": "PermissionRequest", "tool_name": "Bash"}
    words = ("claude-code", "--wait", "60")
    async with (
        serving(answering_permissions(tmp_path)) as running,
        httpx.AsyncClient(base_url=running.url, verify=False, trust_env=False) as http,
    ):
        body = json.dumps(call).encode()
        waiting = asyncio.create_task(
            asyncio.to_thread(run_hook, *words, "--otlp-url", running.otlp_url, call=body)
        )
        await until(lambda: running.service.permissions.open_requests(), "it asks")
        await asyncio.sleep(LIMIT)
        assert not waiting.done(), "it waits longer than for other answers"
        [request] = running.service.permissions.open_requests()
        response = await http.post(
            f"/api/permissions/{request.request_id}/answer", json={"decision": "allow", "by": "ada"}
        )
        assert response.status_code == 202, response.text
        out, _ = await waiting

    assert json.loads(out)["hookSpecificOutput"]["decision"] == {"behavior": "allow"}


@pytest.mark.parametrize("answer", [None, "", "HTTP/1.1 503 Service Unavailable\r\n\r\n{}", STARTED_ANSWER])
def test_hook_does_not_wait_for_an_unavailable_service(answer: str | None) -> None:
    """
    B91: without the start of an answer the agent continues within a second, even if the connection closes
    early.
    """
    with serve_answer(answer) as (url, _):
        out, seconds = run_hook("codex", "--otlp-url", url, "--wait", "60")

    assert out == b""
    assert seconds < 10


@pytest.mark.parametrize(
    "words",
    [
        ["codex", "--otlp-url", "http://127.0.0.1:1"],
        ["codex", "--otlp-url", "http://no.such.host.invalid:4318"],
        ["codex", "--otlp-url=nonsense"],
        ["codex", "--otlp-url"],
        ["codex", "--token-file", "nowhere"],
        ["codex", "--otlp-url", "http://127.0.0.1:1", "--wait", "long"],
        ["nobody"],
        [],
    ],
)
def test_hook_never_stops_the_agent_on_errors(words: list[str]) -> None:
    out, seconds = run_hook(*words)

    assert out == b""
    assert seconds < 10


def test_hook_waits_for_endless_input_only_until_the_limit() -> None:
    process = subprocess.Popen([PROGRAM, "hook", "codex"], stdin=subprocess.PIPE)
    try:
        assert process.wait(60) == 0
    finally:
        process.kill()
        process.wait()
        assert process.stdin is not None
        process.stdin.close()


def test_hook_command_imports_only_the_standard_library() -> None:
    """The hook starts at each tool call of an agent."""
    code = (
        "import sys; before = set(sys.modules)\n"
        "import queenright.cli.hook\n"
        "print(*sorted(set(sys.modules) - before))"
    )
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)

    words = result.stdout.split()
    assert [name for name in words if name.startswith("queenright.")] == [
        "queenright.cli",
        "queenright.cli.hook",
    ]
    assert {name.partition(".")[0] for name in words} <= sys.stdlib_module_names | {"queenright"}
    assert not {"json", "urllib", "http", "ssl", "asyncio", "pathlib", "threading"} & set(words)
