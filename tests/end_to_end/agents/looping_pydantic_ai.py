"""
A looping agent of a third-party framework: pydantic-ai with its own instrumentation.

It imports nothing from Queenright, and only reads ``OTEL_EXPORTER_OTLP_ENDPOINT``.
``looping_pydantic_ai.py RECOVER_FILE STOP_FILE`` has the arguments of `looping_worker.py`.
"""

from __future__ import annotations

import sys
import time
from pathlib import Path

from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor
from pydantic_ai import Agent
from pydantic_ai.messages import ModelMessage, ModelResponse, TextPart, ToolCallPart
from pydantic_ai.models.function import AgentInfo, FunctionModel
from pydantic_ai.models.instrumented import InstrumentationSettings
from pydantic_ai.usage import UsageLimits


def main(recover: Path, stop: Path) -> None:
    part_count = 0

    def model(messages: list[ModelMessage], info: AgentInfo) -> ModelResponse:
        nonlocal part_count
        time.sleep(0.05)
        if stop.exists():
            return ModelResponse(parts=[TextPart("Done.")])
        if recover.exists():
            part_count += 1
            return ModelResponse(parts=[ToolCallPart("read", {"part": part_count})])
        return ModelResponse(parts=[ToolCallPart("search", {"word": "nowhere"})])

    provider = TracerProvider(resource=Resource.create({"service.name": "library-agents"}))
    provider.add_span_processor(BatchSpanProcessor(OTLPSpanExporter(), schedule_delay_millis=200))
    Agent.instrument_all(InstrumentationSettings(tracer_provider=provider))
    agent = Agent(FunctionModel(model), name="pydantic_researcher")

    @agent.tool_plain
    def search(word: str) -> list[str]:
        text = Path(__file__).read_text(encoding="utf-8")
        return [line for line in text.splitlines() if word[::-1] in line]

    @agent.tool_plain
    def read(part: int) -> str:
        return f"part {part} of the text"

    agent.run_sync("Find the word.", usage_limits=UsageLimits(request_limit=None))
    provider.shutdown()


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
