"""The screen of `queenright up`, in a terminal and in a pipe."""

from __future__ import annotations

import asyncio
from io import StringIO

import httpx
import pytest
from rich.console import Console

from queenright.alerting.recorder import Recorder
from queenright.api.agents import AgentRow, Finding
from queenright.api.status import Status
from queenright.cli.output.up_screen import UpScreen, render_board, status_line
from queenright.server.up import Running
from tests.tui.canned import row
from tests.waiting import until


async def test_every_page_is_printed_once_also_after_the_recorder_is_full(running: Running) -> None:
    """The recorder keeps 200 pages: those that arrive later are printed too, and none again."""
    recorder = running.service.recorder = Recorder()
    output = StringIO()
    printing = asyncio.create_task(UpScreen(Console(file=output, width=200)).follow(running))

    def printed() -> list[int]:
        lines = output.getvalue().splitlines()
        return [int(line.rsplit("page-", 1)[1].rstrip(".")) for line in lines if "page-" in line]

    async def receive_pages(numbers: range) -> None:
        transport = httpx.ASGITransport(app=recorder)
        async with httpx.AsyncClient(transport=transport, base_url="http://recorder") as http:
            for number in numbers:
                body = {"attachments": [{"color": "danger", "title": f"page-{number}."}]}
                (await http.post("/slack/on-call", json=body)).raise_for_status()
        await until(lambda: numbers[-1] in printed(), "the pages are printed")

    try:
        for numbers in (range(150), range(150, 300), range(300, 310)):
            await receive_pages(numbers)
    finally:
        printing.cancel()

    assert printed() == list(range(310))


@pytest.mark.parametrize(
    ("needs", "text"), [(0, "Nothing needs you"), (1, "1 item needs you"), (2, "2 items need you")]
)
def test_status_line_points_to_the_console_and_the_terminal_interface(needs: int, text: str) -> None:
    url = "http://127.0.0.1:8420"

    assert status_line(url, needs).plain == f" {text}  {url}  queenright tui --url {url}"


def board() -> Status:
    """A fleet with a long question and several findings."""
    agents = [
        row(
            AgentRow,
            agent_id="deep_research_agent",
            session_id="session-4f1c2a9b77",
            state="healthy",
            outcome="",
            activity="waiting for a user",
            question="Shall I delete the old catalogue and everything that refers to it? " * 3,
            steps=1234,
        ),
        row(
            AgentRow,
            agent_id="researcher",
            state="terminated",
            outcome="terminated",
            activity="",
            question="",
            steps=88,
            findings=[
                row(Finding, kind=kind, severity="critical")
                for kind in ("doom_loop", "zero_progress", "error_streak")
            ],
        ),
    ]
    return Status.model_validate(row(Status, agents=agents, agents_left_out=7))


@pytest.mark.parametrize("width", [80, 120, 200])
def test_board_cuts_activity_and_findings_before_health_agent_and_steps(width: int) -> None:
    console = Console(file=StringIO(), width=width, height=40)
    console.print(render_board(board(), "http://127.0.0.1:8420", 0, 40))
    lines = console.file.getvalue().splitlines()  # type: ignore[attr-defined]

    assert max(map(len, lines)) <= width
    for health, agent, steps in (
        ("healthy", "deep_research_agent", "1234"),
        ("terminated", "researcher", "88"),
    ):
        [line] = [line for line in lines if f" {health} " in line and f" {agent} " in line]
        assert f" {steps} " in line
    assert any("waiting" in line for line in lines)
    assert any("and 7 more" in line for line in lines)
