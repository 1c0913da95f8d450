from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import sys
from collections.abc import AsyncIterator, Mapping
from pathlib import Path
from typing import Any

import pytest
import uvicorn
from starlette.types import ASGIApp, Receive, Scope, Send

from queenright.runtime.agents.agent_spec import AgentLoadError
from queenright.runtime.agents.credentials import MissingCredentialError
from queenright.runtime.agents.mcp_spec import McpServerSpec, read_mcp_servers
from queenright.runtime.agents.mcp_tools import McpServer, McpUnavailableError, list_mcp_tools
from queenright.runtime.llm.model import ToolCall
from queenright.runtime.tooling.tools import ToolRegistry, ToolResult
from tests.runtime.conftest import FakeTime
from tests.runtime.mcp_server import make_server
from tests.runtime.processes import list_children, list_processes
from tests.waiting import until

PROGRAM = Path(__file__).with_name("mcp_server.py")
SECRET = "correct-horse-battery"


def make_stdio_server(
    tmp_path: Path, name: str = "local", *, sleep: Any = asyncio.sleep, **options: Any
) -> McpServer:
    spec = McpServerSpec.model_validate(
        {"command": "python", "args": [str(PROGRAM), str(tmp_path / "starts")], **options}
    )
    return McpServer(
        name,
        spec,
        folder=tmp_path,
        log=tmp_path / "logs" / f"mcp_{name}.log",
        environment={"TOKEN": SECRET},
        sleep=sleep,
    )


@contextlib.asynccontextmanager
async def open_tools(server: McpServer) -> AsyncIterator[ToolRegistry]:
    try:
        yield ToolRegistry(await list_mcp_tools([server]))
    finally:
        await server.close()


async def call_tool(tools: ToolRegistry, name: str, **arguments: Any) -> ToolResult:
    return await tools.call(ToolCall("c1", name, json.dumps(arguments)))


class HeaderRecorder:
    """An ASGI app that records request headers."""

    def __init__(self, app: ASGIApp) -> None:
        self.app = app
        self.headers: list[Mapping[str, str]] = []

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http":
            self.headers.append({k.decode(): v.decode() for k, v in scope["headers"]})
        await self.app(scope, receive, send)


@contextlib.asynccontextmanager
async def serve_http(port: int = 0) -> AsyncIterator[tuple[int, HeaderRecorder]]:
    app = HeaderRecorder(make_server().streamable_http_app())
    server = uvicorn.Server(uvicorn.Config(app, port=port, log_level="error", timeout_graceful_shutdown=1))
    server_task = asyncio.create_task(server.serve())
    await until(lambda: server.started, "the server has started")
    [listener] = server.servers
    try:
        yield listener.sockets[0].getsockname()[1], app
    finally:
        server.should_exit = True
        await server_task


def make_http_server(port: int, tmp_path: Path, name: str = "remote", **options: Any) -> McpServer:
    spec = McpServerSpec.model_validate({"url": f"http://127.0.0.1:{port}/mcp", **options})
    return McpServer(
        name, spec, folder=tmp_path, log=tmp_path / "logs" / "x.log", environment={"TOKEN": SECRET}
    )


async def test_tool_over_stdio_has_the_servers_schema_and_answers(tmp_path: Path) -> None:
    async with open_tools(make_stdio_server(tmp_path, timeout_seconds=7)) as tools:
        specs = {spec.name: spec for spec in tools.specs()}

        assert specs["add"].description == "Add two numbers."
        assert specs["add"].parameters["required"] == ["a", "b"]
        assert await call_tool(tools, "add", a=2, b=40) == ToolResult("42")


async def test_tool_name_is_sanitized_and_still_works(
    tmp_path: Path,
) -> None:
    async with serve_http() as (port, _), open_tools(make_http_server(port, tmp_path)) as tools:
        assert await call_tool(tools, "strange_name_of_tool") == ToolResult("strange")


async def test_server_annotations_determine_tool_effects(tmp_path: Path) -> None:
    """Annotations take precedence over a guess from the name."""
    async with serve_http() as (port, _), open_tools(make_http_server(port, tmp_path)) as tools:
        effects = {name: tool.effect for name in tools.names if (tool := tools.get(name))}

    assert (effects["apply_query"], effects["get_rid_of"], effects["add"]) == ("reads", "changes", "")


