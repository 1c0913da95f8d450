"""
The scripts of workers, and the events that they produce.

Each line is an action with parameters, such as ``turn: {tool: search, args: "q {n}", result: "page {n}",
times: 5}``. ``{n}`` in a text is the number of the turn. Times are written as ``90``, ``90s``, ``15m`` or
``2h``.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Annotated, Any, Final, Literal, TypeVar

from pydantic import BeforeValidator, Field, InstanceOf, validate_call

from queenright.instrumentation.fingerprint import arguments_fingerprint, fingerprint
from queenright.runtime.events import EventType

_UNITS: Final = {"": 1.0, "s": 1.0, "m": 60.0, "h": 3600.0}
_DELTA_SECONDS: Final = 10.0
"""The seconds between the text deltas of a streaming model."""


def _parse_time(value: Any) -> Any:
    match = re.fullmatch(r"(\d+(?:\.\d+)?)([smh]?)", value.strip()) if isinstance(value, str) else None
    return value if match is None else float(match[1]) * _UNITS[match[2]]


Time = Annotated[float, BeforeValidator(_parse_time), Field(ge=0)]
Times = Annotated[int, Field(ge=1, le=500)]
Tokens = Annotated[int, Field(ge=0)]


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
    """The worker that follows a script, with its state."""

    agent_id: str
    session_id: str = "session-1"
    life: int = 1
    node_id: str = "work"
    turn: int = 0
    beats: float | None = None
    """The heartbeat interval in seconds; None for no heartbeats."""
    waits: str = ""

    @property
    def incarnation_id(self) -> str:
        """The id of the worker's incarnation."""
        return f"{self.session_id}-life-{self.life}"


Happening = Emits | Passes | HostSleeps
Action = Callable[[Actor], Iterator[Happening]]
"""Yields the happenings of an action, and updates the actor."""

ScriptActor = InstanceOf[Actor]
F = TypeVar("F", bound=Callable[..., Iterator[Happening]])

_ACTIONS: Final[dict[str, tuple[Callable[..., Iterator[Happening]], str]]] = {}


def _register(word: str, bare: str = "value") -> Callable[[F], F]:
    """Register an action under ``word``. ``bare`` is the parameter that a value without a name sets."""

    def register(run: F) -> F:
        validate = validate_call(run)
        _ACTIONS[word] = validate, bare
        return validate

    return register


def parse_action(line: Mapping[str, Any]) -> Action:
    """
    Parse a line of a script.

    Raises:
        ValueError: The action is unknown, or its parameters are invalid.
    """
    if len(line) != 1:
        raise ValueError(f"a line has one action; {dict(line)!r} has {len(line)}")
    [(word, details)] = line.items()
    if word not in _ACTIONS:
        raise ValueError(f"unknown action {word!r}; known: {', '.join(sorted(_ACTIONS))}")
    run, bare = _ACTIONS[word]
    if not isinstance(details, Mapping):
        details = {} if details is None else {bare: details}
    run(
        Actor(""), **details
    )  # This only checks the parameters, because a generator does not run before it is iterated.
    return partial(run, **details)


@_register("start")
def start(
    actor: ScriptActor, *, beats: Time | None = None, node: str = "work", start_records: bool = True
) -> Iterator[Happening]:
    """Start the session. With ``start_records``, the worker also reports starts of calls and steps."""
    actor.beats, actor.node_id, actor.waits = beats, node, ""
    data: dict[str, Any] = {"start_records": start_records}
    if beats:
        data["heartbeat_interval"] = beats
    yield Emits(EventType.EXECUTION_STARTED, data)


@_register("restart")
def _restart(
    actor: ScriptActor, *, beats: Time | None = None, node: str = "work", start_records: bool = True
) -> Iterator[Happening]:
    """Continue the session in another process."""
    actor.life += 1
    yield from start(actor, beats=beats, node=node, start_records=start_records)


