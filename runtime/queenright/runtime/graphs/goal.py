"""Goals: what an execution is for, and how far it has come. Values and a pure function over the memory."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import Any, Literal

from pydantic import Field, model_validator

from queenright.runtime.graphs import conditions
from queenright.runtime.graphs.specs import Identifier, Spec

CriterionState = Literal["met", "unmet", "unknown"]


class SuccessCriterion(Spec):
    """One thing that must be so for the goal to be reached."""

    id: Identifier
    description: str = ""
    expression: str = ""
    """A condition over the memory; without one it is met when the execution succeeds."""
    weight: float = Field(default=1, gt=0, le=1_000_000)


class Constraint(Spec):
    """One thing that must stay so on the way."""

    id: Identifier
    description: str = ""
    kind: Literal["hard", "soft"] = "hard"
    """A hard one that is violated spoils the goal; a soft one is told."""
    expression: str = ""
    """A condition over the memory that must hold; one in words alone is for the model to keep."""


class Goal(Spec):
    """What a graph is to achieve, and within what bounds."""

    id: Identifier
    name: str = ""
    description: str = ""
    success_criteria: tuple[SuccessCriterion, ...] = ()
    constraints: tuple[Constraint, ...] = ()

    @model_validator(mode="after")
    def _consistent(self) -> Goal:
        problems = []
        parts: tuple[tuple[str, tuple[SuccessCriterion | Constraint, ...]], ...] = (
            ("criterion", self.success_criteria),
            ("constraint", self.constraints),
        )
        for what, those in parts:
            counts = Counter(one.id for one in those)
            problems += [f"{what} {name!r} is there twice" for name, count in counts.items() if count > 1]
            for one in those:
                if one.expression:
                    try:
                        conditions.check(one.expression)
                    except (conditions.ConditionError, conditions.ConditionsUnavailableError) as error:
                        problems.append(f"{what} {one.id!r}: {error}")
        if problems:
            raise ValueError("\n".join(f"goal {self.id!r}: {problem}" for problem in problems))
        return self


class GoalProgress(Spec):
    """How far an execution has come."""

    goal_id: str
    fraction: float = Field(ge=0, le=1)
    """The weight of the criteria that are met, of all weight."""
    criteria: Mapping[str, CriterionState] = Field(default_factory=dict)
    violated: tuple[str, ...] = ()
    """Ids of violated constraints, the hard ones first."""
    achieved: bool = False
    """Every criterion is met, and no hard constraint violated."""


def progress(goal: Goal, memory: Mapping[str, Any], *, finished: bool) -> GoalProgress:
    """
    Return how far ``memory`` shows that ``goal`` is reached.

    What an expression speaks of and is not in the memory makes a criterion ``unmet``; one that cannot be
    answered for another reason is ``unknown``. A constraint that cannot be answered is no violation on the
    way, but it is one at the end: it was not shown to hold.

    Args:
        goal: The goal.
        memory: What the execution knows.
        finished: The execution has succeeded.

    Raises:
        ConditionsUnavailableError: There are expressions, and the library for them is missing.
    """
    criteria = {one.id: _state(one, memory, finished) for one in goal.success_criteria}
    met = sum(one.weight for one in goal.success_criteria if criteria[one.id] == "met")
    whole = sum(one.weight for one in goal.success_criteria)
    broken = [one for one in goal.constraints if _is_violated(one, memory, finished)]
    done = all(state == "met" for state in criteria.values()) if criteria else finished
    return GoalProgress(
        goal_id=goal.id,
        fraction=min(met / whole, 1.0) if criteria else float(finished),
        criteria=criteria,
        violated=tuple(one.id for one in sorted(broken, key=lambda one: one.kind != "hard")),
        achieved=done and not any(one.kind == "hard" for one in broken),
    )


def _state(criterion: SuccessCriterion, memory: Mapping[str, Any], finished: bool) -> CriterionState:
    if not criterion.expression:
        return "met" if finished else "unknown"
    try:
        return "met" if conditions.holds(criterion.expression, memory) else "unmet"
    except conditions.NotInMemoryError:
        return "unmet"
    except conditions.ConditionError:
        return "unknown"


def _is_violated(constraint: Constraint, memory: Mapping[str, Any], finished: bool) -> bool:
    if not constraint.expression:
        return False
    try:
        return not conditions.holds(constraint.expression, memory)
    except conditions.ConditionError:
        return finished
