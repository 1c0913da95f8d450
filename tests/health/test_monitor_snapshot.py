"""B117: the state of a monitor that is restored from a snapshot."""

from __future__ import annotations

import subprocess
import sys
import zlib
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from queenright.health.findings import FindingKind
from queenright.health.monitoring import monitor_snapshot
from queenright.health.monitoring.monitor import HealthMonitor
from queenright.health.monitoring.monitor_snapshot import (
    MAPPINGS,
    VALUES,
    MonitorSnapshot,
    SnapshotDiscardedError,
    SnapshotError,
    restore_snapshot,
)
from queenright.health.settings import HealthSettings
from queenright.runtime.events import AgentEvent, EventType
from tests.health.snapshot_parts import NOT_RESTORED, collect_state, finish_snapshot, restore_monitor
from tests.health.test_state import datas
from tests.health.worker_script import START, WorkerScript

SETTINGS = HealthSettings.model_validate({"spending": {"run_usd": 1, "agent_day_usd": 2}})

fields = st.fixed_dictionaries(
    {},
    optional={
        "cost_usd": st.floats(0, 2),
        "duration": st.floats(0, 100),
        "agent_id": st.sampled_from(["a", "b", "c"]),
        "session_id": st.sampled_from(["s", "t"]),
        "new_agent_id": st.sampled_from(["a", "b"]),
        "new_session_id": st.sampled_from(["s", "t"]),
        "server": st.sampled_from(["m", ""]),
        "status": st.sampled_from(["connected", "failed", "resolved"]),
        "resource": st.just("memory"),
        "used": st.floats(0, 10),
        "limit": st.just(10.0),
        "error": st.sampled_from(["429, try again in 30 s", "File has not been read yet"]),
    },
)
moves = st.tuples(
    st.sampled_from(list(EventType)),
    st.builds(lambda data, more_data: data | more_data, datas, fields),
    st.floats(0, 2000),
    st.tuples(st.floats(-100, 100), st.sampled_from(["a", "b"]), st.sampled_from(["s", "t"])),
    st.sampled_from(["i1", "i2", ""]),
    st.sampled_from(["0af7651916cd43dd8448eb211c80319c", ""]),
)


class MonitorComparison:
    """Applies the same moves and times to several monitors, which must always agree."""

    def __init__(self, *monitors: HealthMonitor) -> None:
        self.monitors = list(monitors)
        self.now = START
        self.moves = 0

    def move(self, step: Any) -> None:
        type_, data, after, (skew, agent, session), incarnation, trace = step
        self.now += after
        self.moves += 1
        event = AgentEvent(
            type=type_,
            time=self.now + skew,
            agent_id=agent,
            session_id=session,
            incarnation_id=incarnation,
            node_id="n",
            trace_id=trace,
            data=data,
            id=str(self.moves),
        )
        self.compare_monitors(lambda monitor: monitor.apply(event, self.now))
        self.compare_monitors(lambda monitor: monitor.record_process_alive(incarnation, self.now, 30.0))
        self.compare_monitors(lambda monitor: monitor.advance(self.now))
        self.compare_monitors(HealthMonitor.next_deadline)

    def compare_monitors(self, operation: Callable[[HealthMonitor], Any]) -> None:
        first_result, *other_results = (_remove_ids(operation(monitor)) for monitor in self.monitors)
        assert all(other == first_result for other in other_results)


def _remove_ids(result: Any) -> Any:
    if isinstance(result, list):
        return [replace(event, id="") for event in result]
    if isinstance(result, tuple):
        return tuple(_remove_ids(item) for item in result)
    return result


@given(st.lists(moves, max_size=30), st.lists(moves, max_size=15), st.floats(0, 4000))
def test_restored_monitor_continues_like_the_original(
    steps_before: list[Any], steps_after: list[Any], later: float
) -> None:
    """B117: findings, states, deadlines and sweeps are the same before and after any events."""
    run = MonitorComparison(HealthMonitor(SETTINGS))
    for step in steps_before:
        run.move(step)
    run.monitors.append(restore_monitor(finish_snapshot(MonitorSnapshot(run.monitors[0])), SETTINGS))
    assert collect_state(run.monitors[0]) == collect_state(run.monitors[1])

    for step in steps_after:
        run.move(step)
    run.now += later
    run.compare_monitors(lambda monitor: monitor.advance(run.now))
    run.compare_monitors(lambda monitor: monitor.sweep(run.now))

    assert collect_state(run.monitors[0]) == collect_state(run.monitors[1])


