"""The terminal interface on a real service, over real sockets: watching, acting, talking."""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any, Final

import pytest
import pytest_asyncio
from textual.pilot import Pilot
from textual.widgets import Input

from queenright.client import AsyncQueenright
from queenright.health.breakers.state_machine import BreakerState
from queenright.health.tickets.ticket import EscalationTicket
from queenright.judge.chat_log import Subject
from queenright.runtime.events import AgentEvent, EventType
from queenright.tui.app import QueenrightApp
from queenright.tui.gateway import ServiceGateway
from queenright.tui.screens.dialogs import ConfirmDialog, HelpDialog, PromptDialog
from queenright.tui.screens.fleet import FleetScreen
from queenright.tui.screens.queen import QueenScreen
from queenright.tui.screens.talk import TalkScreen
from queenright.tui.screens.worker import WorkerScreen
from tests.server.agents.parts import AgentService, run_agent_service, write_guide
from tests.server.conftest import looping
from tests.tui.pictures import screen_text
from tests.waiting import until

pytestmark = pytest.mark.asyncio(loop_scope="module")


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def agent_service(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[AgentService]:
    """A service with a ticket about `looper` and two agents to load."""
    async with run_agent_service(tmp_path_factory.mktemp("tui")) as service:
        write_guide(service.roots / "guide")
        write_guide(service.roots / "porter", "porter")
        await service.service.ingest(list(looping(service.service.clock())))
        tickets = service.service.tickets
        await until(lambda: any(ticket.analysis for ticket in tickets.open_tickets()), "a triaged ticket")
        yield service


@asynccontextmanager
async def terminal(
    agent_service: AgentService, by: str = "ada"
) -> AsyncIterator[tuple[QueenrightApp, Pilot[None]]]:
    """Run the interface in a terminal of 80 by 24, and yield it once it shows the fleet."""
    app = QueenrightApp(ServiceGateway(AsyncQueenright(str(agent_service.http.base_url)), by=by))
    async with app.run_test(size=(80, 24)) as pilot:
        await until(lambda: app.app_state.fleet.tickets, "the tickets are known")
        await pilot.press("2")
        await wait_for_text(app, "looper")
        yield app, pilot


async def wait_for_text(app: QueenrightApp, text: str) -> None:
    """Wait until the screen contains a text."""
    polls = itertools.count()
    try:
        # The screen is drawn a few times a second, and reading it takes longer than waiting.
        await until(lambda: next(polls) % 12 == 0 and text in screen_text(app), text)
    except BaseException:
        print(screen_text(app))
        raise


def find_ticket(agent_service: AgentService) -> EscalationTicket:
    [looper_ticket] = [
        ticket for ticket in agent_service.service.tickets.open_tickets() if ticket.agent_id == "looper"
    ]
    return looper_ticket


async def report_step(agent_service: AgentService, text: str) -> None:
    """Report a step of the worker."""
    now = agent_service.service.clock()
    step = AgentEvent(
        type=EventType.STEP_COMPLETED,
        time=now,
        agent_id="looper",
        session_id="looper-session",
        incarnation_id="one",
        node_id="search",
        data={"verdict": "RETRY", "text": text},
    )
    await agent_service.service.ingest([step])


async def test_worker_is_opened_with_vital_signs_and_its_stream_continues(
    agent_service: AgentService,
) -> None:
    async with terminal(agent_service) as (app, pilot):
        await pilot.press("enter")
        await until(lambda: isinstance(app.screen, WorkerScreen), "the worker's screen")
        await wait_for_text(app, "Bad steps")
        screen = app.screen
        assert isinstance(screen, WorkerScreen)
        await until(lambda: screen.history.states, "its history")
        await read_stream_text(agent_service, app, "one more try")

        await pilot.press("escape")
        await until(lambda: isinstance(app.screen, FleetScreen), "back")


async def read_stream_text(agent_service: AgentService, app: QueenrightApp, text: str) -> None:
    """Report steps until one is shown, because a new stream delivers only later events."""
    for number in range(200):
        await report_step(agent_service, f"{text} {number}")
        for _ in range(10):
            if text in screen_text(app):
                return
            await until(lambda: True, "a moment")
            await app.redraw()
    pytest.fail(f"{text} is never in the stream:\n{screen_text(app)}")


async def test_queen_answers_about_the_ticket_while_the_stream_continues(agent_service: AgentService) -> None:
    async with terminal(agent_service) as (app, pilot):
        await pilot.press("ctrl+q")
        await until(lambda: isinstance(app.screen, QueenScreen), "the queen's screen")
        await read_stream_text(agent_service, app, "go on")

        screen = app.screen
        assert isinstance(screen, QueenScreen)
        await enter_line(app, pilot, "what is wrong?")
        chat = agent_service.service.judging.chat
        ticket = find_ticket(agent_service).ticket_id
        # A long answer scrolls the question out of view.
        await until(lambda: [entry.by for entry in screen._entries][-2:] == ["ada", "queen"], "her answer")

        assert "ada" in [chat_entry.by for chat_entry in await chat.history(Subject(ticket))]
        await pilot.press("ctrl+q")
        await until(lambda: isinstance(app.screen, FleetScreen), "back")


async def test_nudge_is_confirmed_and_its_result_shown(agent_service: AgentService) -> None:
    async with terminal(agent_service, by="nudger") as (app, pilot):
        await pilot.press("n")
        await until(lambda: isinstance(app.screen, PromptDialog), "the question")
        await pilot.press(*"look elsewhere", "enter")
        await wait_for_text(app, "nudge looper:")

    interventions = [
        intervention
        for intervention in await agent_service.service.health.interventions(10, "looper")
        if intervention.by == "nudger"
    ]
    assert [item.message for item in interventions] == ["look elsewhere"]


async def test_terminate_needs_a_reason_and_a_yes(agent_service: AgentService) -> None:
    async with terminal(agent_service, by="stopper") as (app, pilot):
        for answer in "ny":
            await pilot.press("t")
            await until(lambda: isinstance(app.screen, PromptDialog), "the prompt for the reason")
            await pilot.press("enter")
            assert isinstance(app.screen, PromptDialog)
            await pilot.press(*"it loops", "enter")
            await until(lambda: isinstance(app.screen, ConfirmDialog), "the confirmation")
            interventions = await agent_service.service.health.interventions(10, "looper")
            assert not [item for item in interventions if item.by == "stopper"]
            await pilot.press(answer)
            await until(lambda: isinstance(app.screen, FleetScreen), "back")
        await wait_for_text(app, "terminate looper:")

    [termination] = [
        intervention
        for intervention in await agent_service.service.health.interventions(10, "looper")
        if intervention.by == "stopper"
    ]
    assert (termination.kind.value, termination.reason) == ("terminate", "it loops")


async def test_ticket_is_acknowledged(agent_service: AgentService) -> None:
    async with terminal(agent_service, by="taker") as (app, pilot):
        await pilot.press("3")
        await wait_for_text(app, "Cause")
        await pilot.press("a")
        await until(lambda: isinstance(app.screen, ConfirmDialog), "the confirmation")
        assert not find_ticket(agent_service).acknowledged_by
        await pilot.press("y")
        await until(
            lambda: find_ticket(agent_service).acknowledged_by == "taker", "the ticket is acknowledged"
        )
        await wait_for_text(app, "acknowledged")


async def test_breaker_is_reset(agent_service: AgentService) -> None:
    breaker = agent_service.service.breakers.get("tool_execution", "looper", "search")
    while breaker.state is BreakerState.CLOSED:
        with contextlib.suppress(ZeroDivisionError):
            breaker.call(lambda: 1 // 0)
    async with terminal(agent_service) as (app, pilot):
        await pilot.press("4")
        await wait_for_text(app, "✖ open")
        await pilot.press("r")
        await until(lambda: isinstance(app.screen, ConfirmDialog), "the confirmation")
        await wait_for_text(app, "Reset tool_execution")
        assert breaker.state.value == "open"
        await pilot.press("y")
        await until(lambda: breaker.state is BreakerState.CLOSED, "the breaker is closed")
        await wait_for_text(app, "● closed")


async def test_queen_message_is_a_notice_on_every_screen_and_esc_dismisses_it(
    agent_service: AgentService,
) -> None:
    async with terminal(agent_service) as (app, pilot):
        await wait_for_notice(agent_service, app, pilot, "high")
        assert isinstance(app.screen, FleetScreen)
        await pilot.press("enter")
        await until(lambda: isinstance(app.screen, WorkerScreen), "the worker's screen")
        await wait_for_notice(agent_service, app, pilot, "critical")
        assert isinstance(app.screen, WorkerScreen)


async def wait_for_notice(
    agent_service: AgentService, app: QueenrightApp, pilot: Pilot[None], severity: str
) -> None:
    await agent_service.service.bus.publish(request_notification(agent_service, severity))
    await wait_for_text(app, f"{severity.upper()} looper")
    await pilot.press("escape")
    await until(lambda: "Esc dismisses" not in screen_text(app), "the notice is gone")


def request_notification(agent_service: AgentService, severity: str) -> AgentEvent:
    data = {
        "ticket_id": find_ticket(agent_service).ticket_id,
        "severity": severity,
        "analysis": "It loops.",
        "urgency": "now",
        "untriaged": False,
    }
    return AgentEvent(
        type=EventType.QUEEN_INTERVENTION_REQUESTED,
        time=agent_service.service.clock(),
        agent_id="looper",
        session_id="looper-session",
        data=data,
    )


async def test_agent_is_loaded_chatted_with_and_unloaded_and_a_second_graph_shown(
    agent_service: AgentService,
) -> None:
    async with terminal(agent_service) as (app, pilot):
        await enter_line(app, pilot, f"/load {agent_service.roots / 'guide'}")
        await until(lambda: isinstance(app.screen, TalkScreen), "the talk")
        await wait_for_text(app, "[guide]")
        await enter_line(app, pilot, "bees")
        await wait_for_text(app, "Who are you?")

        await pilot.press("escape")
        await until(lambda: isinstance(app.screen, FleetScreen), "the fleet")
        await enter_line(app, pilot, "/talk guide")
        await wait_for_text(app, "Who are you?")
        await wait_for_text(app, "talk waits for your answer")
        assert screen_text(app).count("Who are you?") == 1
        await enter_line(app, pilot, "Ada")
        await wait_for_text(app, "the run completed")

        await enter_line(app, pilot, f"/load {agent_service.roots / 'porter'}")
        await wait_for_text(app, " porter ")
        await pilot.press("escape")
        await until(lambda: isinstance(app.screen, FleetScreen), "the fleet")
        await agent_service.request(
            "POST", "/api/agents/guide/trigger", json=DOORS | {"graph_id": "porter"}, status=202
        )
        await wait_for_text(app, "porter asks")
        await pilot.press("escape")
        await enter_line(app, pilot, "/talk guide")
        await wait_for_text(app, "[guide]")
        await enter_line(app, pilot, "/graph porter")
        await wait_for_text(app, "[porter]")
        await wait_for_text(app, "talk waits for your answer")
        await enter_line(app, pilot, "/graphs")
        await wait_for_text(app, "▸ porter, 1 run, waiting for input at talk")
        await enter_line(app, pilot, "/nodes")
        await wait_for_text(app, "? talk")
        await enter_line(app, pilot, "/data")
        await wait_for_text(app, '"doors"')

        await report_other_porter(agent_service, app)
        await enter_line(app, pilot, "Bo")
        await wait_for_text(app, "the run completed")
        await enter_line(app, pilot, "/graphs")
        await wait_for_text(app, "▸ porter, idle")
        await enter_line(app, pilot, "/graph nobody")
        await wait_for_text(app, "nobody")
        await enter_line(app, pilot, "/unload porter")
        await wait_for_text(app, "graph porter is unloaded")
        await enter_line(app, pilot, "/unload guide")
        await until(lambda: isinstance(app.screen, FleetScreen), "the fleet after the talk")

    assert not agent_service.service.agents.slots


DOORS: Final[dict[str, Any]] = {"entry_point_id": "start", "input_data": {"topic": "doors"}}


async def report_other_porter(agent_service: AgentService, app: QueenrightApp) -> None:
    """B62: messages of another agent with the same name as a graph of this one."""
    talk = app.screen
    assert isinstance(talk, TalkScreen)
    entries_before = list(talk.conversation.entries)
    await agent_service.request(
        "POST", "/api/agents", json={"path": str(agent_service.roots / "porter")}, status=201
    )
    run, session = await agent_service.start_waiting_run("porter")
    owners = app.app_state.run_ownership
    await until(lambda: ("guide", run) in owners._ownership, "the message has arrived")
    await agent_service.request(
        "POST", "/api/agents/porter/chat", json={"message": "Cy", "session_id": session}
    )
    await agent_service.wait_for_end("porter", run)
    await agent_service.request("DELETE", "/api/agents/porter", status=204)
    assert talk.conversation.entries == entries_before


async def enter_line(app: QueenrightApp, pilot: Pilot[None], line: str) -> None:
    """Put a line into the command line at once and submit it, because single keys take long."""
    field = app.screen.query_one("#input", Input)
    if field.has_class("hidden"):
        await pilot.press("slash")
    field.value = line
    await pilot.press("enter")


async def test_help_lists_keys_and_commands_and_a_wrong_command_is_reported(
    agent_service: AgentService,
) -> None:
    async with terminal(agent_service) as (app, pilot):
        await pilot.press("question_mark")
        await until(lambda: isinstance(app.screen, HelpDialog), "help")
        await pilot.press("escape")
        await enter_line(app, pilot, "/fly")
        await wait_for_text(app, "unknown command /fly")
        await enter_line(app, pilot, "/graphs")
        await wait_for_text(app, "/talk <agent> opens one")
