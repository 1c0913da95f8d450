import itertools
import os
import tempfile
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from queenright.runtime.storage.checkpoint_store import (
    Checkpoint,
    CheckpointDraft,
    CheckpointNotFoundError,
    CheckpointStore,
    CorruptCheckpointError,
    content_hash,
)
from queenright.runtime.storage.files import read_json, write_json
from tests.runtime.damage import damage, damages, remove
from tests.runtime.test_session_store import make_execution


def open_store(path: Path, now: float = 1_000.0) -> CheckpointStore:
    numbers = itertools.count()
    return CheckpointStore(path, clock=lambda: now, ids=lambda: f"id{next(numbers)}")


def save_checkpoint(store: CheckpointStore, memory: dict[str, Any] | None = None) -> Checkpoint:
    return store.save(
        CheckpointDraft(
            session_id="s",
            graph_id="g",
            execution_id="e1",
            node_id="a",
            reason="node",
            memory=memory or {},
            execution=make_execution(),
            conversations={"a": 7},
        )
    )


def checkpoint_path(path: Path, checkpoint: Checkpoint) -> Path:
    return path / f"{checkpoint.checkpoint_id}.json"


def list_ids(checkpoints: list[Checkpoint]) -> list[str]:
    return [checkpoint.checkpoint_id for checkpoint in checkpoints]


def test_checkpoint_round_trips(tmp_path: Path) -> None:
    store = open_store(tmp_path / "checkpoints")

    checkpoint = save_checkpoint(store, {"x": (1, None), "half": "\ud800", "not a number": float("nan")})

    assert store.load(checkpoint.checkpoint_id) == checkpoint
    assert checkpoint.memory == {"x": [1, None], "half": "\ud800", "not a number": None}
    assert checkpoint.conversations == {"a": 7}
    assert checkpoint.execution == make_execution()
    assert checkpoint.created_at == 1_000.0


def test_checkpoint_names_parent_and_its_hash(tmp_path: Path) -> None:
    store = open_store(tmp_path)

    first, second, third = (
        save_checkpoint(store),
        save_checkpoint(store),
        save_checkpoint(open_store(tmp_path, now=1.0)),
    )

    assert (first.parent_id, first.parent_hash) == (None, "")
    assert (second.parent_id, second.parent_hash) == (first.checkpoint_id, first.content_hash)
    assert (third.parent_id, third.parent_hash) == (second.checkpoint_id, second.content_hash)
    # The order is that of the chain, even if the clock was set back.
    assert list_ids(store.list_checkpoints()) == list_ids([third, second, first])


def test_content_hash_is_independent_of_key_order(tmp_path: Path) -> None:
    checkpoint = save_checkpoint(open_store(tmp_path))
    row = read_json(checkpoint_path(tmp_path, checkpoint))

    assert content_hash(dict(reversed(row.items()))) == checkpoint.content_hash
    for key in row.keys() - {"content_hash"}:
        assert content_hash({**row, key: "changed"}) != checkpoint.content_hash
    assert content_hash({**row, "added": 1}) != checkpoint.content_hash


def test_modified_checkpoint_is_rejected(tmp_path: Path) -> None:
    store = open_store(tmp_path)
    checkpoint = save_checkpoint(store, {"paid": False})
    row = read_json(checkpoint_path(tmp_path, checkpoint))
    write_json(checkpoint_path(tmp_path, checkpoint), {**row, "memory": {"paid": True}})

    with pytest.raises(CorruptCheckpointError, match="hash"):
        store.load(checkpoint.checkpoint_id)


def test_renamed_checkpoint_is_rejected(tmp_path: Path) -> None:
    store = open_store(tmp_path)
    first, second = save_checkpoint(store), save_checkpoint(store)
    write_json(checkpoint_path(tmp_path, second), read_json(checkpoint_path(tmp_path, first)))

    with pytest.raises(CorruptCheckpointError, match="it contains checkpoint"):
        store.load(second.checkpoint_id)


def test_checkpoint_with_replaced_parent_is_rejected(tmp_path: Path) -> None:
    store = open_store(tmp_path)
    first, second = save_checkpoint(store), save_checkpoint(store)
    row = {**read_json(checkpoint_path(tmp_path, first)), "memory": {"another": "past"}}
    write_json(checkpoint_path(tmp_path, first), {**row, "content_hash": content_hash(row)})

    with pytest.raises(CorruptCheckpointError, match="parent"):
        store.load(second.checkpoint_id)
    assert store.find_latest_valid() == store.load(first.checkpoint_id)


