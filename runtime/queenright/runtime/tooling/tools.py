"""Tools: functions that a node's model may call, with their arguments checked before they run."""

from __future__ import annotations

import inspect
import json
from collections.abc import Awaitable, Callable, Iterable, Mapping
from copy import deepcopy
from dataclasses import dataclass, field
from typing import Any, Final
from weakref import WeakKeyDictionary

from pydantic import BaseModel, ValidationError

from queenright.instrumentation.errors import QueenrightError
from queenright.instrumentation.redaction import redact
from queenright.runtime.deadline import alone
from queenright.runtime.llm.model import ToolCall, ToolSpec
from queenright.runtime.tooling.tool_arguments import arguments_of, describe, keywords, summary_of
from queenright.runtime.tooling.tool_threads import ToolThreads

__all__ = [
    "CONTEXT_PARAMETERS",
    "Tool",
    "ToolArgumentsRefused",
    "ToolError",
    "ToolRegistry",
    "ToolResult",
    "ToolUnavailable",
    "ToolUnknown",
    "describe",
    "tool_from_function",
]

CONTEXT_PARAMETERS: Final = frozenset(
    {"runtime", "graph_id", "session_id", "agent_id", "node_id", "data_dir"}
)
"""Parameters of tools that the runtime gives, and a model neither sees nor sets."""


_WORDS_LIMIT: Final = 16_000


class ToolError(QueenrightError):
    """Raised by a tool that will not do what it was asked; the message is for the model to act on."""


class ToolArgumentsRefused(ToolError):
    """Raised for arguments that are not what the tool wants."""


class ToolUnavailable(ToolError):
    """Raised by a tool that cannot do anything now, whatever it is asked: what is behind it is away."""


class ToolUnknown(ToolError):
    """Raised for a call of a tool that is not there."""


_schemas: Final[WeakKeyDictionary[type[BaseModel], dict[str, Any]]] = WeakKeyDictionary()


def _schema_of(arguments: type[BaseModel]) -> dict[str, Any]:
    """Return a model's schema, one's own to change; it is made once, which takes milliseconds."""
    schema = _schemas.get(arguments)
    if schema is None:
        schema = arguments.model_json_schema()
        schema.pop("title", None)
        _schemas[arguments] = schema
    return deepcopy(schema)


@dataclass(frozen=True, slots=True)
class ToolResult:
    """What the model is told: the tool's answer, or what was wrong; then ``error`` is what it was."""

    content: str
    failed: bool = False
    error: BaseException | None = field(default=None, compare=False, repr=False)


@dataclass(frozen=True, slots=True)
class Tool:
    """
    One tool.

    Args:
        name: What the model calls it.
        description: What it does, for the model.
        arguments: A model of its arguments, of which ``run`` gets an instance; or a JSON schema, and
            ``run`` gets the arguments as a dictionary that was only checked to be an object.
        run: A plain or an async function; what it returns is told to the model, as JSON if it is no text.
        timeout_seconds: How long a call may take, if the tool knows; else the node's limit holds.
        threaded: Call ``run``, a plain function that takes its time, in a thread.
        context: Which of ``CONTEXT_PARAMETERS`` are given to ``run``, as keyword arguments.
        effect: What a call does (``reads``, ``changes``), if the tool says so; else its name tells.
    """

    name: str
    description: str
    arguments: type[BaseModel] | Mapping[str, Any]
    run: Callable[..., Any]
    timeout_seconds: float | None = None
    threaded: bool = False
    context: tuple[str, ...] = ()
    effect: str = ""

    @property
    def spec(self) -> ToolSpec:
        """The tool as a model sees it."""
        if isinstance(self.arguments, Mapping):
            return ToolSpec(self.name, self.description, self.arguments)
        return ToolSpec(self.name, self.description, _schema_of(self.arguments))

    async def call(
        self, arguments: str, context: Mapping[str, object] | None = None, threads: ToolThreads | None = None
    ) -> ToolResult:
        """
        Check ``arguments`` (JSON text) and run; whatever goes wrong becomes a result that says so.

        Args:
            arguments: What the model wrote.
            context: Values for the context parameters; one that is not there is None.
            threads: Where a threaded tool runs.
        """
        try:
            checked = self._check(arguments)
        except ToolArgumentsRefused as refusal:
            # The model wrote what is repeated here, so that there is nothing to mask.
            return ToolResult(f"error: {self.name}: {refusal}", failed=True, error=refusal)
        around = context or {}
        given = {name: around.get(name) for name in self.context}
        answer, error = await alone(self._answer(checked, given, around, threads))
        if isinstance(error, ToolError):
            return ToolResult(f"error: {self.name}: {_words(error)}", failed=True, error=error)
        if error is not None:
            told = f"error: {self.name} failed: {type(error).__name__}: {_words(error)}"
            return ToolResult(told, failed=True, error=error)
        return ToolResult(answer or "")

    async def _answer(
        self,
        checked: object,
        given: Mapping[str, object],
        context: Mapping[str, object],
        threads: ToolThreads | None,
    ) -> str:
        return _text(await self._run(checked, given, context, threads))

    async def _run(
        self,
        checked: object,
        given: Mapping[str, object],
        context: Mapping[str, object],
        threads: ToolThreads | None,
    ) -> object:
        if self.threaded and threads is not None:
            session = str(context.get("session_id") or "")
            return await threads.run(session, lambda: self.run(checked, **given))
        answer = self.run(checked, **given)
        return await answer if inspect.isawaitable(answer) else answer

    def _check(self, arguments: str) -> object:
        if not isinstance(self.arguments, Mapping):
            try:
                return self.arguments.model_validate_json(arguments or "{}")
            except ValidationError as error:
                raise ToolArgumentsRefused(describe(error)) from error
        try:
            given = json.loads(arguments or "{}")
        except (ValueError, RecursionError) as error:
            raise ToolArgumentsRefused(f"arguments: Invalid JSON: {error}") from error
        if not isinstance(given, dict):
            raise ToolArgumentsRefused(f"arguments: must be a JSON object (given: {arguments[:80]})")
        return given


