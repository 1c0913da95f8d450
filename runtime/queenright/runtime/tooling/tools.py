"""Tools: functions that a node's model can call, with validated arguments."""

from __future__ import annotations

import inspect
import json
import re
from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping
from copy import deepcopy
from dataclasses import dataclass, field
from typing import Any, Final, get_type_hints
from weakref import WeakKeyDictionary

from pydantic import BaseModel, ConfigDict, Field, ValidationError, create_model

from queenright.instrumentation.errors import QueenrightError, error_text
from queenright.instrumentation.redaction import redact
from queenright.instrumentation.validation_messages import describe_faults
from queenright.runtime.deadline import run_isolated
from queenright.runtime.llm.model import ToolCall, ToolSpec
from queenright.runtime.tooling.tool_threads import ToolThreads

__all__ = [
    "CONTEXT_PARAMETERS",
    "InvalidToolArgumentsError",
    "Tool",
    "ToolError",
    "ToolRegistry",
    "ToolResult",
    "ToolUnavailableError",
    "UnknownToolError",
    "describe_argument_errors",
    "tool_from_function",
]

CONTEXT_PARAMETERS: Final = frozenset(
    {"runtime", "graph_id", "session_id", "agent_id", "node_id", "data_dir"}
)
"""Parameters of tools that the runtime sets; a model cannot see or set them."""


_MAX_ERROR_CHARACTERS: Final = 16_000


class ToolError(QueenrightError):
    """Raised by a tool that rejects a request; the message tells the model what to do."""


class InvalidToolArgumentsError(ToolError):
    """Raised for invalid arguments of a tool."""


class ToolUnavailableError(ToolError):
    """Raised by a tool whose backend is unavailable: no request can succeed now."""


class UnknownToolError(ToolError):
    """Raised for a call of a tool that does not exist."""


_schema_cache: Final[WeakKeyDictionary[type[BaseModel], dict[str, Any]]] = WeakKeyDictionary()


def _get_schema(arguments: type[BaseModel]) -> dict[str, Any]:
    """Return a copy of a model's schema; the schema is cached because generating it takes milliseconds."""
    schema = _schema_cache.get(arguments)
    if schema is None:
        schema = arguments.model_json_schema()
        schema.pop("title", None)
        _schema_cache[arguments] = schema
    return deepcopy(schema)


@dataclass(frozen=True, slots=True)
class ToolResult:
    """The text for the model: the tool's answer, or a problem, of which ``error`` is the cause."""

    content: str
    failed: bool = False
    error: BaseException | None = field(default=None, compare=False, repr=False)


