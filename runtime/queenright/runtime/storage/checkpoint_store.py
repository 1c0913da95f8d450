"""
Checkpoints: points from which an execution can continue, chained by the hash of their parent.

A checkpoint is valid only if its hash matches. An invalid one is skipped in favour of the newest valid one
before it, so that a corrupt file costs only the work since then.
"""

from __future__ import annotations

import hashlib
import json
import logging
import os
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any, Final, Literal

from pydantic import BaseModel, Field, ValidationError

from queenright.instrumentation.errors import ConflictError, NotFoundError
from queenright.runtime.events import Clock
from queenright.runtime.storage.files import (
    UnusableFileError,
    encode_json,
    read_json,
    sync_folder,
    write_files,
)
from queenright.runtime.storage.session_state import ExecutionState, describe_invalid_state

_log = logging.getLogger(__name__)

_NAME: Final = re.compile(r"([0-9]{10,})-[A-Za-z0-9_-]{1,64}")
_HASH_KEY: Final = "content_hash"

SaveReason = Literal["node", "pause", "terminate"]


class CorruptCheckpointError(ConflictError):
    """Raised for a checkpoint that exists but is not valid."""

    def __init__(self, path: Path, reason: str) -> None:
        super().__init__(
            f"Checkpoint {path} is corrupt: {reason}. `queenright recover` uses the newest valid one."
        )
        self.path = path
        self.reason = reason


class CheckpointNotFoundError(NotFoundError):
    """Raised for a checkpoint that is not in the store."""

    def __init__(self, checkpoint_id: str, directory: Path) -> None:
        super().__init__(
            f"There is no checkpoint {checkpoint_id[:100]!r} in {directory}. List them with "
            "GET /api/sessions/{session_id}/checkpoints; `queenright recover` uses the newest valid one."
        )
        self.checkpoint_id = checkpoint_id


class CheckpointDraft(BaseModel):
    """The state from which an execution can continue, before it is saved."""

    session_id: str
    graph_id: str
    execution_id: str
    node_id: str
    """The node that had just completed; "" if there is none."""
    reason: SaveReason
    memory: dict[str, Any] = Field(default_factory=dict)
    execution: ExecutionState
    conversations: dict[str, int] = Field(default_factory=dict)
    """Folder name of each conversation, with its ``last_seq``."""


