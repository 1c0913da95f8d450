"""Scenarios: scripts of a worker's behavior, with the expected ticket and triage."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import cached_property
from importlib import resources
from pathlib import Path
from typing import Annotated, Any, Final, Literal, get_args

import yaml
from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    TypeAdapter,
    ValidationError,
    model_validator,
)

from queenright.health.findings import FindingKind
from queenright.instrumentation.errors import QueenrightError
from queenright.instrumentation.validation_messages import describe_faults
from queenright.judge.scenarios.script import Action, parse_action

Level = Literal["none", "low", "medium", "high", "critical"]
"""The severity of a ticket; ``none`` for no ticket."""
Triage = Literal["dismiss", "intervene"]

LEVELS: Final[tuple[str, ...]] = get_args(Level)


class InvalidScenarioError(QueenrightError, ValueError):
    """Raised when a scenario file is invalid. The message names the file."""


def _as_list(value: Any) -> Any:
    return value if isinstance(value, list | tuple) else [value]


class Label(BaseModel):
    """
    The expected result of a scenario and the reason, independent of any model or rule.

    ``ticket`` lists the acceptable severities, with ``none`` for no ticket. ``triage`` is the expected
    decision on a ticket. If no ticket is expected, a ticket should be dismissed.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    ticket: Annotated[tuple[Level, ...], BeforeValidator(_as_list), Field(min_length=1)]
    causes: Annotated[tuple[FindingKind, ...], BeforeValidator(_as_list)] = ()
    """The acceptable causes of the ticket; empty accepts any."""
    triage: Triage = "dismiss"
    why: Annotated[str, Field(min_length=10, max_length=300)]
    people_differ: bool = False
    """Whether reasonable people would disagree about the label."""

    @model_validator(mode="after")
    def _check_label(self) -> Label:
        if self.ticket_due is None and not self.people_differ:
            raise ValueError("accepting both a ticket and none needs people_differ: true")
        if "none" not in self.ticket and "triage" not in self.model_fields_set:
            raise ValueError("a label with a ticket needs its triage: dismiss or intervene")
        return self

    @property
    def ticket_due(self) -> bool | None:
        """Whether a ticket is expected; None if both are acceptable."""
        accepts_none = "none" in self.ticket
        return None if accepts_none and len(self.ticket) > 1 else not accepts_none

    def level_due(self, answer: str) -> str:
        """Return the acceptable severity that is nearest to the answer."""
        return min(self.ticket, key=lambda level: abs(LEVELS.index(level) - LEVELS.index(answer)))


class Scenario(BaseModel):
    """A worker's script and its label."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    id: Annotated[str, Field(pattern=r"^[a-z0-9][a-z0-9-]+$", max_length=60)]
    kind: Annotated[str, Field(pattern=r"^[a-z_]+$")]
    about: Annotated[str, Field(min_length=10, max_length=200)]
    neighbours: Annotated[int, Field(ge=0, le=500)] = 0
    """The number of healthy workers that run concurrently. There must be no ticket about them."""
    script: Annotated[tuple[dict[str, Any], ...], Field(min_length=1)]
    meanwhile: tuple[dict[str, Any], ...] = ()
    """The worker's actions between its first ticket and the triage, during which no time passes."""
    label: Label

    @model_validator(mode="after")
    def _check_script(self) -> Scenario:
        for line in (*self.script, *self.meanwhile):
            parse_action(line)
        return self

    @cached_property
    def actions(self) -> Sequence[Action]:
        """The actions of the script."""
        return [parse_action(line) for line in self.script]

    @cached_property
    def actions_meanwhile(self) -> Sequence[Action]:
        """The actions between ticket and triage."""
        return [parse_action(line) for line in self.meanwhile]


_SCENARIOS: Final = TypeAdapter(tuple[Scenario, ...])


def load_scenarios(folder: Path | None = None, *, only: Iterable[str] = ()) -> list[Scenario]:
    """
    Return the scenarios of all ``*.yaml`` files in ``folder``, by default the built-in ones.

    Args:
        only: The kinds or ids to return; all if empty.

    Raises:
        InvalidScenarioError: A file is invalid, an id is duplicate, or ``only`` has an unknown kind or id.
    """
    files = (folder or Path(str(resources.files("queenright.judge.scenarios") / "set"))).glob("*.yaml")
    scenarios = [scenario for file in sorted(files) for scenario in _read_file(file)]
    ids = [scenario.id for scenario in scenarios]
    if duplicates := sorted({id_ for id_ in ids if ids.count(id_) > 1}):
        raise InvalidScenarioError(f"duplicate scenario id {duplicates[0]!r}; ids must be unique")
    names = set(only)
    kinds = {scenario.kind for scenario in scenarios}
    if unknown := sorted(names - set(ids) - kinds):
        raise InvalidScenarioError(
            f"{unknown[0]!r} is neither a kind nor an id of a scenario; kinds: {', '.join(sorted(kinds))}"
        )
    return [s for s in scenarios if not names or s.id in names or s.kind in names]


def _read_file(file: Path) -> tuple[Scenario, ...]:
    try:
        text = file.read_text(encoding="utf-8")
        return _SCENARIOS.validate_python(yaml.load(text, getattr(yaml, "CSafeLoader", yaml.SafeLoader)))
    except ValidationError as error:
        raise InvalidScenarioError(f"{file}: {describe_faults(error.errors(), 'the file', 1)}") from error
    except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
        raise InvalidScenarioError(f"cannot read {file}: {error}") from error
