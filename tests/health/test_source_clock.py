"""Telemetry that arrives late or has a wrong clock keeps the time between events."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate, pairwise

import pytest

from queenright.health.findings import FindingKind
from queenright.health.monitoring.monitor import HealthMonitor
from queenright.health.settings import HealthSettings
from queenright.health.vitals.activity import make_duration_key
from queenright.health.vitals.learned_clocks import SAMPLES
from queenright.health.vitals.source_clock import SourceClock
from queenright.instrumentation.effects import get_effect_facts
from queenright.instrumentation.names import Phase
from queenright.runtime.events import AgentEvent, EventType
from tests.health.worker_script import START, WorkerScript

SETTINGS = HealthSettings.model_validate({"judge": {"start_grace_seconds": 0}})
YEARS = 5 * 365 * 86_400.0
BATCH_SECONDS = 1_020
POLL = get_effect_facts("bash", {"command": "gh run view 7 --json status"})


def make_run(pause: float, *, has_turns: bool = True) -> list[AgentEvent]:
    """Return a run of the same call with the same result, with a pause before each, at its true times."""
    script = WorkerScript(settings=SETTINGS).start()
    for turn in range(int(BATCH_SECONDS // pause)):
        script.report_event(
            EventType.LLM_CALL_COMPLETED, {"output_tokens": 9, "duration": 1.0}, after=pause - 1
        )
        call = {"tool": "bash", "args_hash": "a", "result_hash": "in progress", "outcome": "ok"}
        script.report_event(
            EventType.TOOL_CALL_COMPLETED,
            {**call, **POLL, **({"turn": turn} if has_turns else {"duration": 0.5})},
        )
    return script.worker_events


def shift_events(events: Sequence[AgentEvent], seconds: float) -> list[AgentEvent]:
    for event in events:
        event.time += seconds
    return list(events)


def list_kinds_after(events: Sequence[AgentEvent], arrival: float | None = None) -> set[FindingKind]:
    """Return the findings of events that arrive at once, or each at its true time."""
    monitor = HealthMonitor(SETTINGS)
    kinds = set()
    for event in events:
        monitor.apply(event, event.time if arrival is None else arrival)
        for worker in monitor.workers():
            kinds |= {finding.kind for finding in worker.findings}
    return kinds


@pytest.mark.parametrize("has_turns", [True, False])
@pytest.mark.parametrize("offset", [0.0, -YEARS, YEARS])
def test_polls_that_arrive_in_one_batch_are_polls(offset: float, has_turns: bool) -> None:
    """B84: the polls are not a finding, whether they arrive live or in one batch."""
    events = make_run(34, has_turns=has_turns)
    assert list_kinds_after(events) == set()

    assert list_kinds_after(shift_events(events, offset), START + BATCH_SECONDS) == set()


@pytest.mark.parametrize("has_turns", [True, False])
@pytest.mark.parametrize("offset", [0.0, -YEARS, YEARS])
def test_fast_loop_in_one_batch_is_found(offset: float, has_turns: bool) -> None:
    events = make_run(3, has_turns=has_turns)
    assert FindingKind.DOOM_LOOP in list_kinds_after(events)

    assert FindingKind.DOOM_LOOP in list_kinds_after(shift_events(events, offset), START + BATCH_SECONDS)


def test_batch_continuing_a_live_run_keeps_its_own_times() -> None:
    events = make_run(34)
    live_count = len(events) // 2
    monitor = HealthMonitor(SETTINGS)

    for index, event in enumerate(events):
        monitor.apply(event, event.time if index < live_count else START + BATCH_SECONDS)

    assert [worker.findings for worker in monitor.workers()] == [()]


@pytest.mark.parametrize("jump", [-YEARS, -3_600.0])
def test_clock_set_back_does_not_turn_polls_into_loops(jump: float) -> None:
    """Only the pause during the jump is unknown."""
    events = make_run(34)
    jump_index = len(events) // 2
    monitor = HealthMonitor(SETTINGS)
    for index, event in enumerate(events):
        now = event.time
        event.time += jump if index > jump_index else 0.0
        monitor.apply(event, now)

    assert [worker.findings for worker in monitor.workers()] == [()]


def test_parallel_calls_that_arrive_late_are_one_turn() -> None:
    script = WorkerScript(settings=SETTINGS).start()
    for _ in range(20):
        script.report_event(
            EventType.TOOL_CALL_COMPLETED,
            {"tool": "search", "args_hash": "a", "result_hash": "r", "outcome": "ok", "duration": 60.0},
            after=0.1,
        )

    assert list_kinds_after(script.worker_events, START + BATCH_SECONDS) == set()


def test_duration_of_a_late_call_is_its_own() -> None:
    """B84: a batch does not teach durations of 0 s."""
    script = WorkerScript(settings=SETTINGS)
    script.start()
    for n in range(SAMPLES):
        script.report_event(EventType.TOOL_CALL_STARTED, {"tool": "build", "call_id": str(n)})
        script.report_event(EventType.TOOL_CALL_COMPLETED, {"tool": "build", "call_id": str(n)}, after=30.0)
    monitor = HealthMonitor(SETTINGS)
    for event in script.worker_events:
        monitor.apply(event, START + BATCH_SECONDS)

    learned_clocks = next(iter(monitor.workers())).vitals.clocks
    assert learned_clocks is not None
    assert learned_clocks.usual(make_duration_key(Phase.TOOL, "build")) is None


def test_replay_of_a_late_batch_gives_the_live_findings() -> None:
    """After a restart, arrival times are estimates, but the events' own times are not."""
    for pause, expected in ((34.0, set()), (3.0, {FindingKind.DOOM_LOOP})):
        events = make_run(pause)
        monitor = HealthMonitor(SETTINGS)
        for event in events:
            monitor.replay(event, START + BATCH_SECONDS + 5)
        monitor.sweep(START + BATCH_SECONDS + 5)

        [worker] = monitor.workers()
        assert {finding.kind for finding in worker.findings} & {FindingKind.DOOM_LOOP} == expected


