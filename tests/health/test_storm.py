"""A storm begins when many workers get worse at once, and ends when they stop; actions are limited."""

from __future__ import annotations

import itertools

from hypothesis import given
from hypothesis import strategies as st

from queenright.health.findings import WorkerKey
from queenright.health.interventions.action_limits import ActionBudget
from queenright.health.interventions.storm import StormWatch
from queenright.health.settings import StormSettings


def make_storm_watch() -> StormWatch:
    numbers = itertools.count(1)
    return StormWatch(StormSettings(), ids=lambda: f"storm{next(numbers)}")


def test_five_workers_within_the_window_are_a_storm_and_four_are_not() -> None:
    """B71: thirty workers that degrade within 30 s are one storm."""
    storm_watch = make_storm_watch()
    starts = [storm_watch.record_worse((f"bee{n}", "s"), 1000.0 + n) for n in range(30)]

    assert starts.index(True) == 4
    assert sum(starts) == 1
    assert storm_watch.storm(1030.0) == "storm1"


def test_one_worker_that_flaps_is_not_a_storm() -> None:
    storm_watch = make_storm_watch()
    assert not any(storm_watch.record_worse(("bee", "s"), 1000.0 + n) for n in range(100))


def test_workers_that_get_worse_one_after_the_other_are_not_a_storm() -> None:
    storm_watch = make_storm_watch()
    assert not any(storm_watch.record_worse((f"bee{n}", "s"), 1000.0 + 10 * n) for n in range(100))


def test_consecutive_sessions_of_one_agent_are_not_a_storm() -> None:
    """B123: an agent that crashes repeatedly counts once."""
    storm_watch = make_storm_watch()
    for n in range(20):
        assert not storm_watch.record_worse(("bee", f"s{n}"), 1000.0 + n, is_consecutive=lambda key: True)
    assert [storm_watch.record_worse((f"bee{n}", "s"), 1020.0) for n in range(4)] == [
        False,
        False,
        False,
        True,
    ]


def test_large_storm_compares_few_sessions() -> None:
    """A deployment breaks 500 sessions of one agent, and 500 agents, at once."""
    storm_watch, compared_keys = make_storm_watch(), list[WorkerKey]()

    class Agent(str):
        __slots__ = ()
        __hash__ = str.__hash__

        def __eq__(self, other: object) -> bool:
            compared_keys.append((self, str(other)))
            return str.__eq__(self, other)

    def is_consecutive(other: WorkerKey) -> bool:
        compared_keys.append(other)
        return False

    for n in range(500):
        storm_watch.record_worse((Agent("bee"), f"s{n}"), 1000.0, is_consecutive=is_consecutive)
        storm_watch.record_worse((Agent(f"bee{n}"), "s"), 1000.0, is_consecutive=is_consecutive)

    assert storm_watch.count_victims(1000.0) == 1_000
    assert len(compared_keys) <= 30 * 1_000


def test_sessions_that_follow_a_storm_of_their_agent_replace_it() -> None:
    storm_watch = make_storm_watch()
    for n in range(100):
        storm_watch.record_worse(("bee", f"s{n}"), 1000.0)
    for n in range(100):
        storm_watch.record_worse(("bee", f"t{n}"), 1010.0, is_consecutive=lambda key: key[1].startswith("s"))

    assert (storm_watch.count_victims(1010.0), storm_watch.workers) == (100, 100)


def test_storm_ends_after_quiet_and_the_next_is_separate() -> None:
    storm_watch = make_storm_watch()
    for n in range(5):
        storm_watch.record_worse((f"bee{n}", "s"), 1000.0)
    assert storm_watch.storm(1119.9) == "storm1"
    assert storm_watch.storm(1120.0) == ""

    for n in range(5):
        storm_watch.record_worse((f"bee{n}", "s"), 2000.0)
    assert storm_watch.storm(2000.0) == "storm2"


def test_storm_ends_although_single_workers_keep_getting_worse() -> None:
    storm_watch = make_storm_watch()
    for n in range(5):
        storm_watch.record_worse((f"bee{n}", "s"), 1000.0)
    for n in range(10):
        storm_watch.record_worse(("courier", f"s{n}"), 1050.0 + 20 * n, is_consecutive=lambda key: True)

    assert (storm_watch.storm(1230.0), storm_watch.count_victims(1230.0)) == ("", 0)


def test_two_workers_that_get_worse_after_a_storm_are_not_part_of_it() -> None:
    storm_watch = make_storm_watch()
    for n in range(5):
        storm_watch.record_worse((f"bee{n}", "s"), 1000.0)
    storm_watch.record_worse(("courier", "s"), 1110.0)
    storm_watch.record_worse(("hanger", "s"), 1200.0)

    assert (storm_watch.storm_of(("hanger", "s")), storm_watch.storm_of(("courier", "s"))) == ("", "storm1")


def test_worker_that_got_worse_before_a_storm_is_not_part_of_it() -> None:
    storm_watch = make_storm_watch()
    storm_watch.record_worse(("hanger", "s"), 900.0)
    for n in range(5):
        storm_watch.record_worse((f"bee{n}", "s"), 1000.0)

    assert storm_watch.storm(1000.0) == "storm1"
    assert storm_watch.storm_of(("hanger", "s")) == ""


def test_consecutive_sessions_of_one_agent_count_once_in_a_storm() -> None:
    storm_watch = make_storm_watch()
    for n in range(5):
        storm_watch.record_worse((f"bee{n}", "s"), 1000.0)
    for n in range(3):
        storm_watch.record_worse(("courier", f"s{n}"), 1010.0 + n, is_consecutive=lambda key: True)

    assert storm_watch.count_victims(1020.0) == 6


def test_storm_has_a_start_time() -> None:
    storm_watch = make_storm_watch()
    for n in range(6):
        storm_watch.record_worse((f"bee{n}", "s"), 1000.0 + n)
    assert storm_watch.began_at(1010.0) == 1004.0
    storm_watch.record_worse(("bee0", "s"), 1060.0)
    storm_watch.record_worse(("bee9", "s"), 1061.0)
    assert (storm_watch.count_victims(1061.0), storm_watch.workers) == (7, 7)
    assert (storm_watch.began_at(1200.0), storm_watch.count_victims(1200.0)) == (None, 0)


def test_budget_reports_its_usage() -> None:
    budget = ActionBudget(2)
    assert (budget.most, budget.count_used(1000.0)) == (2, 0)
    budget.spend(1000.0)
    budget.spend(1030.0)
    assert (budget.count_used(1040.0), budget.free_at(1040.0)) == (2, 1060.0)
    assert budget.count_used(1070.0) == 1


def test_clock_set_back_ends_storms_and_starts_none() -> None:
    storm_watch = make_storm_watch()
    for n in range(5):
        storm_watch.record_worse((f"bee{n}", "s"), 1000.0)
    assert storm_watch.storm(500.0) == ""


@given(st.lists(st.floats(0, 30, allow_nan=False), max_size=100), st.integers(1, 10))
def test_action_budget_holds_within_any_minute(pauses: list[float], limit: int) -> None:
    budget, now, spend_times = ActionBudget(limit), 0.0, list[float]()
    for pause in pauses:
        now += pause
        free_at = budget.free_at(now)
        assert now <= free_at <= now + 60.0
        if free_at == now:
            budget.spend(now)
            spend_times.append(now)
    for spend_time in spend_times:
        assert sum(spend_time <= other_time < spend_time + 60.0 for other_time in spend_times) <= limit
