"""
Scripts: what a worker does, line by line, and the events that say so.

A line is one word with its details: ``turn: {tool: search, args: "q {n}", result: "page {n}", times: 5}``.
``{n}`` in a text is the number of the turn, so that it is another text each time. Time is said as
``90``, ``90s``, ``15m`` or ``2h``.
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
_TEXT_EVERY: Final = 10.0
"""A model that streams says something so often."""


def _seconds(value: Any) -> Any:
    said = re.fullmatch(r"(\d+(?:\.\d+)?)([smh]?)", value.strip()) if isinstance(value, str) else None
    return value if said is None else float(said[1]) * _UNITS[said[2]]


Time = Annotated[float, BeforeValidator(_seconds), Field(ge=0)]
Times = Annotated[int, Field(ge=1, le=500)]


@dataclass(frozen=True, slots=True)
class Says:
    """The worker says something."""

    type: EventType
    data: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Passes:
    """Time passes."""

    seconds: float


@dataclass(frozen=True, slots=True)
class HostSleeps:
    """The machine that all of this runs on stands still, and its clock jumps."""

    seconds: float


@dataclass(slots=True)
class Actor:
    """Who says it, and what that has come to."""

    agent_id: str
    session_id: str = "session-1"
    life: int = 1
    node_id: str = "work"
    turn: int = 0
    beats: float | None = None
    """Its process says so often that it lives; None: never."""
    waits: str = ""

    @property
    def incarnation_id(self) -> str:
        """Its life, in the words of events."""
        return f"{self.session_id}-life-{self.life}"


Happening = Says | Passes | HostSleeps


class Action(BaseModel):
    """One line of a script."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    word: ClassVar[str]
    bare: ClassVar[str] = ""
    """What a value without a name is."""

    @abstractmethod
    def acts(self, who: Actor) -> Iterator[Happening]:
        """Yield what happens, and change ``who`` accordingly."""


def action(line: Mapping[str, Any]) -> Action:
    """
    Return what a line of a script says.

    Raises:
        ValueError: It has no word that is known, or wrong details.
    """
    if len(line) != 1:
        raise ValueError(f"a line has one word, and {dict(line)!r} has {len(line)}")
    [(word, details)] = line.items()
    kind = _ACTIONS.get(word)
    if kind is None:
        raise ValueError(f"{word!r} is no word of scripts; known are {', '.join(sorted(_ACTIONS))}")
    if not isinstance(details, Mapping):
        details = {} if details is None else {kind.bare or "value": details}
    return kind.model_validate(details)


class Start(Action):
    """Its session begins."""

    word: ClassVar[str] = "start"
    beats: Time | None = None
    node: str = "work"
    start_records: bool = True
    """It says what it begins, and not only what has ended."""

    def acts(self, who: Actor) -> Iterator[Happening]:
        """See ``Action``."""
        who.beats, who.node_id, who.waits = self.beats, self.node, ""
        data: dict[str, Any] = {"start_records": self.start_records}
        if self.beats:
            data["heartbeat_interval"] = self.beats
        yield Says(EventType.EXECUTION_STARTED, data)


class Restart(Start):
    """Another process goes on with its session."""

    word: ClassVar[str] = "restart"

    def acts(self, who: Actor) -> Iterator[Happening]:
        """See ``Action``."""
        who.life += 1
        yield from super().acts(who)


class NewSession(Start):
    """It begins another session; the one before goes on without it."""

    word: ClassVar[str] = "session"
    bare: ClassVar[str] = "id"
    id: str

    def acts(self, who: Actor) -> Iterator[Happening]:
        """See ``Action``."""
        who.session_id, who.life = self.id, 1
        yield from super().acts(who)


