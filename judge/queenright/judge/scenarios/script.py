"""
Scripts of workers, line by line, and the events they produce.

A line is an action with parameters: ``turn: {tool: search, args: "q {n}", result: "page {n}", times: 5}``.
``{n}`` in a text is the number of the turn. Times are written as ``90``, ``90s``, ``15m`` or ``2h``.
"""

from __future__ import annotations

import re
from abc import abstractmethod
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Annotated, Any, ClassVar, Final, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, model_validator

from queenright.instrumentation.fingerprint import fingerprint
from queenright.runtime.events import EventType

_UNITS: Final = {"": 1.0, "s": 1.0, "m": 60.0, "h": 3600.0}
_DELTA_SECONDS: Final = 10.0
"""Interval between the text deltas of a streaming model."""


def _seconds(value: Any) -> Any:
    match = re.fullmatch(r"(\d+(?:\.\d+)?)([smh]?)", value.strip()) if isinstance(value, str) else None
    return value if match is None else float(match[1]) * _UNITS[match[2]]


Time = Annotated[float, BeforeValidator(_seconds), Field(ge=0)]
Times = Annotated[int, Field(ge=1, le=500)]


@dataclass(frozen=True, slots=True)
class Emits:
    """The worker emits an event."""

    type: EventType
    data: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Passes:
    """Time passes."""

    seconds: float


@dataclass(frozen=True, slots=True)
class HostSleeps:
    """The host sleeps, and its clock jumps."""

    seconds: float


@dataclass(slots=True)
class Actor:
    """The worker that plays a script, with its state."""

    agent_id: str
    session_id: str = "session-1"
    life: int = 1
    node_id: str = "work"
    turn: int = 0
    beats: float | None = None
    """The heartbeat interval; None: no heartbeats."""
    waits: str = ""

    @property
    def incarnation_id(self) -> str:
        """The id of its incarnation."""
        return f"{self.session_id}-life-{self.life}"


Happening = Emits | Passes | HostSleeps


class Action(BaseModel):
    """One line of a script."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    word: ClassVar[str]
    bare: ClassVar[str] = ""
    """The parameter that a bare value sets."""

    def acts(self, who: Actor) -> Iterator[Happening]:
        """Yield what happens, and update ``who``."""
        return self._play(who)

    @abstractmethod
    def _play(self, who: Actor) -> Iterator[Happening]: ...


def action(line: Mapping[str, Any]) -> Action:
    """
    Parse a line of a script.

    Raises:
        ValueError: The action is unknown, or its parameters are invalid.
    """
    if len(line) != 1:
        raise ValueError(f"a line has one action; {dict(line)!r} has {len(line)}")
    [(word, details)] = line.items()
    kind = _ACTIONS.get(word)
    if kind is None:
        raise ValueError(f"unknown action {word!r}; known: {', '.join(sorted(_ACTIONS))}")
    if not isinstance(details, Mapping):
        details = {} if details is None else {kind.bare or "value": details}
    return kind.model_validate(details)


class Start(Action):
    """The session starts."""

    word: ClassVar[str] = "start"
    beats: Time | None = None
    node: str = "work"
    start_records: bool = True
    """Whether it also emits events at the start of calls and steps."""

    def _play(self, who: Actor) -> Iterator[Happening]:
        who.beats, who.node_id, who.waits = self.beats, self.node, ""
        data: dict[str, Any] = {"start_records": self.start_records}
        if self.beats:
            data["heartbeat_interval"] = self.beats
        yield Emits(EventType.EXECUTION_STARTED, data)


class Restart(Start):
    """Another process continues the session."""

    word: ClassVar[str] = "restart"

    def _play(self, who: Actor) -> Iterator[Happening]:
        who.life += 1
        yield from super()._play(who)


class NewSession(Start):
    """It starts another session."""

    word: ClassVar[str] = "session"
    bare: ClassVar[str] = "id"
    id: str

    def _play(self, who: Actor) -> Iterator[Happening]:
        who.session_id, who.life = self.id, 1
        yield from super()._play(who)


class Turn(Action):
    """A step: a model call, perhaps tool calls, and perhaps a verdict."""

    word: ClassVar[str] = "turn"
    times: Times = 1
    every: Time = 30.0
    tool: str = ""
    args: str = "{n}"
    result: str | None = "{n}"
    error: str = ""
    """The class of the tool's error; ``result`` is its message."""
    beside: Times = 1
    """The number of equal parallel calls."""
    fails: str = ""
    """The class of the step's error."""
    verdict: Literal["ACCEPT", "RETRY", "CONTINUE", "ESCALATE"] | None = "CONTINUE"
    says: str = ""
    tokens: Annotated[int, Field(ge=0)] = 2_000
    node: str = ""

    def _play(self, who: Actor) -> Iterator[Happening]:
        for _ in range(self.times):
            who.turn += 1
            who.node_id = self.node or who.node_id
            yield Emits(EventType.STEP_STARTED)
            yield Emits(EventType.LLM_CALL_STARTED)
            yield Passes(self.every / 2)
            yield Emits(EventType.LLM_CALL_COMPLETED, {"input_tokens": self.tokens, "output_tokens": 50})
            yield from self._calls(who)
            yield Emits(EventType.STEP_COMPLETED, self._ended(who))

    def _calls(self, who: Actor) -> Iterator[Happening]:
        if not self.tool:
            yield Passes(self.every / 2)
            return
        ids = [f"{who.turn}-{number}" for number in range(self.beside)]
        for call in ids:
            yield Emits(EventType.TOOL_CALL_STARTED, {"tool": self.tool, "call_id": call})
        yield Passes(self.every / 2)
        ended = tool_ended(self.tool, self.args, self.result, self.error, who.turn)
        for call in ids:
            yield Emits(EventType.TOOL_CALL_COMPLETED, ended | {"call_id": call})

    def _ended(self, who: Actor) -> dict[str, Any]:
        data: dict[str, Any] = {"verdict": self.verdict} if self.verdict and not self.fails else {}
        if self.fails:
            data |= {"error_type": self.fails, "error": fill(self.says, who.turn) or self.fails}
        elif self.says:
            data["text"] = fill(self.says, who.turn)
        return data


