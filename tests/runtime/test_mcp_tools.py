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


def stdio_transport(
    tmp_path: Path, name: str = "local", *, sleep: Any = asyncio.sleep, **more: Any
) -> McpServer:
    spec = McpServerSpec.model_validate(
        {"command": "python", "args": [str(PROGRAM), str(tmp_path / "starts")], **more}
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
async def closing_server(server: McpServer) -> AsyncIterator[ToolRegistry]:
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
async def http_transport(port: int = 0) -> AsyncIterator[tuple[int, HeaderRecorder]]:
    app = HeaderRecorder(make_server().streamable_http_app())
    server = uvicorn.Server(uvicorn.Config(app, port=port, log_level="error", timeout_graceful_shutdown=1))
    serving = asyncio.create_task(server.serve())
    await until(lambda: server.started, "the server has started")
    [listening] = server.servers
    try:
        yield listening.sockets[0].getsockname()[1], app
    finally:
        server.should_exit = True
        await serving


def http_server(port: int, tmp_path: Path, name: str = "remote", **more: Any) -> McpServer:
    spec = McpServerSpec.model_validate({"url": f"http://127.0.0.1:{port}/mcp", **more})
    return McpServer(
        name, spec, folder=tmp_path, log=tmp_path / "logs" / "x.log", environment={"TOKEN": SECRET}
    )


async def test_tool_over_stdio_has_the_servers_schema_and_answers(tmp_path: Path) -> None:
    async with closing_server(stdio_transport(tmp_path, timeout_seconds=7)) as tools:
        offered = {spec.name: spec for spec in tools.specs()}

        assert offered["add"].description == "Add two numbers."
        assert offered["add"].parameters["required"] == ["a", "b"]
        assert await call_tool(tools, "add", a=2, b=40) == ToolResult("42")


async def test_tool_name_is_sanitized_and_still_works(
    tmp_path: Path,
) -> None:
    async with http_transport() as (port, _), closing_server(http_server(port, tmp_path)) as tools:
        assert await call_tool(tools, "strange_name_of_tool") == ToolResult("strange")


async def test_server_annotations_determine_tool_effects(tmp_path: Path) -> None:
    """Annotations take precedence over a guess from the name."""
    async with http_transport() as (port, _), closing_server(http_server(port, tmp_path)) as tools:
        effects = {name: tool.effect for name in tools.names if (tool := tools.get(name))}

    assert (effects["apply_query"], effects["get_rid_of"], effects["add"]) == ("reads", "changes", "")


async def test_tool_error_is_returned_to_the_model(tmp_path: Path) -> None:
    async with http_transport() as (port, _), closing_server(http_server(port, tmp_path)) as tools:
        refused = await call_tool(tools, "refuse", why="it is late")
        wrong = await call_tool(tools, "add", a="many", b=1)

        assert refused.failed
        assert "refused: it is late" in refused.content
        assert wrong.failed
        assert "a" in wrong.content


async def test_server_gets_only_its_own_environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("QUEENRIGHT_TEST_ELSE", "not for servers")
    async with closing_server(stdio_transport(tmp_path, env={"GREETING": "hello ${TOKEN}x"})) as tools:
        # The values are known, so they are masked in the server's output.
        assert await call_tool(tools, "environment", variable="GREETING") == ToolResult(f"hello {SECRET}x")
        assert await call_tool(tools, "environment", variable="QUEENRIGHT_TEST_ELSE") == ToolResult("not set")


async def test_server_runs_in_its_folder_and_logs_stderr(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "sub").mkdir()
    async with closing_server(stdio_transport(tmp_path, cwd="sub")) as tools:
        assert await call_tool(tools, "folder") == ToolResult(str((tmp_path / "sub").resolve()))

    assert "a line on stderr" in (tmp_path / "logs" / "mcp_local.log").read_text(encoding="utf-8")
    assert "a line on stderr" not in capfd.readouterr().err


async def test_server_dying_during_a_call_is_restarted_at_the_next(
    tmp_path: Path,
) -> None:
    async with closing_server(stdio_transport(tmp_path)) as tools:
        died = await call_tool(tools, "die")
        repeated = await call_tool(tools, "add", a=1, b=1)

        assert died.failed
        assert "may or may not have taken effect" in died.content
        assert repeated == ToolResult("2")
    assert (tmp_path / "starts").read_text(encoding="utf-8") == "started\n" * 2


async def test_server_that_died_between_calls_is_reconnected(tmp_path: Path) -> None:
    server = stdio_transport(tmp_path)
    async with closing_server(server) as tools:
        [pid] = list_children(tmp_path)
        os.kill(pid, signal.SIGKILL)
        await until(lambda: server.is_gone, "the server has ended")

        both = await asyncio.gather(call_tool(tools, "add", a=1, b=2), call_tool(tools, "add", a=3, b=4))

        assert [*both] == [ToolResult("3"), ToolResult("7")]
    # Two concurrent calls use one new server.
    assert (tmp_path / "starts").read_text(encoding="utf-8") == "started\n" * 2


async def test_unrestartable_server_is_reported_at_each_call(tmp_path: Path) -> None:
    program = tmp_path / "server.py"
    program.write_text(f"import runpy; runpy.run_path({str(PROGRAM)!r}, run_name='__main__')")
    async with closing_server(stdio_transport(tmp_path, args=[str(program)])) as tools:
        program.write_text("raise SystemExit('not today')")
        await call_tool(tools, "die")
        first, second = await call_tool(tools, "add", a=1, b=1), await call_tool(tools, "add", a=1, b=1)

        assert "'local'" in first.content
        assert "mcp_local.log" in first.content
        assert first.content == second.content
    assert "not today" in (tmp_path / "logs" / "mcp_local.log").read_text(encoding="utf-8")


async def test_closed_server_leaves_no_process(tmp_path: Path) -> None:
    async with closing_server(stdio_transport(tmp_path)):
        assert len(list_children(tmp_path)) == 1

    assert list_children(tmp_path) == []
    assert [t for t in asyncio.all_tasks() if t is not asyncio.current_task()] == []


async def test_cancelled_call_does_not_affect_other_calls(tmp_path: Path) -> None:
    async with http_transport() as (port, _), closing_server(http_server(port, tmp_path)) as tools:
        waiting = asyncio.create_task(call_tool(tools, "add", a=1, b=1))
        await asyncio.sleep(0)
        waiting.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await waiting

        assert await call_tool(tools, "add", a=20, b=22) == ToolResult("42")


async def test_silent_server_times_out(tmp_path: Path, fake_time: FakeTime) -> None:
    server = stdio_transport(
        tmp_path,
        args=["-c", "import sys; sys.stdin.read()", str(tmp_path)],
        connect_timeout_seconds=5,
        sleep=fake_time.sleep,
    )
    connection = asyncio.create_task(server.list_tools())
    await until(lambda: list_children(tmp_path), "it has a child")

    await fake_time.advance(5)

    with pytest.raises(
        McpUnavailableError, match=r"'local' .* cannot be reached: TimeoutError: no answer within 5 s"
    ):
        await connection
    await server.close()
    assert list_children(tmp_path) == []


async def test_missing_program_is_named(tmp_path: Path) -> None:
    server = stdio_transport(tmp_path, command="no-such-program")

    with pytest.raises(McpUnavailableError, match="no-such-program"):
        await server.list_tools()

    await server.close()


async def test_tool_over_http_answers_and_its_headers_are_sent(tmp_path: Path) -> None:
    async with http_transport() as (port, app):
        server = http_server(port, tmp_path, headers={"Authorization": "Bearer ${TOKEN}"})
        async with closing_server(server) as tools:
            assert await call_tool(tools, "add", a=2, b=40) == ToolResult("42")

    assert {headers.get("authorization") for headers in app.headers} == {f"Bearer {SECRET}"}


async def test_restarted_http_server_is_reconnected(tmp_path: Path) -> None:
    async with http_transport() as (port, _):
        server = http_server(port, tmp_path)
        tools = ToolRegistry(await list_mcp_tools([server]))
        assert await call_tool(tools, "add", a=1, b=1) == ToolResult("2")
    try:
        unavailable = await call_tool(tools, "add", a=1, b=1)
        still_unavailable = await call_tool(tools, "add", a=1, b=1)
        async with http_transport(port):
            available = await call_tool(tools, "add", a=1, b=1)
    finally:
        await server.close()

    assert unavailable.failed
    assert "'remote'" in unavailable.content
    assert f"http://127.0.0.1:{port}/mcp" in still_unavailable.content
    assert available == ToolResult("2")


async def test_colliding_tool_names_get_server_prefix(tmp_path: Path) -> None:
    async with http_transport() as (port, _):
        servers = [http_server(port, tmp_path, name) for name in ("one", "two")]
        try:
            names = [tool.name for tool in await list_mcp_tools(servers)]
            alone = [tool.name for tool in await list_mcp_tools(servers[:1], known_names=["add"])]
        finally:
            await asyncio.gather(*(server.close() for server in servers))

    assert {"one__add", "two__add"} <= set(names)
    assert "add" not in names
    assert {"one__add", "die"} <= set(alone)


async def test_secret_is_in_no_message_and_no_repr(tmp_path: Path) -> None:
    server = http_server(
        9,
        tmp_path,
        headers={"Authorization": f"Bearer {SECRET}"},
        url=f"http://u:{SECRET}@127.0.0.1:9/x?k={SECRET}",
    )
    local = stdio_transport(tmp_path, env={"A": SECRET}, command="/nowhere")

    for error in (server, local):
        with pytest.raises(McpUnavailableError) as raised:
            await error.list_tools()
        await error.close()
        assert SECRET not in str(raised.value)
        assert SECRET not in repr(error._spec)


async def test_unset_variable_is_named_before_the_start(tmp_path: Path) -> None:
    server = stdio_transport(tmp_path, env={"A": "${NOT_THERE} and ${TOKEN}"})

    with pytest.raises(
        MissingCredentialError, match="MCP server 'local': not set in the environment: NOT_THERE"
    ):
        await server.list_tools()

    await server.close()
    assert not (tmp_path / "starts").exists()


async def test_without_the_client_the_extra_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "mcp", None)
    server = stdio_transport(tmp_path)

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

    with pytest.raises(AgentLoadError) as raised:
        read_mcp_servers(path)

    assert expected in str(raised.value)
    assert str(path) in str(raised.value)
    assert SECRET not in str(raised.value)


