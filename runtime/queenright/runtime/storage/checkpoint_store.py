"""
Checkpoints: where an execution could go on from, in a chain in which each names the hash of the one before.

A checkpoint is believed only if its hash is right. One that is not is passed over for the newest before it
that is, so that a broken file costs the work since then and no more.
"""

from __future__ import annotations

import hashlib
import json
import logging
import os
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Literal

from pydantic import BaseModel, Field, ValidationError

from queenright.instrumentation.errors import QueenrightError
from queenright.runtime.events import Clock
from queenright.runtime.storage.files import (
    Skipped,
    UnusableFileError,
    json_bytes,
    read_json,
    sync_folder,
    write_files,
)
from queenright.runtime.storage.session_state import ExecutionState, problem

_log = logging.getLogger(__name__)

_NAME: Final = re.compile(r"([0-9]{10,})-[A-Za-z0-9_-]{1,64}")
_HASH: Final = "content_hash"

Reason = Literal["node", "pause", "terminate"]


class CorruptCheckpointError(QueenrightError):
    """Raised for a checkpoint that is there and cannot be believed."""

    def __init__(self, path: Path, reason: str) -> None:
        super().__init__(
            f"Checkpoint {path} is broken: {reason}. latest_valid finds the newest that is whole."
        )
        self.path = path
        self.reason = reason


class CheckpointNotFoundError(QueenrightError):
    """Raised for a checkpoint that is not in the store."""

    def __init__(self, checkpoint_id: str, directory: Path) -> None:
        super().__init__(
            f"There is no checkpoint {checkpoint_id[:100]!r} in {directory}; list_checkpoints says which are."
        )
        self.checkpoint_id = checkpoint_id