class Turn(Action):
    """A step: the model thinks, calls a tool perhaps, and is judged perhaps."""

    word: ClassVar[str] = "turn"
    times: Times = 1
    every: Time = 30.0
    tool: str = ""
    args: str = "{n}"
    result: str | None = "{n}"
    error: str = ""
    """The tool fails with this class of error; ``result`` is what it says."""
    beside: Times = 1
    """So many equal calls side by side."""
    fails: str = ""
    """The whole step fails with this class of error."""
    verdict: Literal["ACCEPT", "RETRY", "CONTINUE", "ESCALATE"] | None = "CONTINUE"
    says: str = ""
    tokens: Annotated[int, Field(ge=0)] = 2_000
    node: str = ""

    def acts(self, who: Actor) -> Iterator[Happening]:
        """See ``Action``."""
        for _ in range(self.times):
            who.turn += 1
            who.node_id = self.node or who.node_id
            yield Says(EventType.STEP_STARTED)
            yield Says(EventType.LLM_CALL_STARTED)
            yield Passes(self.every / 2)
            yield Says(EventType.LLM_CALL_COMPLETED, {"input_tokens": self.tokens, "output_tokens": 50})
            yield from self._calls(who)
            yield Says(EventType.STEP_COMPLETED, self._ended(who))

    def _calls(self, who: Actor) -> Iterator[Happening]:
        if not self.tool:
            yield Passes(self.every / 2)
            return
        ids = [f"{who.turn}-{number}" for number in range(self.beside)]
        for call in ids:
            yield Says(EventType.TOOL_CALL_STARTED, {"tool": self.tool, "call_id": call})
        yield Passes(self.every / 2)
        ended = tool_ended(self.tool, self.args, self.result, self.error, who.turn)
        for call in ids:
            yield Says(EventType.TOOL_CALL_COMPLETED, ended | {"call_id": call})

    def _ended(self, who: Actor) -> dict[str, Any]:
        data: dict[str, Any] = {"verdict": self.verdict} if self.verdict and not self.fails else {}
        if self.fails:
            data |= {"error_type": self.fails, "error": filled(self.says, who.turn) or self.fails}
        elif self.says:
            data["text"] = filled(self.says, who.turn)
        return data


def filled(text: str, turn: int) -> str:
    """Return ``text`` with the number of the turn in it."""
    return text.replace("{n}", str(turn))


def tool_ended(tool: str, args: str, result: str | None, error: str, turn: int) -> dict[str, Any]:
    """Return what is said of a tool call that has ended, as instrumented agents say it."""
    data: dict[str, Any] = {"tool": tool, "args_hash": fingerprint(filled(args, turn)), "turn": str(turn)}
    data["outcome"] = "error" if error else "ok"
    if result is not None:
        data["result_hash"] = fingerprint(filled(result, turn))
    if error:
        data |= {"error_type": error, "error": filled(result or error, turn)}
    return data


class Again(Action):
    """Some lines, several times."""

    word: ClassVar[str] = "again"
    times: Times
    lines: tuple[dict[str, Any], ...]

    @model_validator(mode="after")
    def _playable(self) -> Again:
        for line in self.lines:
            action(line)
        return self

    def acts(self, who: Actor) -> Iterator[Happening]:
        """See ``Action``."""
        for _ in range(self.times):
            for line in self.lines:
                yield from action(line).acts(who)


class Think(Action):
    """A call of the model outside a whole turn: it fails, takes long, streams, or never comes back."""

    word: ClassVar[str] = "llm"
    times: Times = 1
    lasts: Time = 10.0
    error: str = ""
    says: str = ""
    streams: bool = False
    comes_back: bool = True
    tokens: Annotated[int, Field(ge=0)] = 2_000

    def acts(self, who: Actor) -> Iterator[Happening]:
        """See ``Action``."""
        for _ in range(self.times):
            yield Says(EventType.LLM_CALL_STARTED)
            left = self.lasts
            while self.streams and left > _TEXT_EVERY:
                left -= _TEXT_EVERY
                yield Passes(_TEXT_EVERY)
                yield Says(EventType.LLM_TEXT_DELTA, {"text": "and so on "})
            yield Passes(left)
            if self.error:
                data = {"error_type": self.error, "error": self.says or self.error}
                yield Says(EventType.LLM_CALL_COMPLETED, data)
            elif self.comes_back:
                yield Says(EventType.LLM_CALL_COMPLETED, {"input_tokens": self.tokens, "output_tokens": 50})


