import itertools
import os
import re
import signal
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from queenright.instrumentation.identity import InvalidSessionIdError
from queenright.runtime.storage.files import UnusableFileError, lock_file, read_json, write_json
from queenright.runtime.storage.session_state import (
    ExecutionState,
    PendingNode,
    SessionState,
    SessionStatus,
    make_execution_key,
)
from queenright.runtime.storage.session_store import (
    Session,
    SessionBusyError,
    SessionExistsError,
    SessionNotFoundError,
    SessionStore,
)
from tests.runtime.damage import damage, damages
from tests.runtime.test_files import WRITERS, read_line, start_writer


class TickingClock:
    """A clock that advances by a second at each reading."""

    def __init__(self) -> None:
        self.now = 1_700_000_000.0

    def __call__(self) -> float:
        self.now += 1
        return self.now


def open_store(path: Path) -> SessionStore:
    numbers = itertools.count()
    return SessionStore(path, clock=TickingClock(), ids=lambda: f"{next(numbers):08x}")


def create_session(store: SessionStore, session_id: str | None = None, graph_id: str = "g") -> Session:
    return store.create(graph_id=graph_id, entry_point="start", session_id=session_id)


def make_execution(status: str = "active", entry_point: str = "start") -> ExecutionState:
    return ExecutionState.model_validate(
        {
            "execution_id": "e1",
            "graph_id": "g",
            "entry_point": entry_point,
            "status": status,
            "started_at": 1.0,
            "updated_at": 2.0,
        }
    )


def set_execution(status: str, entry_point: str = "start") -> dict[str, ExecutionState]:
    return {make_execution_key("g", entry_point): make_execution(status, entry_point)}


def test_session_has_its_own_folder_and_state(tmp_path: Path) -> None:
    store = open_store(tmp_path)

    session = store.create(graph_id="g", entry_point="start", agent_id="bee")

    assert session.id == "session_20231114_221321_00000000"
    assert session.path == session.root == tmp_path / "sessions" / session.id
    assert store.open(session.id) == session
    state = store.read_state(session.id)
    assert (state.session_id, state.graph_id, state.entry_point, state.agent_id) == (
        session.id,
        "g",
        "start",
        "bee",
    )
    assert state.created_at == state.updated_at == 1_700_000_001
    assert state.status is SessionStatus.ACTIVE


def test_default_session_id_ends_in_eight_hex_digits(tmp_path: Path) -> None:
    store = SessionStore(tmp_path, clock=lambda: 0.0)

    ids = {create_session(store).id for _ in range(20)}

    assert len(ids) == 20
    assert all(re.fullmatch(r"session_19700101_000000_[0-9a-f]{8}", session_id) for session_id in ids)


@pytest.mark.parametrize("session_id", ["", ".", "..", "a/b", "a\\b", "../x", "a\0b", "x" * 201, "ä" * 200])
def test_invalid_session_id_never_reaches_the_disk(tmp_path: Path, session_id: str) -> None:
    """B8: a session id with a path separator or `..` is rejected everywhere with a clear error."""
    store = open_store(tmp_path / "base")

    for use_session_id in (
        lambda: create_session(store, session_id),
        lambda: store.open(session_id),
        lambda: store.read_state(session_id),
        lambda: store.delete_session(session_id),
    ):
        with pytest.raises(InvalidSessionIdError, match="refused"):
            use_session_id()

    assert os.listdir(tmp_path) == []


@pytest.mark.parametrize("graph_id", ["", "..", "a/b", "../../x"])
def test_invalid_graph_id_is_refused(tmp_path: Path, graph_id: str) -> None:
    store = open_store(tmp_path)

    with pytest.raises(ValueError, match="pattern"):
        store.get_shared_view(create_session(store), graph_id)


def test_session_is_created_once(tmp_path: Path) -> None:
    store = open_store(tmp_path)
    create_session(store, "mine")
    (tmp_path / "sessions" / "file").write_bytes(b"")

    for session_id in ("mine", "file"):
        with pytest.raises(SessionExistsError):
            create_session(store, session_id)


def test_step_log_folder_is_not_a_session_until_created(tmp_path: Path) -> None:
    store = open_store(tmp_path)
    (tmp_path / "sessions" / "mine" / "logs").mkdir(parents=True)

    with pytest.raises(SessionNotFoundError):
        store.open("mine")
    assert store.list_sessions() == []
    assert store.skipped_files == []

    assert create_session(store, "mine").logs.is_dir()
    assert store.open("mine").id == "mine"


def test_graph_sharing_a_session_has_its_own_folder_and_the_same_state(tmp_path: Path) -> None:
    store = open_store(tmp_path)
    session = create_session(store)

    shared_session = store.get_shared_view(session, "judge")

    assert shared_session.conversations == session.root / "graphs" / "judge" / "conversations"
    assert {
        shared_session.artifacts.parent,
        shared_session.checkpoints.parent,
        shared_session.logs.parent,
    } == {shared_session.path}
    store.update(shared_session, lambda state: state.memory.update(x=1))
    assert store.read_state(session.id).memory == {"x": 1}


