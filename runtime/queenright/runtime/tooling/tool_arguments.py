"""What a function wants, as a model of its arguments: read from its annotations and its docstring."""

from __future__ import annotations

import inspect
import json
import re
from collections.abc import Callable, Collection
from typing import Any, Final, get_type_hints

from pydantic import BaseModel, ConfigDict, Field, ValidationError, create_model

from queenright.instrumentation.faults import fault_message

_ARGUMENT = re.compile(r"^\s*\*{0,2}(\w+)\s*(?:\([^)]*\))?\s*:\s*(.*)$")
_SECTION = re.compile(
    r"^\s*(Args|Arguments|Parameters|Returns?|Raises|Yields?|Examples?|Notes?):\s*$", re.IGNORECASE
)
_WANTED: Final = ("args", "arguments", "parameters")


def arguments_of(function: Callable[..., Any], *, without: Collection[str]) -> type[BaseModel]:
    """
    Return a model of a function's parameters, but for those in ``without``.

    The fields' names are ``p0``, ``p1`` …, so that a parameter may be called anything; outside they go by
    the parameters' names. What the docstring says of a parameter under ``Args:`` is its description.

    Raises:
        ValueError: The function has parameters that no model can name: ``*args``, ``**kwargs``,
            positional-only ones.
        TypeError: An annotation is nothing that can be checked.
    """
    name = getattr(function, "__name__", "function")
    try:
        hints = get_type_hints(function, include_extras=True)
    except NameError as error:
        raise TypeError(f"tool {name!r} has an annotation that cannot be read: {error}") from error
    said = described_arguments(inspect.getdoc(function) or "")
    fields: dict[str, Any] = {}
    for number, parameter in enumerate(inspect.signature(function).parameters.values()):
        if parameter.name in without:
            continue
        if parameter.kind not in (parameter.POSITIONAL_OR_KEYWORD, parameter.KEYWORD_ONLY):
            raise ValueError(
                f"tool {name!r} cannot be called by a model: its parameter {parameter} has no name of its "
                "own; give it plain parameters with annotations"
            )
        default = ... if parameter.default is parameter.empty else parameter.default
        about = Field(default, alias=parameter.name, description=said.get(parameter.name))
        fields[f"p{number}"] = (hints.get(parameter.name, Any), about)
    try:
        model: type[BaseModel] = create_model("Arguments", __config__=ConfigDict(extra="forbid"), **fields)
        model.model_json_schema()
    except Exception as error:
        raise TypeError(f"tool {name!r} has an annotation that cannot be checked: {error}") from error
    return model


def keywords(given: BaseModel) -> dict[str, Any]:
    """Return the arguments that a model made by ``arguments_of`` holds, by parameter."""
    fields = type(given).model_fields
    return {about.alias or name: getattr(given, name) for name, about in fields.items()}


def described_arguments(docstring: str) -> dict[str, str]:
    """Return what a docstring says of each parameter under ``Args:``."""
    said: dict[str, str] = {}
    inside, current, depth = False, "", 0
    for line in docstring.splitlines():
        if section := _SECTION.match(line):
            inside, current = section[1].lower() in _WANTED, ""
        elif inside and line.strip():
            indent = len(line) - len(line.lstrip())
            found = _ARGUMENT.match(line)
            if found and (not current or indent <= depth):
                current, depth = found[1], indent
                said[current] = found[2].strip()
            elif current:
                said[current] = f"{said[current]} {line.strip()}".strip()
    return said


def summary_of(function: Callable[..., Any]) -> str:
    """Return what a docstring says before its sections."""
    lines = []
    for line in (inspect.getdoc(function) or "").splitlines():
        if _SECTION.match(line):
            break
        lines.append(line)
    return "\n".join(lines).strip()


def describe(error: ValidationError) -> str:
    """Say in one line what is wrong with which field, without repeating the value at length."""
    faults = []
    for fault in error.errors(include_url=False):
        where = ".".join(str(part) for part in fault["loc"]) or "arguments"
        given = json.dumps(fault["input"], default=str)[:80] if fault["type"] != "missing" else ""
        why = fault_message(fault)
        faults.append(f"{where}: {why}" + (f" (given: {given})" if given else ""))
    return "; ".join(faults)
