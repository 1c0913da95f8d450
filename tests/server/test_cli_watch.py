"""`queenright list --watch`, on a real service."""

from __future__ import annotations

import asyncio
import contextlib
import os
import pty
from collections.abc import AsyncIterator, Sequence

import pytest
import pytest_asyncio
from rich.console import Console

from queenright.api.agents import AgentRow
from queenright.api.examples import make_example
from queenright.cli.terminal.fleet_watch import ChangeLog, follow, render_table
from queenright.client import AsyncQueenright
from queenright.server.serving import RunningService, serving
from tests.server.conftest import demo_settings, looping
from tests.waiting import until
from tests.warm import Command, InteractiveCommand

on_its_service = pytest.mark.asyncio(loop_scope="module")


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def running(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[RunningService]:
    async with serving(demo_settings(tmp_path_factory.mktemp("watch"))) as running_service:
        yield running_service


class FakeService:
    """A view that records the lists and outages that it shows."""

    def __init__(self) -> None:
        self.lists: list[list[AgentRow]] = []
        self.outages: list[str] = []

    def show_agents(self, agents: Sequence[AgentRow]) -> None:
        self.lists.append(list(agents))

    def show_outage(self, trouble: str) -> None:
        self.outages.append(trouble)


@on_its_service
async def test_list_is_requested_only_after_an_event(running: RunningService) -> None:
    view, should_stop = FakeService(), asyncio.Event()
    async with AsyncQueenright(running.url) as service:
        follow_task = asyncio.create_task(follow(service, view, should_stop))
        await until(lambda: view.lists, "the first list is shown")
        count_before = len(view.lists)
        await running.service.ingest(list(looping(running.service.clock())))
        await until(lambda: any(agent.tool_calls for agent in view.lists[-1]), "the worker is listed")
        should_stop.set()
        await follow_task

    assert count_before == 1
    assert view.lists[0] == []
    assert view.outages[0] == ""


@on_its_service
async def test_watch_prints_a_table_on_a_terminal_and_lines_in_a_pipe(running: RunningService) -> None:
    await running.service.ingest(list(looping(running.service.clock())))
    controller, terminal = pty.openpty()
    command = ("list", "--watch", "--url", running.url)
    env = os.environ | {"TERM": "xterm", "COLUMNS": "100", "LINES": "24"}
    watch_process = Command(*command, env=env, streams=(terminal, terminal, terminal))
    os.close(terminal)
    os.set_blocking(controller, False)
    result = b""

    def has_printed(expected: bytes) -> bool:
        nonlocal result
        with contextlib.suppress(OSError):
            result += os.read(controller, 65536)
        return expected in result

    await until(lambda: has_printed(b"looper-session"), "the table is shown")
    os.write(controller, b"q")
    await until(lambda: has_printed(b"\x1b[?1049l") and watch_process.ended(), "the command has ended")
    os.close(controller)

    assert watch_process.wait() == 0
    assert b"1 agent: " in result

    with InteractiveCommand(*command, "--json") as lines:
        line = await asyncio.to_thread(lines.stdout.readline)
        lines.send_signal(2)
        code = await asyncio.to_thread(lines.wait)

    assert code == 0
    assert b'"agent_id": "looper"' in line


def make_agent(name: str, state: str, **fields: object) -> AgentRow:
    example = make_example(AgentRow)
    return AgentRow.model_validate(example | {"agent_id": name, "state": state, "health": state} | fields)


def test_short_terminal_shows_the_number_of_hidden_rows() -> None:
    console = Console(width=80, file=open(os.devnull, "w"), record=True)  # noqa: SIM115 - rich closes nothing
    agents = [make_agent(f"agent-{number}\x1b[2J", "stuck") for number in range(20)]

    console.print(render_table(agents, "http://x", "", 10, False))

    output = console.export_text()
    assert "20 agents: 20 stuck, 14 more below" in output
    assert len(output.splitlines()) <= 10
    assert "\x1b" not in output
    console.file.close()


def test_one_line_is_printed_for_each_change(capsys: pytest.CaptureFixture[str]) -> None:
    lines = ChangeLog(as_json=False)
    lines.show_agents([make_agent("a", "healthy", findings=[])])
    lines.show_agents([make_agent("a", "healthy", findings=[])])
    lines.show_agents([make_agent("a", "stuck")])

    output = capsys.readouterr().out.splitlines()
    assert [line.split()[1] for line in output] == ["healthy", "stuck"]