def test_entry_point_keeps_its_session_over_restarts(tmp_path: Path) -> None:
    first_session = open_store(tmp_path).get_or_create("g", "tick")
    store = open_store(tmp_path)
    create_session(store, "a newer session of another entry point")

    assert store.get_or_create("g", "tick") == first_session
    assert store.get_or_create("g", "other") != first_session
    assert store.get_or_create("h", "tick") not in (first_session, store.get_or_create("g", "other"))


def test_entry_point_with_a_broken_state_gets_a_new_session(tmp_path: Path) -> None:
    store = open_store(tmp_path)
    first_session = store.get_or_create("g", "tick")
    damage(first_session.root / "state.json", "torn")

    second_session = store.get_or_create("g", "tick")

    assert second_session != first_session
    assert first_session.root.is_dir()


def test_state_update_round_trips(tmp_path: Path) -> None:
    store = open_store(tmp_path)
    session = create_session(store)

    def change_state(state: SessionState) -> None:
        run = make_execution("paused")
        run.pending = [PendingNode(node_id="b", visit=2, input={"x": [1]})]
        run.path = [f"n{n}" for n in range(300)]
        state.executions[make_execution_key("g", "start")] = run
        state.memory["tuple"] = (1, 2)

    state = store.update(session, change_state)

    assert state == store.read_state(session.id)
    assert state.memory == {"tuple": [1, 2]}
    [run] = state.executions.values()
    assert run.path == [f"n{n}" for n in range(100, 300)]
    assert state.updated_at > state.created_at


def test_failed_or_invalid_update_changes_nothing(tmp_path: Path) -> None:
    store = open_store(tmp_path)
    session = create_session(store)
    content_before = (session.root / "state.json").read_bytes()

    def fail(state: SessionState) -> None:
        state.memory["x"] = 1
        raise KeyError("mine")

    def make_invalid(state: SessionState) -> None:
        state.memory["x"] = object()

    with pytest.raises(KeyError):
        store.update(session, fail)
    with pytest.raises(ValueError, match="object"):
        store.update(session, make_invalid)

    assert (session.root / "state.json").read_bytes() == content_before


def test_clock_set_back_does_not_lower_updated_at(tmp_path: Path) -> None:
    session = create_session(open_store(tmp_path))

    state = SessionStore(tmp_path, clock=lambda: 5.0).update(session, lambda _: None)

    assert state.updated_at == state.created_at


def test_concurrent_state_changes_of_two_processes_are_not_lost(tmp_path: Path) -> None:
    store = open_store(tmp_path)
    session = create_session(store)
    command = [sys.executable, str(WRITERS), "count", str(tmp_path), session.id, "200"]

    processes = [subprocess.Popen(command) for _ in range(2)]

    assert [process.wait() for process in processes] == [0, 0]
    assert store.read_state(session.id).memory == {"count": 400}


@pytest.mark.parametrize(
    ("statuses", "status"),
    [
        (["completed", "failed", "paused", "active"], "active"),
        (["completed", "failed", "paused"], "paused"),
        (["completed", "cancelled", "failed"], "failed"),
        (["completed", "cancelled"], "cancelled"),
        (["completed"], "completed"),
        (["completed", "meditating"], "unknown"),
    ],
)
def test_session_status_combines_its_executions(statuses: list[str], status: str) -> None:
    state = SessionState(session_id="s", graph_id="g", entry_point="start", created_at=0, updated_at=0)
    for number, recorded_status in enumerate(statuses):
        state.executions |= set_execution(recorded_status, f"e{number}")

    assert state.status == status


@pytest.mark.parametrize("recorded_status", ["meditating", "", None, 7, ["active"], {}])
def test_status_of_another_version_is_unknown(recorded_status: object) -> None:
    row = {**make_execution().model_dump(), "status": recorded_status}

    assert ExecutionState.model_validate(row).status is SessionStatus.UNKNOWN


def test_state_of_a_newer_version_is_refused_unchanged(tmp_path: Path) -> None:
    store = open_store(tmp_path)
    session = create_session(store)
    path = session.root / "state.json"
    write_json(path, {**read_json(path), "schema_version": 2, "new": "precious"})

    with pytest.raises(UnusableFileError, match="newer"):
        store.update(session, lambda _: None)

    assert read_json(path)["new"] == "precious"


def test_state_error_contains_no_values(tmp_path: Path) -> None:
    store = open_store(tmp_path)
    session = create_session(store)
    path = session.root / "state.json"
    write_json(path, {**read_json(path), "memory": "sk-secret", "created_at": "sk-secret"})

    with pytest.raises(UnusableFileError, match=r"created_at.*memory") as error:
        store.read_state(session.id)

    assert "sk-secret" not in str(error.value)


def test_copied_session_folder_is_rejected(tmp_path: Path) -> None:
    store = open_store(tmp_path)
    session = create_session(store)
    write_json(tmp_path / "sessions" / "copy" / "state.json", read_json(session.root / "state.json"))

    assert [state.session_id for state in store.list_sessions()] == [session.id]
    assert [skipped.path.parent.name for skipped in store.skipped_files] == ["copy"]


