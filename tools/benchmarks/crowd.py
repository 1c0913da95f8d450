"""
Four thousand agents that loop at once: until all have a ticket, what people get, how the loop is held.

The sender waits for each answer, so that its time is that of taking in, beside the judging.
"""

from __future__ import annotations

import asyncio
import multiprocessing
import tempfile
import time
import urllib.error
import urllib.request
from collections import Counter
from pathlib import Path

from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.proto.common.v1.common_pb2 import AnyValue, KeyValue
from opentelemetry.proto.trace.v1.trace_pb2 import Span

from queenright.alerting.recorder import Message
from queenright.instrumentation import names
from queenright.server.process_tuning import shorten_switch_interval, tune_garbage_collector
from queenright.server.settings import load_settings
from queenright.server.up import UpOptions, up
from tools.benchmarks.row import Row

AGENTS = 4_000
_STEPS = 10
_BATCH = 100
"""Agents in one request."""
_LIMIT = 60.0
_MESSAGES = 10
"""As many messages a channel are a handful."""
_TICK = 0.01
_NANO = 1_000_000_000


def run() -> list[Row]:
    """Measure one crowd with the rules as judge and queen, and the real Alertmanager."""
    tune_garbage_collector()
    shorten_switch_interval()
    return asyncio.run(_crowd())


async def _crowd() -> list[Row]:
    with tempfile.TemporaryDirectory() as folder:
        # They are to be judged as soon as they loop: of a new worker nothing is said for two minutes.
        health = {"judge": {"start_grace_seconds": 0}}
        settings = load_settings(
            storage=Path(folder), http={"port": 0}, otlp={"port": 0}, health_monitoring=health
        )
        options = UpOptions(demo=False, fast=False, prometheus_port=0, alertmanager_port=0, receiver_port=0)
        async with up(settings, options, say=lambda line: None) as running:
            service, recorder = running.service, running.service.recorder
            assert recorder is not None
            assert running.alertmanager_url, "the alertmanager program is needed"
            blocks: list[float] = []
            watch = asyncio.create_task(_watch_loop(blocks))
            sender = multiprocessing.get_context("spawn").Process(
                target=_send, args=(f"{running.otlp_url}/v1/traces", AGENTS)
            )
            began, used = time.monotonic(), time.process_time()
            sender.start()
            sent = ticketed = decided = 0.0
            at_limit = None
            while time.monotonic() - began < 4 * _LIMIT:
                tickets = service.tickets.open_tickets()
                passed = time.monotonic() - began
                if not sent and not sender.is_alive():
                    sent = passed
                if at_limit is None and passed >= _LIMIT:
                    at_limit = len(tickets)
                if not ticketed and len(tickets) >= AGENTS:
                    ticketed = passed
                if len(tickets) >= AGENTS and all(t.status.value != "open" for t in tickets):
                    decided = passed
                    break
                await asyncio.sleep(0.25)
            used = time.process_time() - used
            # group_wait of a storm is 45 s, and another message would come with its group_interval.
            await asyncio.sleep(60)
            watch.cancel()
            await asyncio.to_thread(sender.join)
            messages = Counter(_channels(recorder.received))
    blocks.sort()
    most = max(messages.values(), default=0)
    text = ", ".join(f"{name} {count}" for name, count in sorted(messages.items())) or "none"
    within = f"{ticketed:.0f} s" if ticketed else f"{at_limit} of {AGENTS:,} in {_LIMIT:.0f} s"
    return [
        Row(f"{AGENTS:,} looping agents, all ticketed", within, "<= 60 s", 0 < ticketed <= _LIMIT),
        Row("... and all taken in", f"{sent:.0f} s" if sent else "not", "-", sent > 0),
        Row("... processor time until all are triaged", f"{used:.0f} s", "-", True),
        Row("... and all triaged", f"{decided:.0f} s" if decided else "not", "<= 90 s", 0 < decided <= 90),
        Row("... messages to people", text, f"1 to {_MESSAGES} a channel", 0 < most <= _MESSAGES),
        Row(
            "... event loop held: worst, 99 of 100",
            f"{blocks[-1] * 1e3:.0f} ms, {blocks[int(len(blocks) * 0.99)] * 1e3:.0f} ms",
            "<= 500 ms",
            blocks[-1] <= 0.5,
        ),
    ]


def _channels(received: object) -> list[str]:
    messages: list[Message] = list(received)  # type: ignore[call-overload]  # the recorder's deque
    return [message.channel for message in messages if message.status == "firing"]


async def _watch_loop(blocks: list[float]) -> None:
    while True:
        began = time.perf_counter()
        await asyncio.sleep(_TICK)
        blocks.append(max(0.0, time.perf_counter() - began - _TICK))


def _send(url: str, agents: int) -> None:
    for first in range(0, agents, _BATCH):
        body = crowd_request(range(first, min(first + _BATCH, agents)))
        while True:
            request = urllib.request.Request(url, body, {"content-type": "application/x-protobuf"})
            try:
                with urllib.request.urlopen(request, timeout=60) as answer:
                    answer.read()
                break
            except urllib.error.HTTPError as error:
                if error.code not in (429, 503):
                    raise
                time.sleep(0.5)


def crowd_request(agents: range) -> bytes:
    """Return the spans of agents that make one call with one result for ever, and are sent back each time."""
    request = ExportTraceServiceRequest()
    now = int(time.time() * _NANO)
    for agent in agents:
        resource = request.resource_spans.add()
        resource.resource.attributes.append(_text(names.SERVICE_NAME, "crowd"))
        spans = resource.scope_spans.add().spans
        for step in range(_STEPS):
            began = now - (_STEPS - step) * 20 * _NANO
            about = [
                _text(names.GEN_AI_AGENT_NAME, f"agent-{agent:04}"),
                _text(names.GEN_AI_CONVERSATION_ID, f"session-{agent:04}"),
                _text(names.INCARNATION_ID, f"life-{agent:04}"),
                _text(names.NODE_ID, "search"),
            ]
            step_id = (agent * 1000 + step * 2 + 1).to_bytes(8, "big")
            tool = Span(
                name="execute_tool search",
                trace_id=(agent + 1).to_bytes(16, "big"),
                span_id=(agent * 1000 + step * 2 + 2).to_bytes(8, "big"),
                parent_span_id=step_id,
                start_time_unix_nano=began,
                end_time_unix_nano=began + _NANO,
            )
            tool.attributes.extend(about)
            tool.attributes.extend(
                [
                    _text(names.GEN_AI_OPERATION_NAME, "execute_tool"),
                    _text(names.GEN_AI_TOOL_NAME, "search"),
                    _text(names.GEN_AI_TOOL_CALL_ID, f"call-{agent}-{step}"),
                    _text(names.TOOL_ARGUMENTS_HASH, "a" * 16),
                    _text(names.TOOL_RESULT_HASH, "b" * 16),
                ]
            )
            whole = Span(
                name="step search",
                trace_id=(agent + 1).to_bytes(16, "big"),
                span_id=step_id,
                start_time_unix_nano=began,
                end_time_unix_nano=began + 2 * _NANO,
            )
            whole.attributes.extend(about)
            whole.attributes.append(_text(names.STEP_VERDICT, "RETRY"))
            whole.attributes.append(KeyValue(key=names.STEP_INDEX, value=AnyValue(int_value=step)))
            spans.extend([tool, whole])
    return request.SerializeToString()


def _text(key: str, value: str) -> KeyValue:
    return KeyValue(key=key, value=AnyValue(string_value=value))
