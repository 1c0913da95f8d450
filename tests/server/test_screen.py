"""What `queenright up` prints."""

from __future__ import annotations

import asyncio
from io import StringIO

import httpx
import pytest
from rich.console import Console

from queenright.alerting.recorder import Recorder
from queenright.cli.output.up_screen import UpScreen, attention_text
from queenright.server.up import Running
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
    ("needs", "text"),
    [
        (0, "Nothing needs you."),
        (1, "1 item needs you: http://127.0.0.1:8420"),
        (2, "2 items need you: http://127.0.0.1:8420"),
    ],
)
def test_line_about_what_needs_a_person_says_where_to_answer(needs: int, text: str) -> None:
    assert attention_text(needs, "http://127.0.0.1:8420") == text
