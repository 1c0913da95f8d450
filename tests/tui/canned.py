"""A service with fixed responses behind the client's transport, so that every picture is the same."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Mapping
from pathlib import Path
from typing import Any, Final

import httpx

from queenright.api.agent_slot import AgentSlot
from queenright.api.agents import AgentRow, Finding, HistoryRow
from queenright.api.attention import AttentionItem
from queenright.api.base_model import ApiModel
from queenright.api.breakers import Breaker
from queenright.api.events import Event
from queenright.api.loaded_agents import EntryPoint, ExecutionRow, GraphRow, MessageRow, NodeRow, SessionRow
from queenright.api.status import Status
from queenright.api.steps import Step
from queenright.api.tickets import ChatMessage, Ticket
from queenright.client import AsyncQueenright

NOW: Final = 1_769_248_800.0
Row = dict[str, Any]
EXAMPLES: Final[dict[str, Row]] = json.loads(Path(__file__).with_name("examples.json").read_text("utf-8"))


def row(model: type[ApiModel], **fields: object) -> Row:
    """Return the example row of a model, with some fields replaced."""
    return EXAMPLES[model.__name__] | fields


def worker(agent: str, state: str, reason: str = "", kind: str = "doom_loop", **fields: object) -> Row:
    """Return a worker that has been in its state for three minutes."""
    session = {"session_id": f"{agent}-1", "state_since": NOW - 180, "reason": reason}
    findings: dict[str, object] = {"findings": [row(Finding, kind=kind)]}
    if not reason:
        findings = {"findings": [], "bad_steps": 0, "verdicts": ["ACCEPT"] * 8}
    return row(AgentRow, agent_id=agent, state=state, **session | findings | fields)


WORKERS: Final = [
    worker(
        "billing_export",
        "failing",
        "4 failures in a row: ConnectError",
        "provider_failure",
        activity="working: query",
        bad_steps=4,
        errors=9,
    ),
    worker(
        "deep_research_agent",
        "stuck",
        "search was called 12 times with the same arguments and the same result",
        activity="working: search",
        verdicts=["ACCEPT", "CONTINUE", *["RETRY"] * 10],
        bad_steps=12,
        steps=42,
        node_id="researcher",
    ),
    worker("inbox_triage", "degraded", "6 bad steps since the last good one", "retry_storm", bad_steps=6),
    worker(
        "docs_checker",
        "healthy",
        waiting="user_input",
        activity="waiting for its user",
        activity_kind="waiting",
    ),
    worker("nightly_report", "healthy", activity="working: model"),
    worker("price_watch", "healthy", activity="working: fetch_page"),
    worker("schema_migrator", "healthy", ended=True, outcome="completed", activity="", activity_kind=""),
]
TICKET: Final = "018f6f7e-0000-7000-8000-0000000000c1"
TICKETS: Final = [
    row(
        Ticket,
        ticket_id=TICKET,
        agent_id="deep_research_agent",
        session_id="deep_research_agent-1",
        actions=["acknowledge"],
    ),
    row(
        Ticket,
        ticket_id="018f6f7e-0000-7000-8000-0000000000c2",
        agent_id="billing_export",
        session_id="billing_export-1",
        severity="critical",
        kind="provider_failure",
        cause="The database refuses connections",
        suggested_action="Terminate it, and look at the database.",
        evidence_snippet="ConnectError: connection refused (db:5432), 4 times",
        occurrences=2,
        first_seen=NOW - 95,
        actions=["acknowledge"],
    ),
    row(
        Ticket,
        ticket_id="018f6f7e-0000-7000-8000-0000000000c3",
        agent_id="inbox_triage",
        severity="medium",
        status="dismissed",
        kind="retry_storm",
        first_seen=NOW - 7_000,
        occurrences=1,
    ),
]
BREAKERS: Final = [
    row(Breaker, name="tool_execution:billing_export:query", reason="5 failures in a row: ConnectError"),
    row(Breaker, name="llm_call:inbox_triage:main", state="half_open", failures=5, half_open_at=NOW - 3),
    row(
        Breaker,
        name="tool_execution:price_watch:fetch_page",
        state="closed",
        failures=0,
        reason="",
        opened_at=None,
        half_open_at=None,
    ),
]
_HISTORY_AGENT: Final = (
    (3_400, "degraded", "healthy"),
    (1_500, "healthy", "degraded"),
    (1_100, "degraded", "healthy"),
    (700, "healthy", "degraded"),
    (180, "degraded", "stuck"),
)
HISTORY: Final = [
    row(
        HistoryRow,
        seq=number,
        time=NOW - ago,
        type="health_state_changed",
        state=to,
        reason="",
        session_id="deep_research_agent-1",
        data={"from": was, "to": to, "reason": "12 bad steps" if to == "stuck" else "", "findings": []},
    )
    for number, (ago, was, to) in enumerate(_HISTORY_AGENT)
]
MESSAGES: Final = [
    row(
        ChatMessage, id="m1", at=NOW - 60, role="operator", by="ada", text="What was tried?", question_id="m1"
    ),
    row(
        ChatMessage,
        id="m2",
        at=NOW - 52,
        text="One nudge, 90 s ago, told it to search for other words. It answered with the same search. "
        "I would stop it at the next bad step.",
        question_id="m1",
    ),
]
SLOTS: Final = [row(AgentSlot, graphs=["docs_checker", "log_digest"])]
CHAT_EVENTS: Final = [
    row(
        MessageRow,
        conversation="ask",
        seq=1,
        at=NOW - 60,
        kind="input",
        text='{"topic": "links that lead nowhere"}',
    ),
    row(
        MessageRow,
        conversation="ask",
        seq=2,
        at=NOW - 58,
        kind="assistant",
        role="assistant",
        text="All pages, or those that changed this week?",
    ),
    row(MessageRow, conversation="ask", seq=3, at=NOW - 40, text="All of them."),
]
NODES: Final = [row(NodeRow, node_id="ask", client_facing=True), row(NodeRow, node_id="list_pages")]
GRAPHS: Final = [
    row(GraphRow, graph_id="docs_checker", agent_id="docs_checker", nodes=["ask", "list_pages"]),
    row(GraphRow, graph_id="log_digest", agent_id="log_digest", primary=False, active=False),
]


def event(kind: str, ago: float, agent: str = "deep_research_agent", **data: object) -> Row:
    """Return an event that happened ``ago`` seconds ago."""
    graph = str(data.pop("graph", ""))
    node = str(data.pop("node", "researcher"))
    return row(
        Event,
        id="" if kind.endswith("_delta") else f"{kind}-{agent}-{ago}",
        type=kind,
        time=NOW - ago,
        agent_id=agent,
        session_id=f"{agent}-1",
        graph_id=graph,
        node_id=node,
        execution_id=f"{agent}-run",
        data=data,
    )


def completed_steps(agent: str, interval: float, times: int) -> list[Row]:
    """Return completed steps of a worker, the last of them two seconds ago."""
    return [
        event("step_completed", 2 + interval * number, agent, verdict="ACCEPT", index=times - number)
        for number in reversed(range(times))
    ]


STREAM: Final = [
    stream_event
    for number in range(6, 0, -1)
    for stream_event in (
        event(
            "llm_call_completed", 7 * number + 4, model="claude", input_tokens=900 * number, output_tokens=80
        ),
        event("tool_call_completed", 7 * number + 2, tool="search", outcome="ok", duration=1.2),
        event("step_completed", 7 * number, index=42 - number, verdict="RETRY", text="no new result"),
    )
]


def step(kind: str, ago: float, name: str, duration: float = 0.0, **fields: object) -> Row:
    """Return a step that ended ``ago`` seconds ago."""
    at, id_ = NOW - ago, f"{kind}-{ago}"
    defaults = {"at": at, "started_at": at - duration, "ended_at": at, "type": f"{kind}_completed"}
    return row(Step, step_id=id_, kind=kind, name=name, **defaults | fields)


STEPS: Final = [
    step("started", 610, "", type="execution_started"),
    *(
        session_step
        for number in range(7, 1, -1)
        for session_step in (
            step(
                "turn",
                30 * number + 20,
                "claude",
                4.0,
                type="llm_call_completed",
                tokens_in=900 * number,
                tokens_out=80,
            ),
            step("tool", 30 * number + 15, "search", 1.2),
            step("turn", 30 * number, f"step {42 - number}", type="step_completed", detail="RETRY"),
        )
    ),
    step(
        "finding",
        50,
        "doom_loop",
        severity="high",
        detail="opened",
        text="search was called 12 times with the same arguments and the same result",
    ),
    step("state", 50, "stuck", text="12 bad steps since the last good one"),
    step("ticket", 45, "worker_escalation_ticket", severity="high", text="high ticket opened: doom loop"),
    step("intervention", 40, "nudge_sent", text="nudged: Search for other words, or say what blocks you."),
    step("tool", 35, "search", 1.2, phase="failed", detail="TimeoutError"),
]
OPEN_STEPS: Final = [
    step(
        "tool",
        33,
        "search",
        phase="open",
        ended_at=None,
        fires_at=NOW + 27,
        limit_seconds=60.0,
        reason="learned from 41 durations",
    )
]
ATTENTION: Final = [
    row(
        AttentionItem,
        item_id="permission-1",
        agent_id="refactor_auth",
        agents=["refactor_auth"],
        session_id="refactor_auth-1",
        title="Run a command in /srv/app?",
        text="rm -rf build && make release",
        tool="Bash",
        since=NOW - 20,
        deadline=NOW + 40,
        options=["allow", "deny"],
    ),
    row(
        AttentionItem,
        item_id="approval-1",
        kind="approval",
        severity="critical",
        agent_id="billing_export",
        agents=["billing_export"],
        session_id="billing_export-1",
        title="The queen asks to terminate it",
        text="The database refuses every connection since 09:58.",
        since=NOW - 60,
        deadline=NOW + 240,
        ticket_id="018f6f7e-0000-7000-8000-0000000000c2",
        options=["approve", "deny"],
    ),
    row(
        AttentionItem,
        item_id="docs_checker/docs_checker-1",
        kind="question",
        agent_id="docs_checker",
        agents=["docs_checker"],
        session_id="docs_checker-1",
        title="Which folder shall I check?",
        since=NOW - 180,
        can_answer=True,
        node_id="ask",
        question_id="ask-1:1",
    ),
    row(
        AttentionItem,
        item_id="escalation-1",
        kind="escalation",
        severity="high",
        agent_id="deep_research_agent",
        agents=["deep_research_agent"],
        session_id="deep_research_agent-1",
        title="Decide how to go on with it",
        text="Two nudges changed nothing.",
        since=NOW - 85,
        deadline=NOW + 515,
        options=["more_time", "hand_off", "terminate"],
    ),
    row(
        AttentionItem,
        item_id="ticket-1",
        kind="ticket",
        severity="high",
        agent_id="inbox_triage",
        agents=["inbox_triage"],
        session_id="inbox_triage-1",
        title="The mail server answers 429",
        since=NOW - 400,
        options=["acknowledge", "terminate"],
        ticket_id="018f6f7e-0000-7000-8000-0000000000c3",
    ),
    row(
        AttentionItem,
        item_id="incident-1",
        kind="incident",
        severity="high",
        agent_id="",
        agents=["mail_digest", "lead_score", "lead_import", "mail_filter"],
        session_id="",
        incarnation_id="",
        title="Model provider anthropic",
        text="mail_digest has had no answer from its model provider since 09:48 UTC",
        since=NOW - 700,
        options=["acknowledge"],
        ticket_id="018f6f7e-0000-7000-8000-0000000000c4",
        workers=4,
    ),
]
INCIDENTS: Final = [
    {
        "incident_id": "incident-1",
        "cause": "provider:anthropic",
        "severity": "high",
        "opened_at": NOW - 700,
        "closed_at": None,
        "workers": 4,
        "open_tickets": 3,
        "ticket_ids": [ticket["ticket_id"] for ticket in TICKETS],
    }
]
FLEET_EVENTS: Final = [
    *completed_steps("price_watch", 4, 11),
    *completed_steps("nightly_report", 9, 5),
    *completed_steps("inbox_triage", 17, 3),
    event("health_state_changed", 180, **{"from": "degraded", "to": "stuck", "reason": "12 bad steps"}),
    event("worker_escalation_ticket", 120, ticket=TICKETS[0], change="opened"),
    event("ticket_triaged", 110, "", ticket_id=TICKET, decision="intervene", reason="It loops."),
    event(
        "nudge_sent",
        90,
        attempt=1,
        delivery="injected",
        by="ladder",
        message="Search for other words, or say what blocks you.",
    ),
    event(
        "circuit_breaker_state_changed",
        30,
        "billing_export",
        **{
            "name": "tool_execution:billing_export:query",
            "from": "closed",
            "to": "open",
            "reason": "5 failures",
        },
    ),
    event("worker_escalation_ticket", 20, "billing_export", ticket=TICKETS[1], change="opened"),
]
QUEEN_NOTIFICATIONS: Final = [
    event(
        "queen_intervention_requested",
        2,
        "billing_export",
        ticket_id=TICKETS[1]["ticket_id"],
        severity="critical",
        analysis="The database refuses every connection since 09:58. The export cannot go on by itself.",
        urgency="now",
        untriaged=False,
    )
]
CHAT_MESSAGES: Final = [
    event("client_output_delta", 20, "docs_checker", graph="docs_checker", node="ask", text="Which folder "),
    event("client_output_delta", 19, "docs_checker", graph="docs_checker", node="ask", text="shall I check?"),
    event(
        "client_input_requested",
        18,
        "docs_checker",
        graph="docs_checker",
        node="ask",
        question="Which folder shall I check?",
    ),
]
BACKGROUND_FAILURE: Final = event(
    "execution_failed", 3, "log_digest", graph="log_digest", error="no log server answers"
)


class Canned:
    """
    A service with fixed responses.

    Args:
        fleet: Events of the stream of the whole fleet.
        worker: Events of the stream of one worker.
        talk: Events of the stream of loaded agents.
        queen: Events with the pieces of the queen's answers.

    Attributes:
        actions: Method, path and body of every action.
        is_away: Whether the service does not respond.
        may_act: Whether the operator may act.
        error_status: The status of every response; 0 for regular responses.
        attention: Items that need a person.
        feed: The latest events, newest first.
    """

    def __init__(
        self,
        fleet: list[Row] = FLEET_EVENTS,
        worker: list[Row] = STREAM,
        talk: list[Row] = CHAT_MESSAGES,
        queen: list[Row] | None = None,
    ) -> None:
        self.actions: list[tuple[str, str, Any]] = []
        self.error_status = 0
        self.is_away = False
        self.may_act = True
        self.attention = ATTENTION
        self.feed: list[Row] = []
        self.finished_streams = 0
        """Number of streams that have sent all their events."""
        self._streams = {"fleet": fleet, "worker": worker, "talk": talk, "queen": queen or []}

    def create_client(self) -> AsyncQueenright:
        """Create a client of the service."""
        return AsyncQueenright("http://127.0.0.1:8420", transport=httpx.MockTransport(self._answer))

    async def _answer(self, request: httpx.Request) -> httpx.Response:
        if self.is_away:
            raise httpx.ConnectError("refused", request=request)
        path = request.url.path
        if self.error_status:
            title = {401: "a token is needed", 403: "this needs the role operator"}[self.error_status]
            problem = {"content-type": "application/problem+json"}
            return httpx.Response(self.error_status, headers=problem, json={"title": title})
        if path.endswith("/events"):
            return self._stream(request)
        if request.method != "GET":
            self.actions.append((request.method, path, json.loads(request.content or b"null")))
        if path == "/api/status":
            return httpx.Response(200, json=row(Status, feed=self.feed))
        if path == "/api/caller":
            role = "operator" if self.may_act else "viewer"
            caller = {"name": "ada", "role": role, "may_act": self.may_act, "may_manage": False}
            return httpx.Response(200, json=caller)
        if path == "/api/attention":
            return httpx.Response(200, json={"items": self.attention, "total": len(self.attention)})
        if path.endswith("/steps"):
            return httpx.Response(200, json=_page_of_steps(request.url.params.get("after")))
        if path == "/api/incidents":
            return httpx.Response(200, json={"incidents": INCIDENTS})
        path_suffixes = ("", "/acknowledge")
        tickets = {
            f"/api/tickets/{ticket['ticket_id']}{verb}": ticket
            for ticket in TICKETS
            for verb in path_suffixes
        }
        return httpx.Response(200, json=tickets.get(path) or _find_list(path))

    def _stream(self, request: httpx.Request) -> httpx.Response:
        types = request.url.params.get("types", "")
        names = {"all": "worker", "client_output_delta": "talk", "queen_answer_delta": "queen"}
        stream_name = names.get(types.partition(",")[0], "fleet")
        return httpx.Response(
            200,
            headers={"content-type": "text/event-stream"},
            content=self._send_events(self._streams[stream_name]),
        )

    async def _send_events(self, events: list[Row]) -> AsyncIterator[bytes]:
        for event in events:
            id_line = f"id: {event['id']}\n" if event["id"] else ""
            yield f"event: {event['type']}\n{id_line}data: {json.dumps(event)}\n\n".encode()
        self.finished_streams += 1
        await asyncio.Event().wait()


def _page_of_steps(after: str | None) -> Row:
    """Return the page of the newest steps, then empty pages."""
    items = STEPS if after is None else []
    return {
        "session_id": "deep_research_agent-1",
        "incarnation_id": "018f6f7e-0000-7000-8000-000000000001",
        "items": items,
        "first": "step-1",
        "last": "step-9",
        "more": False,
        "open": OPEN_STEPS,
        "clocks": [],
        "counts": [],
    }


def _find_list(path: str) -> Mapping[str, Any]:
    lists = {
        "/api/agents": ("agents", WORKERS),
        "/api/tickets": ("tickets", TICKETS),
        "/api/breakers": ("breakers", BREAKERS),
        "history": ("history", HISTORY),
        "chat": ("messages", MESSAGES),
        "graphs": ("graphs", GRAPHS),
        "messages": ("messages", CHAT_EVENTS),
        "sessions": ("sessions", [row(SessionRow, status="active")]),
        "nodes": ("nodes", NODES),
        "entry-points": ("entry_points", [row(EntryPoint, running=1)]),
    }
    name, rows = lists.get(path) or lists.get(path.rpartition("/")[2]) or ("", [])
    if name:
        return {
            name: rows,
            "next": None,
            "active_graph_id": "docs_checker",
            "loaded": SLOTS,
            "unreadable": 0,
            "total": len(rows),
            "counts": {"health": {}, "activity": {}, "owner": {}, "repository": {}},
        }
    if "/executions/" in path:
        return row(ExecutionRow, execution_id=path.rpartition("/")[2])
    return {}
