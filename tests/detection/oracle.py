"""
What people and rewards say of recorded runs: what findings are held against, and never shown to detectors.

The labels of people are those of sola-st/llm-agents-study (arXiv 2506.18824): how each action
relates to the one before it.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from typing import Any, Final

_TURNS_WITHOUT_GAIN: Final = 5
_EQUIVALENT_IN_A_ROW: Final = 3

REPETITION: Final = "repetition"


def group_of(run: Mapping[str, Any]) -> str:
    """
    Return the data set and outcome of a run, as the name of the group that it counts in.

    Of InterCode, unsolved runs with five turns or more without a gain are a group, and so are
    RepairAgent's with three equivalent actions in a row.
    """
    result = run.get("success")
    success = "outcome unknown" if not isinstance(result, bool) else "solved" if result else "unsolved"
    dataset = str(run.get("dataset"))
    if dataset.startswith("intercode"):
        stuck = success == "unsolved" and without_gain(run["steps"]) >= _TURNS_WITHOUT_GAIN
        return f"{dataset}, {'zero progress' if stuck else success}"
    if run.get("agent") == "repairagent" and equivalent_in_a_row(run["steps"]) >= _EQUIVALENT_IN_A_ROW:
        return f"{dataset} repairagent, three equivalent actions in a row"
    return f"{dataset} {run.get('agent')}, {success}"


def without_gain(steps: Iterable[Mapping[str, Any]]) -> int:
    """Return the most turns in a row in which the reward did not rise; one that is no number is 0."""
    best, without, most = -math.inf, 0, 0
    for step in steps:
        result = step.get("reward")
        reward = float(result) if isinstance(result, int | float) and math.isfinite(result) else 0.0
        without = 0 if reward > best else without + 1
        best, most = max(best, reward), max(most, without)
    return most


def equivalent_in_a_row(steps: Iterable[Mapping[str, Any]]) -> int:
    """Return the most actions in a row that people called repetitions of one another."""
    row, most = 1, 1
    for step in steps:
        row = row + 1 if step.get("rel") == REPETITION else 1
        most = max(most, row)
    return most


def first_repeated_call(steps: Iterable[Mapping[str, Any]]) -> int | None:
    """Return the index of the first call that had been made before with the same result, or None."""
    seen: set[str] = set()
    for index, step in enumerate(steps):
        if step.get("kind") == "tool":
            call = repr((step.get("name"), step.get("args_hash"), step.get("result_hash")))
            if call in seen:
                return index
            seen.add(call)
    return None
