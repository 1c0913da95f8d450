"""The output of `queenright up`."""

from __future__ import annotations

import asyncio
from io import StringIO
from typing import Final

import httpx
import pytest
from rich.console import Console
from rich.text import Text

from queenright.alerting.recorder import Recorder
from queenright.api.attention import AttentionItem
from queenright.cli.output.up_screen import UpScreen, describe_attention
from queenright.runtime.events import AgentEvent, EventType
from queenright.server.serving import RunningService
from tests.tui.canned import row
from tests.waiting import until


async def test_each_page_is_printed_once_even_if_the_recorder_is_full(running: RunningService) -> None:
    """The recorder stores 200 pages. Later pages are printed too, and no page is repeated."""
    recorder = running.service.recorder = Recorder()
    output = StringIO()
    screen_task = asyncio.create_task(UpScreen(Console(file=output, width=200)).follow(running))

    def list_printed_lines() -> list[int]:
        lines = output.getvalue().splitlines()
        return [int(line.rsplit("page-", 1)[1].rstrip(".")) for line in lines if "page-" in line]

    async def send_pages(numbers: range) -> None:
        transport = httpx.ASGITransport(app=recorder)
        async with httpx.AsyncClient(transport=transport, base_url="http://recorder") as http:
            for number in numbers:
                body = {"attachments": [{"color": "danger", "title": f"page-{number}."}]}
                (await http.post("/slack/on-call", json=body)).raise_for_status()
        await until(lambda: numbers[-1] in list_printed_lines(), "the pages are printed")

    try:
        for numbers in (range(150), range(150, 300), range(300, 310)):
            await send_pages(numbers)
    finally:
        screen_task.cancel()

    assert list_printed_lines() == list(range(310))


TICKET: Final = {"severity": "high", "kind": "stall", "ticket_id": "t"}
DELIVERY: Final = {"ticket_id": "t", "peer": "a", "status": "firing", "severity": "critical"}
EVENTS: Final = (
    (EventType.WORKER_ESCALATION_TICKET, {"ticket": TICKET, "change": "opened"}),
    (EventType.WORKER_ESCALATION_TICKET, {"ticket": TICKET, "change": "renewed"}),
    (EventType.TICKET_TRIAGED, {"ticket_id": "t", "decision": "intervene", "reason": "It hangs."}),
    (EventType.TICKET_TRIAGED, {"ticket_id": "t", "decision": "dismiss", "reason": "It waits."}),
    (EventType.QUEEN_INTERVENTION_REQUESTED, {"ticket_id": "t", "analysis": "It hangs."}),
    (EventType.NOTIFICATION_DELIVERED, DELIVERY),
    (EventType.NOTIFICATION_DELIVERED, DELIVERY | {"status": "resolved"}),
)
EVENT_LINES: Final = [
    "judge: high ticket on bee, stall (opened)",
    "queen: It waits.",
    "queen → operator: It hangs.",
]


async def print_events(running: RunningService) -> list[str]:
    """Print some events, and return the lines without times and with ANSI colours."""
    running.service.recent.extend(
        AgentEvent(type=type_, time=0.0, agent_id="bee", data=data) for type_, data in EVENTS
    )
    console = Console(file=StringIO(), width=200, force_terminal=True, highlight=False)
    with console.capture() as output:
        screen_task = asyncio.create_task(UpScreen(console).follow(running))
        await asyncio.sleep(0)
        screen_task.cancel()
    return [line.split(" ", 1)[1].removeprefix("\x1b[0m") for line in output.get().splitlines()]


def strip_colours(lines: list[str]) -> list[str]:
    return [Text.from_ansi(line).plain for line in lines]


async def test_each_event_is_printed_once(running: RunningService) -> None:
    running.service.recorder = Recorder()

    assert strip_colours(await print_events(running)) == EVENT_LINES


async def test_responses_of_alertmanager_are_printed_without_the_stand_in(running: RunningService) -> None:
    *event_lines, accepted_line, ended_line = await print_events(running)

    assert strip_colours(event_lines) == EVENT_LINES
    assert accepted_line == "\x1b[1;31mAlertmanager accepted the alert on bee\x1b[0m"
    assert ended_line == "\x1b[32mAlertmanager accepted the end of the alert on bee\x1b[0m"


async def test_notifications_of_a_real_receiver_are_printed_in_addition(
    running: RunningService,
) -> None:
    running.service.recorder = Recorder()
    running.has_real_receiver = True

    lines = strip_colours(await print_events(running))

    assert lines == [
        *EVENT_LINES,
        "Alertmanager accepted the alert on bee",
        "Alertmanager accepted the end of the alert on bee",
    ]


@pytest.mark.parametrize(
    ("agents", "expected_line"),
    [
        ([], "Nothing needs you."),
        (["bee"], "1 item needs you: bee (question). See http://127.0.0.1:8420"),
        (
            ["a", "b", "c", "d", "e"],
            "5 items need you: a (question), b (question), c (question) and 2 more. See http://127.0.0.1:8420",
        ),
    ],
)
def test_attention_line_lists_items_and_the_url(agents: list[str], expected_line: str) -> None:
    rows = [row(AttentionItem, agents=[name], kind="question") for name in agents]
    items = [AttentionItem.model_validate(values) for values in rows]

    assert describe_attention(items, len(items), "http://127.0.0.1:8420") == expected_line