async def test_tool_error_is_returned_to_the_model(tmp_path: Path) -> None:
    async with serve_http() as (port, _), open_tools(make_http_server(port, tmp_path)) as tools:
        tool_error = await call_tool(tools, "refuse", why="it is late")
        invalid_call = await call_tool(tools, "add", a="many", b=1)

        assert tool_error.failed
        assert "refused: it is late" in tool_error.content
        assert invalid_call.failed
        assert "a" in invalid_call.content


async def test_server_gets_only_its_own_environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("QUEENRIGHT_TEST_ELSE", "not for servers")
    async with open_tools(make_stdio_server(tmp_path, env={"GREETING": "hello ${TOKEN}x"})) as tools:
        # These values are known, so that they are masked in the server's output.
        assert await call_tool(tools, "environment", variable="GREETING") == ToolResult(f"hello {SECRET}x")
        assert await call_tool(tools, "environment", variable="QUEENRIGHT_TEST_ELSE") == ToolResult("not set")


async def test_server_runs_in_its_folder_and_logs_stderr(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "sub").mkdir()
    async with open_tools(make_stdio_server(tmp_path, cwd="sub")) as tools:
        assert await call_tool(tools, "folder") == ToolResult(str((tmp_path / "sub").resolve()))

    assert "a line on stderr" in (tmp_path / "logs" / "mcp_local.log").read_text(encoding="utf-8")
    assert "a line on stderr" not in capfd.readouterr().err


async def test_server_dying_during_a_call_is_restarted_at_the_next(
    tmp_path: Path,
) -> None:
    async with open_tools(make_stdio_server(tmp_path)) as tools:
        failed_call = await call_tool(tools, "die")
        next_call = await call_tool(tools, "add", a=1, b=1)

        assert failed_call.failed
        assert "may or may not have taken effect" in failed_call.content
        assert next_call == ToolResult("2")
    assert (tmp_path / "starts").read_text(encoding="utf-8") == "started\n" * 2


async def test_server_that_died_between_calls_is_reconnected(tmp_path: Path) -> None:
    server = make_stdio_server(tmp_path)
    async with open_tools(server) as tools:
        [pid] = list_children(tmp_path)
        os.kill(pid, signal.SIGKILL)
        await until(lambda: server.is_gone, "the server has ended")

        results = await asyncio.gather(call_tool(tools, "add", a=1, b=2), call_tool(tools, "add", a=3, b=4))

        assert [*results] == [ToolResult("3"), ToolResult("7")]
    # Two concurrent calls use one new server.
    assert (tmp_path / "starts").read_text(encoding="utf-8") == "started\n" * 2


async def test_unrestartable_server_is_reported_at_each_call(tmp_path: Path) -> None:
    program = tmp_path / "server.py"
    program.write_text(f"import runpy; runpy.run_path({str(PROGRAM)!r}, run_name='__main__')")
    async with open_tools(make_stdio_server(tmp_path, args=[str(program)])) as tools:
        program.write_text("raise SystemExit('not today')")
        await call_tool(tools, "die")
        first_result, second_result = (
            await call_tool(tools, "add", a=1, b=1),
            await call_tool(tools, "add", a=1, b=1),
        )

        assert "'local'" in first_result.content
        assert "mcp_local.log" in first_result.content
        assert first_result.content == second_result.content
    assert "not today" in (tmp_path / "logs" / "mcp_local.log").read_text(encoding="utf-8")


async def test_closed_server_leaves_no_process(tmp_path: Path) -> None:
    async with open_tools(make_stdio_server(tmp_path)):
        assert len(list_children(tmp_path)) == 1

    assert list_children(tmp_path) == []
    assert [t for t in asyncio.all_tasks() if t is not asyncio.current_task()] == []


async def test_cancelled_call_does_not_affect_other_calls(tmp_path: Path) -> None:
    async with serve_http() as (port, _), open_tools(make_http_server(port, tmp_path)) as tools:
        cancelled_call = asyncio.create_task(call_tool(tools, "add", a=1, b=1))
        await asyncio.sleep(0)
        cancelled_call.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await cancelled_call

        assert await call_tool(tools, "add", a=20, b=22) == ToolResult("42")


async def test_silent_server_times_out(tmp_path: Path, fake_time: FakeTime) -> None:
    server = make_stdio_server(
        tmp_path,
        args=["-c", "import sys; sys.stdin.read()", str(tmp_path)],
        connect_timeout_seconds=5,
        sleep=fake_time.sleep,
    )
    connection = asyncio.create_task(server.list_tools())
    await until(lambda: list_children(tmp_path), "the server has started")

    await fake_time.advance(5)

    with pytest.raises(
        McpUnavailableError, match=r"'local' .* cannot be reached: TimeoutError: no answer within 5 s"
    ):
        await connection
    await server.close()
    assert list_children(tmp_path) == []


