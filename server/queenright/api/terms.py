"""The words that fields take; each is one of an enumeration of the service."""

from __future__ import annotations

from typing import Annotated

from queenright.api.wire import Words

State = Annotated[str, Words("healthy", "degraded", "stuck", "failing", "terminated")]
Health = Annotated[str, Words("", "healthy", "degraded", "stuck", "failing")]
"""How a worker is."""
SessionOutcome = Annotated[str, Words("", "completed", "failed", "cancelled", "terminated", "unknown")]
"""How a session ended; empty while it goes on."""
Severity = Annotated[str, Words("low", "medium", "high", "critical")]
FindingKind = Annotated[
    str,
    Words(
        "recovery_failed",
        "runs_failed",
        "context_exhausted",
        "provider_failure",
        "circuit_breaker_open",
        "resource_limit",
        "spending",
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
        "mcp_server_missing",
        "error_rate",
        "output_unchanged",
        "token_spike",
        "grinding",
        "token_burn",
    ),
]
"""What a detector saw."""
Reading = Annotated[str, Words("ok", "warning", "bad", "unknown")]
"""What a signal says; `unknown`: nobody reported it."""
Phase = Annotated[str, Words("idle", "llm", "tool", "unknown")]
"""What a worker is in the middle of."""
Waiting = Annotated[str, Words("", "user_input", "paused", "children", "backoff", "done")]
"""Why a worker is rightly idle; empty if it is not."""
LadderLevel = Annotated[
    str,
    Words(
        "nudged", "escalated", "more_time", "handing_off", "terminating", "terminated", "recovering", "human"
    ),
]
"""How far the interventions have got."""
ActionKind = Annotated[str, Words("nudge", "escalate", "terminate", "recover", "answer")]
Outcome = Annotated[
    str,
    Words(
        "started", "done", "queued", "unreachable", "unconfirmed", "refused", "failed", "expired", "dry_run"
    ),
]
"""What became of an intervention."""
Decision = Annotated[str, Words("more_time", "hand_off", "terminate")]
EscalationStatus = Annotated[str, Words("pending", "decided", "timed_out", "withdrawn")]
ApprovalStatus = Annotated[str, Words("requested", "approved", "denied", "expired", "void")]
InstructionKind = Annotated[str, Words("nudge", "terminate")]
AnswerOutcome = Annotated[str, Words("done", "refused", "failed")]
ProviderStatus = Annotated[str, Words("ok", "degraded", "failing", "limited", "unknown")]
"""How a model provider does, by the fleet's own calls."""
BreakerState = Annotated[str, Words("closed", "open", "half_open")]
RecoveryState = Annotated[str, Words("waiting", "starting", "watching", "succeeded", "failed", "dropped")]
TicketStatus = Annotated[
    str, Words("open", "dismissed", "intervening", "acknowledged", "resolved", "worker_gone")
]
Triage = Annotated[str, Words("dismiss", "intervene", "bypass")]
Way = Annotated[str, Words("api", "cli", "page", "link", "chat", "slack", "pagerduty")]
"""By what way somebody said that a ticket is in hand."""
AlertStatus = Annotated[str, Words("firing", "resolved")]
ChatRole = Annotated[str, Words("operator", "queen")]
CheckOutcome = Annotated[str, Words("healthy", "ticket", "unknown")]
