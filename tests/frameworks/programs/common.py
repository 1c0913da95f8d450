"""What the programs share: the usual OpenTelemetry setup, the prompt and the shell tool."""

from __future__ import annotations

import os
import subprocess

PROMPT = os.environ["PROMPT"]
MODEL = "gpt-5.5"
INSTRUCTIONS = "You answer questions about files."
NAME = "line_counter"
"""The agent's name, if the framework supports names."""
SHOWS_CONTENT = os.environ.get("CONTENT") != "off"


def set_up(*, has_provider: bool = False) -> None:
    """
    Send spans to ``OTEL_EXPORTER_OTLP_ENDPOINT``. With ``WATCH``, report open spans too.

    Args:
        has_provider: A tracer provider exists already.
    """
    if not has_provider:
        from opentelemetry import trace
        from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
        from opentelemetry.sdk.trace import TracerProvider
        from opentelemetry.sdk.trace.export import BatchSpanProcessor

        provider = TracerProvider()
        provider.add_span_processor(BatchSpanProcessor(OTLPSpanExporter()))
        trace.set_tracer_provider(provider)
    if os.environ.get("WATCH"):
        from queenright.instrumentation import watch_spans

        assert watch_spans()


def run_shell_command(command: str) -> str:
    """Run a command in a shell and return its output.

    Args:
        command: The command.
    """
    result = subprocess.run(command, shell=True, text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
    return result.stdout if result.returncode == 0 else f"{result.stdout}Exit code {result.returncode}"