async def test_missing_program_is_named(tmp_path: Path) -> None:
    server = make_stdio_server(tmp_path, command="no-such-program")

    with pytest.raises(McpUnavailableError, match="no-such-program"):
        await server.list_tools()

    await server.close()


async def test_tool_over_http_answers_and_its_headers_are_sent(tmp_path: Path) -> None:
    async with serve_http() as (port, app):
        server = make_http_server(port, tmp_path, headers={"Authorization": "Bearer ${TOKEN}"})
        async with open_tools(server) as tools:
            assert await call_tool(tools, "add", a=2, b=40) == ToolResult("42")

    assert {headers.get("authorization") for headers in app.headers} == {f"Bearer {SECRET}"}


async def test_restarted_http_server_is_reconnected(tmp_path: Path) -> None:
    async with serve_http() as (port, _):
        server = make_http_server(port, tmp_path)
        tools = ToolRegistry(await list_mcp_tools([server]))
        assert await call_tool(tools, "add", a=1, b=1) == ToolResult("2")
    try:
        first_failure = await call_tool(tools, "add", a=1, b=1)
        second_failure = await call_tool(tools, "add", a=1, b=1)
        async with serve_http(port):
            after_restart = await call_tool(tools, "add", a=1, b=1)
    finally:
        await server.close()

    assert first_failure.failed
    assert "'remote'" in first_failure.content
    assert f"http://127.0.0.1:{port}/mcp" in second_failure.content
    assert after_restart == ToolResult("2")


async def test_colliding_tool_names_get_server_prefix(tmp_path: Path) -> None:
    async with serve_http() as (port, _):
        servers = [make_http_server(port, tmp_path, name) for name in ("one", "two")]
        try:
            names = [tool.name for tool in await list_mcp_tools(servers)]
            names_of_first = [tool.name for tool in await list_mcp_tools(servers[:1], known_names=["add"])]
        finally:
            await asyncio.gather(*(server.close() for server in servers))

    assert {"one__add", "two__add"} <= set(names)
    assert "add" not in names
    assert {"one__add", "die"} <= set(names_of_first)


async def test_secret_is_in_no_message_and_no_repr(tmp_path: Path) -> None:
    server = make_http_server(
        9,
        tmp_path,
        headers={"Authorization": f"Bearer {SECRET}"},
        url=f"http://u:{SECRET}@127.0.0.1:9/x?k={SECRET}",
    )
    local_server = make_stdio_server(tmp_path, env={"A": SECRET}, command="/nowhere")

    for unreachable_server in (server, local_server):
        with pytest.raises(McpUnavailableError) as error_info:
            await unreachable_server.list_tools()
        await unreachable_server.close()
        assert SECRET not in str(error_info.value)
        assert SECRET not in repr(unreachable_server._spec)


async def test_unset_variable_is_named_before_the_start(tmp_path: Path) -> None:
    server = make_stdio_server(tmp_path, env={"A": "${NOT_THERE} and ${TOKEN}"})

    with pytest.raises(
        MissingCredentialError, match="MCP server 'local': not set in the environment: NOT_THERE"
    ):
        await server.list_tools()

    await server.close()
    assert not (tmp_path / "starts").exists()


async def test_without_the_client_the_extra_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "mcp", None)
    server = make_stdio_server(tmp_path)

    with pytest.raises(McpUnavailableError, match=r"pip install 'queenright\[mcp\] @ "):
        await server.list_tools()


@pytest.mark.parametrize(
    ("server", "expected"),
    [
        ({}, "set either command (a program) or url"),
        ({"command": "x", "url": "http://x"}, "set either command"),
        ({"command": "x", "headers": {"A": SECRET}}, "headers apply to a server with a url"),
        ({"url": "http://x", "env": {"A": SECRET}}, "args, env and cwd apply to a server with a command"),
        ({"url": f"ftp://{SECRET}"}, "must start with http:// or https://"),
        ({"command": "x", "env": {"A": [SECRET]}}, "servers.a.env.A: it must be text"),
        ({"command": "x", "evn": {"A": SECRET}}, "servers.a.evn: no such field"),
    ],
)
def test_invalid_file_error_has_the_place_without_values(tmp_path: Path, server: Any, expected: str) -> None:
    path = tmp_path / "mcp_servers.json"
    path.write_text(json.dumps({"servers": {"a": server}}), encoding="utf-8")

    with pytest.raises(AgentLoadError) as error_info:
        read_mcp_servers(path)

    assert expected in str(error_info.value)
    assert str(path) in str(error_info.value)
    assert SECRET not in str(error_info.value)