def test_sessions_are_listed_newest_first(tmp_path: Path) -> None:
    store = open_store(tmp_path)
    ids = [create_session(store, name).id for name in ("z", "a", "m", "b")]
    for session_id, status in zip(ids, ["completed", "failed", "completed", "paused"], strict=True):
        session = store.open(session_id)
        store.update(session, lambda state, s=status: state.executions.update(set_execution(s)))  # type: ignore[misc]  # mypy cannot infer a lambda's default

    assert [state.session_id for state in store.list_sessions()] == ids[::-1]
    completed = store.list_sessions(status=SessionStatus.COMPLETED)
    assert [state.session_id for state in completed] == ["m", "z"]
    assert [state.session_id for state in store.list_sessions(limit=2)] == ["b", "m"]
    assert [s.session_id for s in store.list_sessions(status=SessionStatus.COMPLETED, limit=1)] == ["m"]


def test_missing_folder_has_no_sessions(tmp_path: Path) -> None:
    assert open_store(tmp_path / "none").list_sessions() == []


@given(damaged=st.dictionaries(st.integers(0, 5), damages), other_files=st.booleans())
def test_valid_sessions_are_listed_despite_invalid_files(damaged: dict[int, str], other_files: bool) -> None:
    with tempfile.TemporaryDirectory() as folder:
        store = open_store(Path(folder))
        for number in range(6):
            create_session(store, f"s{number}")
        for number, kind in damaged.items():
            damage(Path(folder) / "sessions" / f"s{number}" / "state.json", kind)
        if other_files:
            (Path(folder) / "sessions" / "README").write_bytes(b"\xff")
            (Path(folder) / "sessions" / "empty").mkdir()

        session_ids = [state.session_id for state in store.list_sessions()]

        assert session_ids == [f"s{n}" for n in range(5, -1, -1) if n not in damaged]
        missing = {n for n, kind in damaged.items() if kind in ("gone", "link to nothing")}
        assert {s.path.parent.name for s in store.skipped_files} == {
            f"s{n}" for n in damaged.keys() - missing
        }


def test_session_and_graph_have_one_writer(tmp_path: Path) -> None:
    store = open_store(tmp_path)
    session = create_session(store)
    claim = store.claim(session)

    with pytest.raises(SessionBusyError, match=str(os.getpid())):
        store.claim(session)

    store.claim(store.get_shared_view(session, "judge")).release()
    claim.release()
    store.claim(session).release()


def test_claim_is_free_when_its_process_was_killed(tmp_path: Path) -> None:
    store = open_store(tmp_path)
    session = create_session(store)
    with start_writer("hold", session.path / ".lock") as process:
        assert read_line(process) == "held"
        with pytest.raises(SessionBusyError) as error:
            store.claim(session)
        assert error.value.pid == process.pid

        process.send_signal(signal.SIGKILL)
        process.wait()

        store.claim(session).release()


def test_claim_removes_leftovers_of_killed_writer(tmp_path: Path) -> None:
    store = open_store(tmp_path)
    session = create_session(store)
    leftovers = [
        session.root / "state.json.7-ab.tmp",
        session.conversations / "a" / "parts" / "0000000001.json.7-ab.tmp",
        session.checkpoints / "x.tmp",
    ]
    other_files = [session.artifacts / "mine.tmp", session.root / "graphs" / "judge" / "logs" / "x.tmp"]
    for path in leftovers + other_files:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(b"half")

    store.claim(session).release()

    assert [path.exists() for path in leftovers + other_files] == [False] * 3 + [True] * 2


def test_session_is_deleted_completely(tmp_path: Path) -> None:
    store = open_store(tmp_path)
    session, other_session = create_session(store), create_session(store)
    (session.artifacts / "deep").mkdir(parents=True)
    # A kill in the middle of a delete leaves such a folder.
    (tmp_path / "sessions.deleted" / "half").mkdir(parents=True)

    store.delete_session(session.id)

    assert [state.session_id for state in store.list_sessions()] == [other_session.id]
    assert os.listdir(tmp_path / "sessions.deleted") == []
    for use_session in (
        lambda: store.delete_session(session.id),
        lambda: store.open(session.id),
        lambda: store.read_state(session.id),
        lambda: store.update(session, lambda _: None),
        lambda: store.claim(session),
    ):
        with pytest.raises(SessionNotFoundError):
            use_session()
    assert not session.root.exists()


def test_session_with_a_writer_is_not_deleted(tmp_path: Path) -> None:
    store = open_store(tmp_path)
    session = create_session(store)
    for view in (session, store.get_shared_view(session, "judge")):
        claim = store.claim(view)

        with pytest.raises(SessionBusyError):
            store.delete_session(session.id)

        claim.release()
    assert store.read_state(session.id).session_id == session.id
    store.delete_session(session.id)


def test_lock_of_a_state_is_free_after_each_call(tmp_path: Path) -> None:
    store = open_store(tmp_path)
    session = create_session(store)
    store.update(session, lambda _: None)
    store.claim(session).release()

    with lock_file(session.root / "state.json.lock", wait=False):
        pass