@pytest.mark.parametrize("parent", ["../../x", "0000000009-x", ""])
def test_checkpoint_with_impossible_parent_is_rejected(tmp_path: Path, parent: str) -> None:
    store = open_store(tmp_path)
    checkpoint = save_checkpoint(store)
    row = {**read_json(checkpoint_path(tmp_path, checkpoint)), "parent_id": parent}
    write_json(checkpoint_path(tmp_path, checkpoint), {**row, "content_hash": content_hash(row)})

    with pytest.raises(CorruptCheckpointError, match="parent"):
        store.load(checkpoint.checkpoint_id)


@pytest.mark.parametrize("checkpoint_id", ["", "..", "../0000000001-id0", "0000000001-id9", "x" * 500, "1-x"])
def test_missing_checkpoint_is_not_found(tmp_path: Path, checkpoint_id: str) -> None:
    store = open_store(tmp_path)
    save_checkpoint(store)

    with pytest.raises(CheckpointNotFoundError):
        store.load(checkpoint_id)


def test_missing_folder_has_no_checkpoints(tmp_path: Path) -> None:
    store = open_store(tmp_path / "none")

    assert store.find_latest_valid() is None
    assert store.list_checkpoints() == []
    assert store.prune(1) == 0


@given(damaged=st.dictionaries(st.integers(0, 7), damages), other_files=st.booleans())
def test_newest_valid_checkpoint_is_found_in_any_damaged_chain(
    damaged: dict[int, str], other_files: bool
) -> None:
    """B74: checkpoints are validated before use, and an earlier one replaces a corrupt one."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder)
        store = open_store(path)
        chain = [save_checkpoint(store, {"n": n}) for n in range(8)]
        for number, kind in damaged.items():
            damage(checkpoint_path(path, chain[number]), kind)
        if other_files:
            (path / "notes.json").write_bytes(b"{}")
            (path / "0000000001-id0.json.7-ab.tmp").write_bytes(b"{")

        latest = store.find_latest_valid()

        valid_checkpoints = [checkpoint for number, checkpoint in enumerate(chain) if number not in damaged]
        assert latest == (valid_checkpoints[-1] if valid_checkpoints else None)
        assert store.list_checkpoints() == valid_checkpoints[::-1]
        expected_numbers = {n for n, kind in damaged.items() if kind not in ("gone", "link to nothing")}
        corrupt_ids = {
            link.checkpoint_id for link in store.chain() if link.checkpoint is None and link.reason
        }
        assert corrupt_ids == {chain[n].checkpoint_id for n in expected_numbers}

        # The chain continues after the newest valid checkpoint, with an unused number.
        next_checkpoint = save_checkpoint(store)
        assert next_checkpoint.parent_id == (latest.checkpoint_id if latest else None)
        assert store.find_latest_valid() == next_checkpoint


@given(damaged=st.dictionaries(st.integers(0, 7), damages), keep=st.integers(1, 9))
def test_pruning_keeps_the_newest_valid_checkpoints(damaged: dict[int, str], keep: int) -> None:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder)
        store = open_store(path)
        chain = [save_checkpoint(store) for _ in range(8)]
        for number, kind in damaged.items():
            damage(checkpoint_path(path, chain[number]), kind)
        valid_checkpoints = store.list_checkpoints()
        count_before = len(os.listdir(path))

        removed_count = store.prune(keep)

        assert store.list_checkpoints() == valid_checkpoints[:keep]
        assert len([n for n in os.listdir(path) if n.endswith(".json")]) == count_before - removed_count
        assert store.prune(keep) == 0


def test_pruning_to_zero_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="at least 1"):
        open_store(tmp_path).prune(0)


def test_folder_in_place_of_the_newest_does_not_stop_the_next(tmp_path: Path) -> None:
    store = open_store(tmp_path)
    first, second = save_checkpoint(store), save_checkpoint(store)
    remove(checkpoint_path(tmp_path, second))
    checkpoint_path(tmp_path, second).mkdir()

    third = save_checkpoint(store)

    assert third.parent_id == first.checkpoint_id
    assert list_ids(store.list_checkpoints()) == list_ids([third, first])
