"""The values of fields that the service has as enumerations."""

from __future__ import annotations

from typing import Annotated

from queenright.api.wire import Words

State = Annotated[str, Words("healthy", "degraded", "stuck", "failing", "terminated")]
Health = Annotated[str, Words("", "healthy", "degraded", "stuck", "failing")]
"""Health of a session that runs."""
Standing = Annotated[str, Words("failing", "stuck", "degraded", "healthy", "ended")]
"""What a session counts as: its health, or that it has ended; failing while an operator has to settle it."""
Activity = Annotated[str, Words("working", "waiting", "queued", "paused", "idle")]
"""What a session that runs does now."""
AgentSort = Annotated[
    str,
    Words(
        *("attention", "agent", "activity", "progress", "tokens", "cost"),
        *("-attention", "-agent", "-activity", "-progress", "-tokens", "-cost"),
    ),
]
"""The order of a list of sessions."""
SessionOutcome = Annotated[str, Words("", "completed", "failed", "cancelled", "terminated", "unknown")]
"""How a session ended; empty while it runs."""
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
"""The kind of a finding."""
Reading = Annotated[str, Words("ok", "warning", "bad", "unknown")]
"""The status of a health signal; `unknown`: not reported."""
Phase = Annotated[str, Words("idle", "llm", "tool", "unknown")]
"""The phase of a worker's step."""
Waiting = Annotated[str, Words("", "user_input", "paused", "children", "backoff", "done")]
"""Why a worker waits; empty if it does not."""
LadderLevel = Annotated[
    str,
    Words(
        "nudged", "escalated", "more_time", "handing_off", "terminating", "terminated", "recovering", "human"
    ),
]
"""The level of a ladder."""
StepKind = Annotated[
    str,
    Words(
        "turn",
        "tool",
        "wait",
        "checkpoint",
        "finding",
        "state",
        "ticket",
        "intervention",
        "notification",
        "started",
        "ended",
        "other",
    ),
]
"""The kind of a step of a session."""
StepPhase = Annotated[str, Words("open", "done", "failed", "instant")]
ActionKind = Annotated[str, Words("nudge", "escalate", "terminate", "recover", "answer")]
Outcome = Annotated[
    str,
    Words(
        "started", "done", "queued", "unreachable", "unconfirmed", "refused", "failed", "expired", "dry_run"
    ),
]
"""The outcome of an intervention."""
Decision = Annotated[str, Words("more_time", "hand_off", "terminate")]
EscalationStatus = Annotated[str, Words("pending", "decided", "timed_out", "withdrawn")]
ApprovalStatus = Annotated[str, Words("requested", "approved", "denied", "expired", "void")]
InstructionKind = Annotated[str, Words("nudge", "terminate")]
AnswerOutcome = Annotated[str, Words("done", "refused", "failed")]
ProviderStatus = Annotated[str, Words("ok", "degraded", "failing", "limited", "unknown")]
"""The status of a model provider, measured on the fleet's own calls."""
BreakerState = Annotated[str, Words("closed", "open", "half_open")]
RecoveryState = Annotated[str, Words("waiting", "starting", "watching", "succeeded", "failed", "dropped")]
TicketStatus = Annotated[
    str, Words("open", "dismissed", "intervening", "acknowledged", "resolved", "worker_gone")
]
Triage = Annotated[str, Words("dismiss", "intervene", "bypass")]
AckChannel = Annotated[str, Words("api", "cli", "page", "link", "chat", "slack", "pagerduty")]
"""How a ticket was acknowledged."""
AlertStatus = Annotated[str, Words("firing", "resolved")]
ChatRole = Annotated[str, Words("operator", "queen")]
CheckOutcome = Annotated[str, Words("healthy", "ticket", "unknown")]
