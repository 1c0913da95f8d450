"""
All names that Queenright exports: metrics, labels, spans, attributes and events.

No other module spells them out. Tests compare rules, dashboards and docs with this table and with a live
``/metrics``.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import Final, Literal

MetricKind = Literal["counter", "gauge", "histogram"]


@dataclass(frozen=True, slots=True)
class MetricName:
    """A Prometheus metric: name as scraped, type, complete label set, help text."""

    name: str
    kind: MetricKind
    labels: tuple[str, ...]
    help: str

    def __str__(self) -> str:
        return self.name


# -- metrics of a worker's process --------------------------------------------------------------

WORKER_INFO: Final = MetricName(
    "queenright_worker_info",
    "gauge",
    ("agent", "framework", "version"),
    "Always 1; labels describe the worker.",
)
WORKER_STEPS: Final = MetricName(
    "queenright_worker_steps_total", "counter", ("agent", "node", "verdict"), "Steps that ended, by verdict."
)
WORKER_STEP_DURATION: Final = MetricName(
    "queenright_worker_step_duration_seconds", "histogram", ("agent", "node"), "Duration of steps."
)
WORKER_TOOL_CALLS: Final = MetricName(
    "queenright_worker_tool_calls_total",
    "counter",
    ("agent", "tool", "outcome"),
    "Tool calls that ended, by outcome.",
)
WORKER_TOOL_DURATION: Final = MetricName(
    "queenright_worker_tool_duration_seconds", "histogram", ("agent", "tool"), "Duration of tool calls."
)
WORKER_TOKENS: Final = MetricName(
    "queenright_worker_tokens_total", "counter", ("agent", "model", "direction"), "Tokens used."
)
AGENT_COST: Final = MetricName(
    "queenright_agent_cost_dollars_total", "counter", ("agent",), "Cost of model calls in US dollars."
)
PROVIDER_CALLS: Final = MetricName(
    "queenright_provider_calls_total",
    "counter",
    ("provider", "model", "outcome"),
    "Model calls that ended, of all agents; bounded.",
)
PROVIDER_CALL_DURATION: Final = MetricName(
    "queenright_provider_call_duration_seconds",
    "histogram",
    ("provider", "model"),
    "Duration of successful model calls; bounded.",
)
PROVIDER_LIMITED_UNTIL: Final = MetricName(
    "queenright_provider_limited_until_timestamp_seconds",
    "gauge",
    ("provider", "model"),
    "When the current rate limit ends.",
)
WORKER_ERRORS: Final = MetricName(
    "queenright_worker_errors_total", "counter", ("agent", "error_type"), "Errors, by exception class."
)
WORKER_STEPS_SINCE_ACCEPT: Final = MetricName(
    "queenright_worker_steps_since_accept", "gauge", ("agent",), "Bad steps since the last ACCEPT."
)
WORKER_LAST_HEARTBEAT: Final = MetricName(
    "queenright_worker_last_heartbeat_timestamp_seconds",
    "gauge",
    ("agent",),
    "Time of the last heartbeat.",
)
WORKER_LAST_ACTIVITY: Final = MetricName(
    "queenright_worker_last_activity_timestamp_seconds",
    "gauge",
    ("agent",),
    "Time of the last activity.",
)
WORKER_LAST_PROGRESS: Final = MetricName(
    "queenright_worker_last_progress_timestamp_seconds",
    "gauge",
    ("agent",),
    "Time of the last progress.",
)
WORKER_LAST_CHECKPOINT: Final = MetricName(
    "queenright_worker_last_checkpoint_timestamp_seconds",
    "gauge",
    ("agent",),
    "Time of the last checkpoint.",
)
WORKER_WAITING: Final = MetricName(
    "queenright_worker_waiting",
    "gauge",
    ("agent", "reason"),
    "1 while the worker waits for this reason, else 0.",
)
WORKER_STALLS: Final = MetricName(
    "queenright_worker_stalls_total", "counter", ("agent", "phase"), "Stalls detected by the worker itself."
)
TELEMETRY_DROPPED: Final = MetricName(
    "queenright_telemetry_dropped_total", "counter", ("signal",), "Dropped telemetry, by signal."
)
SERIES_LIMITED: Final = MetricName(
    "queenright_series_limited_total", "counter", ("metric",), "Label values folded into `other`."
)

# -- metrics of the service ---------------------------------------------------------------------

AGENTS: Final = MetricName("queenright_agents", "gauge", ("state",), "Known agents, by health state.")
AGENT_STATE: Final = MetricName(
    "queenright_agent_state", "gauge", ("agent", "state"), "1 for the state an agent is in; bounded."
)
AGENT_STATE_SINCE: Final = MetricName(
    "queenright_agent_state_since_timestamp_seconds",
    "gauge",
    ("agent",),
    "When an agent entered its health state; bounded.",
)
AGENTS_WITH_FINDING: Final = MetricName(
    "queenright_agents_with_finding", "gauge", ("kind",), "Agents with an open finding, by its kind."
)
AGENTS_WITH_ONE_KIND: Final = MetricName(
    "queenright_degraded_agents_with_one_kind",
    "gauge",
    ("kind",),
    "Degraded agents whose open findings are all of the same kind, by that kind.",
)
UNPAGED_AGENTS: Final = MetricName(
    "queenright_unpaged_agents", "gauge", (), "Agents in trouble without a page."
)
AGENT_UNPAGED: Final = MetricName(
    "queenright_agent_unpaged",
    "gauge",
    ("agent",),
    "1 for an agent in trouble without a page, 0 with one; bounded.",
)
STATE_TRANSITIONS: Final = MetricName(
    "queenright_state_transitions_total", "counter", ("from", "to"), "Health state transitions."
)
FINDINGS: Final = MetricName("queenright_findings_total", "counter", ("kind", "severity"), "Findings opened.")
SHADOW_FINDINGS: Final = MetricName(
    "queenright_shadow_findings_total",
    "counter",
    ("kind", "severity"),
    "Findings of shadow detectors, which take no action.",
)
DETECTION_DELAY: Final = MetricName(
    "queenright_detection_delay_seconds",
    "histogram",
    ("kind",),
    "Time from a crossed threshold to the state change.",
)
HEALTH_CHECKS: Final = MetricName(
    "queenright_health_checks_total", "counter", ("outcome",), "Health checks that ran, by outcome."
)
HEALTH_CHECK_DURATION: Final = MetricName(
    "queenright_health_check_duration_seconds", "histogram", ("outcome",), "Duration of health checks."
)
WORKERS_EVALUATED: Final = MetricName(
    "queenright_workers_evaluated", "gauge", (), "Workers that the last sweep evaluated."
)
LISTENING: Final = MetricName(
    "queenright_listening",
    "gauge",
    (),
    "1 if telemetry can arrive and be stored. While it is 0, no agent is judged by its silence.",
)
JUDGE_CHECKS: Final = MetricName(
    "queenright_judge_checks_total", "counter", ("outcome",), "Checks of the judge, by outcome."
)
JUDGE_LAST_CHECK: Final = MetricName(
    "queenright_judge_last_check_timestamp_seconds", "gauge", (), "Time of the judge's last finished tick."
)
LLM_TOKENS: Final = MetricName(
    "queenright_llm_tokens_total", "counter", ("role", "model"), "Tokens spent on judging."
)
LLM_COST: Final = MetricName(
    "queenright_llm_cost_dollars_total", "counter", ("role", "model"), "Dollars spent on judging."
)
LLM_REQUEST_DURATION: Final = MetricName(
    "queenright_llm_request_duration_seconds", "histogram", ("role", "model"), "Duration of model requests."
)
LLM_CACHED_TOKENS: Final = MetricName(
    "queenright_llm_cached_tokens_total",
    "counter",
    ("role", "model"),
    "Tokens read from the provider's prompt cache.",
)
LLM_FALLBACKS: Final = MetricName(
    "queenright_llm_fallbacks_total",
    "counter",
    ("role", "reason"),
    "Decisions made by rules instead of a model.",
)
LLM_BUDGET_LIMIT: Final = MetricName(
    "queenright_llm_budget_limit", "gauge", ("window", "unit"), "Budget for judging."
)
LLM_BUDGET_SPENT: Final = MetricName(
    "queenright_llm_budget_spent", "gauge", ("window", "unit"), "Spending on judging in the window."
)
TICKETS: Final = MetricName("queenright_tickets_total", "counter", ("severity", "cause"), "Tickets opened.")
TICKETS_OPEN: Final = MetricName("queenright_tickets_open", "gauge", ("severity", "status"), "Open tickets.")
TRIAGE: Final = MetricName("queenright_triage_total", "counter", ("decision",), "The queen's decisions.")
TRIAGE_DURATION: Final = MetricName(
    "queenright_triage_duration_seconds", "histogram", ("decision",), "Time from ticket to decision."
)
INTERVENTIONS: Final = MetricName(
    "queenright_interventions_total", "counter", ("kind", "outcome"), "Interventions, by outcome."
)
TIME_TO_INTERVENTION: Final = MetricName(
    "queenright_time_to_intervention_seconds", "histogram", ("kind",), "Time from finding to intervention."
)
CIRCUIT_BREAKER_STATE: Final = MetricName(
    "queenright_circuit_breaker_state", "gauge", ("breaker", "state"), "1 for the state that a breaker is in."
)
CIRCUIT_BREAKER_TRANSITIONS: Final = MetricName(
    "queenright_circuit_breaker_transitions_total", "counter", ("breaker", "to"), "Breaker state transitions."
)
CIRCUIT_BREAKER_FAILURES: Final = MetricName(
    "queenright_circuit_breaker_failures", "gauge", ("breaker",), "Consecutive failures of a breaker."
)
CIRCUIT_BREAKER_HALF_OPEN: Final = MetricName(
    "queenright_circuit_breaker_half_open_timestamp_seconds",
    "gauge",
    ("breaker",),
    "When an open breaker allows a trial call.",
)
RECOVERIES_ACTIVE: Final = MetricName("queenright_recoveries_active", "gauge", (), "Recoveries in progress.")
RECOVERIES: Final = MetricName(
    "queenright_recoveries_total", "counter", ("outcome",), "Recoveries, by outcome."
)
THREADS_LEFT: Final = MetricName(
    "queenright_threads_left", "gauge", (), "Abandoned threads of agent functions that are still running."
)
OUTBOX_PENDING: Final = MetricName(
    "queenright_outbox_pending", "gauge", (), "Notifications not yet delivered to every Alertmanager."
)
OUTBOX_OLDEST: Final = MetricName(
    "queenright_outbox_oldest_timestamp_seconds",
    "gauge",
    (),
    "Creation time of the oldest pending notification.",
)
NOTIFICATIONS: Final = MetricName(
    "queenright_notifications_total",
    "counter",
    ("outcome",),
    "Notifications sent to Alertmanager, by outcome.",
)
EVENTS: Final = MetricName("queenright_events_total", "counter", ("type",), "Events published on the bus.")
EVENT_BUS_DROPPED: Final = MetricName(
    "queenright_event_bus_dropped_total", "counter", ("subscriber",), "Events that a slow subscriber missed."
)
CLUSTER_OWNER: Final = MetricName(
    "queenright_cluster_owner", "gauge", (), "1 if this process of the cluster watches the workers."
)
CLUSTER_MEMBERS: Final = MetricName(
    "queenright_cluster_members", "gauge", (), "Running processes of the cluster that this one sees."
)
CLUSTER_STREAM_UP: Final = MetricName(
    "queenright_cluster_stream_up", "gauge", (), "1 if this process can publish telemetry to NATS."
)
CLUSTER_BACKLOG: Final = MetricName(
    "queenright_cluster_backlog",
    "gauge",
    (),
    "Messages of acknowledged telemetry that are not stored yet; by the owner.",
)
PARTITION_LABEL: Final = "partition"
"""A label of all series about workers, in a cluster with several partitions."""
INGEST_SPANS: Final = MetricName(
    "queenright_ingest_spans_total", "counter", ("outcome",), "Spans received over OTLP."
)
TELEMETRY_REJECTED: Final = MetricName(
    "queenright_telemetry_rejected_total",
    "counter",
    ("dialect", "reason"),
    "Invalid spans, log records and hook calls; the sender gets an error.",
)
TELEMETRY_UNUSED: Final = MetricName(
    "queenright_telemetry_unused_total",
    "counter",
    ("dialect", "reason"),
    "Valid spans, log records and hook calls that carry no usable information.",
)
HOOK_CALLS: Final = MetricName(
    "queenright_hook_calls_total", "counter", ("client", "outcome"), "Hook calls received from coding agents."
)
SERIES_LEFT_OUT: Final = MetricName(
    "queenright_series_left_out",
    "gauge",
    ("metric",),
    "Agents or breakers that currently have no series of their own.",
)

METRICS: Final[dict[str, MetricName]] = {
    m.name: m for m in list(globals().values()) if isinstance(m, MetricName)
}

# -- label values -------------------------------------------------------------------------------


class ToolOutcome(StrEnum):
    """How a tool call ended."""

    OK = "ok"
    ERROR = "error"
    TIMEOUT = "timeout"


class WaitingReason(StrEnum):
    """Why a worker is waiting, which is not a stall."""

    USER_INPUT = "user_input"
    PAUSED = "paused"
    CHILDREN = "children"
    BACKOFF = "backoff"
    HELD = "held"
    """Stopped by a guard until an intervention or an input."""
    DONE = "done"


class Phase(StrEnum):
    """The phase of a worker; each has its own stall threshold."""

    IDLE = "idle"
    LLM = "llm"
    TOOL = "tool"
    UNKNOWN = "unknown"


class SpanOutcome(StrEnum):
    """How a span ended that was reported while open."""

    OK = "ok"
    ERROR = "error"
    UNKNOWN = "unknown"


OTHER: Final = "other"
"""Replaces label values beyond the limit."""

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

# Names of the OpenTelemetry semantic conventions.
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
DISTRIBUTION_NAME: Final = "telemetry.distro.name"
DISTRIBUTION: Final = "queenright"
"""The distribution of a resource whose spans and records are all of Queenright's own tracer."""

