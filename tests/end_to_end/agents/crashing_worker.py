"""
An agent that only sends OTLP, and no heartbeats. It repeats one search until it is killed.

``crashing_worker.py OTLP_URL SESSION``
"""

from __future__ import annotations

import sys
import time

from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor


def main(url: str, session: str) -> None:
    provider = TracerProvider(resource=Resource.create({"service.name": "crasher"}))
    provider.add_span_processor(SimpleSpanProcessor(OTLPSpanExporter(f"{url}/v1/traces")))
    tracer = provider.get_tracer("crasher")
    agent_attributes = {"gen_ai.agent.name": "crasher", "gen_ai.conversation.id": session}
    call_attributes = {
        "gen_ai.operation.name": "execute_tool",
        "gen_ai.tool.name": "search",
        "gen_ai.tool.call.arguments": '{"word": "nowhere"}',
        "gen_ai.tool.call.result": "nothing found",
    }
    run_attributes = agent_attributes | {"gen_ai.operation.name": "invoke_agent"}
    with tracer.start_as_current_span("invoke_agent crasher", attributes=run_attributes):
        while True:
            with tracer.start_as_current_span(
                "execute_tool search", attributes=agent_attributes | call_attributes
            ):
                time.sleep(0.01)
            time.sleep(0.05)


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2])
