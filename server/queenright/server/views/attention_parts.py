"""Merge the attention items of all partitions of a cluster. A single process has one part."""

from __future__ import annotations

from collections.abc import Sequence
from operator import itemgetter
from typing import Any, Final, Self

from queenright import api
from queenright.health.findings import Severity
from queenright.health.interventions.target import Target
from queenright.server.views.incident_parts import IncidentPart, join_parts

MAX_LISTED_ITEMS: Final = 200
_MAX_AGENTS: Final = 20
"""Maximum agents of an incident that are listed by name."""
_CAUSE_TITLES: Final = {"provider": "Model provider", "mcp": "MCP server", "tool": "Tool"}
"""Titles of incidents by kind of cause. The cause of others is unknown."""
_ENDED_TEXT: Final = "All workers of this incident have ended. Nobody has acknowledged it."


class AttentionIncident(IncidentPart):
    """The part of an incident in one partition, and whether it needs a person."""

    agents: dict[str, float]
    """The time at which each agent's first ticket was opened, oldest first."""
    text: str
    """The cause of the first open ticket that nobody has acknowledged."""
    text_at: float | None
    """When that ticket was opened; None if there is none."""
    is_handled: bool
    """Whether a ticket is open, or was acknowledged."""
    can_acknowledge: bool
    """Whether a ticket of an ended session can be acknowledged."""

    def join(self, later: Self) -> Self:
        """Merge this part with a later part of the same incident."""
        agents = [*self.agents.items(), *later.agents.items()]
        first_seen: dict[str, float] = {}
        for name, at in sorted(agents, key=itemgetter(1)):
            first_seen.setdefault(name, at)
        parts_with_text = [part for part in (self, later) if part.text_at is not None]
        earliest_part = min(parts_with_text, key=lambda part: part.text_at or 0.0, default=self)
        return (
            super()
            .join(later)
            .model_copy(
                update={
                    "agents": first_seen,
                    "text": earliest_part.text,
                    "text_at": earliest_part.text_at,
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
    """Tickets that are items, unless their incident has workers in other partitions."""
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
    incident_ticket_ids = {ticket_id for incident in incidents for ticket_id in incident.ticket_ids}
    items = [
        ticket for part in parts for ticket in part.tickets if ticket.ticket_id not in incident_ticket_ids
    ]
    if all(part.has_incident_items for part in parts):
        items += [_make_incident_item(incident) for incident in incidents if incident.is_unacknowledged]
    total = len(items) + sum(part.total for part in parts)
    items += [item for part in parts for item in part.items]
    return api.AttentionList(items=sorted(items, key=get_urgency_key)[:MAX_LISTED_ITEMS], total=total)


def get_urgency_key(item: api.AttentionItem) -> tuple[int, float, str]:
    """Return the sort key of an item: deadlines first, then critical items, questions, and others."""
    if item.deadline is not None:
        return 0, item.deadline, item.item_id
    if item.severity == Severity.CRITICAL:
        return 1, item.since, item.item_id
    return 2 if item.kind == "question" else 3, item.since, item.item_id


def make_attention_item(
    target: Target, item_id: str, kind: str, title: str, since: float, **other_fields: Any
) -> api.AttentionItem:
    """Return an item. ``other_fields`` override the defaults of an item about one worker."""
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
    return api.AttentionItem.of(
        target, item_id=item_id, kind=kind, title=title, since=since, **values | other_fields
    )


def _make_incident_item(incident: AttentionIncident) -> api.AttentionItem:
    kind, _, name = incident.cause.partition(":")
    title = _CAUSE_TITLES.get(kind, "Many workers got worse at the same time")
    names = list(incident.agents)
    return make_attention_item(
        Target(agent_id="", session_id="", incarnation_id=""),
        incident.incident_id,
        "incident",
        f"{title} {name}".rstrip(),
        incident.opened_at,
        severity=incident.severity,
        text=_ENDED_TEXT if incident.text_at is None else incident.text,
        ticket_id=incident.incident_id,
        options=["acknowledge"],
        agents=names[:_MAX_AGENTS],
        agents_more=len(names[_MAX_AGENTS:]),
        workers=incident.workers,
    )
