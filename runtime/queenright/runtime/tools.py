"""Tools: functions that a node's model may call, with their arguments checked before they run."""

from __future__ import annotations

import inspect
import json
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass
from typing import Any, TypeVar

from pydantic import BaseModel, ValidationError

from queenright.instrumentation.errors import QueenrightError
from queenright.runtime.model import ToolCall, ToolSpec

ArgumentsT = TypeVar("ArgumentsT", bound=BaseModel)


class ToolError(QueenrightError):
    """Raised by a tool that will not do what it was asked; the message is for the model to act on."""


@dataclass(frozen=True, slots=True)
class ToolResult:
    """What the model is told: the tool's answer, or what was wrong."""

    content: str
    failed: bool = False


@dataclass(frozen=True, slots=True)
class Tool:
    """One tool. ``run`` gets an instance of ``arguments``, and may be a plain or an async function."""

    name: str
    description: str
    arguments: type[BaseModel]
    run: Callable[[Any], str | Awaitable[str]]

    @property
    def spec(self) -> ToolSpec:
        """The tool as a model sees it."""
        schema = self.arguments.model_json_schema()
        schema.pop("title", None)
        return ToolSpec(self.name, self.description, schema)

    async def call(self, arguments: str) -> ToolResult:
        """Check ``arguments`` (JSON text) and run; whatever goes wrong becomes a result that says so."""
        try:
            checked = self.arguments.model_validate_json(arguments or "{}")
        except ValidationError as error:
            return ToolResult(f"error: {self.name}: {describe(error)}", failed=True)
        try:
            answer = self.run(checked)
            return ToolResult(await answer if inspect.isawaitable(answer) else answer)
        except ToolError as refusal:
            return ToolResult(f"error: {self.name}: {refusal}", failed=True)
        except Exception as error:
            return ToolResult(f"error: {self.name} failed: {type(error).__name__}: {error}", failed=True)


class ToolRegistry:
    """The tools of one graph, by name."""

    def __init__(self, tools: Iterable[Tool] = ()) -> None:
        self._tools: dict[str, Tool] = {}
        for tool in tools:
            self.add(tool)

    def __contains__(self, name: str) -> bool:
        return name in self._tools

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
        return ToolRegistry(self._tools[name] for name in names)

    def specs(self) -> list[ToolSpec]:
        """Every tool as a model sees it."""
        return [tool.spec for tool in self._tools.values()]

    async def call(self, call: ToolCall) -> ToolResult:
        """Run what the model asked for; a tool that is not there is a result that names those that are."""
        tool = self._tools.get(call.name)
        if tool is None:
            have = ", ".join(self._tools)
            return ToolResult(f"error: there is no tool {call.name!r}; there are: {have}", failed=True)
        return await tool.call(call.arguments)


def describe(error: ValidationError) -> str:
    """Say in one line what is wrong with which field, without repeating the value at length."""
    faults = []
    for fault in error.errors(include_url=False):
        where = ".".join(str(part) for part in fault["loc"]) or "arguments"
        given = json.dumps(fault["input"], default=str)[:80] if fault["type"] != "missing" else ""
        faults.append(f"{where}: {fault['msg']}" + (f" (given: {given})" if given else ""))
    return "; ".join(faults)
