"""A provider that answers from a script: for tests, demos and examples that need no key."""

from __future__ import annotations

import inspect
import itertools
import json
import re
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

from queenright.instrumentation.errors import QueenrightError
from queenright.runtime.llm.model import (
    RUN,
    Message,
    ModelError,
    ModelReply,
    OnText,
    ToolCall,
    ToolSpec,
    TransientModelError,
)

Rule = Callable[[Sequence[Message], Sequence[ToolSpec]], ModelReply | Awaitable[ModelReply]]
"""Answers by what it is shown: the messages, the tools."""

_PIECE = re.compile(r"\s*\S+\s*|\s+")

_SHOWN: Final = re.compile(r'"\$shown\.(\w+)"')
"""Stands in arguments for a text that nobody knows before it is shown, such as an id."""

_RUNS_KEPT: Final = 1000
"""Of so many runs it is known how far they are in the script, the newest."""

_KINDS: Final[Mapping[str, tuple[type, ...]]] = {
    "text": (str,),
    "input_tokens": (int,),
    "output_tokens": (int,),
    "cached_tokens": (int,),
    "cost": (int, float),
    "finish_reason": (str,),
}


class ScriptError(QueenrightError, ValueError):
    """Raised for a file that holds no script: which, where in it, and what is wrong."""

    def __init__(self, path: Path, reason: str) -> None:
        super().__init__(f"{path}: {reason}")
        self.path = path


@dataclass(frozen=True, slots=True)
class Shown:
    """What the provider was shown: one question."""

    messages: tuple[Message, ...]
    tools: tuple[ToolSpec, ...]


@dataclass(slots=True)
class _Place:
    """How far a script has been given."""

    replies: Iterator[ModelReply | Exception | Rule]
    given: int = 0


class ScriptedProvider:
    """
    Gives its replies in order, one a question; after the last it raises.

    An exception among them is raised, a function is asked for the reply, a coroutine that it returns is
    awaited. Text goes to ``on_text`` word by word.

    Args:
        replies: What to answer; may be endless, a generator for one.
        name: What it is called.
    """

    def __init__(self, replies: Iterable[ModelReply | Exception | Rule], *, name: str = "scripted") -> None:
        self._script = replies if isinstance(replies, Sequence) else ()
        self._all = _Place(iter(replies))
        self._runs: OrderedDict[str, _Place] | None = None
        self._name = name
        self.shown: list[Shown] = []
        """What it was shown, oldest first."""

    @classmethod
    def load(cls, path: Path) -> ScriptedProvider:
        """
        Read a script: ``{"replies": [...]}``, in UTF-8.

        Each reply has ``text``, ``tool_calls`` (``name``, ``arguments``: an object, or text as it stands,
        ``id``), ``input_tokens``, ``output_tokens``, ``cost`` and ``finish_reason``, all optional; or it
        is an ``error``, with ``transient`` and ``retry_after`` in seconds. In arguments ``"$shown.KEY"``
        is the text that the newest message with a ``"KEY": "..."`` in it has there.

        Raises:
            ScriptError: There is no such file, or no script in it.
        """
        try:
            value = json.loads(path.read_text(encoding="utf-8"))
        except OSError as error:
            raise ScriptError(path, f"cannot be read: {error.strerror or error}") from error
        except (ValueError, RecursionError) as error:
            raise ScriptError(path, f"is no JSON: {error}") from error
        rows = value.get("replies") if isinstance(value, dict) else None
        if not isinstance(rows, list):
            raise ScriptError(path, 'is no script: it must be {"replies": [...]}')
        numbers = itertools.count(1)
        return cls([_reply(path, at, row, numbers) for at, row in enumerate(rows)])

    def begin_with_each_run(self) -> None:
        """Begin anew with each run that asks, if the replies are a list; else all take from one row."""
        if self._script and self._runs is None:
            self._runs = OrderedDict()

    @property
    def name(self) -> str:
        """What it is called."""
        return self._name

    async def complete(
        self, messages: Sequence[Message], tools: Sequence[ToolSpec], on_text: OnText | None = None
    ) -> ModelReply:
        """
        Give the next reply.

        Raises:
            ModelError: The script is at its end, or says so here.
        """
        self.shown.append(Shown(tuple(messages), tuple(tools)))
        place = self._place()
        try:
            reply = next(place.replies)
        except StopIteration:
            raise ModelError(
                f"{self._name}: the script is at its end, replies given: {place.given}"
            ) from None
        place.given += 1
        if isinstance(reply, Exception):
            raise reply
        if not isinstance(reply, ModelReply):
            made = reply(messages, tools)
            reply = await made if inspect.isawaitable(made) else made
        if on_text is not None:
            for piece in _PIECE.findall(reply.text):
                on_text(piece)
        return reply

    def _place(self) -> _Place:
        """Return how far the script is for who asks now."""
        run = RUN.get()
        if self._runs is None or not run:
            return self._all
        place = self._runs.setdefault(run, _Place(iter(self._script)))
        self._runs.move_to_end(run)
        if len(self._runs) > _RUNS_KEPT:
            self._runs.popitem(last=False)
        return place


def _reply(path: Path, at: int, row: Any, numbers: itertools.count[int]) -> ModelReply | ModelError | Rule:
    """Read one reply; what it does not know is refused, so that a slip of the pen is no silence."""
    try:
        if not isinstance(row, Mapping):
            raise TypeError(f"must be an object, not {row!r}")
        if "error" in row:
            return _error(**row)
        calls = tuple(_call(**{"id": f"call_{next(numbers)}", **call}) for call in row.get("tool_calls", ()))
        reply = ModelReply(**{**row, "tool_calls": calls})
        for key, kind in _KINDS.items():
            value = getattr(reply, key)
            if isinstance(value, bool) or not isinstance(value, kind):
                raise TypeError(f"{key} is {value!r}")
    except (TypeError, ValueError) as error:
        raise ScriptError(path, f"replies[{at}]: {error}") from error
    if any(_SHOWN.search(call.arguments) for call in calls):
        return lambda messages, tools: _filled(reply, messages)
    return reply


def _filled(reply: ModelReply, messages: Sequence[Message]) -> ModelReply:
    """Return a reply with what was shown in its arguments."""
    calls = tuple(
        replace(call, arguments=_SHOWN.sub(lambda name: _shown(name[1], messages), call.arguments))
        for call in reply.tool_calls
    )
    return replace(reply, tool_calls=calls)


def _shown(key: str, messages: Sequence[Message]) -> str:
    """Return the newest text that is shown for a key, as JSON."""
    told = re.compile(rf'"{key}"\s*:\s*("(?:[^"\\]|\\.)*")')
    for message in reversed(messages):
        if message.role != "system" and (found := told.search(message.content)):
            return found[1]
    raise ModelError(f"the script names $shown.{key}, and nothing that is shown has a text called so")


def _call(id: str, name: str, arguments: object = None) -> ToolCall:  # noqa: A002  # the key in the file
    text = arguments if isinstance(arguments, str) else json.dumps({} if arguments is None else arguments)
    return ToolCall(str(id), str(name), text)


def _error(error: str, transient: bool = False, retry_after: float | None = None) -> ModelError:
    if transient:
        return TransientModelError(
            str(error), retry_after=None if retry_after is None else float(retry_after)
        )
    return ModelError(str(error))
