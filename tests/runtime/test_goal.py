from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from queenright.runtime.graphs.goal import Constraint, Goal, GoalProgress, SuccessCriterion, measure_progress


def make_goal(*criteria: str, **fields: Any) -> Goal:
    """Return a goal with a criterion per expression, named ``c0``, ``c1`` and so on."""
    specs = tuple(SuccessCriterion(id=f"c{n}", expression=e) for n, e in enumerate(criteria))
    return Goal(id="g", **{"success_criteria": specs, **fields})


def hard_constraint(expression: str, name: str = "h") -> Constraint:
    return Constraint(id=name, expression=expression)


def soft_constraint(expression: str, name: str = "s") -> Constraint:
    return Constraint(id=name, expression=expression, kind="soft")


def test_progress_is_the_weight_of_met_criteria() -> None:
    criteria = (
        SuccessCriterion(id="found", expression="len(sources) >= 3", weight=3),
        SuccessCriterion(id="written", expression="report != ''"),
    )

    progress = measure_progress(
        make_goal(success_criteria=criteria), {"sources": [1, 2, 3], "report": ""}, has_succeeded=False
    )

    assert progress == GoalProgress(
        goal_id="g", fraction=0.75, criteria={"found": "met", "written": "unmet"}, achieved=False
    )


def test_goal_with_all_criteria_met_is_achieved() -> None:
    progress = measure_progress(
        make_goal("score > 3", "approved"), {"score": 4, "approved": True}, has_succeeded=False
    )

    assert (progress.fraction, progress.achieved) == (1.0, True)


@pytest.mark.parametrize(
    ("expression", "state"),
    [
        ("missing > 3", "unmet"),
        ("report.missing", "unmet"),
        ("score > 'x'", "unknown"),
        ("score > 1", "met"),
        ("score > 9", "unmet"),
    ],
)
def test_criterion_is_met_unmet_or_unknown(expression: str, state: str) -> None:
    progress = measure_progress(make_goal(expression), {"score": 5, "report": {}}, has_succeeded=True)

    assert progress.criteria == {"c0": state}
    assert progress.achieved is (state == "met")


def test_criterion_without_expression_is_met_on_success() -> None:
    goal = make_goal("")

    assert measure_progress(goal, {}, has_succeeded=False).criteria == {"c0": "unknown"}
    assert measure_progress(goal, {}, has_succeeded=True) == GoalProgress(
        goal_id="g", fraction=1.0, criteria={"c0": "met"}, achieved=True
    )


@pytest.mark.parametrize(("has_finished", "fraction"), [(False, 0.0), (True, 1.0)])
def test_goal_without_criteria_is_reached_by_finishing(has_finished: bool, fraction: float) -> None:
    progress = measure_progress(make_goal(), {}, has_succeeded=has_finished)

    assert (progress.fraction, progress.achieved) == (fraction, has_finished)


def test_hard_constraint_prevents_goal_and_soft_one_is_reported() -> None:
    constraints = (soft_constraint("cost < 1"), hard_constraint("cost < 5"), soft_constraint("True", "kept"))

    within_limit = measure_progress(
        make_goal("done", constraints=constraints), {"done": True, "cost": 2}, has_succeeded=True
    )
    above_limit = measure_progress(
        make_goal("done", constraints=constraints), {"done": True, "cost": 9}, has_succeeded=True
    )

    assert (within_limit.violated, within_limit.achieved) == (("s",), True)
    assert (above_limit.violated, above_limit.achieved, above_limit.fraction) == (("h", "s"), False, 1.0)


def test_unevaluable_constraint_is_violated_only_at_the_end() -> None:
    goal = make_goal(
        constraints=(hard_constraint("cost < 5"), Constraint(id="polite", description="Be polite."))
    )

    assert measure_progress(goal, {}, has_succeeded=False).violated == ()
    assert measure_progress(goal, {}, has_succeeded=True).violated == ("h",)


def test_all_goal_problems_are_reported_at_once() -> None:
    with pytest.raises(ValidationError) as error:
        Goal(
            id="g",
            success_criteria=(
                SuccessCriterion(id="c", expression="x >"),
                SuccessCriterion(id="c", expression="open('x')"),
            ),
            constraints=(hard_constraint("y **"), hard_constraint("1")),
        )

    text = str(error.value)
    for part in (
        "goal 'g': criterion 'c' is defined twice",
        "goal 'g': criterion 'c': condition 'x >': invalid syntax",
        "goal 'g': criterion 'c': condition \"open('x')\": unknown function 'open'",
        "goal 'g': constraint 'h' is defined twice",
        "goal 'g': constraint 'h': condition 'y **': invalid syntax",
    ):
        assert part in text


@pytest.mark.parametrize("weight", [0, -1, float("nan"), float("inf"), 1e9])
def test_invalid_weight_is_refused(weight: float) -> None:
    with pytest.raises(ValidationError, match="weight"):
        SuccessCriterion(id="c", weight=weight)


EXPRESSION = st.sampled_from(["a", "b > 1", "missing", "a > 'x'", ""])


@given(
    criteria=st.lists(
        st.tuples(EXPRESSION, st.floats(min_value=1e-9, max_value=1e6)),
        max_size=6,
    ),
    constraints=st.lists(st.tuples(EXPRESSION, st.sampled_from(["hard", "soft"])), max_size=4),
    memory=st.fixed_dictionaries({"a": st.booleans(), "b": st.integers(0, 3)}),
    has_finished=st.booleans(),
)
def test_goal_progress_is_between_0_and_1(
    criteria: list[tuple[str, float]],
    constraints: list[tuple[str, str]],
    memory: dict[str, Any],
    has_finished: bool,
) -> None:
    goal = Goal.model_validate(
        {
            "id": "g",
            "success_criteria": [
                {"id": f"c{n}", "expression": e, "weight": w} for n, (e, w) in enumerate(criteria)
            ],
            "constraints": [
                {"id": f"k{n}", "expression": e, "kind": kind} for n, (e, kind) in enumerate(constraints)
            ],
        }
    )

    progress = measure_progress(goal, memory, has_succeeded=has_finished)

    assert 0 <= progress.fraction <= 1
    assert set(progress.criteria) == {state.id for state in goal.success_criteria}
    assert (progress.fraction == 1) >= progress.achieved
    assert GoalProgress.model_validate_json(progress.model_dump_json()) == progress
    kinds = {constraint.id: constraint.kind for constraint in goal.constraints}
    assert [kinds[name] for name in progress.violated] == sorted(kinds[name] for name in progress.violated)
    if has_finished:
        assert progress.fraction >= measure_progress(goal, memory, has_succeeded=False).fraction
