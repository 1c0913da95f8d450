"""Sessions on disk: each entry point has one, made at its first run and found again after a restart."""

from __future__ import annotations

import json
import os
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from queenright.runtime.conversation import Conversation
from queenright.runtime.events import Clock
from queenright.runtime.graph import NodeSpec


@dataclass(frozen=True, slots=True)
class Session:
    """One session: its id and its folder."""

    id: str
    path: Path

    def conversation(self, node: NodeSpec) -> Conversation:
        """Open what was said in ``node``."""
        return Conversation(
            self.path / "conversations" / node.id,
            max_messages=node.max_messages or 60,
            max_characters=node.max_context_tokens * 4,
        )


def persistent_session(graph_path: Path, entry_point_id: str, clock: Clock) -> Session:
    """Return the session of an entry point of the graph stored at ``graph_path``; make it the first time."""
    sessions = graph_path / "sessions"
    known = sorted(sessions.glob("session_*/state.json"))
    for state_file in reversed(known):
        if _entry_point(state_file) == entry_point_id:
            return Session(state_file.parent.name, state_file.parent)
    now = datetime.fromtimestamp(clock(), UTC)
    session_id = f"session_{now:%Y%m%d_%H%M%S}_{os.urandom(4).hex()}"
    path = sessions / session_id
    path.mkdir(parents=True)
    state = {"session_id": session_id, "entry_point": entry_point_id, "created_at": now.isoformat()}
    aside = path / "state.tmp"
    aside.write_text(json.dumps(state), encoding="utf-8")
    os.replace(aside, path / "state.json")
    return Session(session_id, path)


def _entry_point(state_file: Path) -> object:
    try:
        state = json.loads(state_file.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
    return state.get("entry_point") if isinstance(state, dict) else None
