"""Parts for alerting tests: tickets, and a peer with configurable behaviour."""

from __future__ import annotations

import asyncio
import json
from typing import Any

from starlette.types import Receive, Scope, Send

from queenright.health.findings import FindingKind, Severity
from queenright.health.tickets.ticket import EscalationTicket, TicketStatus

T0 = 1_800_000_000.0


def make_ticket(**changes: Any) -> EscalationTicket:
    """Return a ticket that the queen has just approved."""
    values: dict[str, Any] = {
        "agent_id": "researcher",
        "session_id": "session-1",
        "node_id": "search",
        "graph_id": "graph",
        "incarnation_id": "one",
        "recent_verdicts": ("RETRY",),
        "total_steps_checked": 20,
        "steps_since_last_accept": 20,
        "stall_minutes": None,
        "worker_trace_id": "",
        "worker_span_id": "",
        "ticket_id": "ticket-1",
        "severity": Severity.HIGH,
        "cause": "the same call again and again",
        "judge_reasoning": "It repeats search(hive).",
        "suggested_action": "Restart it with another query.",
        "evidence_snippet": "no results",
        "kind": FindingKind.DOOM_LOOP,
        "fingerprint": "f" * 32,
        "status": TicketStatus.INTERVENING,
        "first_seen": T0,
        "last_seen": T0,
        "updated_at": T0,
        "analysis": "The search finds nothing, and it asks the same again.",
    }
    return EscalationTicket(**values | changes)


class FakePeer:
    """An API like Alertmanager's that can be down, recover slowly, or refuse alerts."""

    def __init__(self) -> None:
        self.posts: list[list[dict[str, Any]]] = []
        self.status = 200
        self.reported_start: str | None = None
        """Its reported start time; None if it has no status page."""
        self.cluster: Any = None
        """Its reported cluster status."""
        self.status_requests = 0
        self.status_requested = asyncio.Event()
        """Set once the status page has been requested."""
        self.status_allowed = asyncio.Event()
        """The status page responds while this is set."""
        self.status_allowed.set()
        self.refused_agents: set[str] = set()
        """Agents whose alerts it refuses. Like Alertmanager, it accepts the others and responds with 400."""
        self.alerts_accepted = asyncio.Event()
        """Set once it has accepted alerts."""
        self.authorization: list[str] = []
        self.response_body: bytes | None = None
        """The body of every response, with status 200; None to respond like Alertmanager."""
        self.content_type = b"application/json"
        self.extra_headers: list[tuple[bytes, bytes]] = []
        self.is_endless = False
        """Whether the body is repeated until the client disconnects."""

    @property
    def alerts(self) -> list[dict[str, Any]]:
        """Return every accepted alert, in order."""
        return [alert for post in self.posts for alert in post]

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        body = b""
        while True:
            message = await receive()
            body += message.get("body", b"")
            if not message.get("more_body"):
                break
        self.authorization += [value.decode() for name, value in scope["headers"] if name == b"authorization"]
        if self.response_body is not None:
            await self._send_body(self.response_body, receive, send)
            return
        if scope["path"] == "/api/v2/status":
            self.status_requests += 1
            self.status_requested.set()
            await self.status_allowed.wait()
        if scope["path"] == "/api/v2/status" and self.reported_start is not None and self.status == 200:
            page = {"uptime": self.reported_start, "cluster": self.cluster}
            await self._send_body(json.dumps(page).encode(), receive, send)
            return
        status, answer = self._accept_alerts(json.loads(body) if body else [])
        await send({"type": "http.response.start", "status": status, "headers": []})
        await send({"type": "http.response.body", "body": answer})

    async def _send_body(self, body: bytes, receive: Receive, send: Send) -> None:
        headers = [(b"content-type", self.content_type), *self.extra_headers]
        await send({"type": "http.response.start", "status": self.status, "headers": headers})
        if self.is_endless:
            disconnect_task = asyncio.ensure_future(receive())
            while not disconnect_task.done():
                await send({"type": "http.response.body", "body": body, "more_body": True})
                await asyncio.sleep(0)
        await send({"type": "http.response.body", "body": body})

    def _accept_alerts(self, alerts: list[dict[str, Any]]) -> tuple[int, bytes]:
        if self.status != 200:
            return self.status, b"not now"
        accepted_alerts = [alert for alert in alerts if alert["labels"]["agent"] not in self.refused_agents]
        if accepted_alerts:
            self.posts.append(accepted_alerts)
            self.alerts_accepted.set()
        return (200, b"") if len(accepted_alerts) == len(alerts) else (400, b"a label is wrong")
