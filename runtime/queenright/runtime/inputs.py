"""Validation of a run's input against the node that the run starts with. No I/O."""

from __future__ import annotations

import inspect
import json
import re
import typing
from collections.abc import Callable, Collection, Iterator, Mapping
from difflib import get_close_matches
from typing import Any, Final

from pydantic import PydanticUserError, TypeAdapter, ValidationError

from queenright.instrumentation.errors import InvalidValueError
from queenright.instrumentation.redaction import redact
from queenright.instrumentation.validation_messages import read_faults
from queenright.runtime.graphs.goal import Goal
from queenright.runtime.graphs.graph import GraphSpec
from queenright.runtime.graphs.specs import NodeSpec
from queenright.runtime.tooling.tools import CONTEXT_PARAMETERS

INPUT_REFUSED: Final = "input_refused"
"""Error type of a run whose first node rejected the input: it was cancelled, and did not fail."""

COMMON_INPUT_NAMES: Final = frozenset({"message", "event", "tick"})
"""Input names of user messages, events and timers, accepted for every graph."""

_MAX_VALUE_CHARACTERS: Final = 80
_IDENTIFIER: Final = re.compile(r"[^\W\d]\w*")


class InvalidInputError(InvalidValueError):
    """
    Raised for input that a run cannot start with: an error of the caller, not of the agent.

    The function of a run's first node may raise it too; the run is then cancelled.

    Args:
        message: The field, its value, what is wrong and how to fix it.
    """

    def __init__(self, message: str, *, field: str = "") -> None:
        super().__init__(message)
        self.field = field


def find_missing_inputs(
    node: NodeSpec, function: Callable[..., Any] | None, values: Mapping[str, Any]
) -> tuple[str, ...]:
    """Return the names of required inputs that are missing, in the node's order."""
    return tuple(name for name in _list_required_names(node, function) if name not in values)


def check_input(node: NodeSpec, function: Callable[..., Any] | None, values: Mapping[str, Any]) -> None:
    """
    Check that a run can start at a node with these values.

    Args:
        function: The node's function; None for a node with a model.
        values: The input, by name, and the memory of the session.

    Raises:
        InvalidInputError: A field is missing, or its value does not match the function's annotation.
    """
    required_names = _list_required_names(node, function)
    for field in find_missing_inputs(node, function, values):
        other_names = [name for name in values if name not in required_names]
        matches = get_close_matches(field, other_names, 1, 0.5)
        hint = f" (is {matches[0]!r} a typo?)" if matches else ""
        raise InvalidInputError(
            f"input {field!r} is missing{hint}: node {node.id!r} needs {', '.join(required_names)}, "
            f"but got {', '.join(map(repr, values)) or 'nothing'}",
            field=field,
        )
    if function is not None:
        _check_types(node, function, values)


def input_schema(node: NodeSpec, function: Callable[..., Any] | None) -> dict[str, Any]:
    """
    Return the JSON schema of the input that a run needs to start at a node, from its function's annotations.

    A property without a type takes any JSON value.

    Args:
        function: The node's function; None for a node with a model.
    """
    parameters = _list_parameters(function) if function is not None else {}
    hints = _get_hints(function) if function is not None else {}
    properties = {}
    for name in _list_accepted_names(node, function) or ():
        properties[name] = _build_schema(hints[name]) if name in hints else {}
        default = parameters[name].default if name in parameters else None
        if isinstance(default, str | int | float) and name not in node.input_keys:
            properties[name]["default"] = default
    return {
        "type": "object",
        "properties": properties,
        "required": list(_list_required_names(node, function)),
    }


def _build_schema(hint: Any) -> dict[str, Any]:
    """Return the JSON schema of an annotated type; an empty one if it does not describe a JSON value."""
    try:
        return TypeAdapter(hint).json_schema()
    except (PydanticUserError, TypeError):
        return {}


def _list_required_names(node: NodeSpec, function: Callable[..., Any] | None) -> tuple[str, ...]:
    if node.input_keys or function is None:
        return node.input_keys
    return tuple(
        name
        for name, parameter in _list_parameters(function).items()
        if parameter.default is parameter.empty
        and parameter.kind not in (parameter.VAR_KEYWORD, parameter.VAR_POSITIONAL)
        and name not in CONTEXT_PARAMETERS
    )


def check_json(values: Mapping[str, Any]) -> None:
    """
    Check that every value is JSON.

    Raises:
        InvalidInputError: A value is not JSON.
    """
    for field, value in values.items():
        try:
            json.dumps(value, allow_nan=False)
        except (TypeError, ValueError, RecursionError) as error:
            raise InvalidInputError(
                f"input {field!r} is not a JSON value ({error}); use text, numbers, true, false, null, lists "
                "or objects of these",
                field=field,
            ) from None


