"""Values of the pages of a worker, of breakers and of recoveries."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final
from urllib.parse import quote

from queenright.api.event_text import has_feed_line
from queenright.health.breakers.circuit import BreakerStatus
from queenright.health.history import HealthSnapshot
from queenright.health.interventions.target import ActionKind
from queenright.health.monitor import WorkerHealth
from queenright.health.recovery.attempt import Recovery
from queenright.runtime.events import AgentEvent
from queenright.server.console.forms import part
from queenright.server.service import Service
from queenright.server.views.acting import breaker_row, recovery_row
from queenright.server.views.agents import agent_row
from queenright.server.views.formatting import ago
from queenright.server.views.possible_actions import objection, ticket_actions
from queenright.server.views.view import event_line, ticket_row

_A_DAY: Final = 86_400.0
_HISTORY: Final = 40
_HISTORY_READ: Final = 3 * _HISTORY
"""Entries to read: an intervention has two, one of which is shown."""
_SESSIONS: Final = 20
BREAKERS: Final = 300
"""Circuit breakers on a page; a fleet has thousands, most of them closed."""

_ACTS: Final = {
    ActionKind.NUDGE: ("Nudge", "be nudged"),
    ActionKind.ESCALATE: ("Escalate", "be escalated"),
    ActionKind.TERMINATE: ("Terminate", "be terminated"),
    ActionKind.RECOVER: ("Recover", "be recovered"),
}


async def agent_values(service: Service, agent_id: str, session_id: str | None) -> dict[str, Any]:
    """
    Return the values of a worker's page.

    Raises:
        AgentNotFoundError: The worker is unknown.
        StoreError: Its history cannot be read.
    """
    health = await service.health.get_agent_health(agent_id, session_id)
    worker = service.monitor.get(agent_id, health.session_id)
    assert worker is not None  # nothing was awaited since it was found
    now = service.clock()
    row = agent_row(service, worker)
    sessions = sorted(service.monitor.of_agent(agent_id), key=lambda w: w.vitals.last_event, reverse=True)
    tickets = [one for one in service.tickets.open_tickets() if one.worker_agent_id == agent_id]
    breakers = sorted(health.circuit_breakers, key=lambda b: (b.state.value == "closed", b.name))
    recoveries = [one for one in service.recoveries.latest if one.agent_id == agent_id]
    acts = _acts(service, worker)
    history = await service.health.get_health_history(agent_id, _A_DAY, limit=_HISTORY_READ)
    events = [_event(one, agent_id) for one in reversed(history) if has_feed_line(one.type, one.data)]
    return {
        "agent": row,
        "at": now,
        "up_for": ago(health.metrics.uptime_seconds),
        "heartbeat": _ago(health.last_heartbeat, now),
        "checkpoint": _ago(health.last_checkpoint, now),
        "interventions": health.metrics.intervention_count,
        "signals": [signal.to_dict() for signal in health.signals],
        "acts": acts,
        "sessions": [_session(one, now) for one in sessions[:_SESSIONS]],
        "sessions_more": max(0, len(sessions) - _SESSIONS),
        "tickets": [ticket_row(one, actions=ticket_actions(service, one)) for one in tickets],
        "permissions": [one for one in service.permissions.open_requests() if one.agent_id == agent_id],
        "breakers": [breaker_row(one) for one in breakers[:_SESSIONS]],
        "breakers_more": max(0, len(breakers) - _SESSIONS),
        "recoveries": [recovery_row(one) for one in recoveries[:5]],
        "history": [event_line(one, brief=True) for one in events if has_feed_line(one.type, one.data)][
            :_HISTORY
        ],
        "dashboard": _dashboard(service.settings.alerting.dashboard_url, agent_id, health.session_id),
    }


def breakers_values(service: Service, name: str) -> dict[str, Any]:
    """Return the values of the breakers' page: all, or those with ``name`` in their name."""
    known: Sequence[BreakerStatus] = service.health.all_circuit_breakers()
    wanted = [one for one in known if one.name == name] or [
        one for one in known if name.casefold() in one.name.casefold()
    ]
    shown = wanted[:BREAKERS]
    return {
        "at": service.clock(),
        "name": name,
        "troubled": [breaker_row(one) for one in shown if _troubled(one) or one.name == name],
        "well": [breaker_row(one) for one in shown if not _troubled(one) and one.name != name],
        "more": max(0, len(wanted) - BREAKERS),
        "known": len(known),
        "not_closed": sum(one.state.value != "closed" for one in known),
    }


def _troubled(one: BreakerStatus) -> bool:
    return one.state.value != "closed" or one.failures > 0


def recoveries_values(service: Service, found: Sequence[Recovery]) -> dict[str, Any]:
    """Return the values of the recoveries' page."""
    limits = service.settings.health_monitoring.recovery
    return {
        "at": service.clock(),
        "rows": [(recovery_row(one), one.by) for one in found],
        "per_task": limits.max_attempts_per_task,
        "per_hour": limits.max_attempts_per_hour,
    }


def _acts(service: Service, worker: WorkerHealth) -> list[Mapping[str, Any]]:
    """Return the actions on a worker with their links, and why one is not possible now."""
    v = worker.vitals
    who = f"agent={part(v.agent_id)}&session={part(v.session_id)}"
    kinds = [ActionKind.RECOVER] if v.ended else [ActionKind.NUDGE, ActionKind.ESCALATE, ActionKind.TERMINATE]
    return [
        {
            "label": _ACTS[kind][0],
            "href": f"/act/{kind.value}?{who}",
            "danger": kind is ActionKind.TERMINATE,
            "quiet": kind is ActionKind.ESCALATE,
            "passive": _ACTS[kind][1],
            "refused": objection(service, kind, worker),
        }
        for kind in kinds
    ]


def _session(worker: WorkerHealth, now: float) -> dict[str, Any]:
    v = worker.vitals
    return {
        "session_id": v.session_id,
        "task_id": v.task_id or v.session_id,
        "state": worker.state.value,
        "ended": v.ended,
        "outcome": v.status.value if v.ended else "",
        "steps": v.steps_total,
        "began": f"{ago(now - v.started_at)} ago",
        "heard": f"{ago(now - v.last_event)} ago",
    }


def _event(entry: HealthSnapshot, agent_id: str) -> AgentEvent:
    return AgentEvent(
        type=entry.type,
        time=entry.time,
        agent_id=agent_id,
        session_id=entry.session_id,
        incarnation_id=entry.incarnation_id,
        data=entry.data,
    )


def _ago(moment: float | None, now: float) -> str:
    return f"{ago(now - moment)} ago" if moment else "-"


def _dashboard(template: str, agent_id: str, session_id: str) -> str:
    """Return the URL of a worker's dashboard; empty if the template needs a ticket or a trace."""
    if "{ticket_id}" in template or "{trace_id}" in template:
        return ""
    return template.format(agent=quote(agent_id, safe=""), session_id=quote(session_id, safe=""))