class Checkpoint(BaseModel):
    """What an execution needs to go on from where it was at ``created_at``, in seconds since the epoch."""

    checkpoint_id: str
    parent_id: str | None
    parent_hash: str
    """The parent's ``content_hash``; "" without one."""
    created_at: float
    session_id: str
    graph_id: str
    execution_id: str
    node_id: str
    """The node that was just completed; "" if there is none."""
    reason: Reason
    memory: dict[str, Any] = Field(default_factory=dict)
    execution: ExecutionState
    conversations: dict[str, int] = Field(default_factory=dict)
    """Each conversation's folder name, and the ``last_seq`` it had."""
    content_hash: str
    """SHA-256, in hex, over the canonical JSON of all the rest; see ``content_hash``."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ChainLink:
    """One file of the chain: the checkpoint in it, or why there is none to be believed."""

    checkpoint_id: str
    checkpoint: Checkpoint | None
    reason: str = ""


def content_hash(row: Mapping[str, Any]) -> str:
    """Return SHA-256 over all of ``row`` but its hash, as JSON with sorted keys, without spaces, in ASCII."""
    rest = {key: value for key, value in row.items() if key != _HASH}
    return hashlib.sha256(json.dumps(rest, sort_keys=True, separators=(",", ":")).encode()).hexdigest()


class CheckpointStore:
    """
    The checkpoints of one graph in one session. Every method blocks: call it through ``Disk.run``.

    One writer at a time. Ids begin with a number that goes up, so that a clock that is set back does not
    change which is the newest.

    Args:
        directory: Where the files are; made when the first one is saved.
        clock: Returns seconds since the epoch.
        ids: Returns letters, digits, "-" and "_" for the rest of an id.
    """

    def __init__(self, directory: Path, *, clock: Clock, ids: Callable[[], str]) -> None:
        self.skipped: list[Skipped] = []
        """What the last listing or search could not believe, and why."""
        self._directory = directory
        self._clock = clock
        self._ids = ids

    def save(
        self,
        *,
        session_id: str,
        graph_id: str,
        execution_id: str,
        node_id: str,
        reason: Reason,
        memory: Mapping[str, Any],
        execution: ExecutionState,
        conversations: Mapping[str, int],
    ) -> Checkpoint:
        """
        Save a checkpoint, on the disk on return; its parent is the newest whole one.

        Raises:
            OSError: The disk refused; nothing was saved.
            ValueError: ``memory`` holds what is no JSON value.
        """
        names = self._names()
        number = max((_number(name) for name in names), default=0) + 1
        parent = self.latest_valid()
        checkpoint = Checkpoint(
            checkpoint_id=f"{number:010d}-{self._ids()}",
            parent_id=parent.checkpoint_id if parent else None,
            parent_hash=parent.content_hash if parent else "",
            created_at=self._clock(),
            session_id=session_id,
            graph_id=graph_id,
            execution_id=execution_id,
            node_id=node_id,
            reason=reason,
            memory=dict(memory),
            execution=execution,
            conversations=dict(conversations),
            content_hash="",
        )
        # The hash is of what will be read again.
        row = json.loads(json_bytes(checkpoint.model_dump(mode="json")))
        row[_HASH] = content_hash(row)
        path = self._path(checkpoint.checkpoint_id)
        if path is None:
            raise ValueError(
                f"{checkpoint.checkpoint_id!r} cannot name a checkpoint; ids() returns something else."
            )
        write_files({path: json_bytes(row)})
        return Checkpoint.model_validate(row)

    def load(self, checkpoint_id: str) -> Checkpoint:
        """
        Return a checkpoint if its hash is right, its ids are, and its parent is the right one or not whole.

        Raises:
            CheckpointNotFoundError: There is none of this id.
            CorruptCheckpointError: It cannot be believed.
        """
        path = self._path(checkpoint_id)
        if path is None:
            raise CheckpointNotFoundError(checkpoint_id, self._directory)
        row = self._row(path)
        if not _is_whole(row):
            raise CorruptCheckpointError(path, "its content does not have its hash")
        try:
            checkpoint = Checkpoint.model_validate(row)
        except (ValidationError, RecursionError) as error:
            raise CorruptCheckpointError(path, problem(error)) from error
        if checkpoint.checkpoint_id != checkpoint_id:
            raise CorruptCheckpointError(path, f"it is checkpoint {checkpoint.checkpoint_id!r}")
        if checkpoint.parent_id is not None:
            self._check_parent(path, checkpoint, checkpoint.parent_id)
        return checkpoint

    def list_checkpoints(self) -> list[Checkpoint]:
        """Return all that are whole, newest first; the others are logged and in ``skipped``."""
        return list(self._whole())

    def latest_valid(self) -> Checkpoint | None:
        """Return the newest that is whole, passing over broken ones; None if there is none."""
        return next(self._whole(), None)

    def chain(self) -> list[ChainLink]:
        """Return all that are there, newest first: the whole ones, and the others with what is wrong."""
        links = []
        for name in sorted(self._names(), key=_order, reverse=True):
            try:
                links.append(ChainLink(checkpoint_id=name, checkpoint=self.load(name)))
            except CheckpointNotFoundError:
                continue
            except CorruptCheckpointError as error:
                links.append(ChainLink(checkpoint_id=name, checkpoint=None, reason=error.reason))
        return links

    def prune(self, keep: int) -> int:
        """
        Remove all that are older than the newest ``keep`` whole ones; return how many.

        With fewer whole ones than that nothing is removed: a broken file is not worth a whole one.

        Raises:
            ValueError: ``keep`` is not above 0.
        """
        if keep < 1:
            raise ValueError(f"keep must be at least 1, not {keep}.")
        names = self._names()
        if len(names) <= keep:
            return 0
        kept = [checkpoint.checkpoint_id for _, checkpoint in zip(range(keep), self._whole(), strict=False)]
        if len(kept) < keep:
            return 0
        removed = 0
        for name in names:
            if _order(name) < _order(kept[-1]):
                try:
                    (self._directory / f"{name}.json").unlink()
                    removed += 1
                except OSError as error:
                    _log.warning("cannot remove the old checkpoint %s: %s", name, error)
        if removed:
            sync_folder(self._directory)
        return removed

    def _whole(self) -> Iterator[Checkpoint]:
        self.skipped = []
        for name in sorted(self._names(), key=_order, reverse=True):
            try:
                yield self.load(name)
            except CheckpointNotFoundError:
                continue
            except CorruptCheckpointError as error:
                _log.warning("passed over a checkpoint: %s", error)
                self.skipped.append(Skipped(error.path, error.reason))

    def _check_parent(self, path: Path, checkpoint: Checkpoint, parent_id: str) -> None:
        if not _NAME.fullmatch(parent_id) or _order(parent_id) >= _order(checkpoint.checkpoint_id):
            raise CorruptCheckpointError(path, f"its parent {parent_id[:100]!r} is none")
        try:
            parent = self._row(self._directory / f"{parent_id}.json")
        except (CheckpointNotFoundError, CorruptCheckpointError):
            return
        # A parent that broke says nothing against its child; another whole one in its place does.
        if _is_whole(parent) and parent[_HASH] != checkpoint.parent_hash:
            raise CorruptCheckpointError(
                path, f"its parent {parent_id!r} is not the one that it was made after"
            )

    def _row(self, path: Path) -> dict[str, Any]:
        try:
            row = read_json(path)
        except FileNotFoundError as error:
            raise CheckpointNotFoundError(path.stem, self._directory) from error
        except UnusableFileError as error:
            raise CorruptCheckpointError(path, error.reason) from error
        if not isinstance(row, dict) or not isinstance(row.get(_HASH), str):
            raise CorruptCheckpointError(path, "it is no checkpoint")
        return row

    def _names(self) -> list[str]:
        try:
            names = os.listdir(self._directory)
        except (FileNotFoundError, NotADirectoryError):
            return []
        return [
            stem for name in names if (stem := name.removesuffix(".json")) != name and _NAME.fullmatch(stem)
        ]

    def _path(self, checkpoint_id: str) -> Path | None:
        return self._directory / f"{checkpoint_id}.json" if _NAME.fullmatch(checkpoint_id) else None


def _is_whole(row: Mapping[str, Any]) -> bool:
    try:
        return bool(content_hash(row) == row[_HASH])
    except RecursionError:
        return False


def _number(name: str) -> int:
    return int(name.partition("-")[0])


def _order(name: str) -> tuple[int, str]:
    return _number(name), name
