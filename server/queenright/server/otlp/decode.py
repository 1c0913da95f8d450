"""Decode OTLP messages into events, without I/O: read every span and record, then assemble them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from datetime import UTC, datetime
from typing import Final, TypeVar

from opentelemetry.proto.collector.logs.v1.logs_service_pb2 import ExportLogsServiceRequest
from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import ExportMetricsServiceRequest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.proto.common.v1.common_pb2 import InstrumentationScope
from opentelemetry.proto.resource.v1.resource_pb2 import Resource

from queenright.instrumentation.identity import clean_name
from queenright.server.otlp.errors import make_too_many_error
from queenright.server.otlp.protobuf_split import MAX_GROUPS, MAX_ITEMS
from queenright.server.telemetry.assembler import Assembler
from queenright.server.telemetry.batch import Batch
from queenright.server.telemetry.logs import read_log
from queenright.server.telemetry.observation import Observation
from queenright.server.telemetry.process import Process
from queenright.server.telemetry.spans import read_span
from queenright.server.telemetry.unusable import UnusableRecordError, UnusedReason
from queenright.server.telemetry.values import MAX_DURATION, MAX_FUTURE_SECONDS

T = TypeVar("T")


def decode_spans(request: ExportTraceServiceRequest, assembler: Assembler, now: float) -> Batch:
    """
    Return the events of the spans in a request.

    Raises:
        StillStoringError: Another request is storing one of the spans.
        RejectedRequestError: The request is too large.
    """
    batch = Batch()
    for _ in decode_spans_in_steps(request, assembler, now, batch):
        pass
    return batch


def decode_logs(request: ExportLogsServiceRequest, assembler: Assembler, now: float) -> Batch:
    """Return the events of the log records in a request. Raises the errors of `decode_spans`."""
    batch = Batch()
    for _ in decode_logs_in_steps(request, assembler, now, batch):
        pass
    return batch


def decode_spans_in_steps(
    request: ExportTraceServiceRequest, assembler: Assembler, now: float, batch: Batch
) -> Iterator[None]:
    """Decode spans as `decode_spans` does, yielding after each span and each group."""
    groups = (
        (group.resource, ((part.scope, part.spans) for part in group.scope_spans))
        for group in request.resource_spans
    )
    return _decode_in_steps(groups, read_span, assembler, now, batch)


def decode_logs_in_steps(
    request: ExportLogsServiceRequest, assembler: Assembler, now: float, batch: Batch
) -> Iterator[None]:
    """Decode log records as `decode_logs` does, yielding after each record and each group."""
    groups = (
        (group.resource, ((part.scope, part.log_records) for part in group.scope_logs))
        for group in request.resource_logs
    )
    return _decode_in_steps(groups, read_log, assembler, now, batch)


def count_metrics_in_steps(
    request: ExportMetricsServiceRequest, assembler: Assembler, now: float, batch: Batch
) -> Iterator[None]:
    """Count metrics by source without reading them, yielding after each group."""
    size = _RequestSize()
    for resource in request.resource_metrics:
        size.add_group()
        process = Process.from_resource(resource.resource)
        for part in resource.scope_metrics:
            size.add_group()
            source = batch.sources.for_process(process, part.scope.name)
            source.records += len(part.metrics)
            source.unused[UnusedReason.METRICS] += len(part.metrics)
            source.record_library(clean_name(part.scope.name))
            yield


def _decode_in_steps(
    groups: Iterable[tuple[Resource, Iterable[tuple[InstrumentationScope, Sequence[T]]]]],
    read: Callable[[T, Process, InstrumentationScope, float], Observation | None],
    assembler: Assembler,
    now: float,
    batch: Batch,
) -> Iterator[None]:
    observations: list[Observation] = []
    arrived_at = int(now * 1e9)
    size = _RequestSize()
    for resource, parts in groups:
        size.add_group()
        process = Process.from_resource(resource)
        batch.report_intervals.setdefault(process.incarnation_id, None)
        for scope, records in parts:
            size.add_group()
            size.add_items(len(records))
            source = batch.sources.for_process(process, scope.name)
            source.records += len(records)
            source.record_library(clean_name(scope.name))
            yield
            for record in records:
                try:
                    observation = read(record, process, scope, now)
                except UnusableRecordError as error:
                    batch.reject(process, scope.name, error)
                else:
                    if observation is None:
                        batch.ignore(process, scope.name, UnusedReason.NO_AGENT_WORK)
                    else:
                        record_source = source
                        if observation.library != scope.name:
                            # Count a record about a span for the library of the span.
                            record_source = batch.sources.for_process(process, observation.library)
                            source.records -= 1
                            record_source.records += 1
                        if problem := correct_times(observation, arrived_at):
                            record_source.record_wrong_time(problem)
                        observations.append(observation)
                yield
        yield
    yield from assembler.assemble(observations, batch, now)
    batch.finish()


class _RequestSize:
    """Counts the groups and items of a request against the limits."""

    def __init__(self) -> None:
        self._groups = self._items = 0

    def add_group(self) -> None:
        """Count a resource or a scope. Raises `RejectedRequestError` (413) above the limit."""
        self._groups += 1
        if self._groups > MAX_GROUPS:
            raise make_too_many_error("resources and scopes", MAX_GROUPS)

    def add_items(self, count: int) -> None:
        """Count spans or records. Raises `RejectedRequestError` (413) above the limit."""
        self._items += count
        if self._items > MAX_ITEMS:
            raise make_too_many_error("spans or records", MAX_ITEMS)


_MAX_FUTURE_NS: Final = round(MAX_FUTURE_SECONDS * 1e9)
_MAX_AGE_NS: Final = round(MAX_DURATION * 1e9)
"""Maximum age of a record. Exporters do not hold records for a year."""


def correct_times(observation: Observation, now: int) -> str:
    """
    Replace impossible times of an observation. Return a description of the fault, or "".

    An impossible end becomes ``now``, the arrival time in nanoseconds since the epoch. An end before a
    possible start becomes the start, but at most ``now``: a clock was set back, and the work is not older
    than its start. An impossible start becomes the end. Missing times stay missing.
    """
    start, end = observation.start, observation.end
    item_time = end or start
    if not item_time:
        return ""
    earliest, latest = now - _MAX_AGE_NS, now + _MAX_FUTURE_NS
    if earliest <= item_time <= latest and (earliest <= start <= item_time or not start):
        return ""
    duration = end - start if start and end else -1
    if not earliest <= item_time <= latest:
        problem = (
            f"{'ends' if end else 'begins'} at {_format_time(item_time)}, but arrived at {_format_time(now)}"
        )
        item_time = now
    else:
        problem = f"begins at {_format_time(start)} and ends at {_format_time(end)}"
        if item_time < start <= latest:
            item_time = min(start, now)
    observation.end = item_time if end else 0
    if 0 <= duration <= _MAX_FUTURE_NS and item_time == now:
        observation.start = item_time - duration  # the sender's clock is wrong, but the duration is known
    else:
        observation.start = item_time
        if "duration" in observation.data:
            observation.data["duration"] = None
    item_name = f"span {observation.span_id.hex()}" if observation.span_id else "a record"
    return f"{item_name} of scope {observation.library!r} {problem}"


def _format_time(nanoseconds: int) -> str:
    return datetime.fromtimestamp(nanoseconds // 1_000_000_000, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
