"""The words that fields take; each is one of an enumeration of the service."""

from __future__ import annotations

from typing import Literal

State = Literal["healthy", "degraded", "stuck", "failing", "terminated"]
"""How a worker is."""
Severity = Literal["low", "medium", "high", "critical"]
FindingKind = Literal[
    "recovery_failed",
    "context_exhausted",
    "provider_failure",
    "circuit_breaker_open",
    "doom_loop",
    "error_streak",
    "retry_storm",
    "stall",
    "zero_progress",
    "no_tool_calls",
    "checkpoint_stale",
    "no_tokens",
    "heartbeat_missing",
    "tool_timeout",
    "error_rate",
    "output_unchanged",
    "token_spike",
]
"""What a detector saw."""
Reading = Literal["ok", "warning", "bad", "unknown"]
"""What a signal says; `unknown`: nobody reported it."""
Phase = Literal["idle", "llm", "tool", "unknown"]
"""What a worker is in the middle of."""
Waiting = Literal["", "user_input", "paused", "children", "backoff", "done"]
"""Why a worker is rightly idle; empty if it is not."""
LadderLevel = Literal[
    "nudged",
    "escalated",
    "more_time",
    "handing_off",
    "terminating",
    "terminated",
    "recovering",
    "human",
]
"""How far the interventions have got."""
ActionKind = Literal["nudge", "escalate", "terminate", "recover"]
Outcome = Literal[
    "started",
    "done",
    "queued",
    "unreachable",
    "unconfirmed",
    "refused",
    "failed",
    "expired",
    "dry_run",
]
"""What became of an intervention."""
Decision = Literal["more_time", "hand_off", "terminate"]
EscalationStatus = Literal["pending", "decided", "timed_out", "withdrawn"]
ApprovalStatus = Literal["requested", "approved", "denied", "expired", "void"]
InstructionKind = Literal["nudge", "terminate"]
AnswerOutcome = Literal["done", "refused", "failed"]
BreakerState = Literal["closed", "open", "half_open"]
RecoveryState = Literal["waiting", "starting", "watching", "succeeded", "failed", "dropped"]
TicketStatus = Literal["open", "dismissed", "intervening", "acknowledged", "resolved", "worker_gone"]
Triage = Literal["dismiss", "intervene", "bypass"]
Way = Literal["api", "cli", "page", "link", "chat", "slack", "pagerduty"]
"""By what way somebody said that a ticket is in hand."""
AlertStatus = Literal["firing", "resolved"]
ChatRole = Literal["operator", "queen"]
CheckOutcome = Literal["healthy", "ticket", "unknown"]