def fill(text: str, turn: int) -> str:
    """Fill in the number of the turn."""
    return text.replace("{n}", str(turn))


def tool_ended(tool: str, args: str, result: str | None, error: str, turn: int) -> dict[str, Any]:
    """Return the data of a completed tool call, as instrumented agents send it."""
    data: dict[str, Any] = {"tool": tool, "args_hash": fingerprint(fill(args, turn)), "turn": str(turn)}
    data["outcome"] = "error" if error else "ok"
    if result is not None:
        data["result_hash"] = fingerprint(fill(result, turn))
    if error:
        data |= {"error_type": error, "error": fill(result or error, turn)}
    return data


class Again(Action):
    """Repeat some lines."""

    word: ClassVar[str] = "again"
    times: Times
    lines: tuple[dict[str, Any], ...]

    @model_validator(mode="after")
    def _check_lines(self) -> Again:
        for line in self.lines:
            action(line)
        return self

    def _play(self, who: Actor) -> Iterator[Happening]:
        for _ in range(self.times):
            for line in self.lines:
                yield from action(line).acts(who)


class Think(Action):
    """A model call outside a turn: it may fail, stream, or never return."""

    word: ClassVar[str] = "llm"
    times: Times = 1
    lasts: Time = 10.0
    error: str = ""
    says: str = ""
    streams: bool = False
    comes_back: bool = True
    tokens: Annotated[int, Field(ge=0)] = 2_000

    def _play(self, who: Actor) -> Iterator[Happening]:
        for _ in range(self.times):
            yield Emits(EventType.LLM_CALL_STARTED)
            left = self.lasts
            while self.streams and left > _DELTA_SECONDS:
                left -= _DELTA_SECONDS
                yield Passes(_DELTA_SECONDS)
                yield Emits(EventType.LLM_TEXT_DELTA, {"text": "and so on "})
            yield Passes(left)
            if self.error:
                data = {"error_type": self.error, "error": self.says or self.error}
                yield Emits(EventType.LLM_CALL_COMPLETED, data)
            elif self.comes_back:
                yield Emits(EventType.LLM_CALL_COMPLETED, {"input_tokens": self.tokens, "output_tokens": 50})


