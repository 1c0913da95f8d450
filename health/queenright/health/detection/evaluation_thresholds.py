"""
The thresholds that an evaluation of a session may change, with their allowed values.

The thresholds are defined in `settings`.
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
from queenright.instrumentation.validation_messages import format_fault

_SECTIONS: Final = ("heartbeat", "health_check", "stall", "bands", "loops")
_PREFIX: Final = "health_monitoring"
_NON_THRESHOLDS: Final = frozenset({"health_monitoring.health_check.interval_seconds"})


class InvalidThresholdError(InvalidValueError, ValueError):
    """Raised when a threshold does not exist, or a value is not allowed. ``field`` is its dotted name."""

    def __init__(self, field: str, reason: str) -> None:
        super().__init__(f"settings.{field}: {reason}")
        self.field = field


class Threshold(NamedTuple):
    """A number in the settings that determines when a detector fires."""

    name: str
    """The dotted name in ``queenright.yaml``."""
    value: float
    default: float
    minimum: float | None
    maximum: float | None
    unit: str
    """``s`` for seconds, empty for counts and shares."""
    help: str


def list_thresholds(settings: HealthSettings) -> list[Threshold]:
    """Return the thresholds of the detectors, with the values of ``settings``."""
    return [
        Threshold(
            name=name,
            value=getattr(getattr(settings, section), field),
            default=info.default,
            minimum=_find_bound(info, Ge, Gt),
            maximum=_find_bound(info, Le, Lt),
            unit="s" if field.endswith("_seconds") else "",
            help=_read_docstrings(section).get(field, ""),
        )
        for name, section, field, info in _list_fields()
    ]


def replace_thresholds(settings: HealthSettings, changes: Mapping[str, float]) -> HealthSettings:
    """
    Return a copy of ``settings`` with changed thresholds.

    Args:
        changes: Values by dotted name.

    Raises:
        InvalidThresholdError: There is no such threshold, or its value is not allowed.
    """
    fields = {name: (section, field, info) for name, section, field, info in _list_fields()}
    by_section: dict[str, dict[str, float]] = {}
    for name, value in changes.items():
        if name not in fields:
            suggestions = get_close_matches(name, fields, 1)
            hint = (
                f"; did you mean {suggestions[0]}?"
                if suggestions
                else "; a request without settings lists all thresholds"
            )
            raise InvalidThresholdError(redact(name, 100), f"no such threshold{hint}")
        section, field, info = fields[name]
        if info.annotation is int and value != int(value):
            raise InvalidThresholdError(
                name, f"it must be a whole number {_describe_range(info)}, got {value:g}"
            )
        by_section.setdefault(section, {})[field] = value
    update = {}
    for section, values in by_section.items():
        current: BaseModel = getattr(settings, section)
        try:
            update[section] = type(current).model_validate(current.model_dump() | values)
        except ValidationError as error:
            fault = error.errors()[0]
            if not fault["loc"]:
                name = f"{_PREFIX}.{section}.{next(iter(values))}"
                raise InvalidThresholdError(name, format_fault(fault)) from error
            field = str(fault["loc"][0])
            limits = _describe_range(type(current).model_fields[field])
            reason = f"it must be a number {limits}, got {values.get(field, 0):g}"
            raise InvalidThresholdError(f"{_PREFIX}.{section}.{field}", reason) from error
    return settings.model_copy(update=update)


def _list_fields() -> Iterator[tuple[str, str, str, FieldInfo]]:
    for section in _SECTIONS:
        model = HealthSettings.model_fields[section].annotation
        assert isinstance(model, type)
        assert issubclass(model, BaseModel)
        for field, info in model.model_fields.items():
            name = f"{_PREFIX}.{section}.{field}"
            if info.annotation in (int, float) and name not in _NON_THRESHOLDS:
                yield name, section, field, info


def _find_bound(info: FieldInfo, *kinds: type[Any]) -> float | None:
    for constraint in info.metadata:
        if isinstance(constraint, kinds):
            return float(getattr(constraint, type(constraint).__name__.lower()))
    return None


def _describe_range(info: FieldInfo) -> str:
    low, high = _find_bound(info, Ge, Gt), _find_bound(info, Le, Lt)
    is_exclusive = any(isinstance(constraint, Gt) for constraint in info.metadata)
    limits = [] if low is None else [f"{'greater than' if is_exclusive else 'of at least'} {low:,g}"]
    if high is not None:
        is_below = any(isinstance(constraint, Lt) for constraint in info.metadata)
        limits.append(f"{'less than' if is_below else 'at most'} {high:,.0f}")
    return " and ".join(limits)


@cache
def _read_docstrings(section: str) -> Mapping[str, str]:
    """Return the docstrings of the fields of a section, by field name."""
    model = HealthSettings.model_fields[section].annotation
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
