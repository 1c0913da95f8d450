"""A ticket's page has each sentence once."""

from __future__ import annotations

import re
from collections import Counter
from html import unescape

import httpx
import pytest

from queenright.health.findings import FindingKind, HealthState
from queenright.runtime.events import AgentEvent, EventType
from queenright.server.up import Running
from queenright.server.views.agents import activity_of
from queenright.server.views.formatting import without_repeats
from tests.health.worker_script import WorkerScript
from tests.server.conftest import looping
from tests.server.test_app import lost_ticket_on, ticket_on
from tests.server.test_console import browser, settings
from tests.waiting import until

__all__ = ["browser", "settings"]


def sentences(page: str) -> Counter[str]:
    main = page[page.index("<main") : page.index("</main>")]
    main = re.sub(r"<(?:script|style).*?</(?:script|style)>", "", main, flags=re.DOTALL)
    texts = [" ".join(unescape(re.sub("<[^>]*>", " ", one)).split()) for one in re.split(BLOCKS, main)]
    found = [one for text in texts for one in re.split(r"(?<=[.!?…])\s+|: ", text)]
    return Counter(one.rstrip(".") for one in found if len(one.split()) >= 4)


BLOCKS = r"</?(?:p|dd|dt|li|h1|h2|h3|pre|article|span)\b[^>]*>"


async def failing_tool(running: Running) -> str:
    now = running.service.clock() - 60
    events = list(looping(now, times=1, agent="fails"))
    for number in range(16):
        data = {
            "tool": "query",
            "outcome": "error",
            "error_type": "ConnectError",
            "args_hash": f"a{number}",
            "result_hash": f"b{number}",
        }
        events.append(
            AgentEvent(
                type=EventType.TOOL_CALL_COMPLETED,
                time=now + 1 + number,
                agent_id="fails",
                session_id=events[0].session_id,
                incarnation_id=events[0].incarnation_id,
                data=data,
            )
        )
    await running.service.ingest(events)
    tickets = running.service.tickets
    await until(lambda: tickets.open_for("fails", events[0].session_id), "there is a ticket")
    ticket = tickets.open_for("fails", events[0].session_id)
    assert ticket is not None
    return ticket.ticket_id


@pytest.mark.parametrize("kind", ["loop", "lost", "errors"])
async def test_ticket_page_has_each_sentence_once(
    running: Running, browser: httpx.AsyncClient, kind: str
) -> None:
    """B102."""
    make = {"loop": ticket_on, "lost": lost_ticket_on, "errors": failing_tool}[kind]
    ticket_id = await make(running)
    tickets = running.service.tickets
    await until(lambda: (one := tickets.get(ticket_id)) and one.analysis, "the queen has decided")

    page = await browser.get(f"/tickets/{ticket_id}")

    counted = sentences(page.text)
    ticket = tickets.get(ticket_id)
    assert ticket is not None
    assert ticket.suggested_action.split(". ")[0].rstrip(".") in unescape(page.text)
    assert [one for one, times in counted.items() if times > 1] == []


def test_repeated_sentences_are_removed_from_a_text() -> None:
    result = ["bee has been going in circles: search 5 times (6 bad steps). Stop the run."]

    assert without_repeats("Stop the run.", result) == "Stop the run."
    assert without_repeats("bee has been going in circles: search 5 times.", result) == ""
    assert without_repeats("It has been slow. Bee has been going in circles.", result) == "It has been slow."
    assert without_repeats("line one\n  line two", result) == "line one\n  line two"


def test_activity_is_an_enum_and_never_an_outcome() -> None:
    """B103: a session that has ended does nothing any more; a paused one is paused."""
    script = WorkerScript().start()
    seen = [activity_of(script.health.vitals)[1]]
    for type_, data in (
        (EventType.LLM_CALL_STARTED, {}),
        (EventType.TOOL_CALL_STARTED, {"tool": "search"}),
        (EventType.WORKER_WAITING, {"reason": "children"}),
        (EventType.WORKER_WAITING, {"reason": "user_input"}),
        (EventType.EXECUTION_PAUSED, {}),
        (EventType.EXECUTION_FAILED, {"error_type": "OSError"}),
    ):
        script.event(type_, data)
        seen.append(activity_of(script.health.vitals)[1])

    assert seen == [
        "idle",
        "working: model",
        "working: search",
        "waiting for its sub-agents",
        "waiting for its user",
        "paused",
        "",
    ]
    assert script.state is HealthState.HEALTHY
    assert FindingKind.STALL not in script.kinds()
