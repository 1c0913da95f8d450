"""
Human labels and rewards of recorded runs, with which findings are compared. Detectors never see them.

The labels are those of sola-st/llm-agents-study (arXiv 2506.18824): how each action relates to the one
before it.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from typing import Any, Final

_TURNS_WITHOUT_GAIN: Final = 5
_EQUIVALENT_ACTIONS: Final = 3

REPETITION: Final = "repetition"


def name_group(run: Mapping[str, Any]) -> str:
    """
    Return the name of the group of a run: its data set and outcome.

    Unsolved runs of InterCode with five or more turns without a gain have their own group, and so have runs
    of RepairAgent with three equivalent actions in a row.
    """
    success_flag = run.get("success")
    success = (
        "outcome unknown" if not isinstance(success_flag, bool) else "solved" if success_flag else "unsolved"
    )
    dataset = str(run.get("dataset"))
    if dataset.startswith("intercode"):
        has_zero_progress = (
            success == "unsolved" and count_turns_without_gain(run["steps"]) >= _TURNS_WITHOUT_GAIN
        )
        return f"{dataset}, {'zero progress' if has_zero_progress else success}"
    if run.get("agent") == "repairagent" and count_equivalent_actions(run["steps"]) >= _EQUIVALENT_ACTIONS:
        return f"{dataset} repairagent, three equivalent actions in a row"
    return f"{dataset} {run.get('agent')}, {success}"


def count_turns_without_gain(steps: Iterable[Mapping[str, Any]]) -> int:
    """
    Return the maximum number of consecutive turns without a higher reward. An invalid reward counts as 0.
    """
    best, turns_without_gain, longest_stretch = -math.inf, 0, 0
    for step in steps:
        recorded_reward = step.get("reward")
        reward = (
            float(recorded_reward)
            if isinstance(recorded_reward, int | float) and math.isfinite(recorded_reward)
            else 0.0
        )
        turns_without_gain = 0 if reward > best else turns_without_gain + 1
        best, longest_stretch = max(best, reward), max(longest_stretch, turns_without_gain)
    return longest_stretch


def count_equivalent_actions(steps: Iterable[Mapping[str, Any]]) -> int:
    """Return the maximum number of consecutive actions that are labelled as repetitions."""
    run_length, longest_run = 1, 1
    for step in steps:
        run_length = run_length + 1 if step.get("rel") == REPETITION else 1
        longest_run = max(longest_run, run_length)
    return longest_run


def find_first_repeated_call(steps: Iterable[Mapping[str, Any]]) -> int | None:
    """Return the index of the first call that repeats an earlier one with the same result, or None."""
    calls: set[str] = set()
    for index, step in enumerate(steps):
        if step.get("kind") == "tool":
            call = repr((step.get("name"), step.get("args_hash"), step.get("result_hash")))
            if call in calls:
                return index
            calls.add(call)
    return None
