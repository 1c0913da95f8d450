"""The interface without widgets: fleet, timeline, conversation, notices, commands, formatting."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from queenright.api.agents import AgentRow, Finding, HistoryRow
from queenright.api.attention import AttentionItem
from queenright.api.breakers import Breaker
from queenright.api.events import Event
from queenright.api.loaded_agents import MessageRow, NodeRow
from queenright.api.steps import Step, Steps
from queenright.api.tickets import Ticket
from queenright.tui import styles
from queenright.tui.app_state import RunOwnership, add_notice_for
from queenright.tui.attention import ANSWERS, list_answers
from queenright.tui.commands import (
    COMMANDS,
    Command,
    InvalidCommandError,
    get_message_text,
    make_help_lines,
    parse_command,
)
from queenright.tui.conversation import Conversation, make_background_notice
from queenright.tui.event_lines import make_event_line
from queenright.tui.fleet_state import FleetState
from queenright.tui.formatting import clip, format_short_number, sparkline, strip_control
from queenright.tui.gateway import build_transcript
from queenright.tui.models import (
    ChatEntry,
    StreamedAnswer,
    Transcript,
    describe_activity,
    get_health_or_outcome,
)
from queenright.tui.notices import NoticeList
from queenright.tui.screens.worker_stream import WorkerHistory, count_bad_steps
from queenright.tui.session_timeline import SessionTimeline, describe_open, describe_shadow
from queenright.tui.worker_filter import WorkerFilter
from tests.tui.canned import (
    ATTENTION,
    BREAKERS,
    CHAT_EVENTS,
    FLEET_EVENTS,
    HISTORY,
    NODES,
    NOW,
    OPEN_STEPS,
    STEPS,
    STREAM,
    TICKETS,
    WORKERS,
    event,
    row,
    step,
)


def make_event(kind: str, agent: str = "bee", **fields: Any) -> Event:
    defaults = {"type": kind, "time": NOW, "agent_id": agent, "data": {}}
    return Event.model_validate(dict.fromkeys(Event.model_fields, "") | defaults | fields)


def create_fleet() -> FleetState:
    state = FleetState()
    state.set_workers(AgentRow.model_validate(row_data) for row_data in WORKERS)
    state.set_tickets(Ticket.model_validate(row_data) for row_data in TICKETS)
    state.set_breakers(Breaker.model_validate(row_data) for row_data in BREAKERS)
    return state


# -- the fleet --------------------------------------------------------------------------------------


def test_ended_session_is_failing_until_its_ticket_closes() -> None:
    """B103: afterwards its outcome is shown, which is not "terminated" for a completed session."""
    state = create_fleet()
    ended_worker = state.workers[-1]
    ticket = state.tickets[0].model_copy(
        update={"agent_id": ended_worker.agent_id, "session_id": ended_worker.session_id}
    )
    failing_count = state.counts["failing"]

    state.set_tickets([ticket])

    assert (state.attention(ended_worker), get_health_or_outcome(ended_worker)) == ("failing", "completed")
    assert state.counts["failing"] == failing_count + 1
    assert ended_worker in state.workers[: failing_count + 1]
    state.set_tickets([ticket.model_copy(update={"status": "resolved"})])
    assert state.attention(ended_worker) == "completed"
    assert state.workers[-1] == ended_worker


def test_activity_of_a_limited_worker_has_the_time_of_its_next_try() -> None:
    limited = row(AgentRow, activity="waiting to try again", limited_until=NOW + 90)

    assert describe_activity(AgentRow.model_validate(limited)) == "waiting to try again at 10:01:30"


def test_worst_worker_is_first_and_ended_ones_last() -> None:
    states = [worker.state for worker in create_fleet().workers]

    assert states[:3] == ["failing", "stuck", "degraded"]
    assert create_fleet().workers[-1].ended


def test_most_severe_open_ticket_is_first() -> None:
    assert [ticket.severity for ticket in create_fleet().tickets] == ["critical", "high", "medium"]
    assert [ticket.severity for ticket in create_fleet().open_tickets] == ["critical", "high"]


def test_open_breaker_is_before_closed_ones() -> None:
    assert [breaker.state for breaker in create_fleet().breakers] == ["open", "half_open", "closed"]


def test_duplicate_event_counts_once() -> None:
    state, events = (
        create_fleet(),
        Event.model_validate(event("health_state_changed", 1, **{"from": "stuck", "to": "healthy"})),
    )

    assert state.handle_event(events)
    assert not state.handle_event(events)
    assert len(state.feed) == 1


def test_state_change_moves_a_worker_before_the_next_request() -> None:
    state = create_fleet()
    state.stale.clear()

    state.handle_event(
        Event.model_validate(event("health_state_changed", 1, **{"from": "stuck", "to": "healthy"}))
    )

    worker = state.worker("deep_research_agent")
    assert worker is not None
    assert worker.state == "healthy"
    assert state.stale == {"attention", "workers"}
    assert state.counts["stuck"] == 0
    assert "terminated" not in state.counts


def test_activity_is_counted_per_span_up_to_now() -> None:
    state = create_fleet()
    for ago_seconds in (12, 11, 1):
        state.handle_event(
            Event.model_validate(event("step_completed", ago_seconds, "price_watch", verdict="ACCEPT"))
        )

    assert (
        state.activity("price_watch", NOW, 4) == [0, 2, 0, 1]
        or sum(state.activity("price_watch", NOW, 4)) == 3
    )
    assert state.activity("nobody", NOW, 3) == [0, 0, 0]


def test_every_feed_type_has_a_line_and_deltas_have_none() -> None:
    lines = [make_event_line(Event.model_validate(item)) for item in FLEET_EVENTS]

    assert len([line for line in lines if line]) == 6
    assert make_event_line(make_event("llm_text_delta", data={"text": "hm"})) is None


# -- one worker -------------------------------------------------------------------------------------


def test_history_ignores_events_of_other_workers() -> None:
    history = WorkerHistory("deep_research_agent")
    history.load_history(HistoryRow.model_validate(history_row) for history_row in HISTORY)
    for event_data in STREAM:
        history.handle_event(Event.model_validate(event_data))

    assert not history.handle_event(make_event("step_completed", "somebody else"))
    assert [state for _, state in history.states][-1] == "stuck"
    assert list(history.bad_steps) == [1, 2, 3, 4, 5, 6]
    assert history.tokens[-1] == 980


@pytest.mark.parametrize(
    ("verdicts", "now", "counts"),
    [
        ([], 0, []),
        (["RETRY", "ACCEPT", "RETRY"], 1, [1, 0, 1]),
        (["RETRY", "CONTINUE", "ESCALATE"], 9, [8, 8, 9]),
    ],
)
def test_known_bad_steps_before_the_first_verdict_count(
    verdicts: list[str], now: int, counts: list[int]
) -> None:
    assert count_bad_steps(verdicts, now) == counts


def test_state_history_shows_the_worst_state_of_each_span() -> None:
    line = styles.render_states([(10, "healthy"), (22, "stuck"), (23, "healthy")], 0, 40, 4)

    assert line.plain == "·▁▅▁" or line.plain == "▁▁▅▁"


def steps_page(*items: dict[str, Any], **fields: object) -> Steps:
    defaults = {"session_id": "bee-1", "incarnation_id": "", "first": None, "last": None, "more": False}
    return Steps.model_validate(defaults | {"items": items, "open": [], "clocks": [], "counts": []} | fields)


def test_timeline_shows_each_ended_step_once_and_open_work() -> None:
    timeline = SessionTimeline()

    timeline.add(steps_page(*STEPS, last="step-9", open=OPEN_STEPS))
    timeline.add(steps_page(OPEN_STEPS[0], open=OPEN_STEPS))
    timeline.add(steps_page(step("tool", 1, "search", 33.0)))

    assert [line.text for line in timeline.lines][-2:] == [
        "search TimeoutError in 1.2 s",
        "search in 33 s",
    ]
    assert (timeline.last, timeline.open) == ("step-9", [])
    assert [line.kind for line in timeline.lines if line.text.startswith("doom loop")] == ["high"]


@pytest.mark.parametrize(
    ("ago", "text"),
    [
        (-34.0, "search, 0 s of 60 s, stalls in 60 s"),
        (0.0, "search, 33 s of 60 s, stalls in 27 s"),
        (60.0, "search, 2 min of 60 s, stalled"),
    ],
)
def test_open_work_has_a_clock(ago: float, text: str) -> None:
    assert describe_open(Step.model_validate(OPEN_STEPS[0]), NOW + ago) == text


def test_shadow_finding_has_its_duration() -> None:
    finding = Finding.model_validate(
        row(Finding, kind="grinding", since=NOW - 120, evidence="82 tool calls", shadow=True)
    )

    assert describe_shadow(finding, NOW) == "shadow, grinding for 2 min: 82 tool calls"


@pytest.mark.parametrize(
    ("kind", "fields", "answers"),
    [
        ("permission", {"options": ["allow", "deny"]}, ("allow", "deny")),
        ("question", {"can_answer": True}, ("reply",)),
        ("question", {"can_answer": False}, ()),
        ("ticket", {"options": ["terminate", "acknowledge"]}, ("acknowledge", "terminate")),
        ("ticket", {"options": ["terminate"]}, ("terminate",)),
        ("escalation", {"options": ["more_time", "later"]}, ("more_time",)),
        ("incident", {"options": ["acknowledge"]}, ("acknowledge_all",)),
        ("incident", {}, ()),
    ],
)
def test_item_that_needs_a_person_has_its_answers(
    kind: str, fields: dict[str, Any], answers: tuple[str, ...]
) -> None:
    assert list_answers(AttentionItem.model_validate(row(AttentionItem, kind=kind, **fields))) == answers


def test_answers_of_one_item_have_different_keys() -> None:
    for item in ATTENTION:
        keys = [ANSWERS[name].key for name in list_answers(AttentionItem.model_validate(item))]
        assert len(keys) == len(set(keys)), item["kind"]


@pytest.mark.parametrize(
    ("line", "agents"),
    [
        ("stuck failing", ["billing_export", "deep_research_agent"]),
        ("waiting", ["docs_checker"]),
        ("ended", ["schema_migrator"]),
        ("healthy NIGHTLY", ["nightly_report"]),
        ("same arguments", ["deep_research_agent"]),
        ("nobody", []),
    ],
)
def test_workers_are_filtered_by_health_activity_and_text(line: str, agents: list[str]) -> None:
    state = create_fleet()

    state.filter = WorkerFilter.parse(line)

    assert [filtered_worker.agent_id for filtered_worker in state.filtered_workers] == agents


# -- conversations ---------------------------------------------------------------------------------


def text_delta(text: str, graph: str = "main", node: str = "ask") -> Event:
    return make_event("client_output_delta", graph_id=graph, node_id=node, data={"text": text})


def test_deltas_form_one_message_and_its_question_is_not_repeated() -> None:
    talk = Conversation("bee", "main")

    for delta_event in (text_delta("Which "), text_delta("folder?"), text_delta("noise", graph="other")):
        talk.handle_event(delta_event)
    talk.handle_event(
        make_event(
            "client_input_requested", graph_id="main", node_id="ask", data={"question": "Which folder?"}
        )
    )
    talk.add_user_message("docs", "ada", NOW)
    talk.handle_event(text_delta("Thanks."))

    assert [entry.text for entry in talk.entries] == ["Which folder?", "docs", "Thanks."]


@pytest.mark.parametrize(
    ("kind", "title"),
    [
        ("client_input_requested", "other asks"),
        ("execution_failed", "other failed"),
        ("execution_completed", "other completed"),
    ],
)
def test_background_graph_is_shown_next_to_the_chat(kind: str, title: str) -> None:
    result, talk = (
        make_event(kind, graph_id="other", data={"question": "Go on?", "error": "no"}),
        Conversation("bee", "main"),
    )

    talk.handle_event(result)

    notice = make_background_notice(result, agent_id="bee", is_active=False)
    assert notice is not None
    assert notice.title == title
    assert talk.entries == []


def test_other_graph_events_are_silent_and_switching_is_shown() -> None:
    talk = Conversation("bee", "main")

    paused = make_event("execution_paused", graph_id="other")
    talk.handle_event(paused)
    assert make_background_notice(paused, agent_id="bee", is_active=False) is None
    talk.switch_graph("other", NOW)
    talk.handle_event(text_delta("Now I speak.", graph="other"))

    assert [entry.text for entry in talk.entries] == ["── graph other ──", "Now I speak."]


def test_chat_history_includes_the_pending_question() -> None:
    node_rows = [{**NODES[0], "waiting_for_user": 1}, NODES[1]]
    call = {"id": "c", "name": "ask_user", "arguments": '{"question": "Go on?"}'}
    question_row = {**CHAT_EVENTS[1], "seq": 4, "at": NOW - 30, "text": "One moment.", "tool_calls": [call]}

    transcript = build_transcript(
        map(MessageRow.model_validate, [question_row, *CHAT_EVENTS]),
        list(map(NodeRow.model_validate, node_rows)),
        "ada",
    )

    assert [(entry.by, entry.text) for entry in transcript.entries] == [
        ("", 'run started with {"topic": "links that lead nowhere"}'),
        ("ask", "All pages, or those that changed this week?"),
        ("ada", "All of them."),
        ("ask", "One moment.\nGo on?"),
        ("", "ask waits for your answer"),
    ]
    assert transcript.until == NOW - 30


def chat_entry(text: str, by: str = "ask") -> ChatEntry:
    return ChatEntry(by=by, text=text, at=NOW - 5, is_own=by == "ada")


def test_repeated_chat_events_are_shown_once() -> None:
    talk = Conversation("bee", "main")
    talk.load_transcript(
        Transcript(entries=(chat_entry("Which folder?"), chat_entry("talk waits", by="")), until=NOW), 0
    )

    talk.handle_event(text_delta("Which folder?"))
    result = make_event(
        "client_input_requested", graph_id="main", node_id="ask", data={"question": "Which folder?"}
    )
    talk.handle_event(result)

    assert [entry.text for entry in talk.entries] == ["Which folder?", "talk waits"]


def test_chat_after_a_reconnect_equals_the_services_and_continues() -> None:
    talk = Conversation("bee")
    talk.switch_graph("other", NOW)
    talk.add_note("an earlier note", NOW)
    talk.switch_graph("main", NOW)
    talk.handle_event(text_delta("Which "))
    entry_count = len(talk.entries)
    talk.add_user_message("docs", "ada", NOW)
    talk.add_user_message("and tests", "ada", NOW)

    talk.load_transcript(
        Transcript(entries=(chat_entry("Which folder?"), chat_entry("docs", by="ada")), until=NOW - 1),
        entry_count,
    )
    talk.handle_event(text_delta("Thanks."))

    assert [entry.text for entry in talk.entries] == [
        "an earlier note",
        "── graph main ──",
        "Which folder?",
        "docs",
        "and tests",
        "Thanks.",
    ]


def test_unlogged_streaming_text_continues_after_a_reconnect() -> None:
    talk = Conversation("bee", "main")
    talk.handle_event(text_delta("Which "))

    talk.load_transcript(Transcript(entries=(chat_entry("Hello."),), until=NOW - 1), 1)
    talk.handle_event(text_delta("folder?"))

    assert [entry.text for entry in talk.entries] == ["Hello.", "Which folder?"]


async def test_owner_of_a_run_is_requested_once() -> None:
    """B62: events of another agent with a graph of the same name do not belong to this one."""
    requests: list[tuple[str, str]] = []

    async def has_run(agent_id: str, execution_id: str) -> bool:
        requests.append((agent_id, execution_id))
        return execution_id == "own"

    owners = RunOwnership(has_run)
    results = [
        await owners.is_run_of(make_event("execution_failed", execution_id=run), "bee")
        for run in ("own", "other", "", "own")
    ]

    assert results == [True, False, False, True]
    assert requests == [("bee", "own"), ("bee", "other")]


# -- notices ----------------------------------------------------------------------------------------


def intervention(ticket: str, severity: str = "high") -> Event:
    data = {"ticket_id": ticket, "severity": severity, "analysis": "It loops.", "untriaged": False}
    return make_event("queen_intervention_requested", data=data)


def test_newest_notice_disappears_first() -> None:
    notices = NoticeList()
    first = add_notice_for(intervention("a"), notices)
    for ticket in "bcd":
        add_notice_for(intervention(ticket), notices)

    assert len(notices) == 4
    assert (len(notices.visible), notices.hidden_count) == (3, 1)
    assert notices.dismiss()
    assert notices.newest is not None
    assert notices.newest.ticket_id == "c"
    assert notices.dismiss(first)
    assert not notices.dismiss(first)


def test_ticket_has_one_notice_and_other_events_none() -> None:
    notices = NoticeList()
    add_notice_for(intervention("a", "high"), notices)
    add_notice_for(intervention("a", "critical"), notices)

    assert [notice.kind for notice in notices] == ["critical"]
    assert add_notice_for(make_event("ticket_resolved"), notices) is None


# -- commands ---------------------------------------------------------------------------------------


def test_commands_are_distinguished_from_text() -> None:
    assert parse_command("/graph main") == Command("graph", "main")
    assert parse_command("what is this?") is None
    assert parse_command("//usr/bin") is None
    assert get_message_text("//usr/bin") == "/usr/bin"
    assert len(make_help_lines()) == len(COMMANDS)


@pytest.mark.parametrize(
    ("line", "reason"),
    [("/fly", "unknown command"), ("/load", "needs <path>"), ("/graphs all", "takes no argument")],
)
def test_invalid_command_error_names_a_valid_one(line: str, reason: str) -> None:
    with pytest.raises(InvalidCommandError, match=reason):
        parse_command(line)


# -- formatting -------------------------------------------------------------------------------------


@given(st.text(max_size=60), st.integers(1, 40))
def test_displayed_text_has_no_control_characters(text: str, max_length: int) -> None:
    assert not {char for char in strip_control(text) if ord(char) < 32 and char != "\n"}
    assert "\x1b" not in clip(text, max_length)
    assert len(clip(text, max_length)) <= max_length


def test_displayed_text_has_no_bidirectional_overrides() -> None:
    assert strip_control("re\u202ehcr\u2066a") == "re hcr a"


@given(st.lists(st.integers(0, 1_000), max_size=30), st.integers(1, 20))
def test_sparkline_has_the_requested_width_and_zero_is_empty(numbers: list[int], width: int) -> None:
    line = sparkline(numbers, width)

    assert len(line) == width
    if numbers:
        assert (line[-1] == "·") == (numbers[-1] == 0)


def test_large_numbers_are_abbreviated() -> None:
    assert [format_short_number(number) for number in (950, 12_300, 4_500_000)] == ["950", "12.3k", "4.5M"]


def test_answer_of_the_queen_grows_by_its_pieces() -> None:
    def answer_piece(index: int, text: str, question: str = "q1") -> Event:
        return make_event("queen_answer_delta", data={"index": index, "text": text, "question_id": question})

    answer = (
        StreamedAnswer()
        .add(answer_piece(0, "I will look. "))
        .add(answer_piece(0, "It "))
        .add(answer_piece(1, "repeats."))
    )

    assert answer.text == "It repeats."
    assert StreamedAnswer().add(answer_piece(3, "the rest")).text == ""
    assert answer.add(answer_piece(2, "another", "q2")).text == ""