class UseTool(Action):
    """A tool call outside a whole turn: it takes long, or never comes back."""

    word: ClassVar[str] = "tool"
    name: str
    declares: Time | None = None
    lasts: Time
    comes_back: bool = True
    args: str = "{n}"
    result: str | None = "{n}"
    error: str = ""

    def acts(self, who: Actor) -> Iterator[Happening]:
        """See ``Action``."""
        who.turn += 1
        call: dict[str, Any] = {"tool": self.name, "call_id": f"{who.turn}-t"}
        yield Says(EventType.TOOL_CALL_STARTED, call | ({"timeout": self.declares} if self.declares else {}))
        yield Passes(self.lasts)
        if self.comes_back:
            ended = tool_ended(self.name, self.args, self.result, self.error, who.turn)
            yield Says(EventType.TOOL_CALL_COMPLETED, call | ended)


class Pass(Action):
    """Nothing is heard of it, but that its process lives if it says so."""

    word: ClassVar[str] = "pass"
    bare: ClassVar[str] = "time"
    time: Time

    def acts(self, who: Actor) -> Iterator[Happening]:
        """See ``Action``."""
        yield Passes(self.time)


class Sleep(Action):
    """The host sleeps."""

    word: ClassVar[str] = "host_sleeps"
    bare: ClassVar[str] = "time"
    time: Time

    def acts(self, who: Actor) -> Iterator[Happening]:
        """See ``Action``."""
        yield HostSleeps(self.time)


class Dies(Action):
    """Its process is gone and says no last word."""

    word: ClassVar[str] = "dies"

    def acts(self, who: Actor) -> Iterator[Happening]:
        """See ``Action``."""
        who.beats = None
        yield from ()


class Wait(Action):
    """It waits, and says for what."""

    word: ClassVar[str] = "wait"
    bare: ClassVar[str] = "reason"
    reason: Literal["user_input", "paused", "children", "backoff"]

    def acts(self, who: Actor) -> Iterator[Happening]:
        """See ``Action``."""
        who.waits = self.reason
        if self.reason == "user_input":
            yield Says(EventType.CLIENT_INPUT_REQUESTED)
        elif self.reason == "paused":
            yield Says(EventType.EXECUTION_PAUSED)
        else:
            yield Says(EventType.WORKER_WAITING, {"reason": self.reason})


class GoOn(Action):
    """What it waited for has come."""

    word: ClassVar[str] = "go_on"

    def acts(self, who: Actor) -> Iterator[Happening]:
        """See ``Action``."""
        waited, who.waits = who.waits, ""
        if waited == "user_input":
            yield Says(EventType.CLIENT_INPUT_RECEIVED)
        elif waited == "paused":
            yield Says(EventType.EXECUTION_RESUMED)
        else:
            yield Says(EventType.WORKER_WAITING, {"reason": None})


class Checkpoint(Action):
    """It saves its work."""

    word: ClassVar[str] = "checkpoint"

    def acts(self, who: Actor) -> Iterator[Happening]:
        """See ``Action``."""
        yield Says(EventType.CHECKPOINT_SAVED)


class End(Action):
    """Its session is over."""

    word: ClassVar[str] = "end"
    bare: ClassVar[str] = "how"
    how: Literal["completed", "failed", "cancelled"] = "completed"
    error: str = "RuntimeError"
    says: str = ""

    def acts(self, who: Actor) -> Iterator[Happening]:
        """See ``Action``."""
        who.beats = None
        if self.how == "completed":
            yield Says(EventType.EXECUTION_COMPLETED)
        else:
            error = "cancelled" if self.how == "cancelled" else self.error
            yield Says(EventType.EXECUTION_FAILED, {"error_type": error, "error": self.says or error})


class Breaker(Action):
    """A circuit breaker of its calls changes."""

    word: ClassVar[str] = "breaker"
    bare: ClassVar[str] = "to"
    to: Literal["open", "half_open", "closed"]

    def acts(self, who: Actor) -> Iterator[Happening]:
        """See ``Action``."""
        name = f"tool_execution:{who.agent_id}:search"
        data = {"name": name, "kind": "tool_execution", "from": "closed", "to": self.to}
        yield Says(EventType.CIRCUIT_BREAKER_STATE_CHANGED, data)


class Lost(Action):
    """It could not be brought back, and nobody tries any more."""

    word: ClassVar[str] = "recovery_failed"
    bare: ClassVar[str] = "reason"
    reason: str

    def acts(self, who: Actor) -> Iterator[Happening]:
        """See ``Action``."""
        yield Says(EventType.RECOVERY_FAILED, {"exhausted": True, "reason": self.reason})


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
