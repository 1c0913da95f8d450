"""
Thresholds that an evaluation of a session may try: their names and allowed values.

The thresholds themselves are in `settings`; `stall_clock` computes when a silent worker is stalled.
"""

from __future__ import annotations

import ast
import inspect
import textwrap
from collections.abc import Iterator, Mapping
from difflib import get_close_matches
from functools import cache
from typing import Any, Final, NamedTuple

from annotated_types import Ge, Gt, Le, Lt
from pydantic import BaseModel, ValidationError
from pydantic.fields import FieldInfo

from queenright.health.settings import HealthSettings
from queenright.instrumentation.errors import InvalidValueError
from queenright.instrumentation.redaction import redact
from queenright.instrumentation.validation_messages import fault_message

_BLOCKS: Final = ("heartbeat", "health_check", "stall", "bands", "loops")
_PREFIX: Final = "health_monitoring"
_NOT_OF_DETECTORS: Final = frozenset({"health_monitoring.health_check.interval_seconds"})


class InvalidThresholdError(InvalidValueError, ValueError):
    """Raised for a threshold that does not exist, or whose value is not allowed; ``field`` is its name."""

    def __init__(self, field: str, reason: str) -> None:
        super().__init__(f"settings.{field}: {reason}")
        self.field = field


class Threshold(NamedTuple):
    """A number in the settings that decides when a detector fires."""

    name: str
    """Its dotted name in ``queenright.yaml``."""
    value: float
    default: float
    minimum: float | None
    maximum: float | None
    unit: str
    """``s`` for seconds; empty for counts and shares."""
    help: str


def thresholds(settings: HealthSettings) -> list[Threshold]:
    """Return the thresholds of the detectors, with the values of ``settings``."""
    return [
        Threshold(
            name=name,
            value=getattr(getattr(settings, block), field),
            default=info.default,
            minimum=_bound(info, Ge, Gt),
            maximum=_bound(info, Le, Lt),
            unit="s" if field.endswith("_seconds") else "",
            help=_docstrings(block).get(field, ""),
        )
        for name, block, field, info in _fields()
    ]


def with_thresholds(settings: HealthSettings, changes: Mapping[str, float]) -> HealthSettings:
    """
    Return ``settings`` with other thresholds.

    Args:
        changes: Values by dotted name.

    Raises:
        InvalidThresholdError: There is no such threshold, or its value is not allowed.
    """
    fields = {name: (block, field, info) for name, block, field, info in _fields()}
    by_block: dict[str, dict[str, float]] = {}
    for name, value in changes.items():
        if name not in fields:
            near = get_close_matches(name, fields, 1)
            hint = f"; did you mean {near[0]}?" if near else "; the response without settings lists all"
            raise InvalidThresholdError(redact(name, 100), f"no such threshold{hint}")
        block, field, info = fields[name]
        if info.annotation is int and value != int(value):
            raise InvalidThresholdError(name, f"it must be a whole number {_range(info)}, got {value:g}")
        by_block.setdefault(block, {})[field] = value
    update = {}
    for block, values in by_block.items():
        before: BaseModel = getattr(settings, block)
        try:
            update[block] = type(before).model_validate(before.model_dump() | values)
        except ValidationError as error:
            fault = error.errors()[0]
            if not fault["loc"]:
                name = f"{_PREFIX}.{block}.{next(iter(values))}"
                raise InvalidThresholdError(name, fault_message(fault)) from error
            field = str(fault["loc"][0])
            limits = _range(type(before).model_fields[field])
            reason = f"it must be a number {limits}, got {values.get(field, 0):g}"
            raise InvalidThresholdError(f"{_PREFIX}.{block}.{field}", reason) from error
    return settings.model_copy(update=update)


def _fields() -> Iterator[tuple[str, str, str, FieldInfo]]:
    for block in _BLOCKS:
        model = HealthSettings.model_fields[block].annotation
        assert isinstance(model, type)
        assert issubclass(model, BaseModel)
        for field, info in model.model_fields.items():
            name = f"{_PREFIX}.{block}.{field}"
            if info.annotation in (int, float) and name not in _NOT_OF_DETECTORS:
                yield name, block, field, info


def _bound(info: FieldInfo, *kinds: type[Any]) -> float | None:
    for mark in info.metadata:
        if isinstance(mark, kinds):
            return float(getattr(mark, type(mark).__name__.lower()))
    return None


def _range(info: FieldInfo) -> str:
    low, high = _bound(info, Ge, Gt), _bound(info, Le, Lt)
    is_open = any(isinstance(mark, Gt) for mark in info.metadata)
    words = [] if low is None else [f"{'greater than' if is_open else 'of at least'} {low:,g}"]
    if high is not None:
        is_below = any(isinstance(mark, Lt) for mark in info.metadata)
        words.append(f"{'less than' if is_below else 'at most'} {high:,.0f}")
    return " and ".join(words)


@cache
def _docstrings(block: str) -> Mapping[str, str]:
    """Return the docstrings of the fields of a block, by name."""
    model = HealthSettings.model_fields[block].annotation
    assert isinstance(model, type)
    [definition] = ast.parse(textwrap.dedent(inspect.getsource(model))).body
    assert isinstance(definition, ast.ClassDef)
    docstrings: dict[str, str] = {}
    name = ""
    for statement in definition.body:
        if isinstance(statement, ast.AnnAssign) and isinstance(statement.target, ast.Name):
            name = statement.target.id
        elif name and isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Constant):
            docstrings[name] = inspect.cleandoc(str(statement.value.value))
            name = ""
        else:
            name = ""
    return docstrings
