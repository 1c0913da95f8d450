"""`queenright hook`, which coding agents run, with real HTTP and the real program."""

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
from tests.server.test_permissions import make_answering_settings as answering_permissions
from tests.waiting import until
from tests.warm import PROGRAM

HOOK_CALL = {"hook_event_name": "UserPromptSubmit", "session_id": "s-1", "cwd": "/home/ada/honey"}
CONTENT_LENGTH_HEADER = "Content-Length: 18\r\n\r\n"
STOP_RESPONSE = '{"continue":false}'
CHUNKED_RESPONSE = (
    "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"
    f"5\r\n{STOP_RESPONSE[:5]}\r\nd\r\n{STOP_RESPONSE[5:]}\r\n0\r\n\r\n"
)


def run_hook(
    *arguments: str | Path, call: bytes = b"{}", env: dict[str, str] | None = None
) -> tuple[bytes, float]:
    """
    Run the hook, and return its output and its duration in seconds. Check that it prints no error and exits
    with 0.
    """
    start_time = time.monotonic()
    result = subprocess.run(
        [PROGRAM, "hook", *arguments], input=call, capture_output=True, check=False, timeout=60, env=env
    )
    assert (result.returncode, result.stderr) == (0, b"")
    return result.stdout, time.monotonic() - start_time


@contextmanager
def serve_answer(response: str | None) -> Iterator[tuple[str, list[bytes]]]:
    """Serve one connection with a response, or with none. Yield the URL and the list of received requests."""
    calls: list[bytes] = []
    with socket.create_server(("127.0.0.1", 0)) as listener:
        stop = threading.Event()

        def serve() -> None:
            connection = listener.accept()[0]
            with connection:
                calls.append(connection.recv(1 << 16))
                if response is None:
                    stop.wait(60)
                else:
                    connection.sendall(response.encode())

        thread = threading.Thread(target=serve, daemon=True)
        thread.start()
        try:
            yield f"http://127.0.0.1:{listener.getsockname()[1]}", calls
        finally:
            stop.set()
            thread.join(60)


@pytest.mark.parametrize(("client", "path"), [("claude-code", "claude-code"), ("gemini", "gemini-cli")])
async def test_call_reaches_the_service(running: RunningService, client: str, path: str) -> None:
    call = json.dumps({**HOOK_CALL, "hook_event_name": "SessionStart"}).encode()

    output, _ = await asyncio.to_thread(
        run_hook,
        client,
        "--otlp-url",
        running.otlp_url,
        call=call,
        env={**os.environ, "USER": "ada lovelace"},
    )

    async with httpx.AsyncClient(base_url=running.url, verify=False, trust_env=False) as http:
        [agent] = (await http.get("/api/agents")).json()["agents"]
    assert output == b""
    assert agent["framework"] == path
    assert agent["agent_id"] == f"{path}/ada lovelace@{socket.gethostname()}/honey"


@pytest.mark.parametrize(
    "response",
    [
        f"HTTP/1.1 200 OK\r\n{CONTENT_LENGTH_HEADER}{STOP_RESPONSE}",
        f"HTTP/1.1 200 OK\r\n\r\n{STOP_RESPONSE}",
        CHUNKED_RESPONSE,
    ],
    ids=["length", "until the connection closes", "chunked"],
)
def test_response_is_printed(response: str, tmp_path: Path) -> None:
    token = tmp_path / "token"
    token.write_text("honey\n")
    with serve_answer(response) as (url, calls):
        output, _ = run_hook("codex", "--otlp-url", f"{url}/base/", "--token-file", token, call=b'{"a": 1}')

    assert json.loads(output) == {"continue": False}
    assert calls[0].startswith(b"POST /base/hooks/codex?user=")
    assert b"\r\nAuthorization: Bearer honey\r\n" in calls[0]
    assert calls[0].endswith(b'\r\n\r\n{"a": 1}')