HANGING = Path(__file__).with_name("mcp_hanging.py")


def hanging_server(tmp_path: Path, **more: Any) -> McpServer:
    return stdio_transport(tmp_path, args=[str(HANGING), str(tmp_path)], **more)


async def abandon_call(tools: ToolRegistry, name: str, tmp_path: Path) -> None:
    """Call a tool, and let the call time out once the server has received it."""
    work = asyncio.create_task(call_tool(tools, name))
    await until((tmp_path / f"asked_{name}").exists, "the server has the call")
    work.cancel()
    await asyncio.wait([work])


async def test_hanging_server_is_killed_with_its_children_and_restarted(
    tmp_path: Path, fake_time: FakeTime
) -> None:
    async with closing_server(hanging_server(tmp_path, sleep=fake_time.sleep, timeout_seconds=8)) as tools:
        assert (await call_tool(tools, "hum")).content == "hum"
        before = set(list_processes(tmp_path))
        await abandon_call(tools, "hang", tmp_path)

        repeated = asyncio.create_task(call_tool(tools, "hum"))
        await fake_time.advance(2)

        assert (await repeated).content == "hum"
        assert len(before) == 3
        assert before & set(list_processes(tmp_path)) == set()
    # A killed process is listed until its parent has read its exit status.
    await until(lambda: list_processes(tmp_path) == [], "no process is left")
    assert (tmp_path / "starts").read_text(encoding="utf-8") == "started\n" * 2