# Queenright's own names.
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
"""True if the task may be restarted from the beginning."""
CONTROL: Final = "queenright.control"
"""True if the worker fetches instructions."""
METRICS_SERVED: Final = "queenright.metrics.served"
"""True if the worker's process serves its own metrics to Prometheus."""
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
"""``agent``, ``llm`` or ``tool``; absent while unknown."""
OPEN_SPAN_NAME: Final = "queenright.span.name"
OPEN_SPAN_SCOPE: Final = "queenright.span.scope"
"""The instrumentation scope, which names the library that created the span."""
OPEN_SPAN_PARENT_ID: Final = "queenright.span.parent_id"
"""The nearest reported ancestor, otherwise the parent, in hexadecimal; absent for a root span."""
OPEN_SPAN_START: Final = "queenright.span.start_time_unix_nano"
OPEN_SPAN_OUTCOME: Final = "queenright.span.outcome"
HEALTH_STATE: Final = "queenright.health.state"
TICKET_ID: Final = "queenright.ticket.id"
INTERVENTION_KIND: Final = "queenright.intervention.kind"
TRIAGE_DECISION: Final = "queenright.triage.decision"
PROMPT_ID: Final = "queenright.prompt.id"
"""The system prompt that was used: name, version, hash of the text."""

# OpenTelemetry events (log records) about open work. A span is exported only when it ends, so without
# these a hanging call would be invisible.
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

# The same for spans of other instrumentations in the process (`watch_spans`).
EVENT_SPAN_STARTED: Final = "queenright.span.started"
EVENT_SPAN_OPEN: Final = "queenright.span.open"
"""The heartbeat of an open span."""
EVENT_SPAN_ENDED: Final = "queenright.span.ended"

CUT_OFF: Final = frozenset({"length", "max_tokens", "MAX_TOKENS", "max_output_tokens", "model_length"})
"""Finish reasons, as providers spell them, of responses cut at a length limit."""

CAPTURE_CONTENT_ENV: Final = "OTEL_INSTRUMENTATION_GENAI_CAPTURE_MESSAGE_CONTENT"
"""Prompts, arguments and results leave the process only if this is set to true."""

# -- alerts sent to Alertmanager ----------------------------------------------------------------

ALERT_PREFIX: Final = "Queenright"
ALERT_INTERVENTION: Final = "QueenrightIntervention"
ALERT_LABEL_TICKET_ID: Final = "ticket_id"
"""The ticket that an alert is about. A label of alerts, never of metrics."""
SOURCE_QUEEN: Final = "queen"
SOURCE_RULES: Final = "rules"
SOURCE_MONITOR: Final = "monitor"
