"""Replays recorded requests of coding agents through dialects and assembler, without a network."""

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
from tests.server.otlp.framework_spans import workers

LATER = 120.0
"""Seconds after the last record at which the assembler holds nothing back."""
UNKNOWN_PROCESS = Process("", "", "", False)


def replay(records: Sequence[Record]) -> list[AgentEvent]:
    """Return the events from these records, in the order in which they would be stored."""
    assembler, events = Assembler(), list[AgentEvent]()
    for record in records:
        batch = decode_record(record, assembler)
        assembler.duplicates.finish_storing(batch.identities, is_stored=True)
        events += batch.events
    later = records[-1].at + LATER if records else 0.0
    return events + decode_record(Record(later, "/v1/traces", {}), assembler).events


def decode_record(record: Record, assembler: Assembler) -> Batch:
    now = BEGAN + record.at
    if record.path.startswith("/hooks/"):
        batch = Batch()
        [client] = [one for one in CLIENTS if record.path == f"/hooks/{one.name}"]
        observation = client.read_hook(record.body, UNKNOWN_PROCESS, int(now * 1e9))
        for _ in assembler.assemble([observation] if observation else [], batch, now):
            pass
        batch.finish()
        return batch
    body = json.dumps(record.body).encode()
    if record.path == "/v1/logs":
        return decode_logs(parse_message(body, MediaType.JSON, ExportLogsServiceRequest), assembler, now)
    if record.path == "/v1/traces":
        return decode_spans(parse_message(body, MediaType.JSON, ExportTraceServiceRequest), assembler, now)
    return Batch()


def split(record: Record) -> list[Record]:
    """Split an OTLP request into one request per record."""
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
    """Return the result of a run, independent of the order of its records."""
    ended = [e for e in events if e.type.value in ("execution_completed", "execution_failed")]
    llm_calls = [e.data for e in events if e.type == "llm_call_completed"]
    llm = [llm_call for llm_call in llm_calls if not llm_call.get("amends")]
    tools: dict[str, tuple[str, str]] = {}
    for event in events:
        if event.type == "tool_call_completed":
            tool = event.data["tool"]
            call = event.data.get("call_id") or f"{tool} {sum(known == tool for known, _ in tools.values())}"
            assert bool(event.data.get("amends")) == (call in tools), "a call counts once"
            tools[call] = (tool, event.data["outcome"])
    return {
        "agents": len(workers(events)),
        "names": sorted(agent for agent, _ in workers(events)),
        "steps": sum(e.type == "step_completed" for e in events),
        "tools": Counter((tool, call, outcome) for call, (tool, outcome) in tools.items()),
        "model calls": len(llm),
        "failed model calls": sum("error_type" in call for call in llm),
        "tokens": sum(call.get("input_tokens", 0) + call.get("output_tokens", 0) for call in llm),
        "cost": round(sum(llm_call.get("cost_usd", 0) for llm_call in llm_calls), 9),
        "outcome": sorted({(e.session_id, e.time): e.type.value for e in ended}.values()),
        "MCP servers": Counter(
            (e.time, e.data["status"], e.data.get("server", ""))
            for e in events
            if e.type == "mcp_server_changed"
        ),
    }
