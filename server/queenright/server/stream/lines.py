"""What goes over an event stream: events as text, and the part of the log that a reader takes at once."""

from __future__ import annotations

import functools
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field

import orjson
from sqlalchemy import Connection

from queenright.health.event_log import log_begins, read_span
from queenright.runtime.events import AgentEvent, EventType
from queenright.server.agents.companion_sessions import CompanionSessions


@dataclass(frozen=True, slots=True)
class EventFilter:
    """Which events a reader wants; None is all."""

    types: frozenset[EventType] | None = None
    agent: str | None = None
    companions: CompanionSessions | None = None
    """With the agent, the graphs that run beside it."""

    def matches(self, event: AgentEvent) -> bool:
        """Return whether it wants this one."""
        if self.types is not None and event.type not in self.types:
            return False
        return self.agent is None or event.agent_id == self.agent or event.session_id in self.sessions()

    def sessions(self) -> Collection[str]:
        """Return the sessions that are wanted besides the agent's own."""
        return () if self.agent is None or self.companions is None else self.companions.of(self.agent)


@dataclass(slots=True)
class LogLine:
    """An event of the log, and its text once somebody has read it."""

    seq: int
    event: AgentEvent
    _text: bytes = b""

    @property
    def text(self) -> bytes:
        """The event as it goes over the wire, written once."""
        if not self._text:
            self._text = format_event(self.event, event_id=self.event.id)
        return self._text


@dataclass
class LogSlice:
    """What a reader takes at once: a part of the log, and what of it is wanted."""

    through: int
    """The last sequence number that was looked at."""
    parts: list[tuple[int, bytes]] = field(default_factory=list)
    """Sequence numbers, and the events as text."""
    size: int = 0
    has_gap: bool = False
    """Events before the part were let go of by age: they cannot be told any more."""

    def add(self, seq: int, text: bytes) -> None:
        """Add one event that is wanted."""
        self.parts.append((seq, text))
        self.size += len(text)

    @functools.cached_property
    def joined(self) -> bytes:
        """All of it as one piece."""
        return b"".join(text for _, text in self.parts)


def select_lines(lines: Iterable[LogLine], event_filter: EventFilter, after: int, limit: int) -> LogSlice:
    """Return what is wanted of ``lines``, which follow ``after``; no more than some ``limit`` bytes."""
    batch = LogSlice(after)
    for line in lines:
        batch.through = line.seq
        if event_filter.matches(line.event):
            batch.add(line.seq, line.text)
            if batch.size >= limit:
                break
    return batch


def read_log_slice(
    conn: Connection, event_filter: EventFilter, after: int, through: int, limit: int, rows: int = 500
) -> LogSlice:
    """Return what is wanted of a part of the log: no more than some ``limit`` bytes, and ``rows`` events."""
    begins = log_begins(conn)
    batch = LogSlice(max(after, begins), has_gap=after < begins)
    after = batch.through
    found = read_span(
        conn,
        after=after,
        through=through,
        types=event_filter.types,
        agent_id=event_filter.agent,
        or_sessions=list(event_filter.sessions()),
        limit=rows,
    )
    for seq, event in found:
        batch.through = seq
        if event is not None:
            batch.add(seq, format_event(event, event_id=event.id))
            if batch.size >= limit:
                return batch
    if len(found) < rows:
        batch.through = max(through, after)
    return batch


def format_event(event: AgentEvent, *, event_id: str | None) -> bytes:
    """Return an event as a block of a stream; with an id, so that one can go on after it."""
    head = f"event: {event.type.value}\n"
    if event_id and event_id.isprintable():
        head += f"id: {event_id}\n"
    return b"%bdata: %b\n\n" % (head.encode(), orjson.dumps(event.to_dict(), _plain))


def _plain(value: object) -> object:
    return dict(value) if isinstance(value, Mapping) else str(value)
