"""What a run is given, checked before it begins: by what the node needs that it begins with. No I/O."""

from __future__ import annotations

import inspect
import json
import typing
from collections.abc import Callable, Mapping
from difflib import get_close_matches
from typing import Any, Final

from pydantic import PydanticUserError, TypeAdapter, ValidationError

from queenright.instrumentation.errors import QueenrightError
from queenright.instrumentation.redaction import redact
from queenright.runtime.graphs.specs import NodeSpec

INPUT_REFUSED: Final = "input_refused"
"""The error type of a run whose input its first node refused: it was called off, and did not fail."""

CONTEXT_NAMES: Final = frozenset({"runtime", "graph_id", "session_id", "agent_id", "node_id", "data_dir"})
"""Parameters that the runtime gives, not the caller."""

_VALUE: Final = 80


class InputRefused(QueenrightError):
    """
    Raised for input that a run cannot begin with: the caller's error, and no failure of the agent.

    The function of the node that a run begins with may raise it, too: the run is called off.

    Args:
        message: What is wrong with which field, its value, and the way out.
        field: The field.
    """

    def __init__(self, message: str, *, field: str = "") -> None:
        super().__init__(message)
        self.field = field


def missing_input(
    node: NodeSpec, function: Callable[..., Any] | None, given: Mapping[str, Any]
) -> tuple[str, ...]:
    """Return the names of what a node needs and is not given, in its order."""
    return tuple(name for name in _needed(node, function) if name not in given)


def check_input(node: NodeSpec, function: Callable[..., Any] | None, given: Mapping[str, Any]) -> None:
    """
    Check that a run can begin at a node with what it is given.

    Args:
        node: The node.
        function: What it calls; None for a node that talks with a model.
        given: The input, by name, and what its session remembers.

    Raises:
        InputRefused: A field is missing, or its value is none that the function's annotation takes.
    """
    needed = _needed(node, function)
    for field in missing_input(node, function, given):
        unknown = [name for name in given if name not in needed]
        near = get_close_matches(field, unknown, 1, 0.5)
        meant = f" (is {near[0]!r} meant to be {field!r}?)" if near else ""
        raise InputRefused(
            f"input {field!r} is missing{meant}: node {node.id!r} needs {', '.join(needed)}, "
            f"and was given {', '.join(map(repr, given)) or 'nothing'}",
            field=field,
        )
    if function is not None:
        _check_types(node, function, given)


def _needed(node: NodeSpec, function: Callable[..., Any] | None) -> tuple[str, ...]:
    if node.input_keys or function is None:
        return node.input_keys
    return tuple(
        name
        for name, parameter in _parameters(function).items()
        if parameter.default is parameter.empty
        and parameter.kind not in (parameter.VAR_KEYWORD, parameter.VAR_POSITIONAL)
        and name not in CONTEXT_NAMES
    )


def _check_types(node: NodeSpec, function: Callable[..., Any], given: Mapping[str, Any]) -> None:
    parameters = _parameters(function)
    try:
        hints = typing.get_type_hints(function)
    except Exception:  # a name that only a type checker knows
        return
    for field, value in given.items():
        parameter = parameters.get(field)
        if parameter is None or field not in hints or field in CONTEXT_NAMES or value is parameter.default:
            continue
        try:
            # Strictly: the function is given the value as it is, not what could be made of it.
            TypeAdapter(hints[field]).validate_json(json.dumps(value), strict=True)
        except (PydanticUserError, TypeError):
            continue  # an annotation that says nothing about JSON values, or a value that is none
        except ValidationError as error:
            why = error.errors(include_url=False, include_input=False)[0]["msg"]
            shown = redact(repr(value), _VALUE)
            raise InputRefused(
                f"input {field!r}: {shown} is refused by node {node.id!r}: {why}", field=field
            ) from None


def _parameters(function: Callable[..., Any]) -> Mapping[str, inspect.Parameter]:
    try:
        return inspect.signature(function).parameters
    except (ValueError, TypeError):  # some builtins have none that can be read
        return {}
