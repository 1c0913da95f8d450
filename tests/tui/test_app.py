"""The terminal interface with a service that goes away, notices that go by themselves, and keys."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator

import pytest
from textual.pilot import Pilot

from queenright.tui.app import QueenrightApp
from queenright.tui.link import Link
from queenright.tui.screens.fleet import SHOWN, FleetScreen
from queenright.tui.screens.queen import QueenScreen
from queenright.tui.screens.talk import TalkScreen
from queenright.tui.screens.worker import WorkerScreen
from queenright.tui.values import Moment, Worker
from queenright.tui.widgets.listing import Listing
from tests.tui.canned import NOW, PAGED, TICKETS, Canned, worker
from tests.tui.pictures import text_of
from tests.waiting import until


@contextlib.asynccontextmanager
async def terminal(
    canned: Canned, *, notices_stay: float = 30.0
) -> AsyncIterator[tuple[QueenrightApp, Pilot[None]]]:
    app = QueenrightApp(Link(canned.client(), by="ada"), clock=lambda: NOW, notices_stay=notices_stay)
    async with app.run_test(size=(80, 24)) as pilot:
        yield app, pilot


async def test_service_that_is_away_is_said_so_and_lists_come_back_with_it() -> None:
    canned = Canned()
    canned.away = True
    async with terminal(canned) as (app, _):
        await until(lambda: "does not answer" in text_of(app), "it is said")
        canned.away = False
        await until(lambda: "billing_export" in text_of(app), "the fleet is there")
        await until(lambda: "does not answer" not in text_of(app), "and nothing else is said")


async def test_a_notice_goes_by_itself() -> None:
    async with terminal(Canned([]), notices_stay=0.01) as (app, _):
        app.take(Moment.of(PAGED[0]))
        assert len(app.shared.notices) == 1
        await until(lambda: not len(app.shared.notices), "it is gone")


async def test_ctrl_q_at_a_notice_leads_to_the_queen_and_the_notice_is_seen() -> None:
    async with terminal(Canned([])) as (app, pilot):
        await until(lambda: app.shared.fleet.tickets, "the tickets")
        app.take(Moment.of(PAGED[0]))
        await pilot.press("ctrl+q")

        assert isinstance(app.screen, QueenScreen)
        assert app.screen.ticket() == app.shared.fleet.ticket(TICKETS[1]["ticket_id"])
        assert not len(app.shared.notices)


async def test_a_graph_in_the_background_that_fails_is_a_notice_and_the_talk_goes_on() -> None:
    async with terminal(Canned([])) as (app, pilot):
        await pilot.press("slash", *"talk docs_checker", "enter")
        await until(lambda: len(app.shared.notices), "the notice")

        assert isinstance(app.screen, TalkScreen)
        assert [one.title for one in app.shared.notices] == ["log_digest failed"]
        assert app.screen.conversation.said[-1].text == "Which folder shall I check?"


async def test_of_many_workers_the_worst_are_listed_and_any_can_be_opened() -> None:
    async with terminal(Canned([])) as (app, pilot):
        await until(lambda: app.shared.fleet.workers, "the workers")
        many = [worker(f"agent_{number}", "healthy") for number in range(2 * SHOWN)]
        app.shared.fleet.take_workers(Worker.of(one) for one in [*many, worker("zebra", "stuck")])
        app.shared.fleet.stale.clear()
        await app.paint()

        assert f"Fleet {2 * SHOWN + 1}, the worst {SHOWN}" in text_of(app)
        assert app.screen.query_one(Listing).row_count == SHOWN
        await pilot.press("slash", *"worker agent_399", "enter")
        await until(lambda: isinstance(app.screen, WorkerScreen), "the worker's screen")


@pytest.mark.parametrize("key", ["q", "ctrl+c"])
async def test_key_leaves(key: str) -> None:
    async with terminal(Canned([])) as (app, pilot):
        await until(lambda: isinstance(app.screen, FleetScreen), "the fleet")
        await pilot.press(key)
        await until(lambda: not app.is_running, "it has ended")


async def test_what_is_typed_is_no_key() -> None:
    async with terminal(Canned([])) as (app, pilot):
        await until(lambda: isinstance(app.screen, FleetScreen), "the fleet")
        await pilot.press("slash", *"qnt?")

        assert app.is_running
        assert app.screen.query_one("#typed").value == "/qnt?"  # type: ignore[attr-defined]
        await pilot.press("escape")
        assert app.screen.query_one("#typed").has_class("away")


async def test_the_queen_is_not_offered_where_there_is_no_ticket() -> None:
    async with terminal(Canned([])) as (app, pilot):
        await until(lambda: app.shared.fleet.tickets, "the tickets")
        assert app.check_action("queen", ())
        app.shared.fleet.take_tickets([])
        assert not app.check_action("queen", ())
        await pilot.press("ctrl+q")
        assert isinstance(app.screen, FleetScreen)
