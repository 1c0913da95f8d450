"""Attention items of each partition of a cluster, merged into one list. A single process has one part."""

from __future__ import annotations

from collections.abc import Sequence
from operator import itemgetter
from typing import Any, Final, Self

from queenright import api
from queenright.health.findings import Severity
from queenright.health.interventions.target import Target
from queenright.server.views.incident_parts import IncidentPart, join_parts

LISTED: Final = 200
_MAX_AGENTS: Final = 20
"""Maximum agents of an incident that are named."""
_CAUSES: Final = {"provider": "Model provider", "mcp": "MCP server", "tool": "Tool"}
"""The causes of incidents that have a name."""
_ENDED: Final = "All its workers have ended. Nobody has acknowledged it."


class AttentionIncident(IncidentPart):
    """The part of an incident in one partition, and whether it needs a person."""

    agents: dict[str, float]
    """When the first ticket of each agent was opened, oldest first."""
    text: str
    """The cause of the first open ticket that nobody has acknowledged."""
    text_at: float | None
    """When that ticket was opened; null if there is none."""
    is_handled: bool
    """Whether a ticket is open, or was acknowledged."""
    can_acknowledge: bool
    """Whether a ticket can be acknowledged whose session has ended."""

    def join(self, later: Self) -> Self:
        """Merge this part with a later part of the same incident."""
        agents = [*self.agents.items(), *later.agents.items()]
        first: dict[str, float] = {}
        for name, at in sorted(agents, key=itemgetter(1)):
            first.setdefault(name, at)
        texts = [part for part in (self, later) if part.text_at is not None]
        text = min(texts, key=lambda part: part.text_at or 0.0, default=self)
        return (
            super()
            .join(later)
            .model_copy(
                update={
                    "agents": first,
                    "text": text.text,
                    "text_at": text.text_at,
                    "is_handled": self.is_handled or later.is_handled,
                    "can_acknowledge": self.can_acknowledge or later.can_acknowledge,
                }
            )
        )

    @property
    def is_unacknowledged(self) -> bool:
        """Whether nobody has acknowledged an open ticket, or any ticket if all sessions have ended."""
        return self.text_at is not None or (self.can_acknowledge and not self.is_handled)


class AttentionPart(api.AttentionList):
    """Attention items of one partition. `items` and `total` exclude incidents and their tickets."""

    # An owner with an earlier version sends none of these fields; its incidents are among its items.
    tickets: Sequence[api.AttentionItem] = ()
    """Tickets that are items unless their incident has workers of other partitions."""
    incidents: Sequence[AttentionIncident] = ()
    """Parts of incidents, including closed ones, which may belong to an incident that is open elsewhere."""
    has_incident_items: bool = True
    """Whether incidents are items. They are not if only items of one worker are listed."""


def merge_attention(parts: Sequence[AttentionPart]) -> api.AttentionList:
    """Merge the attention items of all partitions, most urgent first."""
    incidents = [
        incident
        for incident in join_parts(incident for part in parts for incident in part.incidents)
        if incident.closed_at is None
    ]
    in_incidents = {ticket_id for incident in incidents for ticket_id in incident.ticket_ids}
    items = [ticket for part in parts for ticket in part.tickets if ticket.ticket_id not in in_incidents]
    if all(part.has_incident_items for part in parts):
        items += [_incident_item(incident) for incident in incidents if incident.is_unacknowledged]
    total = len(items) + sum(part.total for part in parts)
    items += [item for part in parts for item in part.items]
    return api.AttentionList(items=sorted(items, key=urgency)[:LISTED], total=total)


def urgency(item: api.AttentionItem) -> tuple[int, float, str]:
    """Return the sort key of an item: expiring, critical, asked, others."""
    if item.deadline is not None:
        return 0, item.deadline, item.item_id
    if item.severity == Severity.CRITICAL:
        return 1, item.since, item.item_id
    return 2 if item.kind == "question" else 3, item.since, item.item_id


def attention_item(
    target: Target, item_id: str, kind: str, title: str, since: float, **more: Any
) -> api.AttentionItem:
    """Return an item. ``more`` has the fields that differ from those of an item about one worker."""
    values: dict[str, Any] = {
        "severity": None,
        "text": "",
        "deadline": None,
        "ticket_id": "",
        "tool": "",
        "options": [],
        "agents": [target.agent_id],
        "agents_more": 0,
        "workers": 1,
        "can_answer": False,
        "node_id": "",
        "question_id": "",
    }
    return api.AttentionItem.of(target, item_id=item_id, kind=kind, title=title, since=since, **values | more)


def _incident_item(incident: AttentionIncident) -> api.AttentionItem:
    kind, _, name = incident.cause.partition(":")
    title = _CAUSES.get(kind, "Many workers got worse at once")
    names = list(incident.agents)
    return attention_item(
        Target(agent_id="", session_id="", incarnation_id=""),
        incident.incident_id,
        "incident",
        f"{title} {name}".rstrip(),
        incident.opened_at,
        severity=incident.severity,
        text=_ENDED if incident.text_at is None else incident.text,
        ticket_id=incident.incident_id,
        options=["acknowledge"],
        agents=names[:_MAX_AGENTS],
        agents_more=len(names[_MAX_AGENTS:]),
        workers=incident.workers,
    )
