"""Advise senders of incomplete telemetry which settings to change. Pure functions."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from queenright.instrumentation.counts import format_count
from queenright.server.telemetry.dialects import CLIENT_NAMES
from queenright.server.telemetry.process import UNKNOWN_SERVICE
from queenright.server.telemetry.sources import OTHER_DIALECT, Source, SourceData
from queenright.server.telemetry.unusable import REMEDIES, UnusedReason

_GENAI_CONTENT_SETTING: Final = (
    "set OTEL_SEMCONV_STABILITY_OPT_IN=gen_ai_latest_experimental and "
    "OTEL_INSTRUMENTATION_GENAI_CAPTURE_MESSAGE_CONTENT=SPAN_ONLY (older versions: true); "
    "for OpenLLMetry, TRACELOOP_TRACE_CONTENT=true"
)
_CONTENT_SETTINGS: Final = {
    "openinference": "set OPENINFERENCE_HIDE_INPUTS=false and OPENINFERENCE_HIDE_OUTPUTS=false",
    "opentelemetry": _GENAI_CONTENT_SETTING,
    "logfire": "give the instrumentation InstrumentationSettings(include_content=True)",
    "langsmith": "set LANGSMITH_HIDE_INPUTS=false and LANGSMITH_HIDE_OUTPUTS=false",
    "google-adk": f"{_GENAI_CONTENT_SETTING.partition(' (older')[0]}",
    "strands": _GENAI_CONTENT_SETTING,
    "vercel-ai": "set recordInputs and recordOutputs in experimental_telemetry",
    OTHER_DIALECT: _GENAI_CONTENT_SETTING,
}
"""The setting that makes each dialect record tool arguments."""


@dataclass(frozen=True, slots=True)
class Advice:
    """A problem of a source's telemetry, and the setting that fixes it."""

    missing: str
    remedy: str


def list_advice(source: Source) -> list[Advice]:
    """Return the problems of a source, most serious first."""
    advice = [
        Advice(f"rejected: {format_count(count, 'record')} ({fault})", REMEDIES[fault])
        for fault, count in source.rejected.most_common()
    ]
    if source.wrong_times:
        missing = (
            f"impossible times in {format_count(source.wrong_times, 'record')}; the last: {source.wrong_time}"
        )
        advice.append(Advice(missing, "set the clock of the sender's host"))
    if source.dialect in CLIENT_NAMES:
        return advice + _advise_client(source)
    if not source.used_records:
        if set(source.unused) == {UnusedReason.METRICS}:
            advice.append(
                Advice("it sends only metrics, which are not read", "set OTEL_TRACES_EXPORTER=otlp")
            )
        elif set(source.unused) - {UnusedReason.SAME_WORK, UnusedReason.REPEATED}:
            advice.append(
                Advice(
                    "it sends no agent work",
                    "instrument the agent's framework or model client for OpenTelemetry; "
                    "spans need gen_ai.operation.name or another attribute of docs/otlp.md",
                )
            )
        return advice
    parts = source.parts
    if SourceData.NAME not in parts or source.service == UNKNOWN_SERVICE:
        advice.append(
            Advice("the agent has no name", "set OTEL_SERVICE_NAME, or gen_ai.agent.name on its spans")
        )
    if SourceData.MODEL_CALLS in parts and SourceData.TOKENS not in parts:
        advice.append(
            Advice(
                "model calls have no token counts",
                "set gen_ai.usage.input_tokens and gen_ai.usage.output_tokens on their spans",
            )
        )
    if SourceData.TOOL_CALLS in parts and SourceData.CONTENT not in parts:
        advice.append(
            Advice(
                "tool calls have no arguments, so repeated calls are not detected",
                _CONTENT_SETTINGS.get(source.dialect, _GENAI_CONTENT_SETTING),
            )
        )
    if SourceData.SESSION not in parts:
        advice.append(
            Advice(
                "no session id is set, so each trace is a separate run",
                "set gen_ai.conversation.id on the agent's spans",
            )
        )
    if SourceData.OPEN_WORK not in parts:
        advice.append(
            Advice(
                "starts of work are not reported, so a hanging call is detected late or not at all",
                "in Python, call queenright.instrumentation.watch_spans(), "
                "or start it with opentelemetry-instrument",
            )
        )
    return advice


def _advise_client(source: Source) -> list[Advice]:
    reconnect = f"run `queenright connect {source.dialect.removesuffix('-cli')}`, then restart it"
    parts = source.parts
    if not source.used_records:
        return [Advice("none of its records describe agent work", reconnect)] if source.unused else []
    if SourceData.MODEL_CALLS not in parts:
        return [
            Advice(
                "no model calls are reported, so there are no steps and tokens; they come from its log",
                reconnect,
            )
        ]
    if SourceData.TOOL_CALLS in parts and SourceData.CONTENT not in parts:
        return [Advice("tool calls have no arguments, so repeated calls are not detected", reconnect)]
    return []
