"""The values of fields that are enumerations in the service."""

from __future__ import annotations

from typing import Annotated, Any, Final, get_args

from queenright.api.base_model import KnownValues

State = Annotated[str, KnownValues("healthy", "degraded", "stuck", "failing", "terminated")]
Health = Annotated[str, KnownValues("", "healthy", "degraded", "stuck", "failing")]
"""Health of a running session."""
WORST_FIRST: Final = ("failing", "stuck", "degraded", "healthy")
"""Health of a running session, worst first."""
ListedState = Annotated[str, KnownValues(*WORST_FIRST, "ended")]
"""State of a session in the list of agents: its health, or `ended`; `failing` while an operator must act."""
Activity = Annotated[str, KnownValues("working", "waiting", "queued", "paused", "held", "idle")]
"""Current activity of a running session."""
ActivityKind = Annotated[str, KnownValues("", "working", "waiting", "queued", "paused", "held", "idle")]
"""Current activity of a session; empty after its end."""
AgentSort = Annotated[
    str,
    KnownValues(
        *("attention", "agent", "activity", "progress", "tokens", "cost"),
        *("-attention", "-agent", "-activity", "-progress", "-tokens", "-cost"),
    ),
]
"""The order of a list of sessions."""
SessionOutcome = Annotated[str, KnownValues("", "completed", "failed", "cancelled", "terminated", "unknown")]
"""How a session ended; empty while it runs."""
Severity = Annotated[str, KnownValues("low", "medium", "high", "critical")]
FindingKind = Annotated[
    str,
    KnownValues(
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
Reading = Annotated[str, KnownValues("ok", "warning", "bad", "unknown")]
"""The status of a health signal; `unknown`: not reported."""
Phase = Annotated[str, KnownValues("idle", "llm", "tool", "unknown")]
"""The phase of a worker's step."""
WorkerAction = Annotated[str, KnownValues("nudge", "escalate", "terminate", "recover")]
"""What can be done with a worker."""
TicketAction = Annotated[str, KnownValues("acknowledge", "unacknowledge", "resolve", "dismiss", "terminate")]
"""What can be done with a ticket or its worker."""
Waiting = Annotated[str, KnownValues("", "user_input", "paused", "children", "backoff", "held", "done")]
"""Why a worker waits; empty if it does not."""
LadderLevel = Annotated[
    str,
    KnownValues(
        "nudged", "escalated", "more_time", "handing_off", "terminating", "terminated", "recovering", "human"
    ),
]
"""The level of a ladder."""
StepKind = Annotated[
    str,
    KnownValues(
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
StepPhase = Annotated[str, KnownValues("open", "done", "failed", "instant")]
ActionKind = Annotated[str, KnownValues("nudge", "escalate", "terminate", "recover", "answer")]
Outcome = Annotated[
    str,
    KnownValues(
        "started", "done", "queued", "unreachable", "unconfirmed", "refused", "failed", "expired", "dry_run"
    ),
]
"""The outcome of an intervention."""
Decision = Annotated[str, KnownValues("more_time", "hand_off", "terminate")]
EscalationStatus = Annotated[str, KnownValues("pending", "decided", "timed_out", "withdrawn")]
ApprovalStatus = Annotated[str, KnownValues("requested", "approved", "denied", "expired", "void")]
InstructionKind = Annotated[str, KnownValues("nudge", "terminate")]
AnswerOutcome = Annotated[str, KnownValues("done", "refused", "failed")]
ProviderStatus = Annotated[str, KnownValues("ok", "degraded", "failing", "limited", "unknown")]
"""The status of a model provider, measured on the fleet's own calls."""
BreakerState = Annotated[str, KnownValues("closed", "open", "half_open")]
RecoveryState = Annotated[
    str, KnownValues("waiting", "starting", "watching", "succeeded", "failed", "dropped")
]
TicketStatus = Annotated[
    str, KnownValues("open", "dismissed", "intervening", "acknowledged", "resolved", "worker_gone")
]
OPEN_TICKET_STATUSES: Final = frozenset({"open", "intervening", "acknowledged"})
Triage = Annotated[str, KnownValues("dismiss", "intervene", "bypass")]
AckChannel = Annotated[str, KnownValues("api", "cli", "chat", "slack", "pagerduty")]
"""How a ticket was acknowledged."""
AlertStatus = Annotated[str, KnownValues("firing", "resolved")]
ChatRole = Annotated[str, KnownValues("operator", "queen")]
CheckOutcome = Annotated[str, KnownValues("healthy", "ticket", "unknown")]


def list_values(term: Any) -> tuple[str, ...]:
    """Return the values of a term."""
    [words] = (value.words for value in get_args(term) if isinstance(value, KnownValues))
    return words
