"""A second life of a checkpoint: a session of its own in which a run goes on from there, beside the first."""

from __future__ import annotations

import re
import shutil
from pathlib import Path
from typing import Final

from queenright.runtime.storage.checkpoint_store import Checkpoint
from queenright.runtime.storage.conversation import conversations_in
from queenright.runtime.storage.files import make_folder, sync_folder
from queenright.runtime.storage.session_state import SessionState, SessionStatus, execution_key
from queenright.runtime.storage.session_store import Session, SessionStore

_PART: Final = re.compile(r"([0-9]{10,})\.json")


def branch(
    store: SessionStore, session: Session, checkpoint: Checkpoint, *, execution_id: str, agent_id: str
) -> Session:
    """
    Return a new session that is where ``session`` was at ``checkpoint``; the old one stays as it is. Blocks.

    Args:
        store: Makes the new session.
        session: Whose checkpoint it is.
        checkpoint: Where to go on from.
        execution_id: The run that goes on in the new session, paused until it is taken up.
        agent_id: Whose session it is.

    Raises:
        OSError: The disk refused.
    """
    run = checkpoint.execution
    made = store.create(graph_id=run.graph_id, entry_point=run.entry_point, agent_id=agent_id)
    for name in conversations_in(session.conversations):
        _copy(session.conversations / name, made.conversations / name, checkpoint.conversations.get(name, 0))
    if session.artifacts.is_dir():
        shutil.copytree(session.artifacts, made.artifacts, symlinks=True)

    def begin(state: SessionState) -> None:
        state.memory.update(checkpoint.memory)
        state.executions[execution_key(run.graph_id, run.entry_point)] = run.model_copy(
            deep=True, update={"execution_id": execution_id, "status": SessionStatus.PAUSED}
        )

    store.update(made, begin)
    return made


def _copy(source: Path, target: Path, last: int) -> None:
    """Copy a conversation up to its entry ``last``."""
    make_folder(target / "parts")
    for path in (source / "parts").iterdir():
        part = _PART.fullmatch(path.name)
        if part and int(part[1]) <= last:
            shutil.copyfile(path, target / "parts" / path.name)
    if (source / "cleared.json").is_file():
        shutil.copyfile(source / "cleared.json", target / "cleared.json")
    sync_folder(target / "parts")
