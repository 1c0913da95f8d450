"""Format events for the event stream, and read slices of the log."""

from __future__ import annotations

import functools
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Final

import orjson
from sqlalchemy import Connection

from queenright.health.store.event_log import log_begins, read_span
from queenright.runtime.events import AgentEvent, EventType
from queenright.server.agents.companion_sessions import CompanionSessions

_SLICE_ROWS: Final = 500


@dataclass(frozen=True, slots=True)
class StreamFilter:
    """Selects events. None matches all."""

    types: frozenset[EventType] | None = None
    agent: str | None = None
    companions: CompanionSessions | None = None
    """Also match the agent's companion sessions."""

    def matches(self, event: AgentEvent) -> bool:
        """Return whether an event matches."""
        if self.types is not None and event.type not in self.types:
            return False
        return self.agent is None or event.agent_id == self.agent or event.session_id in self.list_sessions()

    def list_sessions(self) -> Collection[str]:
        """Return the companion sessions that match."""
        if self.agent is None or self.companions is None:
            return ()
        return self.companions.list_sessions(self.agent)


@dataclass(slots=True)
class LogLine:
    """A logged event, with its cached text."""

    seq: int
    event: AgentEvent
    _text: bytes = b""

    @property
    def text(self) -> bytes:
        """The event in wire format, formatted once."""
        if not self._text:
            self._text = format_event(self.event, event_id=self.event.id)
        return self._text


@dataclass
class LogSlice:
    """A range of the log, with the matching events as text."""

    through: int
    """The last sequence number of the slice."""
    parts: list[tuple[int, bytes]] = field(default_factory=list)
    """Sequence numbers and texts of the matching events."""
    size: int = 0
    has_gap: bool = False
    """Whether events before the slice have expired."""

    def add(self, seq: int, text: bytes) -> None:
        """Add a matching event."""
        self.parts.append((seq, text))
        self.size += len(text)

    @functools.cached_property
    def text(self) -> bytes:
        """The concatenated texts."""
        return b"".join(text for _, text in self.parts)


def select_lines(lines: Iterable[LogLine], event_filter: StreamFilter, after: int, limit: int) -> LogSlice:
    """Select about ``limit`` bytes of the matching events of ``lines``, which start after ``after``."""
    batch = LogSlice(after)
    for line in lines:
        batch.through = line.seq
        if event_filter.matches(line.event):
            batch.add(line.seq, line.text)
            if batch.size >= limit:
                break
    return batch


def read_log_slice(
    conn: Connection, event_filter: StreamFilter, after: int, through: int, limit: int
) -> LogSlice:
    """Read matching events after ``after`` up to ``through``: at most 500, or about ``limit`` bytes."""
    begin_seq = log_begins(conn)
    batch = LogSlice(max(after, begin_seq), has_gap=after < begin_seq)
    after = batch.through
    rows = read_span(
        conn,
        after=after,
        through=through,
        types=event_filter.types,
        agent_id=event_filter.agent,
        or_sessions=list(event_filter.list_sessions()),
        limit=_SLICE_ROWS,
    )
    for seq, event in rows:
        batch.through = seq
        if event is not None:
            batch.add(seq, format_event(event, event_id=event.id))
            if batch.size >= limit:
                return batch
    if len(rows) < _SLICE_ROWS:
        batch.through = max(through, after)
    return batch


def format_event(event: AgentEvent, *, event_id: str | None) -> bytes:
    """Format an event as a server-sent event. With an id, a client can resume after it."""
    head = f"event: {event.type.value}\n"
    if event_id and event_id.isprintable():
        head += f"id: {event_id}\n"
    return b"%bdata: %b\n\n" % (head.encode(), orjson.dumps(event.to_dict(), _serialize_value))


def _serialize_value(value: object) -> object:
    return dict(value) if isinstance(value, Mapping) else str(value)
