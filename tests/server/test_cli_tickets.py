"""The output of the ticket commands, and the ticket that an id selects."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, get_args

import httpx
import pytest

from queenright.api.event_text import OPERATIONS
from queenright.api.examples import NOW, make_example
from queenright.api.tickets import Ticket, TicketSilence
from queenright.cli.commands.tickets import StatusFilter, format_ticket, format_ticket_row
from queenright.health.monitoring.monitor import END_REASONS
from queenright.health.tickets.ticket import TicketStatus
from queenright.runtime.events import AgentEvent, EventType
from queenright.server.agents.operations import Action
from queenright.server.serving import RunningService
from queenright.server.views.api_models import make_feed_line
from tests.server.conftest import looping
from tests.server.test_app import wait_for_ticket
from tests.server.test_cli_acting import queenright, settings
from tests.waiting import until

__all__ = ["settings"]


def make_ticket(**changes: Any) -> Ticket:
    return Ticket.model_validate(make_example(Ticket) | {"silenced": None, "incident_id": ""} | changes)


def test_silenced_ticket_is_marked_in_the_list_with_its_end() -> None:
    """B38: the list marks a silenced ticket."""
    silenced_ticket = make_ticket(silenced=make_example(TicketSilence))

    lines = format_ticket(silenced_ticket, NOW)

    assert format_ticket_row(silenced_ticket, NOW).endswith(f"{silenced_ticket.ticket_id}  silenced")
    assert silenced_ticket.session_id[-13:] in format_ticket_row(silenced_ticket, NOW)
    [line] = [line for line in lines if line.startswith("  silenced ")]
    assert "for 60 min more, until " in line
    assert line.endswith(", by ada: being fixed (silence b3c5)")


def test_ticket_with_a_separate_alert_has_no_silence_or_incident() -> None:
    assert format_ticket_row(make_ticket(), NOW).endswith(make_ticket().ticket_id)
    assert not [
        ticket_line
        for ticket_line in format_ticket(make_ticket(), NOW)
        if "silenced" in ticket_line or "incident" in ticket_line
    ]


async def test_list_has_column_headings(running: RunningService) -> None:
    ticket_id = await wait_for_ticket(running)

    heading, row = (await queenright(running, "tickets")).out.splitlines()

    assert heading.split() == ["severity", "status", "agent", "session", "problem", "age", "ticket"]
    assert row[heading.index("ticket") :].startswith(ticket_id)


async def test_status_filter_lists_closed_tickets(running: RunningService) -> None:
    service = running.service
    closed_id = await wait_for_ticket(running)
    start_event = next(iter(looping(service.clock())))
    await service.ingest(
        [replace(start_event, id="end", type=EventType.EXECUTION_COMPLETED, time=service.clock())]
    )
    await until(lambda: not service.tickets.open_tickets(), "the ticket is closed")
    open_id = await wait_for_ticket(running, agent="other")

    closed_result = await queenright(running, "tickets", "list", "--status", "worker_gone")
    intervening_result = await queenright(running, "tickets", "--all", "--status", "intervening")
    dismissed_result = await queenright(running, "tickets", "list", "--status", "dismissed")

    assert (closed_id in closed_result.out, open_id in closed_result.out) == (True, False)
    assert (closed_id in intervening_result.out, open_id in intervening_result.out) == (False, True)
    assert (dismissed_result.code, dismissed_result.out) == (0, "No tickets with status dismissed.\n")


def test_status_filter_accepts_each_ticket_status() -> None:
    assert [status.value for status in StatusFilter] == [status.value for status in TicketStatus]


async def test_unknown_status_is_a_usage_error(running: RunningService) -> None:
    result = await queenright(running, "tickets", "list", "--status", "closed")

    assert (result.code, result.out) == (2, "")
    assert "'closed'" in result.err
    assert "'dismissed'" in result.err


def test_ticket_that_shares_an_alert_names_the_ticket_of_the_alert() -> None:
    """B123: both the list and the ticket name it."""
    lines = format_ticket(make_ticket(incident_id="018f-first"), NOW)

    assert any("018f-first" in line for line in lines)


def test_ticket_has_the_name_of_the_finding_that_its_text_describes() -> None:
    """B102: the finding that opened the ticket may have cleared."""
    changed_ticket = make_ticket(kind="resource_limit", words_kind="stall", severity="critical")

    assert ": critical, stall, " in format_ticket(changed_ticket, NOW)[0]
    assert " stall " in format_ticket_row(changed_ticket, NOW)


def test_ticket_shows_cause_and_action_once() -> None:
    analysis = "It repeats (seen 4 times). It costs money. Stop it."
    output = "\n".join(
        format_ticket(make_ticket(cause="It repeats.", suggested_action="Stop it.", analysis=analysis), NOW)
    )

    assert (output.count("It repeats"), output.count("Stop it")) == (1, 1)
    assert "  queen        Seen 4 times. It costs money\n" in output
    assert make_ticket().worker_excerpt in output


def test_closed_ticket_shows_how_long_it_was_open() -> None:
    closed_ticket = make_ticket(status="resolved", closed_at=NOW + 720, first_seen=NOW)

    assert ", resolved after 12 min, at " in format_ticket(closed_ticket, NOW + 10_000)[0]
    assert format_ticket(make_ticket(first_seen=NOW), NOW + 10_800)[0].endswith(" for 3 h")


def test_notified_receivers_are_in_chronological_order() -> None:
    notifications = [
        {"receiver": "slack", "status": status, "first_at": NOW + seconds, "at": NOW + 99}
        for status, seconds in (("resolved", 60), ("firing", 1))
    ]

    [line] = [
        ticket_line
        for ticket_line in format_ticket(make_ticket(notified=notifications), NOW)
        if ticket_line.startswith("  notified ")
    ]

    assert line.index("slack (firing, ") < line.index("slack (resolved, ")


@pytest.mark.parametrize("arguments", [("show",), ("timeline",), ("acknowledge", "--by", "ada")])
async def test_ticket_is_found_by_an_id_prefix(running: RunningService, arguments: tuple[str, ...]) -> None:
    ticket_id = await wait_for_ticket(running)

    result = await queenright(running, "tickets", arguments[0], ticket_id[:-1], *arguments[1:])

    assert (result.code, result.err) == (0, "")


async def test_ambiguous_ticket_id_prefix_lists_the_matches(running: RunningService) -> None:
    first_id = await wait_for_ticket(running)
    await wait_for_ticket(running, agent="other")
    await until(lambda: len(running.service.tickets.open_tickets()) == 2, "two tickets")
    [other_id] = {open_ticket.ticket_id for open_ticket in running.service.tickets.open_tickets()} - {
        first_id
    }

    result = await queenright(running, "tickets", "show", first_id[:2])

    assert first_id[:2] == other_id[:2]
    assert (result.code, result.out) == (1, "")
    assert all(phrase in result.err for phrase in ("2 tickets", repr(first_id[:2])))
    assert f"{first_id} (looper)" in result.err
    assert f"{other_id} (other)" in result.err


async def test_unknown_ticket_id_names_the_list_command(running: RunningService) -> None:
    result = await queenright(running, "tickets", "acknowledge", "nope")

    assert (result.code, result.out) == (1, "")
    assert "'nope'" in result.err
    assert "list tickets: queenright tickets --all" in result.err


async def test_list_counts_the_ended_sessions_that_it_hides(running: RunningService) -> None:
    service = running.service
    result = list(looping(service.clock(), times=1))
    end_event = AgentEvent(
        type=EventType.EXECUTION_COMPLETED,
        time=service.clock(),
        **{key: getattr(result[0], key) for key in ("agent_id", "session_id", "incarnation_id")},
    )
    await service.ingest([*result, end_event])

    short_list, full_list = await queenright(running, "list"), await queenright(running, "list", "--all")

    assert "1 ended session" in short_list.out
    assert "--all" in short_list.out
    assert "looper" in full_list.out
    assert "not shown" not in full_list.out


@pytest.mark.parametrize(
    ("end_type", "outcome"),
    [(EventType.EXECUTION_COMPLETED, "completed"), (EventType.EXECUTION_FAILED, "failed")],
)
async def test_ended_session_is_shown_with_its_outcome(
    running: RunningService, http: httpx.AsyncClient, end_type: EventType, outcome: str
) -> None:
    """B103: in the API and in the command, it is neither terminated nor healthy, and does not wait."""
    service = running.service
    result = list(looping(service.clock(), times=1))
    worker = {key: getattr(result[0], key) for key in ("agent_id", "session_id", "incarnation_id")}
    await service.ingest([*result, AgentEvent(type=end_type, time=service.clock(), **worker)])

    [row] = (await http.get("/api/agents")).json()["agents"]
    listed_output = (await queenright(running, "list", "--all")).out

    assert (row["ended"], row["outcome"]) == (True, outcome)
    [line] = [line for line in listed_output.splitlines() if "looper" in line]
    assert line.split()[0] == outcome
    assert "waits" not in listed_output
    assert "terminated" not in f"{row} {listed_output}"


def describe_health_change(reason: str, *, state: str, **fields: str) -> str:
    data = {"from": "failing", "to": state, "reason": reason, **fields}
    return make_feed_line(
        AgentEvent(type=EventType.HEALTH_STATE_CHANGED, time=NOW, agent_id="a", data=data)
    ).text


def test_health_change_is_one_sentence() -> None:
    assert describe_health_change("no findings", state="healthy") == "a: failing → healthy: no findings"
    assert (
        describe_health_change(END_REASONS["failed"], state="terminated")
        == "a: the session has failed; it was failing"
    )


def test_end_of_a_session_is_not_a_change_to_healthy() -> None:
    line = describe_health_change(END_REASONS["completed"], state="healthy", outcome="completed")

    assert line == "a: the session is completed; it was failing"


def test_session_of_failed_runs_is_failing_after_its_end() -> None:
    line = describe_health_change("4 runs failed in a row", state="failing", outcome="failed")

    assert line == "a: failing → failing: 4 runs failed in a row"


@pytest.mark.parametrize(
    ("operation", "detail", "expected_text"),
    [
        ("inject", "desk", "message sent to desk, by ada"),
        ("chat", "desk", "message sent to desk, by ada"),
        ("load", "agents/a", "loaded, by ada (agents/a)"),
        ("delete_session", "", "session deleted, by ada"),
    ],
)
def test_operation_on_an_agent_is_one_sentence(operation: str, detail: str, expected_text: str) -> None:
    data = {"what": operation, "by": "ada", "detail": detail}
    event = AgentEvent(type=EventType.AGENT_OPERATED, time=NOW, agent_id="a", data=data)

    assert make_feed_line(event).text == f"a: {expected_text}"


def test_every_operation_on_an_agent_has_a_text() -> None:
    assert set(OPERATIONS) == set(get_args(Action))


async def test_service_resolves_an_abbreviated_id_in_the_url_of_a_ticket_page(
    running: RunningService,
) -> None:
    """The console and other clients pass on the abbreviated id from the URL."""
    ticket_id = await wait_for_ticket(running)

    async with httpx.AsyncClient(base_url=running.url, trust_env=False) as http:
        response = await http.get(f"/api/tickets/{ticket_id[:-1]}")
        unknown_response = await http.get("/api/tickets/%25")

    assert (response.status_code, response.json()["ticket_id"]) == (200, ticket_id)
    assert unknown_response.status_code == 404
