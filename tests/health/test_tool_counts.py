from __future__ import annotations

import json
from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from queenright.health.monitoring.worker_summary import summarise
from queenright.health.vitals.tool_counts import MAX_TOOLS, OTHER, ToolCounts
from tests.health.worker_script import WorkerScript


def test_every_tool_has_calls_errors_and_last_call_time() -> None:
    counts = ToolCounts()
    counts.add("search", False, 100.0)
    counts.add("read", True, 101.9)
    counts.add("search", True, 102.0)

    assert counts.to_dict() == {
        "search": {"calls": 2, "errors": 1, "last_at": 102.0},
        "read": {"calls": 1, "errors": 1, "last_at": 101.0},
    }


def test_tools_beyond_the_sixteenth_are_counted_as_other() -> None:
    counts = ToolCounts()
    for index in range(40):
        counts.add(f"tool-{index}", index % 2 == 0, index)
    counts.add("tool-0", False, 50)

    rows = counts.to_dict()

    assert list(rows) == [*(f"tool-{index}" for index in range(MAX_TOOLS)), OTHER]
    assert rows[OTHER] == {"calls": 24, "errors": 12, "last_at": 39.0}
    assert rows["tool-0"]["calls"] == 2


@given(st.lists(st.tuples(st.sampled_from([OTHER, *(f"t{n}" for n in range(30))]), st.booleans())))
def test_no_call_or_error_is_lost_for_any_tool_names(calls: list[tuple[str, bool]]) -> None:
    counts, expected = ToolCounts(), Counter(tool for tool, _ in calls)
    for tool, has_failed in calls:
        counts.add(tool, has_failed, 1.0)

    rows = counts.to_dict()

    assert len(rows) <= MAX_TOOLS + 1
    assert sum(row["calls"] for row in rows.values()) == len(calls)
    assert sum(row["errors"] for row in rows.values()) == sum(has_failed for _, has_failed in calls)
    assert all(row["calls"] == expected[tool] for tool, row in rows.items() if tool != OTHER)


def test_impossible_time_is_handled() -> None:
    counts = ToolCounts()
    for time in (-5.0, 1e18):
        counts.add("t", False, time)

    assert counts.to_dict()["t"] == {"calls": 2, "errors": 0, "last_at": float(2**32 - 1)}


def test_summary_includes_calls_of_the_previous_incarnation() -> None:
    script = WorkerScript().start()
    script.report_call("search")
    script.report_call("search", outcome="timeout")
    script.incarnation = "i2"
    script.start()
    script.report_call("read")
    tools = summarise(script.health, script.now)["tools"]

    assert json.loads(json.dumps(tools)) == tools
    assert {name: (row["calls"], row["errors"]) for name, row in tools.items()} == {
        "search": (2, 1),
        "read": (1, 0),
    }
    assert tools["read"]["last_at"] == script.now


def test_events_played_again_give_the_same_summary() -> None:
    """Counts that are rebuilt from the log after a restart equal those before it."""
    first = WorkerScript().start()
    for turn in range(30):
        first.report_call(
            f"tool-{turn % 20}", args=str(turn), result=str(turn), outcome="error" if turn % 7 else "ok"
        )
        first.report_step("RETRY" if turn % 3 else "ACCEPT", text=f"step {turn}")
    replayed_script = WorkerScript()
    for event in first.worker_events:
        replayed_script.monitor.replay(event, first.now)
    replayed_script.monitor.sweep(first.now)

    summary = summarise(first.health, first.now)
    rebuilt = summarise(replayed_script.health, first.now)

    assert rebuilt | {"state_since": 0, "reason": ""} == summary | {"state_since": 0, "reason": ""}
