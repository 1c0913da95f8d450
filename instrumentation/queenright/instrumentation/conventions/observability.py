"""Attributes of tracing products (Langfuse, LangSmith, MLflow) and of libraries without a convention."""

from __future__ import annotations

ATTRIBUTES = {
    "marker": (
        "gen_ai.span.kind",
        "langfuse.observation.type",
        "langsmith.span.kind",
        "mlflow.spanType",
        "span.type",
    ),
    "error_type": ("exception.type",),
    "error": ("error.message", "exception.message", "error"),
}

NO_WORK = ("event", "parser", "span")

CONTENT_EVENTS = {
    "tool.input": (("arguments", ("input", "content", "value")),),
    "tool.output": (("result", ("output", "content", "result", "value")),),
}
"""Events of tool calls: our field, and the event attributes to read it from, in order of preference."""
