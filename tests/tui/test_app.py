"""The terminal interface: an unavailable service, notices that expire, and keys."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator

import httpx
import pytest
from textual.events import Key, Paste
from textual.pilot import Pilot
from textual.widgets import Input

from queenright.api.agents import AgentRow
from queenright.api.events import Event
from queenright.api.status import FeedLine
from queenright.client.notices import Notice as StreamNotice
from queenright.tui.app import QueenrightApp
from queenright.tui.gateway import ServiceGateway
from queenright.tui.screens.dialogs import ConfirmDialog
from queenright.tui.screens.fleet import MAX_WORKERS, FleetScreen
from queenright.tui.screens.queen import QueenScreen
from queenright.tui.screens.talk import TalkScreen
from queenright.tui.screens.worker import WorkerScreen
from queenright.tui.widgets.row_table import RowTable
from tests.tui.canned import (
    BACKGROUND_FAILURE,
    EXAMPLES,
    NOW,
    QUEEN_NOTIFICATIONS,
    STEPS,
    TICKETS,
    Canned,
    event,
    row,
    worker,
)
from tests.tui.pictures import screen_text, throttle
from tests.waiting import until


@contextlib.asynccontextmanager
async def run_terminal(
    canned: Canned, *, notice_seconds: float = 30.0
) -> AsyncIterator[tuple[QueenrightApp, Pilot[None]]]:
    app = QueenrightApp(
        ServiceGateway(canned.create_client(), by="ada"), clock=lambda: NOW, notice_seconds=notice_seconds
    )
    async with app.run_test(size=(80, 24)) as pilot:
        yield app, pilot


async def test_unavailable_service_is_shown_until_it_is_back() -> None:
    canned = Canned()
    canned.is_away = True
    async with run_terminal(canned) as (app, _):
        await until(throttle(lambda: "does not respond" in screen_text(app)), "the message is shown")
        canned.is_away = False
        await until(throttle(lambda: "billing_export" in screen_text(app)), "the fleet is shown")
        await until(throttle(lambda: "does not respond" not in screen_text(app)), "the message is gone")


@pytest.mark.parametrize("is_forgotten", [False, True])
async def test_feed_is_in_order_after_a_break(is_forgotten: bool) -> None:
    """B64: the stream delivers missed events in order. Events that it no longer has are requested."""
    event_before_break, meanwhile = (
        event("health_state_changed", ago, agent, **{"from": "healthy", "to": "stuck", "reason": agent})
        for ago, agent in ((60, "before"), (5, "meanwhile"))
    )
    canned = Canned([event_before_break])
    async with run_terminal(canned) as (app, _):
        await until(lambda: app.app_state.fleet.feed, "the events before the break")
        canned.feed = [
            row(FeedLine, text="meanwhile", id=meanwhile["id"]),
            row(FeedLine, text="before", id=event_before_break["id"]),
        ]
        app._on_stream_notice(StreamNotice("lost"))
        app._on_stream_notice(StreamNotice("connected"))
        if is_forgotten:
            app._on_stream_notice(StreamNotice("reset"))
            await until(lambda: len(app.app_state.fleet.feed) == 2, "the events during the break")
            return
        # The requests after the notice are answered before the stream delivers its events.
        await until(lambda: not app.app_state.fleet.stale, "the lists")
        app.handle_event(Event.model_validate(meanwhile))

        assert ["meanwhile" in line.text for line in app.app_state.fleet.feed] == [False, True]


async def test_notice_disappears_by_itself() -> None:
    async with run_terminal(Canned([]), notice_seconds=0.01) as (app, _):
        app.handle_event(Event.model_validate(QUEEN_NOTIFICATIONS[0]))
        assert len(app.app_state.notices) == 1
        await until(lambda: not len(app.app_state.notices), "the notice is gone")


async def test_ctrl_q_opens_the_queen_and_dismisses_the_notice() -> None:
    async with run_terminal(Canned([])) as (app, pilot):
        await until(lambda: app.app_state.fleet.tickets, "the tickets")
        app.handle_event(Event.model_validate(QUEEN_NOTIFICATIONS[0]))
        await pilot.press("ctrl+q")

        assert isinstance(app.screen, QueenScreen)
        assert app.screen.ticket() == app.app_state.fleet.ticket(TICKETS[1]["ticket_id"])
        assert not len(app.app_state.notices)


async def test_failing_background_graph_is_a_notice_and_the_chat_continues() -> None:
    async with run_terminal(Canned([])) as (app, pilot):
        await pilot.press("slash")
        await enter_line(app, pilot, "/talk docs_checker")
        await until(lambda: isinstance(app.screen, TalkScreen), "the talk")
        talk = app.screen
        assert isinstance(talk, TalkScreen)
        await until(
            lambda: "Which folder shall I check?" in [entry.text for entry in talk.conversation.entries],
            "a question",
        )
        app.handle_event(Event.model_validate(BACKGROUND_FAILURE))
        await until(lambda: len(app.app_state.notices), "the notice")

        assert [notice.title for notice in app.app_state.notices] == ["log_digest failed"]
        assert talk.conversation.entries[-1].text == "Which folder shall I check?"


async def test_graph_requests_are_notices_when_no_chat_is_open() -> None:
    input_request = event("client_input_requested", 1, "docs_checker", graph="docs_checker", question="All?")
    async with run_terminal(Canned([])) as (app, _):
        app.handle_event(Event.model_validate(BACKGROUND_FAILURE))
        await until(lambda: len(app.app_state.notices), "the notice")
        assert isinstance(app.screen, FleetScreen)

        app.handle_event(Event.model_validate({**input_request, "id": "one"}))
        app.app_state.chatted_agents.add("docs_checker")
        await until(app._run_events.empty, "the event is handled")
        app.handle_event(Event.model_validate({**input_request, "id": "two"}))
        await until(
            lambda: "docs_checker asks" in [notice.title for notice in app.app_state.notices], "the question"
        )


async def test_newly_loaded_graph_is_shown_while_its_list_loads() -> None:
    class Slow(Canned):
        """A service that delays the list of workers."""

        def __init__(self) -> None:
            super().__init__([])
            self.release, self.request_count = asyncio.Event(), 0

        async def _answer(self, request: httpx.Request) -> httpx.Response:
            if request.url.path == "/api/agents":
                self.request_count += 1
                await self.release.wait()
            return await super()._answer(request)

    canned = Slow()
    async with run_terminal(canned) as (app, _):
        await until(lambda: canned.request_count, "the list is requested")
        app.handle_event(Event.model_validate(BACKGROUND_FAILURE))
        await until(app._run_events.empty, "the event is handled")
        canned.release.set()
        await until(lambda: len(app.app_state.notices), "the notice")


@pytest.mark.parametrize(("status", "reason"), [(401, "a token is needed"), (403, "needs the role operator")])
async def test_refused_user_sees_the_reason_and_continues_once_allowed(status: int, reason: str) -> None:
    canned = Canned()
    canned.error_status = status
    async with run_terminal(canned) as (app, _):
        await until(
            lambda: "not allowed: " in screen_text(app) and reason in screen_text(app), "the message is shown"
        )
        canned.error_status = 0
        app.app_state.fleet.stale.add("workers")
        await until(lambda: app.app_state.fleet.feed and app.app_state.fleet.workers, "the lists are loaded")
        await until(throttle(lambda: "not allowed" not in screen_text(app)), "the message is gone")


async def test_unexpected_error_is_a_notice_and_a_log_line(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async def fail_reset(name: str, *, by: str) -> None:
        raise ZeroDivisionError(f"no {name} for {by}")

    async with run_terminal(Canned([])) as (app, pilot):
        await until(lambda: app.app_state.fleet.breakers, "the breakers")
        monkeypatch.setattr(app.app_state.gateway.client.breakers, "reset", fail_reset)
        await pilot.press("4")
        await until(lambda: app.screen.query_one("#breakers", RowTable).selected, "a breaker")
        await pilot.press("r")
        await until(lambda: isinstance(app.screen, ConfirmDialog), "the confirmation")
        await pilot.press("y")
        await until(throttle(lambda: "ZeroDivisionError" in screen_text(app)), "the notice")
        await pilot.press("escape")

        monkeypatch.setattr(app, "action_keys", lambda: 1 // 0)
        await pilot.press("question_mark")
        await until(throttle(lambda: "integer division" in screen_text(app)), "the notice")
        assert app.is_running
    assert [record.levelname for record in caplog.records if record.name == "queenright.tui.app"] == [
        "ERROR"
    ] * 2


async def enter_line(app: QueenrightApp, pilot: Pilot[None], line: str) -> None:
    """Put a line into the command line at once and submit it, because single keys take long."""
    app.screen.query_one("#input", Input).value = line
    await pilot.press("enter")


async def test_worst_workers_are_listed_and_any_can_be_opened() -> None:
    async with run_terminal(Canned([])) as (app, pilot):
        await until(lambda: app.app_state.fleet.workers, "the workers")
        workers = [worker(f"agent_{number}", "healthy") for number in range(2 * MAX_WORKERS)]
        app.app_state.fleet.set_workers(
            AgentRow.model_validate(row_data) for row_data in [*workers, worker("zebra", "stuck")]
        )
        app.app_state.fleet.stale.clear()
        await app.redraw()

        await pilot.press("2")
        assert f"Fleet {2 * MAX_WORKERS + 1}, worst {MAX_WORKERS}" in screen_text(app)
        assert app.screen.query_one("#fleet", RowTable).row_count == MAX_WORKERS
        await pilot.press("slash")
        await enter_line(app, pilot, "/worker agent_399")
        await until(lambda: isinstance(app.screen, WorkerScreen), "the worker's screen")


@pytest.mark.parametrize("key", ["q", "ctrl+c"])
async def test_quit_key_ends_the_program(key: str) -> None:
    async with run_terminal(Canned([])) as (app, pilot):
        await until(lambda: isinstance(app.screen, FleetScreen), "the fleet")
        await pilot.press(key)
        await until(lambda: not app.is_running, "the program has ended")


class Slow(Canned):
    """A service that responds slowly."""

    def __init__(self) -> None:
        super().__init__([])
        self.release = asyncio.Event()

    async def _answer(self, request: httpx.Request) -> httpx.Response:
        await self.release.wait()
        return await super()._answer(request)


async def test_top_line_shows_connecting_until_the_first_response() -> None:
    slow = Slow()
    async with run_terminal(slow) as (app, pilot):
        await pilot.press("3")
        await until(throttle(lambda: "connecting" in screen_text(app)), "the interface is connecting")
        assert "healthy" not in screen_text(app).splitlines()[0]
        assert "ticket" not in screen_text(app).splitlines()[0]
        assert "No tickets" not in screen_text(app)
        slow.release.set()
        await until(
            throttle(lambda: app.app_state.fleet.workers and "connecting" not in screen_text(app)),
            "the fleet is shown",
        )


def send_keys_at_once(app: QueenrightApp, keys: str) -> None:
    """Send all keys at once, like a paste in a terminal without bracketed paste."""
    for key in keys:
        name = {"/": "slash", "\r": "enter"}.get(key, key)
        app.post_message(Key(name, key if key.isprintable() else None))


def paste(app: QueenrightApp, keys: str) -> None:
    """Paste like a terminal with bracketed paste."""
    app.post_message(Paste(keys))


@pytest.mark.parametrize(
    ("opening_keys", "bursts"),
    [
        *(((tab,), ("/talk", "ay", "ry", "nhello\r", "tbecause\ry")) for tab in "1234"),
        (("2", "enter"), ("aaay", "tbecause\ry")),
    ],
)
async def test_burst_of_keys_changes_nothing(opening_keys: tuple[str, ...], bursts: tuple[str, ...]) -> None:
    """B110: pasted text does not acknowledge, reset, nudge or stop anything."""
    canned = Canned([])
    async with run_terminal(canned) as (app, pilot):
        await until(lambda: app.app_state.fleet.tickets and app.app_state.fleet.breakers, "the lists")
        for send_keys, keys in (*((send_keys_at_once, keys) for keys in bursts), (paste, bursts[-1])):
            await pilot.press(*opening_keys)
            if "enter" in opening_keys:
                await until(lambda: isinstance(app.screen, WorkerScreen), "a worker")
            send_keys(app, keys)
            await pilot.pause()
            send_keys(app, keys.replace("\r", ""))
            await pilot.pause()
            await pilot.press("escape", "escape", "escape")

    assert canned.actions == []


async def test_typed_text_is_not_a_key_binding() -> None:
    async with run_terminal(Canned([])) as (app, pilot):
        await until(lambda: isinstance(app.screen, FleetScreen), "the fleet")
        await pilot.press("slash", *"qnt?")

        assert app.is_running
        assert app.screen.query_one("#input").value == "/qnt?"  # type: ignore[attr-defined]
        await pilot.press("escape")
        assert app.screen.query_one("#input").has_class("hidden")


async def test_queen_answers_about_a_worker_without_a_ticket() -> None:
    canned = Canned([])
    async with run_terminal(canned) as (app, pilot):
        await until(lambda: app.app_state.fleet.tickets, "the tickets")
        app.app_state.fleet.set_tickets([])
        app.push_screen(WorkerScreen(app.app_state, "price_watch", "price_watch-1"))
        await until(lambda: isinstance(app.screen, WorkerScreen), "the worker")
        await pilot.press("ctrl+q")

        queen = app.screen
        assert isinstance(queen, QueenScreen)
        assert (queen.agent_id, queen.session_id, queen.ticket()) == ("price_watch", "price_watch-1", None)


async def test_answer_of_the_queen_is_shown_as_she_writes_it() -> None:
    answer_ids = {"ticket_id": TICKETS[0]["ticket_id"], "question_id": "q"}
    pieces = [
        event("queen_answer_delta", 5, **answer_ids, index=index, text=text)
        for index, text in enumerate(["She says ", "what she ", "sees"])
    ]
    async with run_terminal(Canned([], queen=pieces)) as (app, _):
        await until(lambda: app.app_state.fleet.tickets, "the tickets")
        ticket = app.app_state.fleet.ticket(TICKETS[0]["ticket_id"])
        assert ticket is not None
        screen = QueenScreen(app.app_state, ticket.agent_id, ticket.session_id, ticket)
        screen._pending = 1
        await app.push_screen(screen)

        await until(throttle(lambda: "She says what she sees" in screen_text(app)), "the answer so far")


async def test_queen_is_not_offered_without_a_ticket() -> None:
    async with run_terminal(Canned([])) as (app, pilot):
        await until(lambda: app.app_state.fleet.tickets, "the tickets")
        assert app.check_action("queen", ())
        app.app_state.fleet.set_tickets([])
        assert not app.check_action("queen", ())
        await pilot.press("ctrl+q")
        assert isinstance(app.screen, FleetScreen)


@pytest.mark.parametrize(
    ("row_index", "keys", "path", "body"),
    [
        (0, ("a", "y"), "/api/permissions/permission-1/answer", {"decision": "allow"}),
        (0, ("d", "y"), "/api/permissions/permission-1/answer", {"decision": "deny"}),
        (1, ("t", "y"), "/api/approvals/approval-1/approve", {}),
        (
            2,
            ("r", "docs", "enter"),
            "/api/agents/docs_checker/inject",
            {"content": "docs", "question_id": "ask-1:1"},
        ),
        (3, ("h", "y"), "/api/escalations/escalation-1/decision", {"decision": "hand_off"}),
        (4, ("a", "y"), f"/api/tickets/{TICKETS[2]['ticket_id']}/acknowledge", {}),
        (4, ("t", "it loops", "enter", "y"), "/api/agents/inbox_triage/terminate", {"reason": "it loops"}),
    ],
)
async def test_item_that_needs_a_person_is_answered_after_a_confirmation(
    row_index: int, keys: tuple[str, ...], path: str, body: dict[str, str]
) -> None:
    """The tab of items that need a person is first; an answer has the incarnation that the operator saw."""
    canned = Canned([])
    async with run_terminal(canned) as (app, pilot):
        await until(lambda: app.app_state.fleet.attention_items, "the items that need a person")
        table = app.screen.query_one("#need-list", RowTable)
        await until(lambda: table.row_count == len(canned.attention), "the list")
        await pilot.press(*["down"] * row_index)
        for key in keys[:-1]:
            await pilot.press(*([key] if key == "enter" else key))
        assert canned.actions == []
        await pilot.press(keys[-1])
        await until(lambda: canned.actions, "the answer")

    [(method, sent_path, sent_body)] = canned.actions
    assert (method, sent_path) == ("POST", path)
    assert body.items() <= sent_body.items()
    if "acknowledge" not in path:
        assert sent_body["incarnation_id"] == EXAMPLES["AttentionItem"]["incarnation_id"]


async def test_all_tickets_of_an_incident_are_acknowledged_together() -> None:
    """Closed tickets are skipped. A ticket that another operator has just acknowledged is not an error."""
    ids = [str(ticket["ticket_id"]) for ticket in TICKETS]

    class AlreadyAcknowledged(Canned):
        async def _answer(self, request: httpx.Request) -> httpx.Response:
            answer = await super()._answer(request)
            is_acknowledged = request.url.path == f"/api/tickets/{ids[0]}/acknowledge"
            problem = {"content-type": "application/problem+json"}
            return (
                httpx.Response(409, headers=problem, json={"title": "already acknowledged"})
                if is_acknowledged
                else answer
            )

    canned = AlreadyAcknowledged([])
    async with run_terminal(canned) as (app, pilot):
        table = app.screen.query_one("#need-list", RowTable)
        await until(lambda: table.row_count == len(canned.attention), "the list")
        await pilot.press(*["down"] * 5, "a")
        await until(throttle(lambda: "Acknowledge all tickets on" in screen_text(app)), "the question")
        assert canned.actions == []
        await pilot.press("y")
        await until(throttle(lambda: "2 more: done" in screen_text(app)), "the result")

    assert [path for _, path, _ in canned.actions] == [
        f"/api/tickets/{ticket_id}/acknowledge" for ticket_id in ids[:2]
    ]


async def test_viewer_is_offered_no_actions() -> None:
    canned = Canned([])
    canned.may_act = False
    async with run_terminal(canned) as (app, pilot):
        await until(
            throttle(lambda: "read-only: acting needs the role operator" in screen_text(app)), "the reason"
        )
        for tab, keys in (("1", "adt"), ("2", "nt"), ("3", "a"), ("4", "r")):
            await pilot.press(tab, *keys)
            assert isinstance(app.screen, FleetScreen), (tab, keys)
        await pilot.press("2", "enter")
        await until(lambda: isinstance(app.screen, WorkerScreen), "the worker")
        await pilot.press("n", "t", "a")
        assert isinstance(app.screen, WorkerScreen)

    assert canned.actions == []


async def test_item_at_the_top_stays_selected_when_another_comes_before_it() -> None:
    """A key that was meant for one item must not answer another."""
    canned = Canned([])
    first_item, *other_items = canned.attention
    canned.attention = [first_item]
    async with run_terminal(canned) as (app, _):
        table = app.screen.query_one("#need-list", RowTable)
        await until(lambda: table.row_count == 1, "the item")
        canned.attention = [*other_items[:1], first_item]
        app.app_state.fleet.stale.add("attention")
        await until(lambda: table.row_count == 2, "the item before it")

        assert table.selected == first_item["item_id"]


async def test_no_item_that_needs_a_person_shows_one_line() -> None:
    canned = Canned([])
    canned.attention = []
    async with run_terminal(canned) as (app, _):
        await until(throttle(lambda: "Nothing needs you." in screen_text(app)), "the message is shown")


async def test_esc_shows_all_workers_again() -> None:
    async with run_terminal(Canned([])) as (app, pilot):
        await until(lambda: app.app_state.fleet.workers, "the workers")
        await pilot.press("slash")
        await enter_line(app, pilot, "/filter stuck")
        table = app.screen.query_one("#fleet", RowTable)
        await until(lambda: table.row_count == 1, "one worker")
        await pilot.press("escape")
        await until(lambda: table.row_count == len(app.app_state.fleet.workers), "all")


async def test_timeline_restarts_if_the_log_no_longer_has_its_position() -> None:
    class Forgetful(Canned):
        """A service whose log no longer has the last known step."""

        async def _answer(self, request: httpx.Request) -> httpx.Response:
            if request.url.params.get("after") == "step-9":
                return httpx.Response(
                    404, headers={"content-type": "application/problem+json"}, json={"title": "no such step"}
                )
            return await super()._answer(request)

    async with run_terminal(Forgetful([])) as (app, pilot):
        await until(lambda: app.app_state.fleet.workers, "the workers")
        await pilot.press("2", "enter")
        await until(lambda: isinstance(app.screen, WorkerScreen), "a worker")
        screen = app.screen
        assert isinstance(screen, WorkerScreen)
        await until(lambda: screen.timeline.lines, "its steps")
        screen._has_news.set()
        await until(lambda: not screen._has_news.is_set(), "the steps are requested again")
        await until(lambda: len(screen.timeline.lines) == len(STEPS), "each step is shown once")
