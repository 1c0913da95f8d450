"""The messages to the judge, queen and orchestrator. Each contains everything for a decision."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any

from queenright.health.monitoring.worker_summary import no_active_session
from queenright.judge.quoting import quote
from queenright.judge.ticket_policy import progress_since


def check_message(
    at: float, check: Mapping[str, Any], summary: Mapping[str, Any], trend: Mapping[str, Any] | None
) -> str:
    """
    Return the message to the judge about a worker.

    Args:
        check: The worker (``agent_id``, ``session_id``), its findings, and why the judge checks it.
        summary: The worker's health (``get_worker_health_summary``).
        trend: The numbers of the last check and the changes since (``Trends.compare``); None before the first
            check.
    """
    parts = [f"Health check at {_format_iso(at)}. This worker has findings. Judge it.", quote("check", check)]
    if trend is None:
        parts.append("This is its first check.")
    else:
        parts += ["The numbers of its last check, and what has changed since:", quote("trend", trend)]
    return "\n".join([*parts, quote_worker(summary)])


def triage_message(ticket: Mapping[str, Any], summary: Mapping[str, Any] | None) -> str:
    """
    Return the message to the queen: the whole ticket, and the worker's current health (None if unknown).
    """
    return "\n".join(["A ticket to triage.", quote("ticket", ticket), quote_worker(summary)])


def escalation_message(escalation: Mapping[str, Any], summary: Mapping[str, Any] | None) -> str:
    """
    Return the message to the orchestrator: the escalation, and the worker's current health (None if unknown).
    """
    return "\n".join(["An escalation to decide.", quote("escalation", escalation), quote_worker(summary)])


def question_message(
    at: float, case: Mapping[str, Any], summary: Mapping[str, Any] | None, question: Mapping[str, Any]
) -> str:
    """Return the message to the queen in a chat: the ticket's case, the worker's health, and the question."""
    return "\n".join(
        [
            f"The operator asks about a ticket, at {_format_iso(at)}.",
            quote("case", case),
            quote_worker(summary),
            quote("question", question),
        ]
    )


def quote_worker(summary: Mapping[str, Any] | None) -> str:
    """
    Quote a worker's health for a model. It must be quoted because the worker wrote a part of it.

    Each finding has ``progress_since``: the time of the last progress after its onset, or null. Findings of
    detectors in shadow mode are omitted, because they must not influence a decision.
    """
    health = no_active_session() if summary is None else dict(summary)
    health.pop("shadow_findings", None)
    if rows := health.get("findings"):
        health["findings"] = [
            {**row, "progress_since": progress_since(health, row["since"], row["kind"])} for row in rows
        ]
    return quote("worker", health)


def _format_iso(at: float) -> str:
    return datetime.fromtimestamp(at, UTC).isoformat(timespec="seconds")
