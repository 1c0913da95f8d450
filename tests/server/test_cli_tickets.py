"""The output of ticket commands, and the ticket that an id selects."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, get_args

import httpx
import pytest

from queenright.api.event_text import OPERATIONS
from queenright.api.examples import NOW, make_example
from queenright.api.tickets import Ticket, TicketSilence
from queenright.cli.commands.tickets import StatusFilter, ticket_lines, ticket_row
from queenright.health.monitoring.monitor import END_REASONS
from queenright.health.tickets.ticket import TicketStatus
from queenright.runtime.events import AgentEvent, EventType
from queenright.server.agents.operations import Action
from queenright.server.serving import RunningService
from queenright.server.views.api_models import event_line
from tests.server.conftest import looping
from tests.server.test_app import wait_for_ticket
from tests.server.test_cli_acting import queenright, settings
from tests.waiting import until

__all__ = ["settings"]


def ticket(**changes: Any) -> Ticket:
    return Ticket.model_validate(make_example(Ticket) | {"silenced": None, "incident_id": ""} | changes)


def test_silenced_ticket_is_marked_in_the_list_with_its_end() -> None:
    """B38: the list shows that a ticket is silenced."""
    silenced = ticket(silenced=make_example(TicketSilence))

    lines = ticket_lines(silenced, NOW)

    assert ticket_row(silenced, NOW).endswith(f"{silenced.ticket_id}  silenced")
    assert silenced.session_id[-13:] in ticket_row(silenced, NOW)
    [line] = [line for line in lines if line.startswith("  silenced ")]
    assert "for 60 min more, until " in line
    assert line.endswith(", by ada: being fixed (silence b3c5)")


def test_ticket_with_its_own_alert_has_no_silence_or_incident() -> None:
    assert ticket_row(ticket(), NOW).endswith(ticket().ticket_id)
    assert not [
        ticket_line
        for ticket_line in ticket_lines(ticket(), NOW)
        if "silenced" in ticket_line or "incident" in ticket_line
    ]


async def test_list_has_column_headings(running: RunningService) -> None:
    found = await wait_for_ticket(running)

    heading, row = (await queenright(running, "tickets")).out.splitlines()

    assert heading.split() == ["severity", "status", "agent", "session", "problem", "age", "ticket"]
    assert row[heading.index("ticket") :].startswith(found)


async def test_status_filter_lists_closed_tickets(running: RunningService) -> None:
    service = running.service
    closed_id = await wait_for_ticket(running)
    first = next(iter(looping(service.clock())))
    await service.ingest([replace(first, id="end", type=EventType.EXECUTION_COMPLETED, time=service.clock())])
    await until(lambda: not service.tickets.open_tickets(), "a ticket that closed")
    open_id = await wait_for_ticket(running, agent="other")

    closed = await queenright(running, "tickets", "list", "--status", "worker_gone")
    intervening = await queenright(running, "tickets", "--all", "--status", "intervening")
    dismissed = await queenright(running, "tickets", "list", "--status", "dismissed")

    assert (closed_id in closed.out, open_id in closed.out) == (True, False)
    assert (closed_id in intervening.out, open_id in intervening.out) == (False, True)
    assert (dismissed.code, dismissed.out) == (0, "No tickets with status dismissed.\n")


def test_status_filter_has_each_status_of_a_ticket() -> None:
    assert [status.value for status in StatusFilter] == [status.value for status in TicketStatus]


async def test_unknown_status_is_a_usage_error(running: RunningService) -> None:
    result = await queenright(running, "tickets", "list", "--status", "closed")

    assert (result.code, result.out) == (2, "")
    assert "'closed'" in result.err
    assert "'dismissed'" in result.err


def test_ticket_in_another_alert_names_it() -> None:
    """B123: the list and the ticket name the ticket of the alert."""
    lines = ticket_lines(ticket(incident_id="018f-first"), NOW)

    assert any("018f-first" in line for line in lines)


def test_ticket_has_the_name_of_the_finding_that_its_text_describes() -> None:
    """B102: the finding that opened the ticket may be over."""
    changed = ticket(kind="resource_limit", words_kind="stall", severity="critical")

    assert ": critical, stall, " in ticket_lines(changed, NOW)[0]
    assert " stall " in ticket_row(changed, NOW)


def test_ticket_has_cause_and_action_once() -> None:
    text = "It repeats (seen 4 times). It costs money. Stop it."
    output = "\n".join(
        ticket_lines(ticket(cause="It repeats.", suggested_action="Stop it.", analysis=text), NOW)
    )

    assert (output.count("It repeats"), output.count("Stop it")) == (1, 1)
    assert "  queen        Seen 4 times. It costs money\n" in output
    assert ticket().worker_excerpt in output


def test_closed_ticket_shows_how_long_it_was_open() -> None:
    closed = ticket(status="resolved", closed_at=NOW + 720, first_seen=NOW)

    assert ", resolved after 12 min, at " in ticket_lines(closed, NOW + 10_000)[0]
    assert ticket_lines(ticket(first_seen=NOW), NOW + 10_800)[0].endswith(" for 3 h")


def test_notified_receivers_are_in_chronological_order() -> None:
    notified = [
        {"receiver": "slack", "status": status, "first_at": NOW + seconds, "at": NOW + 99}
        for status, seconds in (("resolved", 60), ("firing", 1))
    ]

    [line] = [
        ticket_line
        for ticket_line in ticket_lines(ticket(notified=notified), NOW)
        if ticket_line.startswith("  notified ")
    ]

    assert line.index("slack (firing, ") < line.index("slack (resolved, ")


@pytest.mark.parametrize("words", [("show",), ("timeline",), ("acknowledge", "--by", "ada")])
async def test_ticket_is_found_by_an_id_prefix(running: RunningService, words: tuple[str, ...]) -> None:
    found = await wait_for_ticket(running)

    result = await queenright(running, "tickets", words[0], found[:-1], *words[1:])

    assert (result.code, result.err) == (0, "")


async def test_ambiguous_ticket_id_prefix_lists_the_matches(running: RunningService) -> None:
    first = await wait_for_ticket(running)
    await wait_for_ticket(running, agent="other")
    await until(lambda: len(running.service.tickets.open_tickets()) == 2, "two tickets")
    [other] = {t.ticket_id for t in running.service.tickets.open_tickets()} - {first}

    result = await queenright(running, "tickets", "show", first[:2])

    assert first[:2] == other[:2]
    assert (result.code, result.out) == (1, "")
    assert all(part in result.err for part in ("2 tickets", repr(first[:2])))
    assert f"{first} (looper)" in result.err
    assert f"{other} (other)" in result.err


async def test_unknown_ticket_id_names_the_list_command(running: RunningService) -> None:
    result = await queenright(running, "tickets", "acknowledge", "nope")

    assert (result.code, result.out) == (1, "")
    assert "'nope'" in result.err
    assert "list tickets: queenright tickets --all" in result.err


async def test_list_states_that_ended_sessions_are_hidden(running: RunningService) -> None:
    service = running.service
    result = list(looping(service.clock(), times=1))
    ended = AgentEvent(
        type=EventType.EXECUTION_COMPLETED,
        time=service.clock(),
        **{key: getattr(result[0], key) for key in ("agent_id", "session_id", "incarnation_id")},
    )
    await service.ingest([*result, ended])

    short, whole = await queenright(running, "list"), await queenright(running, "list", "--all")

    assert "1 ended session" in short.out
    assert "--all" in short.out
    assert "looper" in whole.out
    assert "not shown" not in whole.out


@pytest.mark.parametrize(
    ("end", "outcome"),
    [(EventType.EXECUTION_COMPLETED, "completed"), (EventType.EXECUTION_FAILED, "failed")],
)
async def test_ended_session_is_shown_with_its_outcome(
    running: RunningService, http: httpx.AsyncClient, end: EventType, outcome: str
) -> None:
    """B103: it is neither terminated nor healthy, and not waiting, in the API and the command."""
    service = running.service
    result = list(looping(service.clock(), times=1))
    worker = {key: getattr(result[0], key) for key in ("agent_id", "session_id", "incarnation_id")}
    await service.ingest([*result, AgentEvent(type=end, time=service.clock(), **worker)])

    [row] = (await http.get("/api/agents")).json()["agents"]
    listed = (await queenright(running, "list", "--all")).out

    assert (row["ended"], row["outcome"]) == (True, outcome)
    [line] = [line for line in listed.splitlines() if "looper" in line]
    assert line.split()[0] == outcome
    assert "waits" not in listed
    assert "terminated" not in f"{row} {listed}"


def describe_change(reason: str, *, to: str, **more: str) -> str:
    data = {"from": "failing", "to": to, "reason": reason, **more}
    return event_line(AgentEvent(type=EventType.HEALTH_STATE_CHANGED, time=NOW, agent_id="a", data=data)).text


def test_health_change_is_one_sentence() -> None:
    assert describe_change("no findings", to="healthy") == "a: failing → healthy: no findings"
    assert (
        describe_change(END_REASONS["failed"], to="terminated") == "a: the session has failed; it was failing"
    )


def test_end_of_a_session_is_not_a_change_to_healthy() -> None:
    ended = describe_change(END_REASONS["completed"], to="healthy", outcome="completed")

    assert ended == "a: the session is completed; it was failing"


def test_session_of_failed_runs_is_failing_after_its_end() -> None:
    ended = describe_change("4 runs failed in a row", to="failing", outcome="failed")

    assert ended == "a: failing → failing: 4 runs failed in a row"


@pytest.mark.parametrize(
    ("what", "detail", "text"),
    [
        ("inject", "desk", "message sent to desk, by ada"),
        ("chat", "desk", "message sent to desk, by ada"),
        ("load", "agents/a", "loaded, by ada (agents/a)"),
        ("delete_session", "", "session deleted, by ada"),
    ],
)
def test_operation_on_an_agent_is_one_sentence(what: str, detail: str, text: str) -> None:
    data = {"what": what, "by": "ada", "detail": detail}
    event = AgentEvent(type=EventType.AGENT_OPERATED, time=NOW, agent_id="a", data=data)

    assert event_line(event).text == f"a: {text}"


def test_every_operation_on_an_agent_has_a_text() -> None:
    assert set(OPERATIONS) == set(get_args(Action))


async def test_ticket_page_of_an_abbreviated_id_is_resolved_by_the_service(running: RunningService) -> None:
    """The console and other clients pass the abbreviated id from the URL."""
    found = await wait_for_ticket(running)

    async with httpx.AsyncClient(base_url=running.url, trust_env=False) as http:
        response = await http.get(f"/api/tickets/{found[:-1]}")
        none = await http.get("/api/tickets/%25")

    assert (response.status_code, response.json()["ticket_id"]) == (200, found)
    assert none.status_code == 404
