"""Parts for alerting tests: tickets, and a peer with configurable behaviour."""

from __future__ import annotations

import asyncio
import json
from typing import Any

from starlette.types import Receive, Scope, Send

from queenright.health.findings import FindingKind, Severity
from queenright.health.tickets.ticket import EscalationTicket, TicketStatus

T0 = 1_800_000_000.0


def ticket(**changes: Any) -> EscalationTicket:
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
    """An Alertmanager's API that can be down, recover slowly, or refuse alerts."""

    def __init__(self) -> None:
        self.posts: list[list[dict[str, Any]]] = []
        self.status = 200
        self.started: str | None = None
        """Its reported start time; None: it has no status page."""
        self.cluster: Any = None
        """Its reported cluster status."""
        self.status_requests = 0
        self.asked_for_status = asyncio.Event()
        """Set once the status page has been requested."""
        self.status_allowed = asyncio.Event()
        """The status page responds while this is set."""
        self.status_allowed.set()
        self.refuses: set[str] = set()
        """Agents whose alerts it refuses. Like the real one, it accepts the others and responds with 400."""
        self.arrived = asyncio.Event()
        """Set once it has accepted alerts."""
        self.authorization: list[str] = []
        self.says: bytes | None = None
        """The body of every response, with status 200; None: as Alertmanager."""
        self.content_type = b"application/json"
        self.more_headers: list[tuple[bytes, bytes]] = []
        self.endless = False
        """Repeat the body until the client disconnects."""

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
        self.authorization += [v.decode() for k, v in scope["headers"] if k == b"authorization"]
        if self.says is not None:
            await self._say(self.says, receive, send)
            return
        if scope["path"] == "/api/v2/status":
            self.status_requests += 1
            self.asked_for_status.set()
            await self.status_allowed.wait()
        if scope["path"] == "/api/v2/status" and self.started is not None and self.status == 200:
            page = {"uptime": self.started, "cluster": self.cluster}
            await self._say(json.dumps(page).encode(), receive, send)
            return
        status, answer = self._take(json.loads(body) if body else [])
        await send({"type": "http.response.start", "status": status, "headers": []})
        await send({"type": "http.response.body", "body": answer})

    async def _say(self, body: bytes, receive: Receive, send: Send) -> None:
        headers = [(b"content-type", self.content_type), *self.more_headers]
        await send({"type": "http.response.start", "status": self.status, "headers": headers})
        if self.endless:
            gone = asyncio.ensure_future(receive())
            while not gone.done():
                await send({"type": "http.response.body", "body": body, "more_body": True})
                await asyncio.sleep(0)
        await send({"type": "http.response.body", "body": body})

    def _take(self, alerts: list[dict[str, Any]]) -> tuple[int, bytes]:
        if self.status != 200:
            return self.status, b"not now"
        good = [alert for alert in alerts if alert["labels"]["agent"] not in self.refuses]
        if good:
            self.posts.append(good)
            self.arrived.set()
        return (200, b"") if len(good) == len(alerts) else (400, b"a label is wrong")