@given(st.lists(moves, max_size=30), st.lists(moves, max_size=10), st.integers(1, 3))
def test_snapshot_in_parts_shows_the_moment_of_its_beginning(
    steps_before: list[Any], steps_during: list[Any], size: int
) -> None:
    """B117: an event between two parts is in neither of them."""
    run = MonitorComparison(HealthMonitor(SETTINGS))
    for step in steps_before:
        run.move(step)
    [monitor] = run.monitors
    expected, parts = collect_state(monitor), list[bytes]()
    with pytest.MonkeyPatch.context() as patch:
        for name in ("_PART_WORKERS", "_PART_BATCHES", "_BATCH_ITEMS"):
            patch.setattr(monitor_snapshot, name, size)
        snapshot = MonitorSnapshot(monitor)
        for step in steps_during:
            run.move(step)
            if (part := snapshot.next_part()) is not None:
                parts.append(zlib.compress(part))
        run.compare_monitors(lambda monitor: monitor.sweep(run.now))
        parts += finish_snapshot(snapshot)

    assert collect_state(restore_monitor(parts, SETTINGS)) == expected
    assert monitor.snapshot is None


def test_every_attribute_of_the_monitor_is_restored_or_omitted() -> None:
    """A new attribute must be in the snapshot or in the list of omitted attributes."""
    accounted_names = {*VALUES, *MAPPINGS, "_workers", "_sessions", "_ends", "_children", "today", "_clocks"}

    assert set(vars(HealthMonitor(SETTINGS))) == accounted_names | NOT_RESTORED


def test_sessions_of_an_agent_still_share_their_learned_clocks() -> None:
    """B98: durations learned in one session apply to the next."""
    script = WorkerScript().start()
    other = WorkerScript(session="other", monitor=script.monitor).start()
    parts = finish_snapshot(MonitorSnapshot(script.monitor))

    monitor = restore_monitor(parts, SETTINGS)

    workers = [monitor.get("agent", session) for session in (script.session, other.session)]
    [shared_clocks] = {worker.vitals.clocks for worker in workers if worker is not None}
    assert shared_clocks is not None
    assert shared_clocks is monitor._get_learned_clocks("agent")


def test_new_settings_apply_to_restored_workers() -> None:
    """Findings are evaluated again with the new limits, as after a reload."""
    script = WorkerScript().start()
    script.stay_silent(300)
    assert script.list_finding_kinds() == {FindingKind.STALL}
    parts = finish_snapshot(MonitorSnapshot(script.monitor))
    longer = HealthSettings.model_validate({"stall": {"idle_seconds": 1000}})

    monitor = restore_monitor(parts, longer)
    _, events = monitor.sweep(script.now)

    assert [event.type for event in events] == [EventType.FINDING_CLEARED, EventType.HEALTH_STATE_CHANGED]


def test_repeated_call_is_known_in_another_process() -> None:
    """B33: fingerprints of calls do not depend on the process."""
    program = (
        "from queenright.health.vitals.calls import digest; print(digest('search', 'x', '\\ud800').hex())"
    )

    digests = {
        subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True).stdout
        for _ in range(2)
    }

    assert len(digests) == 1


def test_jump_of_the_clock_discards_the_snapshot() -> None:
    script = WorkerScript().start()
    snapshot = MonitorSnapshot(script.monitor)
    script.monitor.handle_clock_jump(script.now + 1000)

    with pytest.raises(SnapshotDiscardedError):
        snapshot.next_part()
    assert script.monitor.snapshot is None


class _Command:
    """A value that an attacker might write into the database."""

    def __reduce__(self) -> Any:
        return print, ("owned",)


@pytest.mark.parametrize("damage", ["cut", "changed", "missing", "command", "text"])
def test_damaged_snapshot_is_an_error_and_changes_nothing(
    damage: str, capsys: pytest.CaptureFixture[str]
) -> None:
    script = WorkerScript().start()
    [part] = finish_snapshot(MonitorSnapshot(script.monitor))
    if damage == "command":
        snapshot = MonitorSnapshot(script.monitor)
        snapshot._dump(("_new_keys", [_Command()]))
        parts = finish_snapshot(snapshot)
    else:
        damaged_part = part[:40] + bytes([part[40] ^ 1]) + part[41:]
        parts = {"cut": [part[:-20]], "changed": [damaged_part], "missing": [], "text": [b"{}"]}[damage]
    monitor = HealthMonitor(SETTINGS)
    before = collect_state(monitor)

    with pytest.raises(SnapshotError):
        restore_snapshot(monitor, parts)

    assert collect_state(monitor) == before
    assert capsys.readouterr().out == ""