@_register("session", "id")
def _new_session(
    actor: ScriptActor,
    *,
    id: str,  # noqa: A002  # the key in the file
    beats: Time | None = None,
    node: str = "work",
    start_records: bool = True,
) -> Iterator[Happening]:
    """Start another session of the worker."""
    actor.session_id, actor.life = id, 1
    yield from start(actor, beats=beats, node=node, start_records=start_records)


@_register("turn")
def turn(
    actor: ScriptActor,
    *,
    times: Times = 1,
    every: Time = 30.0,
    tool: str = "",
    args: str = "{n}",
    result: str | None = "{n}",
    error: str = "",
    parallel: Times = 1,
    fails: str = "",
    verdict: Literal["ACCEPT", "RETRY", "CONTINUE", "ESCALATE"] | None = "CONTINUE",
    says: str = "",
    tokens: Tokens = 2_000,
    node: str = "",
) -> Iterator[Happening]:
    """
    Run steps, each with a model call, optional tool calls, and an optional verdict.

    Args:
        error: The class of the tool's error. ``result`` is its message.
        parallel: The number of identical parallel calls.
        fails: The class of the step's error.
    """
    for _ in range(times):
        actor.turn += 1
        actor.node_id = node or actor.node_id
        yield Emits(EventType.STEP_STARTED)
        yield Emits(EventType.LLM_CALL_STARTED)
        yield Passes(every / 2)
        yield Emits(EventType.LLM_CALL_COMPLETED, {"input_tokens": tokens, "output_tokens": 50})
        calls = [f"{actor.turn}-{number}" for number in range(parallel)] if tool else []
        for call in calls:
            yield Emits(EventType.TOOL_CALL_STARTED, {"tool": tool, "call_id": call})
        yield Passes(every / 2)
        end = _make_tool_data(tool, args, result, error, actor.turn)
        for call in calls:
            yield Emits(EventType.TOOL_CALL_COMPLETED, end | {"call_id": call})
        data: dict[str, Any] = {"verdict": verdict} if verdict and not fails else {}
        if fails:
            data |= {"error_type": fails, "error": _fill(says, actor.turn) or fails}
        elif says:
            data["text"] = _fill(says, actor.turn)
        yield Emits(EventType.STEP_COMPLETED, data)


def _fill(text: str, turn: int) -> str:
    """Replace ``{n}`` with the number of the turn."""
    return text.replace("{n}", str(turn))


def _make_tool_data(tool: str, args: str, result: str | None, error: str, turn: int) -> dict[str, Any]:
    """Return the data of a completed tool call as instrumented agents send it."""
    data: dict[str, Any] = {
        "tool": tool,
        "args_hash": arguments_fingerprint(_fill(args, turn)),
        "turn": str(turn),
    }
    data["outcome"] = "error" if error else "ok"
    if result is not None:
        data["result_hash"] = fingerprint(_fill(result, turn))
    if error:
        data |= {"error_type": error, "error": _fill(result or error, turn)}
    return data


@_register("again")
def _repeat(actor: ScriptActor, *, times: Times, lines: tuple[dict[str, Any], ...]) -> Iterator[Happening]:
    """Repeat lines."""
    actions = [parse_action(line) for line in lines]
    return (happening for _ in range(times) for run in actions for happening in run(actor))


@_register("llm")
def _call_model(
    actor: ScriptActor,
    *,
    times: Times = 1,
    lasts: Time = 10.0,
    error: str = "",
    says: str = "",
    streams: bool = False,
    comes_back: bool = True,
    tokens: Tokens = 2_000,
) -> Iterator[Happening]:
    """Call the model outside a turn. The call may fail, stream, or never return."""
    for _ in range(times):
        yield Emits(EventType.LLM_CALL_STARTED)
        remaining = lasts
        while streams and remaining > _DELTA_SECONDS:
            remaining -= _DELTA_SECONDS
            yield Passes(_DELTA_SECONDS)
            yield Emits(EventType.LLM_TEXT_DELTA, {"text": "and so on "})
        yield Passes(remaining)
        if error:
            yield Emits(EventType.LLM_CALL_COMPLETED, {"error_type": error, "error": says or error})
        elif comes_back:
            yield Emits(EventType.LLM_CALL_COMPLETED, {"input_tokens": tokens, "output_tokens": 50})