class UseTool(Action):
    """A tool call outside a turn: it may take long or never return."""

    word: ClassVar[str] = "tool"
    name: str
    declares: Time | None = None
    lasts: Time
    comes_back: bool = True
    args: str = "{n}"
    result: str | None = "{n}"
    error: str = ""

    def _play(self, who: Actor) -> Iterator[Happening]:
        who.turn += 1
        call: dict[str, Any] = {"tool": self.name, "call_id": f"{who.turn}-t"}
        yield Emits(EventType.TOOL_CALL_STARTED, call | ({"timeout": self.declares} if self.declares else {}))
        yield Passes(self.lasts)
        if self.comes_back:
            ended = tool_ended(self.name, self.args, self.result, self.error, who.turn)
            yield Emits(EventType.TOOL_CALL_COMPLETED, call | ended)


class Pass(Action):
    """Time passes with heartbeats only."""

    word: ClassVar[str] = "pass"
    bare: ClassVar[str] = "time"
    time: Time

    def _play(self, who: Actor) -> Iterator[Happening]:
        yield Passes(self.time)


class Sleep(Action):
    """The host sleeps."""

    word: ClassVar[str] = "host_sleeps"
    bare: ClassVar[str] = "time"
    time: Time

    def _play(self, who: Actor) -> Iterator[Happening]:
        yield HostSleeps(self.time)


class Dies(Action):
    """The process dies without a final event."""

    word: ClassVar[str] = "dies"

    def _play(self, who: Actor) -> Iterator[Happening]:
        who.beats = None
        yield from ()


class Wait(Action):
    """It waits for a reason."""

    word: ClassVar[str] = "wait"
    bare: ClassVar[str] = "reason"
    reason: Literal["user_input", "paused", "children", "backoff"]

    def _play(self, who: Actor) -> Iterator[Happening]:
        who.waits = self.reason
        if self.reason == "user_input":
            yield Emits(EventType.CLIENT_INPUT_REQUESTED)
        elif self.reason == "paused":
            yield Emits(EventType.EXECUTION_PAUSED)
        else:
            yield Emits(EventType.WORKER_WAITING, {"reason": self.reason})


class GoOn(Action):
    """The wait ends."""

    word: ClassVar[str] = "go_on"

    def _play(self, who: Actor) -> Iterator[Happening]:
        waited, who.waits = who.waits, ""
        if waited == "user_input":
            yield Emits(EventType.CLIENT_INPUT_RECEIVED)
        elif waited == "paused":
            yield Emits(EventType.EXECUTION_RESUMED)
        else:
            yield Emits(EventType.WORKER_WAITING, {"reason": None})


class Checkpoint(Action):
    """It saves a checkpoint."""

    word: ClassVar[str] = "checkpoint"

    def _play(self, who: Actor) -> Iterator[Happening]:
        yield Emits(EventType.CHECKPOINT_SAVED)


class End(Action):
    """The session ends."""

    word: ClassVar[str] = "end"
    bare: ClassVar[str] = "how"
    how: Literal["completed", "failed", "cancelled"] = "completed"
    error: str = "RuntimeError"
    says: str = ""

    def _play(self, who: Actor) -> Iterator[Happening]:
        who.beats = None
        if self.how == "completed":
            yield Emits(EventType.EXECUTION_COMPLETED)
        else:
            error = "cancelled" if self.how == "cancelled" else self.error
            yield Emits(EventType.EXECUTION_FAILED, {"error_type": error, "error": self.says or error})


class Breaker(Action):
    """A circuit breaker changes its state."""

    word: ClassVar[str] = "breaker"
    bare: ClassVar[str] = "to"
    to: Literal["open", "half_open", "closed"]

    def _play(self, who: Actor) -> Iterator[Happening]:
        name = f"tool_execution:{who.agent_id}:search"
        data = {"name": name, "kind": "tool_execution", "from": "closed", "to": self.to}
        yield Emits(EventType.CIRCUIT_BREAKER_STATE_CHANGED, data)


class Lost(Action):
    """Its recovery has failed for good."""

    word: ClassVar[str] = "recovery_failed"
    bare: ClassVar[str] = "reason"
    reason: str

    def _play(self, who: Actor) -> Iterator[Happening]:
        yield Emits(EventType.RECOVERY_FAILED, {"exhausted": True, "reason": self.reason})


_ACTIONS: Final[Mapping[str, type[Action]]] = {
    kind.word: kind
    for kind in (
        Start,
        Restart,
        NewSession,
        Turn,
        Again,
        Think,
        UseTool,
        Pass,
        Sleep,
        Dies,
        Wait,
        GoOn,
        Checkpoint,
        End,
        Breaker,
        Lost,
    )
}