async def test_server_responding_after_abandoned_call_is_kept(tmp_path: Path) -> None:
    async with closing_server(hanging_server(tmp_path)) as tools:
        await abandon_call(tools, "slow", tmp_path)

        assert (await call_tool(tools, "hum")).content == "hum"
    assert (tmp_path / "starts").read_text(encoding="utf-8") == "started\n"


CLIENT = """
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


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
async def test_hanging_server_is_killed_with_its_client(tmp_path: Path, number: signal.Signals) -> None:
    client = await asyncio.create_subprocess_exec(
        sys.executable, "-c", CLIENT, str(tmp_path), str(HANGING), stdout=asyncio.subprocess.PIPE
    )
    assert client.stdout is not None
    assert await client.stdout.readline() == b"connected\n"
    assert len(list_processes(tmp_path)) == 4

    client.send_signal(number)
    await client.wait()

    await until(lambda: not list_processes(tmp_path), "no process is left")


async def test_invalid_server_output_is_logged_in_one_line(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, capfd: pytest.CaptureFixture[str]
) -> None:
    async with closing_server(hanging_server(tmp_path)) as tools:
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
    server = stdio_transport(tmp_path, args=["-c", program, str(tmp_path)], sleep=fake_time.sleep)
    connecting = asyncio.create_task(server.list_tools())
    await until(lambda: caplog.records, "the output is logged")

    await fake_time.advance(30)

    with pytest.raises(McpUnavailableError, match=r"invalid output to stdout: 'Usage: hive \[-h\]'"):
        await connecting
    await server.close()
