"""Replays recorded requests of coding agents through the dialects and the assembler, without a network."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Sequence
from typing import Any

from opentelemetry.proto.collector.logs.v1.logs_service_pb2 import ExportLogsServiceRequest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

from queenright.runtime.events import AgentEvent
from queenright.server.otlp.decode import decode_logs, decode_spans
from queenright.server.otlp.encoding import MediaType, parse_message
from queenright.server.telemetry.assembler import Assembler
from queenright.server.telemetry.batch import Batch
from queenright.server.telemetry.dialects import CLIENTS
from queenright.server.telemetry.process import Process
from tests.clients.fixtures import BEGAN, Record
from tests.server.otlp.framework_spans import list_workers

LATER = 120.0
"""Seconds after the last record after which the assembler holds nothing back."""
UNKNOWN_PROCESS = Process("", "", "", False)


def replay(records: Sequence[Record]) -> list[AgentEvent]:
    """Return the events of these records, in the order in which they would be stored."""
    assembler, events = Assembler(), list[AgentEvent]()
    for record in records:
        batch = decode_record(record, assembler)
        assembler.duplicates.finish_storing(batch.identities, is_stored=True)
        events += batch.events
    end_time = records[-1].at + LATER if records else 0.0
    return events + decode_record(Record(end_time, "/v1/traces", {}), assembler).events


def decode_record(record: Record, assembler: Assembler) -> Batch:
    received_at = BEGAN + record.at
    if record.path.startswith("/hooks/"):
        batch = Batch()
        [client] = [candidate for candidate in CLIENTS if record.path == f"/hooks/{candidate.name}"]
        observation = client.read_hook(record.body, UNKNOWN_PROCESS, int(received_at * 1e9))
        for _ in assembler.assemble([observation] if observation else [], batch, received_at):
            pass
        batch.finish()
        return batch
    body = json.dumps(record.body).encode()
    if record.path == "/v1/logs":
        return decode_logs(
            parse_message(body, MediaType.JSON, ExportLogsServiceRequest), assembler, received_at
        )
    if record.path == "/v1/traces":
        return decode_spans(
            parse_message(body, MediaType.JSON, ExportTraceServiceRequest), assembler, received_at
        )
    return Batch()


def split_record(record: Record) -> list[Record]:
    """Split an OTLP request into requests with one record each."""
    groups, scopes, items = {
        "/v1/logs": ("resourceLogs", "scopeLogs", "logRecords"),
        "/v1/traces": ("resourceSpans", "scopeSpans", "spans"),
    }.get(record.path, ("", "", ""))
    if not groups:
        return [record]
    return [
        Record(record.at, record.path, {groups: [group | {scopes: [scope | {items: [item]}]}]})
        for group in record.body[groups]
        for scope in group[scopes]
        for item in scope[items]
    ]


def summarize(events: Sequence[AgentEvent]) -> dict[str, Any]:
    """Return the outcome and the counts of a run, which do not depend on the order of its records."""
    end_events = [
        event for event in events if event.type.value in ("execution_completed", "execution_failed")
    ]
    llm_calls = [event.data for event in events if event.type == "llm_call_completed"]
    llm = [llm_call for llm_call in llm_calls if not llm_call.get("amends")]
    tools: dict[str, tuple[str, str]] = {}
    for event in events:
        if event.type == "tool_call_completed":
            tool = event.data["tool"]
            call = event.data.get("call_id") or f"{tool} {sum(name == tool for name, _ in tools.values())}"
            assert bool(event.data.get("amends")) == (call in tools), "each call counts once"
            tools[call] = (tool, event.data["outcome"])
    return {
        "agents": len(list_workers(events)),
        "names": sorted(agent for agent, _ in list_workers(events)),
        "steps": sum(event.type == "step_completed" for event in events),
        "tools": Counter((tool, call, outcome) for call, (tool, outcome) in tools.items()),
        "model calls": len(llm),
        "failed model calls": sum("error_type" in call for call in llm),
        "tokens": sum(call.get("input_tokens", 0) + call.get("output_tokens", 0) for call in llm),
        "cost": round(sum(llm_call.get("cost_usd", 0) for llm_call in llm_calls), 9),
        "outcome": sorted(
            {(event.session_id, event.time): event.type.value for event in end_events}.values()
        ),
        "MCP servers": Counter(
            (event.time, event.data["status"], event.data.get("server", ""))
            for event in events
            if event.type == "mcp_server_changed"
        ),
    }
