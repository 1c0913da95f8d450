"""
Every name Queenright puts on the wire: metrics, labels, spans, attributes.

Nothing else in the project spells one of these out; rules, dashboards and
docs are tested against this table and against a live ``/metrics``.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import Final, Literal

MetricKind = Literal["counter", "gauge", "histogram"]


@dataclass(frozen=True, slots=True)
class MetricName:
    """One Prometheus metric: its name as scraped, its type, its complete label set."""

    name: str
    kind: MetricKind
    labels: tuple[str, ...]
    help: str

    def __str__(self) -> str:
        return self.name


# -- metrics of a worker's process --------------------------------------------------------------

WORKER_INFO: Final = MetricName(
    "queenright_worker_info", "gauge", ("agent", "framework", "version"), "Always 1; what the worker is."
)
WORKER_STEPS: Final = MetricName(
    "queenright_worker_steps_total", "counter", ("agent", "node", "verdict"), "Steps ended, by verdict."
)
WORKER_STEP_DURATION: Final = MetricName(
    "queenright_worker_step_duration_seconds", "histogram", ("agent", "node"), "How long steps took."
)
WORKER_TOOL_CALLS: Final = MetricName(
    "queenright_worker_tool_calls_total", "counter", ("agent", "tool", "outcome"), "Tool calls ended."
)
WORKER_TOOL_DURATION: Final = MetricName(
    "queenright_worker_tool_duration_seconds", "histogram", ("agent", "tool"), "How long tool calls took."
)
WORKER_TOKENS: Final = MetricName(
    "queenright_worker_tokens_total", "counter", ("agent", "model", "direction"), "Tokens used."
)
AGENT_COST: Final = MetricName(
    "queenright_agent_cost_dollars_total", "counter", ("agent",), "Dollars that model calls cost."
)
PROVIDER_CALLS: Final = MetricName(
    "queenright_provider_calls_total",
    "counter",
    ("provider", "model", "outcome"),
    "Calls of models that ended, of all agents; bounded.",
)
PROVIDER_CALL_DURATION: Final = MetricName(
    "queenright_provider_call_duration_seconds",
    "histogram",
    ("provider", "model"),
    "How long calls of models took that succeeded; bounded.",
)
PROVIDER_LIMITED_UNTIL: Final = MetricName(
    "queenright_provider_limited_until_timestamp_seconds",
    "gauge",
    ("provider", "model"),
    "When a rate limit ends, while it holds.",
)
WORKER_ERRORS: Final = MetricName(
    "queenright_worker_errors_total", "counter", ("agent", "error_type"), "Errors, by class."
)
WORKER_STEPS_SINCE_ACCEPT: Final = MetricName(
    "queenright_worker_steps_since_accept", "gauge", ("agent",), "Steps judged bad since the last ACCEPT."
)
WORKER_LAST_HEARTBEAT: Final = MetricName(
    "queenright_worker_last_heartbeat_timestamp_seconds",
    "gauge",
    ("agent",),
    "When the process last said it lives.",
)
WORKER_LAST_ACTIVITY: Final = MetricName(
    "queenright_worker_last_activity_timestamp_seconds",
    "gauge",
    ("agent",),
    "When the worker last did anything.",
)
WORKER_LAST_PROGRESS: Final = MetricName(
    "queenright_worker_last_progress_timestamp_seconds",
    "gauge",
    ("agent",),
    "When the worker last got further.",
)
WORKER_LAST_CHECKPOINT: Final = MetricName(
    "queenright_worker_last_checkpoint_timestamp_seconds",
    "gauge",
    ("agent",),
    "When the worker last saved its state.",
)
WORKER_WAITING: Final = MetricName(
    "queenright_worker_waiting", "gauge", ("agent", "reason"), "1 while the worker is rightly idle."
)
WORKER_STALLS: Final = MetricName(
    "queenright_worker_stalls_total", "counter", ("agent", "phase"), "Stalls seen from inside the worker."
)
TELEMETRY_DROPPED: Final = MetricName(
    "queenright_telemetry_dropped_total", "counter", ("signal",), "Telemetry given up, by signal."
)
SERIES_LIMITED: Final = MetricName(
    "queenright_series_limited_total", "counter", ("metric",), "Label values folded into `other`."
)

# -- metrics of the service ---------------------------------------------------------------------

AGENTS: Final = MetricName("queenright_agents", "gauge", ("state",), "Agents known, by health state.")
AGENT_STATE: Final = MetricName(
    "queenright_agent_state", "gauge", ("agent", "state"), "1 for the state an agent is in; bounded."
)
AGENT_STATE_SINCE: Final = MetricName(
    "queenright_agent_state_since_timestamp_seconds",
    "gauge",
    ("agent",),
    "When an agent came into its health state; bounded.",
)
AGENTS_WITH_FINDING: Final = MetricName(
    "queenright_agents_with_finding", "gauge", ("kind",), "Agents with an open finding, by its kind."
)
AGENTS_WITH_ONE_KIND: Final = MetricName(
    "queenright_degraded_agents_with_one_kind",
    "gauge",
    ("kind",),
    "Degraded agents whose open findings are all of one kind, by that kind.",
)
UNPAGED_AGENTS: Final = MetricName(
    "queenright_unpaged_agents", "gauge", (), "Agents in trouble about which nobody has been paged."
)
STATE_TRANSITIONS: Final = MetricName(
    "queenright_state_transitions_total", "counter", ("from", "to"), "Changes of health state."
)
FINDINGS: Final = MetricName("queenright_findings_total", "counter", ("kind", "severity"), "Findings opened.")
SHADOW_FINDINGS: Final = MetricName(
    "queenright_shadow_findings_total",
    "counter",
    ("kind", "severity"),
    "Findings of detectors on trial, from which nothing followed.",
)
DETECTION_DELAY: Final = MetricName(
    "queenright_detection_delay_seconds",
    "histogram",
    ("kind",),
    "From a threshold crossed to a state changed.",
)
HEALTH_CHECKS: Final = MetricName(
    "queenright_health_checks_total", "counter", ("outcome",), "Health checks made."
)
HEALTH_CHECK_DURATION: Final = MetricName(
    "queenright_health_check_duration_seconds", "histogram", ("outcome",), "How long a health check took."
)
WORKERS_EVALUATED: Final = MetricName(
    "queenright_workers_evaluated", "gauge", (), "Workers the last sweep really looked at."
)
JUDGE_CHECKS: Final = MetricName(
    "queenright_judge_checks_total", "counter", ("outcome",), "The judge's checks."
)
JUDGE_LAST_CHECK: Final = MetricName(
    "queenright_judge_last_check_timestamp_seconds", "gauge", (), "When the judge last finished a tick."
)
LLM_TOKENS: Final = MetricName(
    "queenright_llm_tokens_total", "counter", ("role", "model"), "Tokens spent on judging."
)
LLM_COST: Final = MetricName(
    "queenright_llm_cost_dollars_total", "counter", ("role", "model"), "Dollars spent on judging."
)
LLM_REQUEST_DURATION: Final = MetricName(
    "queenright_llm_request_duration_seconds", "histogram", ("role", "model"), "How long the model took."
)
LLM_CACHED_TOKENS: Final = MetricName(
    "queenright_llm_cached_tokens_total", "counter", ("role", "model"), "Tokens read from a provider's cache."
)
LLM_FALLBACKS: Final = MetricName(
    "queenright_llm_fallbacks_total", "counter", ("role", "reason"), "Answers of the rules for a model."
)
LLM_BUDGET_LIMIT: Final = MetricName(
    "queenright_llm_budget_limit", "gauge", ("window", "unit"), "What judging may cost."
)
LLM_BUDGET_SPENT: Final = MetricName(
    "queenright_llm_budget_spent", "gauge", ("window", "unit"), "What judging has cost in the window."
)
TICKETS: Final = MetricName("queenright_tickets_total", "counter", ("severity", "cause"), "Tickets opened.")
TICKETS_OPEN: Final = MetricName(
    "queenright_tickets_open", "gauge", ("severity", "status"), "Tickets that are not closed."
)
TRIAGE: Final = MetricName("queenright_triage_total", "counter", ("decision",), "The queen's decisions.")
TRIAGE_DURATION: Final = MetricName(
    "queenright_triage_duration_seconds", "histogram", ("decision",), "From ticket to decision."
)
INTERVENTIONS: Final = MetricName(
    "queenright_interventions_total", "counter", ("kind", "outcome"), "Interventions carried out."
)
TIME_TO_INTERVENTION: Final = MetricName(
    "queenright_time_to_intervention_seconds", "histogram", ("kind",), "From finding to intervention."
)
CIRCUIT_BREAKER_STATE: Final = MetricName(
    "queenright_circuit_breaker_state", "gauge", ("breaker", "state"), "1 for the state a breaker is in."
)
CIRCUIT_BREAKER_TRANSITIONS: Final = MetricName(
    "queenright_circuit_breaker_transitions_total", "counter", ("breaker", "to"), "Changes of breaker state."
)
CIRCUIT_BREAKER_FAILURES: Final = MetricName(
    "queenright_circuit_breaker_failures", "gauge", ("breaker",), "Failures in a row that a breaker counts."
)
CIRCUIT_BREAKER_HALF_OPEN: Final = MetricName(
    "queenright_circuit_breaker_half_open_timestamp_seconds",
    "gauge",
    ("breaker",),
    "When an open breaker lets a call through to try.",
)
RECOVERIES_ACTIVE: Final = MetricName(
    "queenright_recoveries_active", "gauge", (), "Recoveries that have not ended."
)
RECOVERIES: Final = MetricName("queenright_recoveries_total", "counter", ("outcome",), "Recoveries tried.")
THREADS_LEFT: Final = MetricName(
    "queenright_threads_left", "gauge", (), "Functions of agents that go on unwaited for."
)
OUTBOX_PENDING: Final = MetricName(
    "queenright_outbox_pending", "gauge", (), "Notifications not yet handed to every Alertmanager."
)
OUTBOX_OLDEST: Final = MetricName(
    "queenright_outbox_oldest_timestamp_seconds",
    "gauge",
    (),
    "When the oldest pending notification was written.",
)
NOTIFICATIONS: Final = MetricName(
    "queenright_notifications_total", "counter", ("outcome",), "Notifications handed to Alertmanager."
)
EVENTS: Final = MetricName("queenright_events_total", "counter", ("type",), "Events on the bus.")
EVENT_BUS_DROPPED: Final = MetricName(
    "queenright_event_bus_dropped_total", "counter", ("subscriber",), "Events a slow subscriber missed."
)
INGEST_SPANS: Final = MetricName(
    "queenright_ingest_spans_total", "counter", ("outcome",), "Spans received over OTLP."
)
TELEMETRY_REJECTED: Final = MetricName(
    "queenright_telemetry_rejected_total",
    "counter",
    ("dialect", "reason"),
    "Spans, log records and hook calls that cannot be used; their sender is told.",
)
TELEMETRY_UNUSED: Final = MetricName(
    "queenright_telemetry_unused_total",
    "counter",
    ("dialect", "reason"),
    "Spans, log records and hook calls that nothing is made of.",
)
HOOK_CALLS: Final = MetricName(
    "queenright_hook_calls_total", "counter", ("client", "outcome"), "Hook calls of coding agents received."
)
SERIES_LEFT_OUT: Final = MetricName(
    "queenright_series_left_out", "gauge", ("metric",), "Agents or breakers without series of their own now."
)

METRICS: Final[dict[str, MetricName]] = {
    m.name: m for m in list(globals().values()) if isinstance(m, MetricName)
}

# -- label values -------------------------------------------------------------------------------


class Verdict(StrEnum):
    """How a step ended, as its judge said."""

    ACCEPT = "ACCEPT"
    RETRY = "RETRY"
    CONTINUE = "CONTINUE"
    ESCALATE = "ESCALATE"


class ToolOutcome(StrEnum):
    """How a tool call ended."""

    OK = "ok"
    ERROR = "error"
    TIMEOUT = "timeout"


class WaitingReason(StrEnum):
    """Why a worker is rightly idle."""

    USER_INPUT = "user_input"
    PAUSED = "paused"
    CHILDREN = "children"
    BACKOFF = "backoff"
    DONE = "done"


class Phase(StrEnum):
    """What a worker is in the middle of; each has its own stall clock."""

    IDLE = "idle"
    LLM = "llm"
    TOOL = "tool"
    UNKNOWN = "unknown"


class SpanOutcome(StrEnum):
    """How a span ended that was reported while it was open."""

    OK = "ok"
    ERROR = "error"
    UNKNOWN = "unknown"


OTHER: Final = "other"
"""The value that label values beyond a bound are folded into."""

# -- spans and their attributes -----------------------------------------------------------------


class Operation(StrEnum):
    """Values of ``gen_ai.operation.name`` that Queenright writes."""

    INVOKE_AGENT = "invoke_agent"
    CHAT = "chat"
    EXECUTE_TOOL = "execute_tool"


SPAN_STEP: Final = "step"
SPAN_HEALTH_CHECK: Final = "health_check"
SPAN_JUDGE_CHECK: Final = "judge_check"
SPAN_TRIAGE: Final = "triage"
SPAN_INTERVENE: Final = "intervene"
SPAN_RECOVER: Final = "recover"
SPAN_NOTIFY: Final = "notify"

# Standard names, used as they stand.
GEN_AI_OPERATION_NAME: Final = "gen_ai.operation.name"
GEN_AI_AGENT_NAME: Final = "gen_ai.agent.name"
GEN_AI_AGENT_VERSION: Final = "gen_ai.agent.version"
GEN_AI_CONVERSATION_ID: Final = "gen_ai.conversation.id"
GEN_AI_PROVIDER_NAME: Final = "gen_ai.provider.name"
GEN_AI_REQUEST_MODEL: Final = "gen_ai.request.model"
GEN_AI_USAGE_INPUT_TOKENS: Final = "gen_ai.usage.input_tokens"
GEN_AI_USAGE_OUTPUT_TOKENS: Final = "gen_ai.usage.output_tokens"
GEN_AI_RESPONSE_FINISH_REASONS: Final = "gen_ai.response.finish_reasons"
GEN_AI_TOOL_NAME: Final = "gen_ai.tool.name"
GEN_AI_TOOL_CALL_ID: Final = "gen_ai.tool.call.id"
GEN_AI_TOOL_CALL_ARGUMENTS: Final = "gen_ai.tool.call.arguments"
GEN_AI_TOOL_CALL_RESULT: Final = "gen_ai.tool.call.result"
GEN_AI_EVALUATION_RESULT: Final = "gen_ai.evaluation.result"
GEN_AI_EVALUATION_NAME: Final = "gen_ai.evaluation.name"
GEN_AI_EVALUATION_SCORE_LABEL: Final = "gen_ai.evaluation.score.label"
GEN_AI_EVALUATION_EXPLANATION: Final = "gen_ai.evaluation.explanation"
ERROR_TYPE: Final = "error.type"
SERVICE_NAME: Final = "service.name"
SERVICE_INSTANCE_ID: Final = "service.instance.id"

# Our own.
INCARNATION_ID: Final = "queenright.incarnation.id"
GRAPH_ID: Final = "queenright.graph.id"
FRAMEWORK: Final = "queenright.framework"
NODE_ID: Final = "queenright.node.id"
STEP_INDEX: Final = "queenright.step.index"
STEP_VERDICT: Final = "queenright.step.verdict"
STEP_FEEDBACK: Final = "queenright.step.feedback"
TOOL_ARGUMENTS_HASH: Final = "queenright.tool.arguments.hash"
TOOL_RESULT_HASH: Final = "queenright.tool.result.hash"
TOOL_EFFECT: Final = "queenright.tool.effect"
TOOL_TIMEOUT: Final = "queenright.tool.timeout"
HEARTBEAT_INTERVAL: Final = "queenright.heartbeat.interval"
HEARTBEAT_PHASE: Final = "queenright.heartbeat.phase"
HEARTBEAT_PROGRESS: Final = "queenright.heartbeat.progress"
HEARTBEAT_LAST_TOOL_CALL: Final = "queenright.heartbeat.last_tool_call"
"""Seconds since the epoch."""
HEARTBEAT_TOKEN_COUNT: Final = "queenright.heartbeat.token_count"
HEARTBEAT_ERROR_COUNT: Final = "queenright.heartbeat.error_count"
TASK_ID: Final = "queenright.task.id"
TASK_REPEATABLE: Final = "queenright.task.repeatable"
"""True of a task that may be done again from its start, whatever it did before."""
CONTROL: Final = "queenright.control"
"""True of a worker that fetches instructions."""
METRICS_SERVED: Final = "queenright.metrics.served"
"""True of a worker whose process serves its metrics to Prometheus itself."""
OUTPUT_FILES_CHANGED: Final = "queenright.output.files_changed"
OUTPUT_TESTS_PASSED: Final = "queenright.output.tests_passed"
OUTPUT_TESTS_FAILED: Final = "queenright.output.tests_failed"
RESOURCE_NAME: Final = "queenright.resource.name"
RESOURCE_USED: Final = "queenright.resource.used"
RESOURCE_LIMIT: Final = "queenright.resource.limit"
BREAKER_NAME: Final = "queenright.circuit_breaker.name"
BREAKER_STATE: Final = "queenright.circuit_breaker.state"
WAITING_REASON: Final = "queenright.waiting.reason"
"""Empty when the wait is over."""
CHECKPOINT_ID: Final = "queenright.checkpoint.id"
OPEN_SPAN_KIND: Final = "queenright.span.kind"
"""``agent``, ``llm`` or ``tool``; left out while the library has not said."""
OPEN_SPAN_NAME: Final = "queenright.span.name"
OPEN_SPAN_SCOPE: Final = "queenright.span.scope"
"""The name of the instrumentation scope, which is the library that made the span."""
OPEN_SPAN_PARENT_ID: Final = "queenright.span.parent_id"
"""The nearest span above that was reported, else the parent; in hexadecimal, left out where there is none."""
OPEN_SPAN_START: Final = "queenright.span.start_time_unix_nano"
OPEN_SPAN_OUTCOME: Final = "queenright.span.outcome"
HEALTH_STATE: Final = "queenright.health.state"
TICKET_ID: Final = "queenright.ticket.id"
INTERVENTION_KIND: Final = "queenright.intervention.kind"
TRIAGE_DECISION: Final = "queenright.triage.decision"
PROMPT_ID: Final = "queenright.prompt.id"
"""Which system prompt judged: name, version, hash of the text."""

# OpenTelemetry events (log records) that say what is open: a span is exported only when it ends,
# so without these a hung call could not be seen while it hangs.
EVENT_AGENT_STARTED: Final = "queenright.agent.started"
EVENT_STEP_STARTED: Final = "queenright.step.started"
EVENT_LLM_STARTED: Final = "queenright.llm.started"
EVENT_LLM_DELTA: Final = "queenright.llm.delta"
EVENT_TOOL_STARTED: Final = "queenright.tool.started"
EVENT_HEARTBEAT: Final = "queenright.heartbeat"
EVENT_WAITING: Final = "queenright.waiting"
EVENT_CHECKPOINT: Final = "queenright.checkpoint"
EVENT_OUTPUT: Final = "queenright.output"
EVENT_RESOURCE: Final = "queenright.resource"
EVENT_BREAKER: Final = "queenright.circuit_breaker"

# The same of spans of any other instrumentation in the process (`watch_spans`).
EVENT_SPAN_STARTED: Final = "queenright.span.started"
EVENT_SPAN_OPEN: Final = "queenright.span.open"
"""The heartbeat of a span: it was still open at this time."""
EVENT_SPAN_ENDED: Final = "queenright.span.ended"

CUT_OFF: Final = frozenset({"length", "max_tokens", "MAX_TOKENS", "max_output_tokens", "model_length"})
"""Finish reasons of answers that ended at a length limit, as providers write them."""

CAPTURE_CONTENT_ENV: Final = "OTEL_INSTRUMENTATION_GENAI_CAPTURE_MESSAGE_CONTENT"
"""Prompts, arguments and results leave the process only if this is set to true."""

# -- alerts that leave for Alertmanager ---------------------------------------------------------

ALERT_PREFIX: Final = "Queenright"
ALERT_INTERVENTION: Final = "QueenrightIntervention"
ALERT_LABEL_TICKET_ID: Final = "ticket_id"
"""Of an alert about a ticket: which one. A label of alerts, never of metrics."""
SOURCE_QUEEN: Final = "queen"
SOURCE_RULES: Final = "rules"
SOURCE_MONITOR: Final = "monitor"