@dataclass(frozen=True, slots=True)
class Tool:
    """
    A tool.

    Args:
        arguments: A model of its arguments, and ``run`` gets an instance; or a JSON schema, and ``run``
            gets the arguments as a dictionary that was only checked to be an object.
        run: A function, async or not. Its result is returned to the model, as JSON if it is not text.
        timeout_seconds: Time limit of a call; None uses the node's limit.
        threaded: Whether to call ``run``, a blocking function, in a thread.
        context: The parameters out of ``CONTEXT_PARAMETERS`` that ``run`` takes as keyword arguments.
        effect: What a call does (``reads``, ``changes``), if the tool declares it; else its name decides.
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
        """The tool as shown to a model."""
        if isinstance(self.arguments, Mapping):
            return ToolSpec(self.name, self.description, self.arguments)
        return ToolSpec(self.name, self.description, _get_schema(self.arguments))

    async def call(
        self, arguments: str, context: Mapping[str, object] | None = None, threads: ToolThreads | None = None
    ) -> ToolResult:
        """
        Validate ``arguments`` (JSON text) and run the tool. Any error becomes a result that describes it.

        Args:
            context: Values of the context parameters; missing ones are None.
        """
        try:
            arguments_value = self._parse_arguments(arguments)
        except InvalidToolArgumentsError as refusal:
            # The message only repeats what the model wrote, so nothing needs masking.
            return ToolResult(f"error: {self.name}: {refusal}", failed=True, error=refusal)
        values = context or {}
        parameters = {name: values.get(name) for name in self.context}
        answer, error = await run_isolated(self._call_run(arguments_value, parameters, values, threads))
        if error is None:
            return ToolResult(answer or "")
        message = redact(error_text(error), _MAX_ERROR_CHARACTERS)
        source = self.name if isinstance(error, ToolError) else f"{self.name} failed: {type(error).__name__}"
        return ToolResult(f"error: {source}: {message}", failed=True, error=error)

    async def _call_run(
        self,
        arguments_value: object,
        parameters: Mapping[str, object],
        context: Mapping[str, object],
        threads: ToolThreads | None,
    ) -> str:
        if self.threaded and threads is not None:
            session = str(context.get("session_id") or "")
            return _to_text(await threads.run(session, lambda: self.run(arguments_value, **parameters)))
        answer = self.run(arguments_value, **parameters)
        return _to_text(await answer if inspect.isawaitable(answer) else answer)

    def _parse_arguments(self, arguments: str) -> object:
        if not isinstance(self.arguments, Mapping):
            try:
                return self.arguments.model_validate_json(arguments or "{}")
            except ValidationError as error:
                raise InvalidToolArgumentsError(describe_argument_errors(error)) from error
        try:
            value = json.loads(arguments or "{}")
        except (ValueError, RecursionError) as error:
            raise InvalidToolArgumentsError(f"arguments: it is not valid JSON: {error}") from error
        if not isinstance(value, dict):
            raise InvalidToolArgumentsError(f"arguments: {arguments[:80]} is refused: it must be an object")
        return value


class ToolRegistry:
    """
    Tools by name.

    Derived registries share ``threads``, which counts the threads of cancelled calls.
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
        """The names of the tools, in the order added."""
        return tuple(self._tools)

    def get(self, name: str) -> Tool | None:
        """Return the tool named ``name``, or None."""
        return self._tools.get(name)

    def add(self, tool: Tool) -> None:
        """
        Add a tool.

        Raises:
            ValueError: The name is in use.
        """
        if tool.name in self._tools:
            raise ValueError(f"tool {tool.name!r} is registered twice")
        self._tools[tool.name] = tool

    def select(self, names: Iterable[str]) -> ToolRegistry:
        """
        Return a registry with only the named tools.

        Raises:
            KeyError: A name is not registered.
        """
        return ToolRegistry((self._tools[name] for name in names), threads=self.threads)

    def merge(self, tools: Iterable[Tool]) -> ToolRegistry:
        """
        Return a registry with these tools and ``tools``.

        Raises:
            ValueError: Two tools have the same name.
        """
        return ToolRegistry((*self._tools.values(), *tools), threads=self.threads)

    def specs(self) -> list[ToolSpec]:
        """Return every tool as shown to a model."""
        return [tool.spec for tool in self._tools.values()]

    async def call(self, call: ToolCall, context: Mapping[str, object] | None = None) -> ToolResult:
        """Run a tool call; for an unknown tool, return a result that lists the available ones."""
        tool = self._tools.get(call.name)
        if tool is None:
            names = ", ".join(self._tools) or "none"
            error = UnknownToolError(f"there is no tool {call.name!r}; available: {names}")
            return ToolResult(f"error: {error}", failed=True, error=error)
        return await tool.call(call.arguments, context, self.threads)


def tool_from_function(
    function: Callable[..., Any], *, name: str | None = None, timeout_seconds: float | None = None
) -> Tool:
    """
    Make a tool from a function.

    Its annotated parameters become the tool's arguments, except those named in ``CONTEXT_PARAMETERS``, which
    the runtime sets. Its docstring becomes the description, and the text under ``Args:`` describes the
    arguments. A plain function runs in a thread.

    Raises:
        ValueError: The function has ``*args``, ``**kwargs`` or positional-only parameters.
        TypeError: An annotation cannot be validated.
    """
    parameters = inspect.signature(function).parameters
    context = tuple(parameter for parameter in parameters if parameter in CONTEXT_PARAMETERS)
    arguments = build_arguments_model(function, without=CONTEXT_PARAMETERS)

    def run(values: BaseModel, **parameters: object) -> object | Awaitable[object]:
        answer: object = function(**to_keyword_arguments(values), **parameters)
        return answer

    tool_name: str = name or str(getattr(function, "__name__", "function"))
    return Tool(
        name=tool_name,
        description=get_docstring_summary(function) or tool_name,
        arguments=arguments,
        run=run,
        timeout_seconds=timeout_seconds,
        threaded=not inspect.iscoroutinefunction(function),
        context=context,
    )