class Checkpoint(CheckpointDraft):
    """A saved checkpoint; ``created_at`` is in seconds since the epoch."""

    checkpoint_id: str
    parent_id: str | None
    parent_hash: str
    """The parent's ``content_hash``; "" without one."""
    created_at: float
    content_hash: str
    """SHA-256, in hex, of the canonical JSON of all other fields; see ``content_hash``."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ChainLink:
    """One file of the chain: a valid checkpoint, or the reason why it is invalid."""

    checkpoint_id: str
    checkpoint: Checkpoint | None
    reason: str = ""


def content_hash(row: Mapping[str, Any]) -> str:
    """Return the SHA-256 of ``row`` without its hash, as compact ASCII JSON with sorted keys."""
    hashed_fields = {key: value for key, value in row.items() if key != _HASH_KEY}
    return hashlib.sha256(
        json.dumps(hashed_fields, sort_keys=True, separators=(",", ":")).encode()
    ).hexdigest()


class CheckpointStore:
    """
    The checkpoints of one graph in one session. Every method blocks: call it through ``Disk.run``.

    It supports one writer at a time. Ids start with an increasing number, so that the newest one is known
    even if the clock is set back.

    Args:
        directory: Folder of the files; created with the first checkpoint.
    """

    def __init__(self, directory: Path, *, clock: Clock, ids: Callable[[], str]) -> None:
        self._directory = directory
        self._clock = clock
        self._ids = ids

    def save(self, draft: CheckpointDraft) -> Checkpoint:
        """
        Save a checkpoint durably; its parent is the newest valid one.

        Raises:
            OSError: The disk write failed; nothing was saved.
            ValueError: The memory contains a value that is not JSON.
        """
        names = self._list_names()
        number = max((_get_number(name) for name in names), default=0) + 1
        parent = self.find_latest_valid()
        checkpoint_id = f"{number:010d}-{self._ids()}"
        path = self._get_path(checkpoint_id)
        if path is None:
            raise ValueError(
                f"{checkpoint_id!r} is not a valid checkpoint id; ids() returned other characters."
            )
        # Hash what will be read back.
        row = json.loads(encode_json(draft.model_dump(mode="json")))
        row |= {
            "checkpoint_id": checkpoint_id,
            "parent_id": parent.checkpoint_id if parent else None,
            "parent_hash": parent.content_hash if parent else "",
            "created_at": self._clock(),
        }
        row[_HASH_KEY] = content_hash(row)
        write_files({path: encode_json(row)})
        return Checkpoint.model_validate(row)

    def load(self, checkpoint_id: str) -> Checkpoint:
        """
        Load a checkpoint.

        Its hash and id must match, and so must its parent's hash if the parent is readable.

        Raises:
            CheckpointNotFoundError: The checkpoint does not exist.
            CorruptCheckpointError: The checkpoint is not valid.
        """
        path = self._get_path(checkpoint_id)
        if path is None:
            raise CheckpointNotFoundError(checkpoint_id, self._directory)
        row = self._read_row(path)
        if not _has_valid_hash(row):
            raise CorruptCheckpointError(path, "its content does not match its hash")
        try:
            checkpoint = Checkpoint.model_validate(row)
        except (ValidationError, RecursionError) as error:
            raise CorruptCheckpointError(path, describe_invalid_state(error)) from error
        if checkpoint.checkpoint_id != checkpoint_id:
            raise CorruptCheckpointError(path, f"it contains checkpoint {checkpoint.checkpoint_id!r}")
        if checkpoint.parent_id is not None:
            self._check_parent(path, checkpoint, checkpoint.parent_id)
        return checkpoint

    def list_checkpoints(self) -> list[Checkpoint]:
        """Return all valid checkpoints, newest first; others are logged."""
        return list(self._iterate_valid())

    def find_latest_valid(self) -> Checkpoint | None:
        """Return the newest valid checkpoint, skipping corrupt ones; None if there is none."""
        return next(self._iterate_valid(), None)

    def chain(self) -> list[ChainLink]:
        """Return all checkpoints, newest first: valid ones, and others with the reason."""
        return list(self._iterate_links())

    def prune(self, keep: int) -> int:
        """
        Remove all checkpoints older than the newest ``keep`` valid ones; return how many.

        With fewer valid ones, nothing is removed.

        Raises:
            ValueError: ``keep`` is not positive.
        """
        if keep < 1:
            raise ValueError(f"keep must be at least 1, not {keep}.")
        names = self._list_names()
        if len(names) <= keep:
            return 0
        kept_ids = [checkpoint.checkpoint_id for checkpoint in islice(self._iterate_valid(), keep)]
        if len(kept_ids) < keep:
            return 0
        count = 0
        for name in names:
            if _get_sort_key(name) < _get_sort_key(kept_ids[-1]):
                try:
                    (self._directory / f"{name}.json").unlink()
                    count += 1
                except OSError as error:
                    _log.warning("could not remove the old checkpoint %s: %s", name, error)
        if count:
            sync_folder(self._directory)
        return count

    def _iterate_links(self) -> Iterator[ChainLink]:
        for name in sorted(self._list_names(), key=_get_sort_key, reverse=True):
            try:
                yield ChainLink(checkpoint_id=name, checkpoint=self.load(name))
            except CheckpointNotFoundError:
                continue
            except CorruptCheckpointError as error:
                yield ChainLink(checkpoint_id=name, checkpoint=None, reason=error.reason)

    def _iterate_valid(self) -> Iterator[Checkpoint]:
        for link in self._iterate_links():
            if link.checkpoint is not None:
                yield link.checkpoint
            else:
                _log.warning(
                    "skipped checkpoint %s in %s: %s", link.checkpoint_id, self._directory, link.reason
                )

    def _check_parent(self, path: Path, checkpoint: Checkpoint, parent_id: str) -> None:
        if not _NAME.fullmatch(parent_id) or _get_sort_key(parent_id) >= _get_sort_key(
            checkpoint.checkpoint_id
        ):
            raise CorruptCheckpointError(path, f"its parent {parent_id[:100]!r} is not an older checkpoint")
        try:
            parent = self._read_row(self._directory / f"{parent_id}.json")
        except (CheckpointNotFoundError, CorruptCheckpointError):
            return
        # A corrupt parent does not invalidate its child; a different valid one does.
        if _has_valid_hash(parent) and parent[_HASH_KEY] != checkpoint.parent_hash:
            raise CorruptCheckpointError(
                path, f"its parent {parent_id!r} is not the one it was created after"
            )

    def _read_row(self, path: Path) -> dict[str, Any]:
        try:
            row = read_json(path)
        except FileNotFoundError as error:
            raise CheckpointNotFoundError(path.stem, self._directory) from error
        except UnusableFileError as error:
            raise CorruptCheckpointError(path, error.reason) from error
        if not isinstance(row, dict) or not isinstance(row.get(_HASH_KEY), str):
            raise CorruptCheckpointError(path, "it is not a checkpoint")
        return row

    def _list_names(self) -> list[str]:
        try:
            names = os.listdir(self._directory)
        except (FileNotFoundError, NotADirectoryError):
            return []
        return [
            stem for name in names if (stem := name.removesuffix(".json")) != name and _NAME.fullmatch(stem)
        ]

    def _get_path(self, checkpoint_id: str) -> Path | None:
        return self._directory / f"{checkpoint_id}.json" if _NAME.fullmatch(checkpoint_id) else None


def _has_valid_hash(row: Mapping[str, Any]) -> bool:
    try:
        return bool(content_hash(row) == row[_HASH_KEY])
    except RecursionError:
        return False


def _get_number(name: str) -> int:
    return int(name.partition("-")[0])


def _get_sort_key(name: str) -> tuple[int, str]:
    return _get_number(name), name