class ToolRegistry:
    """
    Tools by name.

    Registries made from one another share ``threads``, where the threads of cancelled calls are counted.
    """

    def __init__(self, tools: Iterable[Tool] = (), *, threads: ToolThreads | None = None) -> None:
        self.threads = threads or ToolThreads()
        self._tools: dict[str, Tool] = {}
        for tool in tools:
            self.add(tool)

    def __contains__(self, name: str) -> bool:
        return name in self._tools

    @property
    def names(self) -> tuple[str, ...]:
        """What there is, in the order in which it was added."""
        return tuple(self._tools)

    def get(self, name: str) -> Tool | None:
        """Return the tool called ``name``, or None."""
        return self._tools.get(name)

    def add(self, tool: Tool) -> None:
        """
        Add a tool.

        Raises:
            ValueError: There is one of that name.
        """
        if tool.name in self._tools:
            raise ValueError(f"tool {tool.name!r} is registered twice")
        self._tools[tool.name] = tool

    def only(self, names: Iterable[str]) -> ToolRegistry:
        """
        Return a registry of the named tools.

        Raises:
            KeyError: A name is not registered.
        """
        return ToolRegistry((self._tools[name] for name in names), threads=self.threads)

    def merge(self, tools: Iterable[Tool]) -> ToolRegistry:
        """
        Return a registry of these tools and ``tools``.

        Raises:
            ValueError: Two have one name.
        """
        return ToolRegistry((*self._tools.values(), *tools), threads=self.threads)

    def specs(self) -> list[ToolSpec]:
        """Every tool as a model sees it."""
        return [tool.spec for tool in self._tools.values()]

    async def call(self, call: ToolCall, context: Mapping[str, object] | None = None) -> ToolResult:
        """Run what the model asked for; a tool that is not there is a result that names those that are."""
        tool = self._tools.get(call.name)
        if tool is None:
            have = ", ".join(self._tools) or "none"
            unknown = ToolUnknown(f"there is no tool {call.name!r}; there are: {have}")
            return ToolResult(f"error: {unknown}", failed=True, error=unknown)
        return await tool.call(call.arguments, context, self.threads)


def tool_from_function(
    function: Callable[..., Any], *, name: str | None = None, timeout_seconds: float | None = None
) -> Tool:
    """
    Make a tool of a function.

    Its parameters are the tool's arguments, by their annotations; those called like one of
    ``CONTEXT_PARAMETERS`` are given by the runtime. Its docstring is the description, and what it says
    under ``Args:`` describes the arguments. A plain function runs in a thread.

    Raises:
        ValueError: The function has ``*args``, ``**kwargs`` or positional-only parameters.
        TypeError: An annotation is nothing that can be checked.
    """
    parameters = inspect.signature(function).parameters
    context = tuple(parameter for parameter in parameters if parameter in CONTEXT_PARAMETERS)
    arguments = arguments_of(function, without=CONTEXT_PARAMETERS)

    def run(given: BaseModel, **around: object) -> object | Awaitable[object]:
        answer: object = function(**keywords(given), **around)
        return answer

    called: str = name or str(getattr(function, "__name__", "function"))
    return Tool(
        name=called,
        description=summary_of(function) or called,
        arguments=arguments,
        run=run,
        timeout_seconds=timeout_seconds,
        threaded=not inspect.iscoroutinefunction(function),
        context=context,
    )


def _words(error: BaseException) -> str:
    """Return what an error says, for a model: secrets masked, and no longer than a model should read."""
    try:
        return redact(str(error), _WORDS_LIMIT)
    except BaseException as fault:  # its own code, as it is a tool's
        return f"(it cannot be said: {type(fault).__name__})"


def _text(answer: object) -> str:
    """Return what a tool answered as text for a model."""
    if isinstance(answer, str):
        return answer
    if isinstance(answer, BaseModel):
        return answer.model_dump_json()
    return json_text(answer)


def json_text(answer: object) -> str:
    """
    Return a value as JSON: what JSON does not know is told as text, and what is no number as null.

    Raises:
        TypeError, ValueError: It has keys that cannot be told, or holds itself.
    """
    text = json.dumps(answer, ensure_ascii=False, default=str)
    if "NaN" not in text and "Infinity" not in text:
        return text
    return json.dumps(json.loads(text, parse_constant=lambda _: None), ensure_ascii=False)
