"""Branches of sessions: a new session that starts from a checkpoint of another."""

from __future__ import annotations

import re
import shutil
from pathlib import Path
from typing import Final

from queenright.runtime.storage.checkpoint_store import Checkpoint
from queenright.runtime.storage.conversation import list_conversations
from queenright.runtime.storage.files import make_folder, sync_folder
from queenright.runtime.storage.session_state import SessionState, SessionStatus, make_execution_key
from queenright.runtime.storage.session_store import Session, SessionStore

_PART: Final = re.compile(r"([0-9]{10,})\.json")


def branch_session(
    store: SessionStore, session: Session, checkpoint: Checkpoint, *, execution_id: str, agent_id: str
) -> Session:
    """
    Create a session in the state that ``session`` had at ``checkpoint``; the original is unchanged. Blocks.

    Args:
        execution_id: Id of the new session's run, which is paused until it is resumed.

    Raises:
        OSError: The disk write failed.
    """
    run = checkpoint.execution
    copy = store.create(graph_id=run.graph_id, entry_point=run.entry_point, agent_id=agent_id)
    for name in list_conversations(session.conversations):
        last_seq = checkpoint.conversations.get(name, 0)
        _copy_conversation(session.conversations / name, copy.conversations / name, last_seq)
    if session.artifacts.is_dir():
        shutil.copytree(session.artifacts, copy.artifacts, symlinks=True)

    def copy_state(state: SessionState) -> None:
        state.memory.update(checkpoint.memory)
        state.executions[make_execution_key(run.graph_id, run.entry_point)] = run.model_copy(
            deep=True, update={"execution_id": execution_id, "status": SessionStatus.PAUSED}
        )

    store.update(copy, copy_state)
    return copy


def _copy_conversation(source: Path, target: Path, last_seq: int) -> None:
    """Copy a conversation up to its entry ``last_seq``."""
    make_folder(target / "parts")
    for path in (source / "parts").iterdir():
        match = _PART.fullmatch(path.name)
        if match and int(match[1]) <= last_seq:
            shutil.copyfile(path, target / "parts" / path.name)
    if (source / "cleared.json").is_file():
        shutil.copyfile(source / "cleared.json", target / "cleared.json")
    sync_folder(target / "parts")
