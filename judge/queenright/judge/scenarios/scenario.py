"""Scenarios: a script of what a worker does, and what a reasonable person would have done about it."""

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
from queenright.judge.scenarios.script import Action, action

Level = Literal["none", "low", "medium", "high", "critical"]
"""How bad a ticket is; ``none``: there is no ticket."""
Triage = Literal["dismiss", "intervene"]

LEVELS: Final[tuple[str, ...]] = get_args(Level)


class InvalidScenarioError(QueenrightError, ValueError):
    """Raised for a file that holds no scenarios: which, where in it, and what is wrong."""


def _listed(value: Any) -> Any:
    return value if isinstance(value, list | tuple) else [value]


class Label(BaseModel):
    """
    What ought to come of a scenario, and why; decided before any model or rule was asked.

    ``ticket`` are the severities that are right, ``none`` for no ticket. ``triage`` is what ought to be
    done with a ticket; where none is due, one that was written all the same ought to be dismissed.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    ticket: Annotated[tuple[Level, ...], BeforeValidator(_listed), Field(min_length=1)]
    causes: Annotated[tuple[FindingKind, ...], BeforeValidator(_listed)] = ()
    """What the ticket may be about; empty: anything."""
    triage: Triage = "dismiss"
    why: Annotated[str, Field(min_length=10, max_length=300)]
    people_differ: bool = False
    """Honest people would label it in another way."""

    @model_validator(mode="after")
    def _sound(self) -> Label:
        if self.ticket_due is None and not self.people_differ:
            raise ValueError("only where people differ may both a ticket and none be right")
        if "none" not in self.ticket and "triage" not in self.model_fields_set:
            raise ValueError("say the triage of a ticket that is due: dismiss or intervene")
        return self

    @property
    def ticket_due(self) -> bool | None:
        """Whether there ought to be a ticket; None if both are right."""
        none = "none" in self.ticket
        return None if none and len(self.ticket) > 1 else not none

    def level_due(self, answered: str) -> str:
        """Return the right severity that is nearest to the one answered."""
        return min(self.ticket, key=lambda level: abs(LEVELS.index(level) - LEVELS.index(answered)))


class Scenario(BaseModel):
    """One worker, what happens to it, and the label."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    id: Annotated[str, Field(pattern=r"^[a-z0-9][a-z0-9-]+$", max_length=60)]
    kind: Annotated[str, Field(pattern=r"^[a-z_]+$")]
    about: Annotated[str, Field(min_length=10, max_length=200)]
    neighbours: Annotated[int, Field(ge=0, le=500)] = 0
    """So many other workers that are well go on beside it; about them there must be no ticket."""
    script: Annotated[tuple[dict[str, Any], ...], Field(min_length=1)]
    meanwhile: tuple[dict[str, Any], ...] = ()
    """What the worker does between the first ticket about it and the triage; no time passes."""
    label: Label

    @model_validator(mode="after")
    def _playable(self) -> Scenario:
        for line in (*self.script, *self.meanwhile):
            action(line)
        return self

    @cached_property
    def actions(self) -> Sequence[Action]:
        """The script, ready to be played."""
        return [action(line) for line in self.script]

    @cached_property
    def actions_meanwhile(self) -> Sequence[Action]:
        """What happens between ticket and triage."""
        return [action(line) for line in self.meanwhile]


_SCENARIOS: Final = TypeAdapter(tuple[Scenario, ...])


def load_scenarios(folder: Path | None = None, *, only: Iterable[str] = ()) -> list[Scenario]:
    """
    Return the scenarios of all ``*.yaml`` files in ``folder``, or those that come with the package.

    Args:
        folder: Where they are.
        only: Kinds or ids to keep; all if empty.

    Raises:
        InvalidScenarioError: A file holds something else, two scenarios have one id, or ``only`` names
            nothing.
    """
    files = (folder or Path(str(resources.files("queenright.judge.scenarios") / "set"))).glob("*.yaml")
    found = [scenario for file in sorted(files) for scenario in _read(file)]
    ids = [scenario.id for scenario in found]
    if double := sorted({one for one in ids if ids.count(one) > 1}):
        raise InvalidScenarioError(f"two scenarios are called {double[0]!r}; an id is of one only")
    wanted = set(only)
    if strange := sorted(wanted - set(ids) - {scenario.kind for scenario in found}):
        kinds = ", ".join(sorted({scenario.kind for scenario in found}))
        raise InvalidScenarioError(
            f"{strange[0]!r} is neither a kind nor an id of a scenario; kinds: {kinds}"
        )
    return [s for s in found if not wanted or s.id in wanted or s.kind in wanted]


def _read(file: Path) -> tuple[Scenario, ...]:
    try:
        text = file.read_text(encoding="utf-8")
        return _SCENARIOS.validate_python(yaml.load(text, getattr(yaml, "CSafeLoader", yaml.SafeLoader)))
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(str(part) for part in first["loc"])
        raise InvalidScenarioError(f"{file}: {where}: {first['msg']}") from error
    except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
        raise InvalidScenarioError(f"{file} cannot be read: {error}") from error