@_register("tool")
def _use_tool(
    actor: ScriptActor,
    *,
    name: str,
    lasts: Time,
    declares: Time | None = None,
    comes_back: bool = True,
    args: str = "{n}",
    result: str | None = "{n}",
    error: str = "",
) -> Iterator[Happening]:
    """Call a tool outside a turn. The call may take long or never return."""
    actor.turn += 1
    call: dict[str, Any] = {"tool": name, "call_id": f"{actor.turn}-t"}
    yield Emits(EventType.TOOL_CALL_STARTED, call | ({"timeout": declares} if declares else {}))
    yield Passes(lasts)
    if comes_back:
        yield Emits(
            EventType.TOOL_CALL_COMPLETED, call | _make_tool_data(name, args, result, error, actor.turn)
        )


@_register("pass", "time")
def _pass_time(actor: ScriptActor, *, time: Time) -> Iterator[Happening]:
    """Let time pass with heartbeats only."""
    yield Passes(time)


@_register("host_sleeps", "time")
def _sleep(actor: ScriptActor, *, time: Time) -> Iterator[Happening]:
    """Suspend the host."""
    yield HostSleeps(time)


@_register("dies")
def _die(actor: ScriptActor) -> Iterator[Happening]:
    """Kill the process without a final event."""
    actor.beats = None
    yield from ()


_WAITS: Final = {
    "user_input": (Emits(EventType.CLIENT_INPUT_REQUESTED), Emits(EventType.CLIENT_INPUT_RECEIVED)),
    "paused": (Emits(EventType.EXECUTION_PAUSED), Emits(EventType.EXECUTION_RESUMED)),
}
"""The events that begin and end each wait."""


@_register("wait", "reason")
def _wait(
    actor: ScriptActor, *, reason: Literal["user_input", "paused", "children", "backoff"]
) -> Iterator[Happening]:
    """Let the worker wait."""
    actor.waits = reason
    yield _WAITS[reason][0] if reason in _WAITS else Emits(EventType.WORKER_WAITING, {"reason": reason})


@_register("go_on")
def _end_wait(actor: ScriptActor) -> Iterator[Happening]:
    """End the wait."""
    pause, actor.waits = actor.waits, ""
    yield _WAITS[pause][1] if pause in _WAITS else Emits(EventType.WORKER_WAITING, {"reason": None})


@_register("checkpoint")
def _save_checkpoint(actor: ScriptActor) -> Iterator[Happening]:
    """Save a checkpoint."""
    yield Emits(EventType.CHECKPOINT_SAVED)


@_register("end", "how")
def _end_session(
    actor: ScriptActor,
    *,
    how: Literal["completed", "failed", "cancelled"] = "completed",
    error: str = "RuntimeError",
    says: str = "",
) -> Iterator[Happening]:
    """End the session."""
    actor.beats = None
    if how == "completed":
        yield Emits(EventType.EXECUTION_COMPLETED)
    else:
        error = "cancelled" if how == "cancelled" else error
        yield Emits(EventType.EXECUTION_FAILED, {"error_type": error, "error": says or error})


@_register("breaker", "to")
def _change_breaker(actor: ScriptActor, *, to: Literal["open", "half_open", "closed"]) -> Iterator[Happening]:
    """Change the state of a circuit breaker."""
    data = {"name": f"tool_execution:{actor.agent_id}:search", "kind": "tool_execution", "from": "closed"}
    yield Emits(EventType.CIRCUIT_BREAKER_STATE_CHANGED, data | {"to": to})


@_register("recovery_failed", "reason")
def _give_up_recovery(actor: ScriptActor, *, reason: str) -> Iterator[Happening]:
    """Give up the recovery of the worker."""
    yield Emits(EventType.RECOVERY_FAILED, {"exhausted": True, "reason": reason})
