"""Validation errors in plain words."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, Literal

import pytest
from pydantic import AwareDatetime, BaseModel, ConfigDict, Field, ValidationError

from queenright.instrumentation.validation_messages import describe_faults


class _Nested(BaseModel):
    count: int


class _Model(BaseModel):
    model_config = ConfigDict(extra="forbid")

    at: AwareDatetime | None = None
    count: Annotated[float, Field(ge=1, le=10_000)] = 1
    dry_run: bool | frozenset[Literal["nudge", "answer"]] = False
    flag: bool = False
    items: Annotated[tuple[str, ...], Field(min_length=1, max_length=2)] = ("a",)
    mode: Literal["on", "off"] = "on"
    name: Annotated[str, Field(min_length=1, max_length=3)] = "a"
    names: dict[Literal["a"], str] = {}
    text: Annotated[str, Field(pattern=r"\S")] = "a"
    nested: _Nested | None = None
    path: Path = Path()


@pytest.mark.parametrize(
    ("value", "message"),
    [
        (3, "the body: 3 is refused: it must be an object"),
        ({"other": 1}, "other: no such field"),
        ({"at": "noon"}, "at: 'noon' is refused: it must be a time, such as 2026-01-31T12:00:00Z"),
        (
            {"at": "2026-01-31T12:00:00"},
            "at: '2026-01-31T12:00:00' is refused: it must have a time zone, such as 2026-01-31T12:00:00Z",
        ),
        ({"count": 0}, "count: 0 is refused: it must be at least 1"),
        ({"count": 10_001}, "count: 10001 is refused: it must be at most 10,000"),
        ({"count": float("nan")}, "count: nan is refused: it must be a number"),
        ({"count": "x"}, "count: 'x' is refused: it must be a number"),
        (
            {"dry_run": "x"},
            "dry_run: 'x' is refused: it must be true or false, or a list, such as [a, b]",
        ),
        ({"dry_run": ["x"]}, "dry_run.0: 'x' is refused: it must be 'nudge' or 'answer'"),
        ({"flag": "x"}, "flag: 'x' is refused: it must be true or false"),
        (
            {"items": "x"},
            "items: 'x' is refused: it must be a list, such as [a, b]",
        ),
        ({"items": {}}, "items: {} is refused: it must be a list"),
        ({"items": []}, "items: [] is refused: it must not be empty"),
        ({"items": ["a"] * 3}, "items: ['a', 'a', 'a'] is refused: it must have at most 2 items, not 3"),
        ({"mode": "x"}, "mode: 'x' is refused: it must be 'on' or 'off'"),
        ({"name": ""}, "name: '' is refused: it must not be empty"),
        ({"text": " "}, "text: ' ' is refused: it must not be empty"),
        ({"name": "a" * 4}, "name: it must have at most 3 characters, not 4"),
        ({"name": 4}, "name: 4 is refused: it must be text"),
        ({"names": {"b": "x"}}, "names.b: 'b' is refused: it must be 'a'"),
        ({"nested": {}}, "nested.count: it is required"),
        ({"nested": 3}, "nested: 3 is refused: it must be an object"),
        ({"path": 3}, "path: 3 is refused: it must be a path"),
    ],
)
def test_fault_states_path_value_and_what_is_allowed(value: Any, message: str) -> None:
    with pytest.raises(ValidationError) as error:
        _Model.model_validate(value)

    assert describe_faults(error.value.errors()) == message


def test_fault_without_the_value_does_not_show_it() -> None:
    with pytest.raises(ValidationError) as error:
        _Model.model_validate({"count": "hidden"})

    assert describe_faults(error.value.errors(include_input=False)) == "count: it must be a number"


def test_long_value_is_shortened() -> None:
    with pytest.raises(ValidationError) as error:
        _Model.model_validate({"count": "x" * 5_000, "mode": "y" * 200})

    long_fault, mode_fault = describe_faults(error.value.errors()).split("; ")
    assert long_fault == "count: a value of 5,002 characters is refused: it must be a number"
    assert mode_fault == f"mode: '{'y' * 78}… is refused: it must be 'on' or 'off'"
