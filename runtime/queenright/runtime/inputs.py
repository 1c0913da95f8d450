"""What a run is given, checked before it begins: by what the node needs that it begins with. No I/O."""

from __future__ import annotations

import inspect
import json
import re
import typing
from collections.abc import Callable, Collection, Iterator, Mapping
from difflib import get_close_matches
from typing import Any, Final

from pydantic import PydanticUserError, TypeAdapter, ValidationError

from queenright.instrumentation.errors import QueenrightError
from queenright.instrumentation.faults import fault_message
from queenright.instrumentation.redaction import redact
from queenright.runtime.graphs.goal import Goal
from queenright.runtime.graphs.graph import GraphSpec
from queenright.runtime.graphs.specs import NodeSpec

INPUT_REFUSED: Final = "input_refused"
"""The error type of a run whose input its first node refused: it was called off, and did not fail."""

CONTEXT_NAMES: Final = frozenset({"runtime", "graph_id", "session_id", "agent_id", "node_id", "data_dir"})
"""Parameters that the runtime gives, not the caller."""

ALWAYS_KNOWN: Final = frozenset({"message", "event", "tick"})
"""What a user says, an event and a timer are given to a run as, whatever its graph uses."""

_VALUE: Final = 80
_WORDS: Final = re.compile(r"[^\W\d]\w*")


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


def check_json(given: Mapping[str, Any]) -> None:
    """
    Check that every value can be kept.

    Raises:
        InputRefused: One is no JSON value.
    """
    for field, value in given.items():
        try:
            json.dumps(value, allow_nan=False)
        except (TypeError, ValueError, RecursionError) as error:
            raise InputRefused(
                f"input {field!r} is no JSON value ({error}); give text, numbers, true, false, null, lists "
                "or objects of these",
                field=field,
            ) from None


def check_names(
    graph: GraphSpec,
    node: NodeSpec,
    function: Callable[..., Any] | None,
    given: Collection[str],
    known: Collection[str],
) -> None:
    """
    Check that something uses each field that a caller gives: one that nothing does is misspelt.

    Args:
        graph: The graph that is run.
        node: The node that the run begins with.
        function: What it calls; None for a node that talks with a model.
        given: The names of the fields.
        known: What is used of the session's memory, by ``used_names``.

    Raises:
        InputRefused: Nothing uses one of the fields.
    """
    own = _accepted(node, function)
    if own is None:
        return
    for field in given:
        if field in own or field in known or field in ALWAYS_KNOWN:
            continue
        allowed = list(dict.fromkeys((*own, *sorted(known))))
        near = get_close_matches(field, allowed, 1, 0.5)
        meant = f" (is it meant to be {near[0]!r}?)" if near else ""
        raise InputRefused(
            f"input {field!r} is unknown{meant}: graph {graph.id!r} takes {', '.join(allowed) or 'no input'}",
            field=field,
        )


def used_names(
    graph: GraphSpec, functions: Mapping[str, Callable[..., Any]], goal: Goal | None
) -> frozenset[str]:
    """Return the names that a graph's nodes, its edges and its goal may look for in the memory."""
    names: set[str] = set()
    for node in graph.nodes:
        own = _accepted(node, functions.get(node.function))
        names.update(own or (), node.output_keys)
    conditions = [edge.expression for edge in graph.edges]
    for edge in graph.edges:
        names.update(edge.input_mapping, edge.input_mapping.values())
    if goal is not None:
        conditions += [criterion.expression for criterion in goal.success_criteria]
        conditions += [constraint.expression for constraint in goal.constraints]
    for condition in conditions:
        names.update(_WORDS.findall(condition))
    return frozenset(names)


def convert_arguments(function: Callable[..., Any], given: Mapping[str, Any]) -> dict[str, Any]:
    """
    Return JSON values as what a function's annotations name: a set, a date, a path, a dataclass.

    A value that an annotation does not take, or that it says nothing about, stays as it is.
    """
    hints = _hints(function)
    converted = dict(given)
    for field in given.keys() & hints.keys():
        try:
            converted[field] = _as_annotated(hints[field], given[field])
        except ValidationError:
            continue
    return converted


def _accepted(node: NodeSpec, function: Callable[..., Any] | None) -> tuple[str, ...] | None:
    """Return the names of what a node can be given; None if that is anything."""
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
    return tuple(parameter.name for parameter in parameters if parameter.name not in CONTEXT_NAMES)


def _check_types(node: NodeSpec, function: Callable[..., Any], given: Mapping[str, Any]) -> None:
    parameters, hints = _parameters(function), _hints(function)
    for field, value in given.items():
        parameter = parameters.get(field)
        if parameter is None or field not in hints or field in CONTEXT_NAMES or value is parameter.default:
            continue
        try:
            _as_annotated(hints[field], value)
        except ValidationError as error:
            why = fault_message(error.errors(include_url=False, include_input=False)[0])
            shown = redact(repr(value), _VALUE)
            raise InputRefused(
                f"input {field!r}: {shown} is refused by node {node.id!r}: {why}", field=field
            ) from None


def _as_annotated(hint: Any, value: Any) -> Any:
    """
    Return a JSON value as what an annotation names, read strictly: ``"3"`` is no ``int``.

    Raises:
        ValidationError: It is none.
    """
    if type(value) is hint:
        return value
    try:
        read = TypeAdapter(hint).validate_json(json.dumps(value), strict=True)
    except (PydanticUserError, TypeError):
        return value  # an annotation that says nothing about JSON values
    # Of an ``Iterable`` pydantic makes something that can be gone through once only.
    return value if isinstance(read, Iterator) else read


def _hints(function: Callable[..., Any]) -> dict[str, Any]:
    try:
        return typing.get_type_hints(function)
    except Exception:  # a name that only a type checker knows
        return {}


def _parameters(function: Callable[..., Any]) -> Mapping[str, inspect.Parameter]:
    try:
        return inspect.signature(function).parameters
    except (ValueError, TypeError):  # some builtins have none that can be read
        return {}
