"""
The public API for agent processes.

>>> from queenright.instrumentation import Worker
>>> with Worker("deep_research_agent") as worker:
...     with worker.step("researcher") as step:
...         with step.tool("search", {"q": "hive"}) as call:
...             call.result(search("hive"))
...         step.verdict("ACCEPT")
"""

from __future__ import annotations

from typing import TYPE_CHECKING

# Imported eagerly, otherwise the name would resolve to the module.
from queenright.instrumentation.fingerprint import fingerprint
from queenright.instrumentation.lazy_imports import lazy_attributes

if TYPE_CHECKING:
    from queenright.instrumentation.errors import QueenrightError
    from queenright.instrumentation.identity import InvalidSessionIdError, check_session_id, new_id
    from queenright.instrumentation.instructions import Nudge, Termination
    from queenright.instrumentation.metrics import mark_metrics_served, serve_metrics
    from queenright.instrumentation.names import WaitingReason
    from queenright.instrumentation.redaction import redact
    from queenright.instrumentation.span_watch import watch_spans
    from queenright.instrumentation.step import LlmCall, Step, ToolCall, current_step
    from queenright.instrumentation.telemetry import Telemetry, flush, shared_telemetry
    from queenright.instrumentation.verdict import Verdict
    from queenright.instrumentation.worker import Worker, current_worker

__all__ = [
    "InvalidSessionIdError",
    "LlmCall",
    "Nudge",
    "QueenrightError",
    "Step",
    "Telemetry",
    "Termination",
    "ToolCall",
    "Verdict",
    "WaitingReason",
    "Worker",
    "check_session_id",
    "current_step",
    "current_worker",
    "fingerprint",
    "flush",
    "mark_metrics_served",
    "new_id",
    "redact",
    "serve_metrics",
    "shared_telemetry",
    "watch_spans",
]

if not TYPE_CHECKING:
    # Imported lazily: the other modules (errors, names, redaction, ...) must not load the telemetry.
    __getattr__, __dir__ = lazy_attributes(
        __name__,
        {
            "LlmCall": "step",
            "Nudge": "instructions",
            "QueenrightError": "errors",
            "InvalidSessionIdError": "identity",
            "Step": "step",
            "Telemetry": "telemetry",
            "Termination": "instructions",
            "ToolCall": "step",
            "Verdict": "verdict",
            "WaitingReason": "names",
            "Worker": "worker",
            "check_session_id": "identity",
            "current_step": "step",
            "current_worker": "worker",
            "flush": "telemetry",
            "mark_metrics_served": "metrics",
            "new_id": "identity",
            "redact": "redaction",
            "serve_metrics": "metrics",
            "shared_telemetry": "telemetry",
            "watch_spans": "span_watch",
        },
    )
