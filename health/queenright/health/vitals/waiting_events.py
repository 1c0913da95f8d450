"""Apply pauses, waits and user input to vital signs."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from queenright.health.vitals.activity import record_activity
from queenright.health.vitals.progress import record_user_input
from queenright.health.vitals.session_outcome import WorkerStatus
from queenright.health.vitals.vital_facts import clean_display_name, parse_question
from queenright.health.vitals.vital_state import VitalState
from queenright.health.vitals.waiting import begin_wait, end_wait
from queenright.instrumentation.names import WaitingReason
from queenright.runtime.events import AgentEvent


def on_paused(v: VitalState, event: AgentEvent, data: Mapping[str, Any], at: float) -> None:
    """Begin a pause, which stops the stall clock."""
    if record_activity(v, at):
        v.status = WorkerStatus.PAUSED
        begin_wait(v, WaitingReason.PAUSED, at)


def on_resumed(v: VitalState, event: AgentEvent, data: Mapping[str, Any], at: float) -> None:
    """End a pause or wait."""
    if record_activity(v, at):
        v.status = WorkerStatus.ACTIVE
        end_wait(v, at)


def on_waiting(v: VitalState, event: AgentEvent, data: Mapping[str, Any], at: float) -> None:
    """Begin the reported wait. A report without a reason ends the wait."""
    if not record_activity(v, at):
        return
    try:
        reason = WaitingReason(str(data.get("reason")))
    except ValueError:
        v.status = WorkerStatus.ACTIVE
        end_wait(v, at)
        return
    v.status = WorkerStatus.PAUSED if reason is WaitingReason.PAUSED else WorkerStatus.ACTIVE
    held_by = clean_display_name(data.get("finding")) if reason is WaitingReason.HELD else ""
    begin_wait(v, reason, at, question=parse_question(data), held_by=held_by)


def on_input_requested(v: VitalState, event: AgentEvent, data: Mapping[str, Any], at: float) -> None:
    """Begin a wait for the user."""
    if record_activity(v, at):
        begin_wait(v, WaitingReason.USER_INPUT, at, question=parse_question(data))


def on_input_received(v: VitalState, event: AgentEvent, data: Mapping[str, Any], at: float) -> None:
    """End the wait for the user."""
    record_user_input(v, at)
    if record_activity(v, at) and v.waiting is WaitingReason.USER_INPUT:
        end_wait(v, at)
