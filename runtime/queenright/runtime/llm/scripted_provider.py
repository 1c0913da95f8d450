"""A provider with scripted replies, for tests, demos and examples without an API key."""

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
    CURRENT_RUN_ID,
    Message,
    ModelError,
    ModelReply,
    OnText,
    ToolCall,
    ToolSpec,
    TransientModelError,
)

Rule = Callable[[Sequence[Message], Sequence[ToolSpec]], ModelReply | Awaitable[ModelReply]]
"""Computes a reply from the messages and the tools."""

_PIECE = re.compile(r"\s*\S+\s*|\s+")

_PLACEHOLDER: Final = re.compile(r'"\$shown\.(\w+)"')
"""Placeholder in arguments for a text known only at run time, such as an id."""

_MAX_RUNS: Final = 1000
"""Number of runs whose position in the script is kept, newest first."""

_FIELD_TYPES: Final[Mapping[str, tuple[type, ...]]] = {
    "text": (str,),
    "input_tokens": (int,),
    "output_tokens": (int,),
    "cached_tokens": (int,),
    "cost": (int, float),
    "finish_reason": (str,),
}


class ScriptError(QueenrightError, ValueError):
    """Raised for an invalid script; names the file, the position and the problem."""

    def __init__(self, path: Path, reason: str) -> None:
        super().__init__(f"{path}: {reason}")
        self.path = path


@dataclass(frozen=True, slots=True)
class RecordedRequest:
    """One request to the provider."""

    messages: tuple[Message, ...]
    tools: tuple[ToolSpec, ...]


@dataclass(slots=True)
class _ScriptPosition:
    """Position in a script."""

    replies: Iterator[ModelReply | Exception | Rule]
    count: int = 0


class ScriptedProvider:
    """
    Returns its replies in order, one per request; raises after the last.

    An exception among the replies is raised; a function is called to compute the reply and may be async.
    Text is passed to ``on_text`` word by word.

    Args:
        replies: The replies; may be infinite, such as a generator.
    """

    def __init__(self, replies: Iterable[ModelReply | Exception | Rule], *, name: str = "scripted") -> None:
        self._script = replies if isinstance(replies, Sequence) else ()
        self._shared_position = _ScriptPosition(iter(replies))
        self._runs: OrderedDict[str, _ScriptPosition] | None = None
        self._name = name
        self.requests: list[RecordedRequest] = []
        """The requests so far, oldest first."""

    @classmethod
    def load(cls, path: Path) -> ScriptedProvider:
        """
        Load a script, ``{"replies": [...]}``, from a UTF-8 file.

        Each reply has ``text``, ``tool_calls`` (``name``, ``arguments``: an object, or raw text, ``id``),
        ``input_tokens``, ``output_tokens``, ``cost`` and ``finish_reason``, all optional; or it is an
        ``error``, with ``transient`` and ``retry_after`` in seconds. In arguments, ``"$shown.KEY"`` is
        replaced by the value of ``"KEY": "..."`` in the newest message that contains it.

        Raises:
            ScriptError: The file does not exist, or is not a script.
        """
        try:
            value = json.loads(path.read_text(encoding="utf-8"))
        except OSError as error:
            raise ScriptError(path, f"cannot be read: {error.strerror or error}") from error
        except (ValueError, RecursionError) as error:
            raise ScriptError(path, f"is not JSON: {error}") from error
        rows = value.get("replies") if isinstance(value, dict) else None
        if not isinstance(rows, list):
            raise ScriptError(path, 'is not a script: it must be {"replies": [...]}')
        numbers = itertools.count(1)
        return cls([_parse_reply(path, index, row, numbers) for index, row in enumerate(rows)])

    def restart_for_each_run(self) -> None:
        """Restart the script for each run if the replies are a list; otherwise all runs share it."""
        if self._script and self._runs is None:
            self._runs = OrderedDict()

    @property
    def name(self) -> str:
        """The name of the provider."""
        return self._name

    async def complete(
        self, messages: Sequence[Message], tools: Sequence[ToolSpec], on_text: OnText | None = None
    ) -> ModelReply:
        """
        Return the next reply.

        Raises:
            ModelError: The script is exhausted, or contains an error here.
        """
        self.requests.append(RecordedRequest(tuple(messages), tuple(tools)))
        position = self._get_position()
        try:
            reply = next(position.replies)
        except StopIteration:
            raise ModelError(
                f"{self._name}: the script is exhausted, replies given: {position.count}"
            ) from None
        position.count += 1
        if isinstance(reply, Exception):
            raise reply
        if not isinstance(reply, ModelReply):
            result = reply(messages, tools)
            reply = await result if inspect.isawaitable(result) else result
        if on_text is not None:
            for piece in _PIECE.findall(reply.text):
                on_text(piece)
        return reply

    def _get_position(self) -> _ScriptPosition:
        """Return the script position of the current run."""
        run = CURRENT_RUN_ID.get()
        if self._runs is None or not run:
            return self._shared_position
        position = self._runs.setdefault(run, _ScriptPosition(iter(self._script)))
        self._runs.move_to_end(run)
        if len(self._runs) > _MAX_RUNS:
            self._runs.popitem(last=False)
        return position


def _parse_reply(
    path: Path, index: int, row: Any, numbers: itertools.count[int]
) -> ModelReply | ModelError | Rule:
    """Parse one reply; unknown keys are rejected, so that typos are noticed."""
    try:
        if not isinstance(row, Mapping):
            raise TypeError(f"must be an object, not {row!r}")
        if "error" in row:
            return _parse_error(**row)
        calls = tuple(
            _parse_call(**{"id": f"call_{next(numbers)}", **call}) for call in row.get("tool_calls", ())
        )
        reply = ModelReply(**{**row, "tool_calls": calls})
        for key, kind in _FIELD_TYPES.items():
            value = getattr(reply, key)
            if isinstance(value, bool) or not isinstance(value, kind):
                raise TypeError(f"{key} is {value!r}")
    except (TypeError, ValueError) as error:
        raise ScriptError(path, f"replies[{index}]: {error}") from error
    if any(_PLACEHOLDER.search(call.arguments) for call in calls):
        return lambda messages, tools: _substitute(reply, messages)
    return reply


def _substitute(reply: ModelReply, messages: Sequence[Message]) -> ModelReply:
    """Replace the placeholders in a reply's arguments."""
    calls = tuple(
        replace(
            call,
            arguments=_PLACEHOLDER.sub(lambda name: _find_shown_value(name[1], messages), call.arguments),
        )
        for call in reply.tool_calls
    )
    return replace(reply, tool_calls=calls)


def _find_shown_value(key: str, messages: Sequence[Message]) -> str:
    """Return the newest value of a key in the messages, as JSON."""
    pattern = re.compile(rf'"{key}"\s*:\s*("(?:[^"\\]|\\.)*")')
    for message in reversed(messages):
        if message.role != "system" and (match := pattern.search(message.content)):
            return match[1]
    raise ModelError(f"the script uses $shown.{key}, but no message contains a text with that key")


def _parse_call(id: str, name: str, arguments: object = None) -> ToolCall:  # noqa: A002  # the key in the file
    text = arguments if isinstance(arguments, str) else json.dumps({} if arguments is None else arguments)
    return ToolCall(str(id), str(name), text)


def _parse_error(error: str, transient: bool = False, retry_after: float | None = None) -> ModelError:
    if transient:
        return TransientModelError(
            str(error), retry_after=None if retry_after is None else float(retry_after)
        )
    return ModelError(str(error))
