"""Builds argument models of functions from their annotations and docstrings."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Collection
from typing import Any, Final, get_type_hints

from pydantic import BaseModel, ConfigDict, Field, ValidationError, create_model

from queenright.instrumentation.validation_messages import describe_faults

_ARGUMENT = re.compile(r"^\s*\*{0,2}(\w+)\s*(?:\([^)]*\))?\s*:\s*(.*)$")
_SECTION = re.compile(
    r"^\s*(Args|Arguments|Parameters|Returns?|Raises|Yields?|Examples?|Notes?):\s*$", re.IGNORECASE
)
_WANTED: Final = ("args", "arguments", "parameters")


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
    inside, current, depth = False, "", 0
    for line in docstring.splitlines():
        if section := _SECTION.match(line):
            inside, current = section[1].lower() in _WANTED, ""
        elif inside and line.strip():
            indent = len(line) - len(line.lstrip())
            match = _ARGUMENT.match(line)
            if match and (not current or indent <= depth):
                current, depth = match[1], indent
                descriptions[current] = match[2].strip()
            elif current:
                descriptions[current] = f"{descriptions[current]} {line.strip()}".strip()
    return descriptions


def docstring_summary(function: Callable[..., Any]) -> str:
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