@pytest.mark.parametrize(
    "response",
    [
        None,
        "",
        "nonsense",
        f"HTTP/1.1 503 Service Unavailable\r\n{CONTENT_LENGTH_HEADER}{STOP_RESPONSE}",
        f"HTTP/1.1 200 OK\r\n{CONTENT_LENGTH_HEADER}{STOP_RESPONSE[:9]}",
        "HTTP/1.1 200 OK\r\n\r\n<html>",
        "HTTP/1.1 200 OK\r\n\r\n[1]",
        "HTTP/1.1 200 OK\r\n\r\n{}",
    ],
)
def test_invalid_response_does_not_affect_the_agent(response: str | None) -> None:
    """Hooks fail open: the agent gets no response and no error, and does not wait longer than the limit."""
    with serve_answer(response) as (url, _):
        output, seconds = run_hook("codex", "--otlp-url", url)

    assert output == b""
    # The limit is 0.9 s; the remaining time is for a busy machine.
    assert seconds < 10


STARTED_ANSWER = "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n1\r\n \r\n"


async def test_hook_waits_for_the_decision_of_a_person(tmp_path: Path) -> None:
    """B93: the service has sent the start of its response, and holds back the rest."""
    call = {**HOOK_CALL, "hook_event_name": "PermissionRequest", "tool_name": "Bash"}
    arguments = ("claude-code", "--wait", "60")
    async with (
        serving(answering_permissions(tmp_path)) as running,
        httpx.AsyncClient(base_url=running.url, verify=False, trust_env=False) as http,
    ):
        body = json.dumps(call).encode()
        hook_task = asyncio.create_task(
            asyncio.to_thread(run_hook, *arguments, "--otlp-url", running.otlp_url, call=body)
        )
        await until(lambda: running.service.permissions.open_requests(), "the permission request is pending")
        await asyncio.sleep(LIMIT)
        assert not hook_task.done(), "the hook waits longer than for other responses"
        [request] = running.service.permissions.open_requests()
        response = await http.post(
            f"/api/permissions/{request.request_id}/answer", json={"decision": "allow", "by": "ada"}
        )
        assert response.status_code == 202, response.text
        output, _ = await hook_task

    assert json.loads(output)["hookSpecificOutput"]["decision"] == {"behavior": "allow"}


@pytest.mark.parametrize("response", [None, "", "HTTP/1.1 503 Service Unavailable\r\n\r\n{}", STARTED_ANSWER])
def test_hook_does_not_wait_for_an_unavailable_service(response: str | None) -> None:
    """
    B91: if the response does not start, the agent continues within a second, even if the connection closes
    early.
    """
    with serve_answer(response) as (url, _):
        output, seconds = run_hook("codex", "--otlp-url", url, "--wait", "60")

    assert output == b""
    assert seconds < 10


@pytest.mark.parametrize(
    "arguments",
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
def test_hook_exits_with_0_after_any_error(arguments: list[str]) -> None:
    output, seconds = run_hook(*arguments)

    assert output == b""
    assert seconds < 10


def test_hook_waits_for_endless_input_only_up_to_the_limit() -> None:
    process = subprocess.Popen([PROGRAM, "hook", "codex"], stdin=subprocess.PIPE)
    try:
        assert process.wait(60) == 0
    finally:
        process.kill()
        process.wait()
        assert process.stdin is not None
        process.stdin.close()


def test_hook_command_imports_only_the_standard_library() -> None:
    """The hook starts at each tool call of an agent, so its start must be fast."""
    code = (
        "import sys; before = set(sys.modules)\n"
        "import queenright.cli.hook\n"
        "print(*sorted(set(sys.modules) - before))"
    )
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)

    imported_modules = result.stdout.split()
    assert [name for name in imported_modules if name.startswith("queenright.")] == [
        "queenright.cli",
        "queenright.cli.hook",
    ]
    assert {name.partition(".")[0] for name in imported_modules} <= sys.stdlib_module_names | {"queenright"}
    assert not {"json", "urllib", "http", "ssl", "asyncio", "pathlib", "threading"} & set(imported_modules)