HANGING_PROGRAM = Path(__file__).with_name("mcp_hanging.py")


def make_hanging_server(tmp_path: Path, **options: Any) -> McpServer:
    return make_stdio_server(tmp_path, args=[str(HANGING_PROGRAM), str(tmp_path)], **options)


async def abandon_call(tools: ToolRegistry, name: str, tmp_path: Path) -> None:
    """Call a tool, and cancel the call once the server has received it."""
    call_task = asyncio.create_task(call_tool(tools, name))
    await until((tmp_path / f"asked_{name}").exists, "the server has the call")
    call_task.cancel()
    await asyncio.wait([call_task])


async def test_hanging_server_is_killed_with_its_children_and_restarted(
    tmp_path: Path, fake_time: FakeTime
) -> None:
    async with open_tools(make_hanging_server(tmp_path, sleep=fake_time.sleep, timeout_seconds=8)) as tools:
        assert (await call_tool(tools, "hum")).content == "hum"
        old_processes = set(list_processes(tmp_path))
        await abandon_call(tools, "hang", tmp_path)

        next_call = asyncio.create_task(call_tool(tools, "hum"))
        await fake_time.advance(2)

        assert (await next_call).content == "hum"
        assert len(old_processes) == 3
        assert old_processes & set(list_processes(tmp_path)) == set()
    # A killed process is listed until its parent has read its exit status.
    await until(lambda: list_processes(tmp_path) == [], "no process is left")
    assert (tmp_path / "starts").read_text(encoding="utf-8") == "started\n" * 2


async def test_server_responding_after_abandoned_call_is_kept(tmp_path: Path) -> None:
    async with open_tools(make_hanging_server(tmp_path)) as tools:
        await abandon_call(tools, "slow", tmp_path)

        assert (await call_tool(tools, "hum")).content == "hum"
    assert (tmp_path / "starts").read_text(encoding="utf-8") == "started\n"


CLIENT_SCRIPT = """
import asyncio, sys
from pathlib import Path
from queenright.runtime.agents.mcp_spec import McpServerSpec
from queenright.runtime.agents.mcp_tools import McpServer

async def main():
    folder = Path(sys.argv[1])
    spec = McpServerSpec(command="python", args=(sys.argv[2], sys.argv[1]))
    server = McpServer("local", spec, folder=folder, log=folder / "log")
    await server.list_tools()
    print("connected", flush=True)
    await server.call("hang", {})

asyncio.run(main())
"""


@pytest.mark.parametrize("signal_number", [signal.SIGTERM, signal.SIGKILL])
async def test_hanging_server_is_killed_with_its_client(
    tmp_path: Path, signal_number: signal.Signals
) -> None:
    client = await asyncio.create_subprocess_exec(
        sys.executable,
        "-c",
        CLIENT_SCRIPT,
        str(tmp_path),
        str(HANGING_PROGRAM),
        stdout=asyncio.subprocess.PIPE,
    )
    assert client.stdout is not None
    assert await client.stdout.readline() == b"connected\n"
    assert len(list_processes(tmp_path)) == 4

    client.send_signal(signal_number)
    await client.wait()

    await until(lambda: not list_processes(tmp_path), "no process is left")


async def test_invalid_server_output_is_logged_in_one_line(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, capfd: pytest.CaptureFixture[str]
) -> None:
    async with open_tools(make_hanging_server(tmp_path)) as tools:
        assert (await call_tool(tools, "hum")).content == "hum"

    [record] = [record for record in caplog.records if record.levelname != "DEBUG"]
    assert record.getMessage().startswith("mcp local: ")
    assert "'Welcome to the hive!'" in record.getMessage()
    assert record.exc_info is None
    assert "Traceback" not in capfd.readouterr().err


async def test_program_that_is_not_a_server_is_reported_with_its_output(
    tmp_path: Path, fake_time: FakeTime, caplog: pytest.LogCaptureFixture
) -> None:
    program = "import sys; print('Usage: hive [-h]', flush=True); sys.stdin.read()"
    server = make_stdio_server(tmp_path, args=["-c", program, str(tmp_path)], sleep=fake_time.sleep)
    connection = asyncio.create_task(server.list_tools())
    await until(lambda: caplog.records, "the output is logged")

    await fake_time.advance(30)

    with pytest.raises(McpUnavailableError, match=r"invalid output to stdout: 'Usage: hive \[-h\]'"):
        await connection
    await server.close()
