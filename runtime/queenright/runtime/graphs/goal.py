"""Goals: the purpose of an execution, and its progress. Values and a pure function over the memory."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import Any, Literal

from pydantic import Field, model_validator

from queenright.runtime.graphs import conditions
from queenright.runtime.graphs.specs import Identifier, Spec

CriterionState = Literal["met", "unmet", "unknown"]


class SuccessCriterion(Spec):
    """One criterion that must be met to achieve the goal."""

    id: Identifier
    description: str = ""
    expression: str = ""
    """A condition over the memory; without one, the criterion is met when the execution succeeds."""
    weight: float = Field(default=1, gt=0, le=1_000_000)


class Constraint(Spec):
    """One condition that must hold throughout."""

    id: Identifier
    description: str = ""
    kind: Literal["hard", "soft"] = "hard"
    """A violated hard constraint prevents the goal; a soft one is only reported."""
    expression: str = ""
    """A condition over the memory that must hold; a constraint without one is left to the model."""


class Goal(Spec):
    """What a graph should achieve, and its constraints."""

    id: Identifier
    name: str = ""
    description: str = ""
    success_criteria: tuple[SuccessCriterion, ...] = ()
    constraints: tuple[Constraint, ...] = ()

    @model_validator(mode="after")
    def _check_consistency(self) -> Goal:
        problems = []
        parts: tuple[tuple[str, tuple[SuccessCriterion | Constraint, ...]], ...] = (
            ("criterion", self.success_criteria),
            ("constraint", self.constraints),
        )
        for kind, items in parts:
            counts = Counter(item.id for item in items)
            problems += [f"{kind} {name!r} is defined twice" for name, count in counts.items() if count > 1]
            for item in items:
                if item.expression:
                    try:
                        conditions.check(item.expression)
                    except (conditions.ConditionError, conditions.ConditionsUnavailableError) as error:
                        problems.append(f"{kind} {item.id!r}: {error}")
        if problems:
            raise ValueError("\n".join(f"goal {self.id!r}: {problem}" for problem in problems))
        return self


class GoalProgress(Spec):
    """Progress of an execution towards its goal."""

    goal_id: str
    fraction: float = Field(ge=0, le=1)
    """Weight of the criteria that are met, divided by the total weight."""
    criteria: Mapping[str, CriterionState] = Field(default_factory=dict)
    violated: tuple[str, ...] = ()
    """Ids of violated constraints, hard ones first."""
    achieved: bool = False
    """Whether every criterion is met and no hard constraint is violated."""


def measure_progress(goal: Goal, memory: Mapping[str, Any], *, has_succeeded: bool) -> GoalProgress:
    """
    Measure progress towards ``goal`` from ``memory``.

    A criterion whose expression needs a key that is not in the memory is ``unmet``; one that cannot be
    evaluated for another reason is ``unknown``. A constraint that cannot be evaluated counts as violated
    only at the end: it was not shown to hold.

    Args:
        has_succeeded: Whether the execution has succeeded.

    Raises:
        ConditionsUnavailableError: There are expressions, and the library is missing.
    """
    criteria = {item.id: _evaluate_criterion(item, memory, has_succeeded) for item in goal.success_criteria}
    met_weight = sum(item.weight for item in goal.success_criteria if criteria[item.id] == "met")
    total = sum(item.weight for item in goal.success_criteria)
    violated_constraints = [item for item in goal.constraints if _is_violated(item, memory, has_succeeded)]
    all_met = all(state == "met" for state in criteria.values()) if criteria else has_succeeded
    return GoalProgress(
        goal_id=goal.id,
        fraction=min(met_weight / total, 1.0) if criteria else float(has_succeeded),
        criteria=criteria,
        violated=tuple(
            item.id for item in sorted(violated_constraints, key=lambda item: item.kind != "hard")
        ),
        achieved=all_met and not any(item.kind == "hard" for item in violated_constraints),
    )


def _evaluate_criterion(
    criterion: SuccessCriterion, memory: Mapping[str, Any], has_succeeded: bool
) -> CriterionState:
    if not criterion.expression:
        return "met" if has_succeeded else "unknown"
    try:
        return "met" if conditions.evaluate(criterion.expression, memory) else "unmet"
    except conditions.NotInMemoryError:
        return "unmet"
    except conditions.ConditionError:
        return "unknown"


def _is_violated(constraint: Constraint, memory: Mapping[str, Any], has_succeeded: bool) -> bool:
    if not constraint.expression:
        return False
    try:
        return not conditions.evaluate(constraint.expression, memory)
    except conditions.ConditionError:
        return has_succeeded