def check_names(
    graph: GraphSpec,
    node: NodeSpec,
    function: Callable[..., Any] | None,
    fields: Collection[str],
    memory_keys: Collection[str],
) -> None:
    """
    Check that something uses each input field; an unused one is probably misspelt.

    Args:
        node: The node that the run starts with.
        function: The node's function; None for a node with a model.
        memory_keys: The memory keys that are used, from ``list_used_names``.

    Raises:
        InvalidInputError: Nothing uses one of the fields.
    """
    accepted_names = _list_accepted_names(node, function)
    if accepted_names is None:
        return
    for field in fields:
        if field in accepted_names or field in memory_keys or field in COMMON_INPUT_NAMES:
            continue
        names = list(dict.fromkeys((*accepted_names, *sorted(memory_keys))))
        matches = get_close_matches(field, names, 1, 0.5)
        hint = f" (did you mean {matches[0]!r}?)" if matches else ""
        raise InvalidInputError(
            f"input {field!r} is unknown{hint}: graph {graph.id!r} takes {', '.join(names) or 'no input'}",
            field=field,
        )


def list_used_names(
    graph: GraphSpec, functions: Mapping[str, Callable[..., Any]], goal: Goal | None
) -> frozenset[str]:
    """Return the memory keys that a graph's nodes, edges and goal may use."""
    names: set[str] = set()
    for node in graph.nodes:
        accepted_names = _list_accepted_names(node, functions.get(node.function))
        names.update(accepted_names or (), node.output_keys)
    conditions = [edge.expression for edge in graph.edges]
    for edge in graph.edges:
        names.update(edge.input_mapping, edge.input_mapping.values())
    if goal is not None:
        conditions += [criterion.expression for criterion in goal.success_criteria]
        conditions += [constraint.expression for constraint in goal.constraints]
    for condition in conditions:
        names.update(_IDENTIFIER.findall(condition))
    return frozenset(names)


def convert_arguments(function: Callable[..., Any], values: Mapping[str, Any]) -> dict[str, Any]:
    """
    Convert JSON values to the types of a function's annotations, such as sets, dates, paths, dataclasses.

    A value without an annotation, or that does not match it, is returned unchanged.
    """
    hints = _get_hints(function)
    arguments = dict(values)
    for field in values.keys() & hints.keys():
        try:
            arguments[field] = _convert_to_annotated(hints[field], values[field])
        except ValidationError:
            continue
    return arguments


def _list_accepted_names(node: NodeSpec, function: Callable[..., Any] | None) -> tuple[str, ...] | None:
    """Return the names that a node accepts as input; None if it accepts any."""
    if node.input_keys:
        return node.input_keys
    if function is None:
        return None
    try:
        parameters = inspect.signature(function).parameters.values()
    except (ValueError, TypeError):
        return None
    if any(parameter.kind is parameter.VAR_KEYWORD for parameter in parameters):
        return None
    return tuple(parameter.name for parameter in parameters if parameter.name not in CONTEXT_PARAMETERS)


def _check_types(node: NodeSpec, function: Callable[..., Any], values: Mapping[str, Any]) -> None:
    parameters, hints = _list_parameters(function), _get_hints(function)
    for field, value in values.items():
        parameter = parameters.get(field)
        if (
            parameter is None
            or field not in hints
            or field in CONTEXT_PARAMETERS
            or value is parameter.default
        ):
            continue
        try:
            _convert_to_annotated(hints[field], value)
        except ValidationError as error:
            reason = read_faults(error.errors(include_input=False))[0].message
            excerpt = redact(repr(value), _MAX_VALUE_CHARACTERS)
            raise InvalidInputError(
                f"input {field!r}: {excerpt} is not valid for node {node.id!r}: {reason}", field=field
            ) from None


def _convert_to_annotated(hint: Any, value: Any) -> Any:
    """
    Convert a JSON value to an annotated type, strictly: ``"3"`` is not an ``int``.

    Raises:
        ValidationError: The value does not match the type.
    """
    if type(value) is hint:
        return value
    try:
        result = TypeAdapter(hint).validate_json(json.dumps(value), strict=True)
    except (PydanticUserError, TypeError):
        return value  # an annotation that does not describe a JSON value
    # For an ``Iterable``, pydantic returns a one-shot iterator.
    return value if isinstance(result, Iterator) else result


def _get_hints(function: Callable[..., Any]) -> dict[str, Any]:
    try:
        return typing.get_type_hints(function, include_extras=True)
    except Exception:  # such as a name that is imported for type checkers only
        return {}


def _list_parameters(function: Callable[..., Any]) -> Mapping[str, inspect.Parameter]:
    try:
        return inspect.signature(function).parameters
    except (ValueError, TypeError):  # some builtins have no signature
        return {}