def _to_text(answer: object) -> str:
    """Return a tool's answer as text for a model."""
    if isinstance(answer, str):
        return answer
    if isinstance(answer, BaseModel):
        return answer.model_dump_json()
    return format_json(answer)


def format_json(answer: object) -> str:
    """
    Encode a value as JSON: unknown types as text, NaN and infinities as null.

    Raises:
        TypeError, ValueError: The value has keys that are not JSON, or contains itself.
    """
    text = json.dumps(answer, ensure_ascii=False, default=str)
    if "NaN" not in text and "Infinity" not in text:
        return text
    return json.dumps(json.loads(text, parse_constant=lambda _: None), ensure_ascii=False)


_ARGUMENT = re.compile(r"^\s*\*{0,2}(\w+)\s*(?:\([^)]*\))?\s*:\s*(.*)$")
_SECTION = re.compile(
    r"^\s*(Args|Arguments|Parameters|Returns?|Raises|Yields?|Examples?|Notes?):\s*$", re.IGNORECASE
)
_ARGUMENT_SECTIONS: Final = ("args", "arguments", "parameters")


def build_arguments_model(function: Callable[..., Any], *, without: Collection[str]) -> type[BaseModel]:
    """
    Build a model of a function's parameters, except those in ``without``.

    The fields are named ``p0``, ``p1`` …, so that parameters may have any name; their aliases are the
    parameters' names. The text under ``Args:`` in the docstring becomes the descriptions.

    Raises:
        ValueError: The function has parameters that a model cannot name: ``*args``, ``**kwargs`` or
            positional-only ones.
        TypeError: An annotation cannot be validated.
    """
    name = getattr(function, "__name__", "function")
    try:
        hints = get_type_hints(function, include_extras=True)
    except NameError as error:
        raise TypeError(f"tool {name!r} has an annotation that cannot be resolved: {error}") from error
    descriptions = parse_argument_descriptions(inspect.getdoc(function) or "")
    fields: dict[str, Any] = {}
    for number, parameter in enumerate(inspect.signature(function).parameters.values()):
        if parameter.name in without:
            continue
        if parameter.kind not in (parameter.POSITIONAL_OR_KEYWORD, parameter.KEYWORD_ONLY):
            raise ValueError(
                f"tool {name!r} cannot be called by a model: its parameter {parameter} cannot be passed by "
                "name; use plain parameters with annotations"
            )
        default = ... if parameter.default is parameter.empty else parameter.default
        info = Field(default, alias=parameter.name, description=descriptions.get(parameter.name))
        fields[f"p{number}"] = (hints.get(parameter.name, Any), info)
    try:
        model: type[BaseModel] = create_model("Arguments", __config__=ConfigDict(extra="forbid"), **fields)
        model.model_json_schema()
    except Exception as error:
        raise TypeError(f"tool {name!r} has an annotation that cannot be validated: {error}") from error
    return model


def to_keyword_arguments(arguments: BaseModel) -> dict[str, Any]:
    """Return keyword arguments from an instance of a model made by ``build_arguments_model``."""
    fields = type(arguments).model_fields
    return {info.alias or name: getattr(arguments, name) for name, info in fields.items()}


def parse_argument_descriptions(docstring: str) -> dict[str, str]:
    """Return the description of each parameter under ``Args:`` in a docstring."""
    descriptions: dict[str, str] = {}
    is_in_arguments, current_name, depth = False, "", 0
    for line in docstring.splitlines():
        if section := _SECTION.match(line):
            is_in_arguments, current_name = section[1].lower() in _ARGUMENT_SECTIONS, ""
        elif is_in_arguments and line.strip():
            indent = len(line) - len(line.lstrip())
            match = _ARGUMENT.match(line)
            if match and (not current_name or indent <= depth):
                current_name, depth = match[1], indent
                descriptions[current_name] = match[2].strip()
            elif current_name:
                descriptions[current_name] = f"{descriptions[current_name]} {line.strip()}".strip()
    return descriptions


def get_docstring_summary(function: Callable[..., Any]) -> str:
    """Return the part of a docstring before its sections."""
    lines = []
    for line in (inspect.getdoc(function) or "").splitlines():
        if _SECTION.match(line):
            break
        lines.append(line)
    return "\n".join(lines).strip()


def describe_argument_errors(error: ValidationError) -> str:
    """Describe a validation error in one line, with the values clipped."""
    return describe_faults(error.errors(include_url=False), "arguments", limit=20)
