"""Sources: the senders of telemetry, and how much of their telemetry is used."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from enum import StrEnum
from functools import lru_cache
from typing import Final

from queenright.server.telemetry.bounded_dict import make_room
from queenright.server.telemetry.dialects import CLIENT_NAMES, CLIENTS
from queenright.server.telemetry.kind import ObservationKind
from queenright.server.telemetry.observation import Observation
from queenright.server.telemetry.process import UNKNOWN_SERVICE, Process
from queenright.server.telemetry.runs import TracedRun
from queenright.server.telemetry.unusable import RecordFault, UnusedReason

OTHER_DIALECT: Final = "other"
"""The dialect of libraries that are not in the table below. Their spans are also read."""

_DIALECT_BY_PREFIX: Final = (
    *((scope, client.name) for client in CLIENTS for scope in (client.log_scope, client.span_scope) if scope),
    *((client.name, client.name) for client in CLIENTS),
    ("com.anthropic.claude_code", "claude-code"),
    ("queenright", "queenright"),
    ("openinference", "openinference"),
    ("opentelemetry", "opentelemetry"),
    ("pydantic-ai", "logfire"),
    ("logfire", "logfire"),
    ("langsmith", "langsmith"),
    ("gcp.vertex.agent", "google-adk"),
    ("strands", "strands"),
    ("ai", "vercel-ai"),
)
"""Prefixes of scope names, and their dialects."""

DIALECTS: Final = (*dict.fromkeys(name for _, name in _DIALECT_BY_PREFIX), OTHER_DIALECT)
_MAX_NAMES: Final = 5


class SourceData(StrEnum):
    """A kind of data that a source sends about its agents."""

    NAME = "name"
    SESSION = "session"
    MODEL_CALLS = "model_calls"
    TOKENS = "tokens"
    TOOL_CALLS = "tool_calls"
    CONTENT = "content"
    """Tool arguments, which are needed to detect repeated calls."""
    OPEN_WORK = "open_work"
    """Starts of work, which are needed to detect a call while it hangs."""


_WORK_KINDS: Final = frozenset(
    {ObservationKind.AGENT, ObservationKind.TURN, ObservationKind.LLM, ObservationKind.TOOL}
)


@lru_cache(maxsize=1_024)
def find_dialect(scope: str) -> str:
    """Return the dialect of an instrumentation scope."""
    for prefix, dialect in _DIALECT_BY_PREFIX:
        if scope.startswith(prefix) and scope[len(prefix) : len(prefix) + 1] in ("", ".", "-", "_", "/"):
            return dialect
    return OTHER_DIALECT


@dataclass(slots=True)
class Source:
    """The telemetry of a service in one dialect. Times are in seconds since the epoch."""

    service: str
    """The service's name; for a coding agent, such as ``claude-code/ada@laptop/website``."""
    dialect: str
    records: int = 0
    rejected: Counter[RecordFault] = field(default_factory=Counter)
    unused: Counter[UnusedReason] = field(default_factory=Counter)
    parts: set[SourceData] = field(default_factory=set)
    agents: dict[str, None] = field(default_factory=dict)
    """Up to five of its agents, newest last."""
    session: tuple[str, str] = ("", "")
    """The last reported agent and session."""
    libraries: dict[str, None] = field(default_factory=dict)
    """Up to five of its instrumentation scopes, newest last."""
    wrong_times: int = 0
    """Records with impossible times."""
    wrong_time: str = ""
    """The problem of the first such record in a batch; after a merge, of the latest batch."""
    first_seen: float = 0.0
    last_seen: float = 0.0
    last_notified: float = 0.0
    """When a notice that its telemetry is not used was last logged."""
    wrong_times_notified: float = 0.0
    """When impossible times were last logged."""

    @property
    def used_records(self) -> int:
        """The number of used records."""
        return self.records - self.rejected.total() - self.unused.total()

    def record_library(self, scope: str) -> None:
        """Record an instrumentation scope."""
        if scope:
            _keep_newest(self.libraries, (scope,))

    def record_wrong_time(self, problem: str) -> None:
        """Count a record with an impossible time."""
        self.wrong_times += 1
        self.wrong_time = self.wrong_time or problem

    def record(self, run: TracedRun, observation: Observation) -> None:
        """Record the agent and the kinds of data of an observation."""
        _keep_newest(self.agents, (run.agent_id,))
        self.session = run.agent_id, run.session_id
        add, kind, data = self.parts.add, observation.kind, observation.data
        if (
            observation.agent
            or observation.process.agent
            or observation.process.service not in ("", UNKNOWN_SERVICE)
        ):
            add(SourceData.NAME)
        if observation.session:
            add(SourceData.SESSION)
        if not observation.end and kind in _WORK_KINDS:
            add(SourceData.OPEN_WORK)
        if kind is ObservationKind.LLM:
            add(SourceData.MODEL_CALLS)
            if data.get("input_tokens") or data.get("output_tokens"):
                add(SourceData.TOKENS)
        elif kind is ObservationKind.TOOL:
            add(SourceData.TOOL_CALLS)
            if data.get("args_hash"):
                add(SourceData.CONTENT)

    def add(self, other: Source) -> None:
        """Merge later telemetry of the same source."""
        self.records += other.records
        self.rejected += other.rejected
        self.unused += other.unused
        self.parts |= other.parts
        self.wrong_times += other.wrong_times
        self.wrong_time = other.wrong_time or self.wrong_time
        _keep_newest(self.agents, other.agents)
        if any(other.session):
            self.session = other.session
        _keep_newest(self.libraries, other.libraries)