def test_silence_is_counted_from_the_arrival_of_a_late_batch() -> None:
    monitor = HealthMonitor(SETTINGS)
    arrival = START + 10 * BATCH_SECONDS
    for event in make_run(34):
        monitor.apply(event, arrival)
    monitor.advance(arrival + 60)

    [worker] = monitor.workers()
    assert worker.vitals.last_activity == arrival
    assert worker.findings == ()


# -- the clock itself ---------------------------------------------------------------------------------


def list_elapsed_times(times: Sequence[float], arrivals: Sequence[float] | None = None) -> list[float]:
    clock, elapsed_times = SourceClock(), []
    for time, at in zip(times, arrivals or times, strict=True):
        clock.advance(time, at)
        elapsed_times.append(clock.elapsed)
    return [later_time - earlier_time for earlier_time, later_time in pairwise(elapsed_times)]


@pytest.mark.parametrize(
    ("times", "steps"),
    [
        ([100, 134, 168], [34, 34]),
        ([100, 134, 120, 135], [34, 0, 1]),  # out of order
        ([10_000, 10_034, 6_434, 6_468], [34, 0, 34]),  # set back
        ([1_000, 200, 1_001, 201, 1_002], [0, 1, 0, 1]),  # two clocks
        ([0, YEARS, YEARS + 34], [0, 34]),  # corrected
    ],
)
def test_source_clock_measures_the_time_between_events(times: list[float], steps: list[float]) -> None:
    assert list_elapsed_times(times) == steps


def test_clock_set_forward_adds_the_time_until_arrival() -> None:
    arrivals = list(accumulate([100.0, 34.0, 34.0]))

    assert list_elapsed_times([100.0, 134.0 + 7_200, 168.0 + 7_200], arrivals) == [34.0, 34.0]


def test_clock_that_restarts_counts_from_the_next_event() -> None:
    clock = SourceClock()
    clock.advance(100.0, 100.0)
    clock.restart()
    clock.advance(5_000.0, 5_000.0)
    clock.advance(5_034.0, 5_034.0)

    assert clock.elapsed == 34.0
