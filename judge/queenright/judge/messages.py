"""What judge and queen are told: all that a decision needs in one message, so that it takes one answer."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any

from queenright.health.summary import no_active_session
from queenright.judge.quoting import quote


def check_message(
    at: float, check: Mapping[str, Any], summary: Mapping[str, Any], trend: Mapping[str, Any] | None
) -> str:
    """
    Return the judge's message about one worker.

    Args:
        at: When it is looked at, in seconds since the epoch.
        check: Who it is (``agent_id``, ``session_id``), what was found, what woke the judge.
        summary: Its health (``get_worker_health_summary``).
        trend: The numbers of the last check and the change since (``Trends.of``); None if it is the first.
    """
    when = datetime.fromtimestamp(at, UTC).isoformat(timespec="seconds")
    parts = [f"Health check at {when}. This worker shows something; judge it.", quote("check", check)]
    if trend is None:
        parts.append("It was not looked at before.")
    else:
        parts += ["What it was like when it was last looked at, and what has changed:", quote("trend", trend)]
    return "\n".join([*parts, worker_quoted(summary)])


def triage_message(ticket: Mapping[str, Any], summary: Mapping[str, Any] | None) -> str:
    """Return the queen's message: the whole ticket, and how the worker is now (None: it is not known)."""
    return "\n".join(["A ticket to triage.", quote("ticket", ticket), worker_quoted(summary)])


def escalation_message(escalation: Mapping[str, Any], summary: Mapping[str, Any] | None) -> str:
    """Return the orchestrator's message: what is asked, and how the worker is now (None: it is not known)."""
    return "\n".join(["An escalation to decide.", quote("escalation", escalation), worker_quoted(summary)])


def worker_quoted(summary: Mapping[str, Any] | None) -> str:
    """
    Return a worker's health for a model, quoted: part of it was written by the worker.

    What detectors in shadow say is left out: nothing must follow from it, no opinion either.
    """
    told = no_active_session() if summary is None else dict(summary)
    told.pop("shadow_findings", None)
    return quote("worker", told)
