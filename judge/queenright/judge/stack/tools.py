"""
Tools that let a model query metrics and traces: ``query_metrics`` and ``get_trace``.

They are read-only. The time range, the size and the number of queries are limited, so that a model can
neither overload the stack nor fill its context. Results are quoted, with secrets masked.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Awaitable, Callable, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any, Final

from opentelemetry.trace import get_current_span
from pydantic import BaseModel, ConfigDict, Field

from queenright.instrumentation import names
from queenright.instrumentation.redaction import redact
from queenright.judge.quoting import quote
from queenright.judge.stack.http import InvalidQueryError, StackError
from queenright.judge.stack.prometheus import Prometheus, Series
from queenright.judge.stack.promql import find_query_fault
from queenright.judge.stack.traces import TRACE_ID, Traces, TraceSpan
from queenright.runtime.events import Clock
from queenright.runtime.tooling.tools import Tool, ToolError, ToolUnavailableError

QUERY_METRICS: Final = "query_metrics"
GET_TRACE: Final = "get_trace"

MAX_CALLS: Final = 5
MAX_SERIES: Final = 20
MAX_POINTS: Final = 60
MAX_CHARACTERS: Final = 8_000
_MAX_SPANS: Final = 60
_VALUE_LIMIT: Final = 120
_ERROR_LIMIT: Final = 300
_CALL_LIFETIME_SECONDS: Final = 600.0

# The span attributes that a model gets.
_SHOWN_ATTRIBUTES: Final = (
    names.NODE_ID,
    names.STEP_VERDICT,
    names.STEP_FEEDBACK,
    names.GEN_AI_TOOL_NAME,
    names.TOOL_ARGUMENTS_HASH,
    names.TOOL_RESULT_HASH,
    names.TOOL_EFFECT,
    names.GEN_AI_TOOL_CALL_ARGUMENTS,
    names.GEN_AI_TOOL_CALL_RESULT,
    names.GEN_AI_REQUEST_MODEL,
    names.GEN_AI_USAGE_INPUT_TOKENS,
    names.GEN_AI_USAGE_OUTPUT_TOKENS,
    names.WAITING_REASON,
    "outcome",
    "reason",
)


class CallLimit:
    """
    Limits the number of calls in a visit of a node.

    Each check and each triage has its own trace, which identifies the visit. Without tracing, calls expire
    after ten minutes.
    """

    def __init__(self, clock: Clock, limit: int = MAX_CALLS) -> None:
        self._clock = clock
        self._limit = limit
        self._calls: dict[tuple[str, int], deque[float]] = {}

    def count(self, node_id: str) -> None:
        """
        Count a call.

        Raises:
            ToolError: The limit has been reached.
        """
        now = self._clock()
        self._expire(now - _CALL_LIFETIME_SECONDS)
        visit = (node_id, get_current_span().get_span_context().trace_id)
        calls = self._calls.setdefault(visit, deque())
        if len(calls) >= self._limit:
            raise ToolError(f"all {self._limit} queries are used; decide with the data that you have")
        calls.append(now)

    def _expire(self, before: float) -> None:
        for visit, calls in list(self._calls.items()):
            while calls and calls[0] <= before:
                calls.popleft()
            if not calls:
                del self._calls[visit]


class _Arguments(BaseModel):
    model_config = ConfigDict(extra="forbid")


class QueryArguments(_Arguments):
    """A query to Prometheus."""

    promql: str = Field(min_length=1, max_length=2_000, description="The query, in PromQL.")
    range_minutes: int = Field(default=0, ge=0, le=1_440, description="How far back to look; 0: only now.")
    step_seconds: int = Field(
        default=0, ge=0, le=86_400, description="Time between two points; 0: automatic."
    )


class TraceArguments(_Arguments):
    """The trace to show."""

    trace_id: str = Field(pattern=TRACE_ID, description="32 hexadecimal digits, as in a summary.")


def stack_tools(
    *,
    prometheus: Prometheus | None = None,
    traces: Traces | None = None,
    clock: Clock,
    limit: CallLimit | None = None,
) -> list[Tool]:
    """
    Return the tools for the configured sources: ``query_metrics``, ``get_trace``, both, or neither.

    Args:
        traces: The source of traces: Tempo or the event log.
        limit: Limits the calls. By default, a new limit is created.
    """
    calls = limit or CallLimit(clock)
    tools = []
    if prometheus is not None:
        tools.append(
            Tool(
                QUERY_METRICS,
                "Ask Prometheus, read-only: one PromQL query, now or over the last minutes (at most 24 h "
                f"with the query's own ranges and offsets, {MAX_SERIES} series, {MAX_POINTS} points each).",
                QueryArguments,
                _make_query_tool(prometheus, clock, calls),
                context=("node_id",),
            )
        )
    if traces is not None:
        tools.append(
            Tool(
                GET_TRACE,
                "Show what a worker did, by the id of its trace: the newest spans, oldest first.",
                TraceArguments,
                _make_trace_tool(traces, calls),
                context=("node_id",),
            )
        )
    return tools


def _make_query_tool(prometheus: Prometheus, clock: Clock, calls: CallLimit) -> Callable[..., Awaitable[str]]:
    async def query(arguments: QueryArguments, *, node_id: str | None = None) -> str:
        calls.count(node_id or "")
        now, back = clock(), arguments.range_minutes * 60.0
        if fault := find_query_fault(arguments.promql, range_seconds=back):
            raise ToolError(fault)
        try:
            if back:
                step = max(float(arguments.step_seconds), math.ceil(back / (MAX_POINTS - 1)), 1.0)
                series = await prometheus.query_range(arguments.promql, now - back, now, step)
            else:
                series = await prometheus.query(arguments.promql, now)
        except StackError as error:
            raise _as_tool_error("Prometheus", error) from None
        return metrics_text(series)

    return query


def _make_trace_tool(traces: Traces, calls: CallLimit) -> Callable[..., Awaitable[str]]:
    async def get(arguments: TraceArguments, *, node_id: str | None = None) -> str:
        calls.count(node_id or "")
        try:
            spans = await traces.trace(arguments.trace_id.lower())
        except StackError as error:
            raise _as_tool_error("The trace source", error) from None
        if not spans:
            raise ToolError(f"there is no trace {arguments.trace_id}; continue without it")
        return trace_text(arguments.trace_id.lower(), spans)

    return get


def _as_tool_error(source: str, error: StackError) -> ToolError:
    """Return an error for a model, without addresses."""
    if isinstance(error, InvalidQueryError):
        return ToolError(f"{source} rejected the query: {error.reason}")
    return ToolUnavailableError(f"{source} is unavailable: {error.reason}; continue without it")


def metrics_text(answer: Sequence[Series]) -> str:
    """
    Return an answer of Prometheus as text for a model. It is cut to the limits, and states how much is left
    out.
    """
    rows = [
        {
            "labels": {key: redact(value, _VALUE_LIMIT) for key, value in series.labels.items()},
            "points": [[_format_time(at), _round_number(value)] for at, value in series.points[-MAX_POINTS:]],
        }
        for series in answer[:MAX_SERIES]
    ]
    return _quote_bounded("metrics", "series", rows, len(answer), newest=False)


def trace_text(trace_id: str, spans: Sequence[TraceSpan]) -> str:
    """
    Return the newest spans of a trace as text for a model. It is cut to the limits, and states the total
    number.
    """
    rows = [_make_row(span) for span in spans[-_MAX_SPANS:]]
    return _quote_bounded("trace", "spans", rows, len(spans), newest=True, trace_id=trace_id)


def _make_row(span: TraceSpan) -> dict[str, Any]:
    row: dict[str, Any] = {"at": _format_time(span.start), "name": redact(span.name, _VALUE_LIMIT)}
    if span.end is not None:
        row["seconds"] = round(max(0.0, span.end - span.start), 3)
    if span.error:
        row["error"] = redact(span.error, _ERROR_LIMIT)
    for key in _SHOWN_ATTRIBUTES:
        value = span.attributes.get(key)
        if value is not None:
            short = key.removeprefix("queenright.").removeprefix("gen_ai.")
            row[short] = value if isinstance(value, int | float) else redact(str(value), _VALUE_LIMIT)
    return row


def _quote_bounded(
    tag: str, name: str, rows: list[dict[str, Any]], total: int, *, newest: bool, **fields: str
) -> str:
    """Return as many rows as fit, the newest or the first, as quoted text."""
    while True:
        data: Mapping[str, Any] = {**fields, f"{name}_in_all": total, name: rows}
        if len(rows) < total:
            data = {**data, "left_out": total - len(rows)}
        text = quote(tag, data)
        if len(text) <= MAX_CHARACTERS:
            return text
        if len(rows) > 1:
            kept = max(1, min(len(rows) - 1, int(len(rows) * MAX_CHARACTERS / len(text))))
            rows = rows[-kept:] if newest else rows[:kept]
        else:
            rows = [_halve(rows[0])]


def _halve(row: dict[str, Any]) -> dict[str, Any]:
    """Return a row that exceeds the limit by itself with half of its points or labels."""
    if len(row.get("points") or ()) > 1:
        return {**row, "points": row["points"][len(row["points"]) // 2 :]}
    labels = list((row.get("labels") or {}).items())
    return {**row, "labels": dict(labels[: len(labels) // 2])} if labels else {}


def _round_number(value: float) -> float | str:
    """
    Return a rounded number. NaN and infinity are returned as text, as in Prometheus, because JSON has
    neither.
    """
    if math.isfinite(value):
        return float(f"{value:.6g}") if abs(value) < 1e8 else round(value, 3)
    return "NaN" if math.isnan(value) else ("+Inf" if value > 0 else "-Inf")


def _format_time(at: float) -> str:
    return datetime.fromtimestamp(at, UTC).isoformat(timespec="seconds").replace("+00:00", "Z")
