from pathlib import Path
from typing import Any

import pytest

from queenright.instrumentation.steplog import StepLog, get_step_log_path
from queenright.runtime.storage.files import read_newest_lines, write_json
from queenright.runtime.storage.runtime_logger import MAX_SUMMARY_EXECUTIONS, RuntimeLogger, VisitRow
from queenright.runtime.storage.session_state import ExecutionState, SessionStatus
from queenright.runtime.storage.session_store import SessionStore
from tests.runtime.damage import DAMAGES, damage


def make_logger(path: Path) -> RuntimeLogger:
    session = SessionStore(path, clock=lambda: 1.0, ids=lambda: "x").create(
        graph_id="g", entry_point="start", session_id="s"
    )
    return RuntimeLogger(session, path / "runtime_logs")


def make_execution(
    execution_id: str, status: SessionStatus = SessionStatus.COMPLETED, **fields: Any
) -> ExecutionState:
    return ExecutionState(
        execution_id=execution_id,
        graph_id="g",
        entry_point="start",
        status=status,
        started_at=1.0,
        updated_at=5.0,
        **fields,
    )


def make_visit(node_id: str, number: int) -> VisitRow:
    return VisitRow(
        execution_id="e",
        node_id=node_id,
        visit=number,
        outcome="done",
        verdicts={"accept": 1},
        started_at=1.0,
        ended_at=2.0,
    )


def test_summary_has_the_status_of_executions(tmp_path: Path) -> None:
    logger = make_logger(tmp_path)

    logger.log_execution(make_execution("e1", steps=3, input_tokens=10, cost=0.5, input={"secret": "x"}))
    logger.log_execution(make_execution("e2", SessionStatus.FAILED, steps=1, error="no"))

    summary = logger.read_summary()
    assert summary["session_id"] == "s"
    assert summary["totals"] == {
        "executions": 2,
        "statuses": {"completed": 1, "failed": 1},
        "steps": 4,
        "input_tokens": 10,
        "output_tokens": 0,
        "cost": 0.5,
    }
    assert [row["execution_id"] for row in summary["executions"]] == ["e1", "e2"]
    # The state has the input and the outputs, and the logs do not.
    assert not {"input", "outputs"} & summary["executions"][0].keys()


def test_resumed_execution_is_counted_once(tmp_path: Path) -> None:
    logger = make_logger(tmp_path)
    logger.log_execution(make_execution("e1", SessionStatus.PAUSED, steps=2))

    logger.log_execution(make_execution("e1", SessionStatus.COMPLETED, steps=5))

    totals = logger.read_summary()["totals"]
    assert (totals["executions"], totals["steps"], totals["statuses"]) == (1, 5, {"completed": 1})
    lines = list(read_newest_lines(tmp_path / "runtime_logs" / "executions.jsonl"))
    assert [(row["session_id"], row["status"]) for row in lines] == [("s", "completed"), ("s", "paused")]


def test_summary_is_bounded_and_its_totals_count_all_runs(tmp_path: Path) -> None:
    logger = make_logger(tmp_path)
    logger.log_execution(make_execution("first", steps=1))
    summary = logger.read_summary()
    [row] = summary["executions"]
    rows = [{**row, "execution_id": f"e{n}"} for n in range(MAX_SUMMARY_EXECUTIONS)]
    write_json(tmp_path / "sessions" / "s" / "logs" / "summary.json", {**summary, "executions": rows})

    for name in ("last", "very last"):
        logger.log_execution(make_execution(name, steps=1))

    summary = logger.read_summary()
    assert len(summary["executions"]) == MAX_SUMMARY_EXECUTIONS
    assert summary["earlier"]["steps"] == 2
    assert summary["totals"]["steps"] == summary["totals"]["executions"] == MAX_SUMMARY_EXECUTIONS + 2


@pytest.mark.parametrize("kind", [kind for kind in DAMAGES if kind not in ("folder", "huge number")])
def test_corrupt_summary_is_replaced(tmp_path: Path, kind: str) -> None:
    logger = make_logger(tmp_path)
    logger.log_execution(make_execution("e1"))
    damage(tmp_path / "sessions" / "s" / "logs" / "summary.json", kind)

    assert logger.read_summary()["executions"] == []
    logger.log_execution(make_execution("e2"))

    assert [row["execution_id"] for row in logger.read_summary()["executions"]] == ["e2"]


@pytest.mark.parametrize("row", [{"execution_id": "e"}, [], {"execution_id": "e", "status": 1}])
def test_summary_in_another_format_is_ignored(tmp_path: Path, row: object) -> None:
    logger = make_logger(tmp_path)
    logger.log_execution(make_execution("e1"))
    path = tmp_path / "sessions" / "s" / "logs" / "summary.json"
    write_json(path, {**logger.read_summary(), "executions": [row]})

    assert logger.read_summary()["executions"] == []


def test_visits_are_listed_newest_last(tmp_path: Path) -> None:
    logger = make_logger(tmp_path)
    for number in range(4):
        logger.log_visit(make_visit("a" if number % 2 else "b", number))

    assert [row["visit"] for row in logger.read_visits()] == [0, 1, 2, 3]
    assert [row["visit"] for row in logger.read_visits("a")] == [1, 3]
    assert [row["visit"] for row in logger.read_visits(limit=2)] == [2, 3]
    assert [row["visit"] for row in logger.read_visits("b", limit=1)] == [2]
    assert VisitRow.model_validate(logger.read_visits()[0]) == make_visit("b", 0)


def test_steps_are_read_despite_corrupt_lines(tmp_path: Path) -> None:
    logger = make_logger(tmp_path)
    path = get_step_log_path(tmp_path, "s")
    log = StepLog(path)
    log.append({"node_id": "a", "step_index": 0})
    log.append({"node_id": "b", "step_index": 1})
    log.close()
    with path.open("ab") as file:
        file.write(b'{"node_id": "a", "st')

    assert [row["step_index"] for row in logger.read_steps()] == [0, 1]
    assert [row["step_index"] for row in logger.read_steps("a")] == [0]


def test_missing_log_and_folder_in_its_place_are_empty(tmp_path: Path) -> None:
    logger = make_logger(tmp_path)
    (tmp_path / "sessions" / "s" / "logs" / "details.jsonl").mkdir(parents=True)

    assert logger.read_steps() == logger.read_visits() == []
    assert logger.read_summary()["totals"]["executions"] == 0
