"""Sources: who sends telemetry, and what was made of it. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from enum import StrEnum
from functools import lru_cache
from typing import Final

from queenright.server.telemetry.dialects import CLIENT_NAMES, CLIENTS
from queenright.server.telemetry.kind import Kind
from queenright.server.telemetry.observation import Observation
from queenright.server.telemetry.process import UNKNOWN_SERVICE, Process
from queenright.server.telemetry.runs import Run
from queenright.server.telemetry.unusable import Fault, Unused

OTHER: Final = "other"
"""The dialect of libraries that are not in the table below; their spans are read all the same."""

_SCOPES: Final = (
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
"""The first words of a scope's name, and the dialect."""

DIALECTS: Final = (*dict.fromkeys(name for _, name in _SCOPES), OTHER)
_MAX_NAMES: Final = 5


class Part(StrEnum):
    """What a source shows of its agents."""

    NAME = "name"
    SESSION = "session"
    MODEL_CALLS = "model_calls"
    TOKENS = "tokens"
    TOOL_CALLS = "tool_calls"
    CONTENT = "content"
    """What tools are called with, so that the same call again is seen as that."""
    OPEN_WORK = "open_work"
    """When work begins, so that a call that hangs is seen while it hangs."""


_WORK: Final = frozenset({Kind.AGENT, Kind.TURN, Kind.LLM, Kind.TOOL})


@lru_cache(maxsize=1_024)
def dialect_of(scope: str) -> str:
    """Return the dialect of an instrumentation scope, by its name."""
    for words, dialect in _SCOPES:
        if scope.startswith(words) and scope[len(words) : len(words) + 1] in ("", ".", "-", "_", "/"):
            return dialect
    return OTHER


@dataclass(slots=True)
class Source:
    """What one service has sent in one dialect. Times are in seconds since the epoch."""

    service: str
    """Of a coding agent: whose it is, ``claude-code/ada@laptop/website``."""
    dialect: str
    records: int = 0
    rejected: Counter[Fault] = field(default_factory=Counter)
    unused: Counter[Unused] = field(default_factory=Counter)
    parts: set[Part] = field(default_factory=set)
    agents: dict[str, None] = field(default_factory=dict)
    """Some of its agents, the newest last."""
    session: tuple[str, str] = ("", "")
    """The agent and the session that were told of last."""
    libraries: dict[str, None] = field(default_factory=dict)
    """Some of its instrumentation scopes."""
    first_seen: float = 0.0
    last_seen: float = 0.0
    last_notified: float = 0.0
    """When its sender was last told that nothing is made of what it sends."""

    @property
    def used(self) -> int:
        """How many of the records something was made of."""
        return self.records - self.rejected.total() - self.unused.total()

    def note_library(self, scope: str) -> None:
        """Note one of its instrumentation scopes."""
        if scope:
            _keep(self.libraries, (scope,))

    def note(self, run: Run, observation: Observation) -> None:
        """Note what an observation shows of an agent."""
        _keep(self.agents, (run.agent_id,))
        self.session = run.agent_id, run.session_id
        add, kind, data = self.parts.add, observation.kind, observation.data
        if (
            observation.agent
            or observation.process.agent
            or observation.process.service not in ("", UNKNOWN_SERVICE)
        ):
            add(Part.NAME)
        if observation.session:
            add(Part.SESSION)
        if not observation.end and kind in _WORK:
            add(Part.OPEN_WORK)
        if kind is Kind.LLM:
            add(Part.MODEL_CALLS)
            if data.get("input_tokens") or data.get("output_tokens"):
                add(Part.TOKENS)
        elif kind is Kind.TOOL:
            add(Part.TOOL_CALLS)
            if data.get("args_hash"):
                add(Part.CONTENT)

    def add(self, other: Source) -> None:
        """Add what the same source has sent since."""
        self.records += other.records
        self.rejected += other.rejected
        self.unused += other.unused
        self.parts |= other.parts
        _keep(self.agents, other.agents)
        if any(other.session):
            self.session = other.session
        _keep(self.libraries, other.libraries)


class Sources:
    """Sources by service and dialect: those of one request, or the last ``limit`` of all."""

    __slots__ = ("_limit", "_sources")

    def __init__(self, limit: int = 10_000) -> None:
        self._limit = limit
        self._sources: dict[tuple[str, str], Source] = {}

    def __iter__(self) -> Iterator[Source]:
        return iter(self._sources.values())

    def for_process(self, process: Process, scope: str) -> Source:
        """Return the source that a library in a process is of."""
        dialect = dialect_of(scope)
        return self.get(process.name_of(dialect) if dialect in CLIENT_NAMES else process.service, dialect)

    def get(self, service: str, dialect: str) -> Source:
        """Return a source, the newest one from now on."""
        key = service, dialect
        source = self._sources.pop(key, None)
        if source is None:
            source = Source(service, dialect)
            while len(self._sources) >= self._limit:
                del self._sources[next(iter(self._sources))]
        self._sources[key] = source
        return source

    def merge_into_known(self, new: Source) -> Source:
        """
        Return the source that ``new`` tells more of, the newest one from now on.

        Hooks and exporters of a coding agent name its owner each in their own way: they are one source if
        they tell of the same agent, or if one of them tells of none yet.
        """
        if new.dialect not in CLIENT_NAMES:
            return self.get(new.service, new.dialect)
        same = [source for source in self if source.dialect == new.dialect and _is_same_client(source, new)]
        # The longest name says the most about whose it is.
        name = max((new.service, *(source.service for source in same)), key=len)
        source = self.get(name, new.dialect)
        for other in same:
            if other is not source:
                source.add(other)
                source.first_seen = min(source.first_seen or other.first_seen, other.first_seen)
                del self._sources[other.service, other.dialect]
        return source

    def clear(self) -> None:
        """Forget all."""
        self._sources.clear()


def _is_same_client(source: Source, other: Source) -> bool:
    if source.agents and other.agents:
        return source.service == other.service or not source.agents.keys().isdisjoint(other.agents)
    shorter, longer = sorted((source.service, other.service), key=len)
    return f"{longer}/".startswith(f"{shorter}/")


def _keep(names: dict[str, None], new: Iterable[str]) -> None:
    for name in new:
        names.pop(name, None)
        names[name] = None
    while len(names) > _MAX_NAMES:
        del names[next(iter(names))]