class Sources:
    """Sources by service and dialect. The most recent ``limit`` are kept."""

    __slots__ = ("_limit", "_sources")

    def __init__(self, limit: int = 10_000) -> None:
        self._limit = limit
        self._sources: dict[tuple[str, str], Source] = {}

    def __iter__(self) -> Iterator[Source]:
        return iter(self._sources.values())

    def for_process(self, process: Process, scope: str) -> Source:
        """Return the source of a library in a process."""
        dialect = find_dialect(scope)
        return self.get(
            process.get_client_name(dialect) if dialect in CLIENT_NAMES else process.service, dialect
        )

    def get(self, service: str, dialect: str) -> Source:
        """Return a source and mark it as the most recent."""
        key = service, dialect
        source = self._sources.pop(key, None)
        if source is None:
            source = Source(service, dialect)
            make_room(self._sources, self._limit)
        self._sources[key] = source
        return source

    def merge_into_known(self, new_source: Source) -> Source:
        """
        Return the known source that ``new_source`` belongs to, and mark it as the most recent.

        Hooks and exporters of a coding agent name its owner differently. They are one source if they report
        the same agent, or if one of them has reported none yet.
        """
        if new_source.dialect not in CLIENT_NAMES:
            return self.get(new_source.service, new_source.dialect)
        same_sources = [
            source
            for source in self
            if source.dialect == new_source.dialect and _is_same_client(source, new_source)
        ]
        # The longest name has the most parts.
        name = max((new_source.service, *(source.service for source in same_sources)), key=len)
        source = self.get(name, new_source.dialect)
        for other in same_sources:
            if other is not source:
                source.add(other)
                source.first_seen = min(source.first_seen or other.first_seen, other.first_seen)
                del self._sources[other.service, other.dialect]
        return source

    def clear(self) -> None:
        """Remove all sources."""
        self._sources.clear()


def _is_same_client(source: Source, other: Source) -> bool:
    if source.agents and other.agents:
        return source.service == other.service or not source.agents.keys().isdisjoint(other.agents)
    shorter, longer = sorted((source.service, other.service), key=len)
    return f"{longer}/".startswith(f"{shorter}/")


def _keep_newest(names: dict[str, None], added_names: Iterable[str]) -> None:
    for name in added_names:
        names.pop(name, None)
        names[name] = None
    while len(names) > _MAX_NAMES:
        del names[next(iter(names))]
