"""Former names of workers in the event log."""

from __future__ import annotations

from pathlib import Path

import pytest

from queenright.health.findings import WorkerKey
from queenright.health.store.former_names import all_names, find_current_name
from queenright.health.store.store import Store
from queenright.runtime.events import AgentEvent, EventType

A, B, C = ("a", "1"), ("b", "2"), ("c", "3")


def make_rename_events(old: WorkerKey, new: WorkerKey) -> list[AgentEvent]:
    names = {"agent_id": new[0], "session_id": new[1]}
    former = {"former_agent_id": old[0], "former_session_id": old[1]}
    return [
        AgentEvent(type=EventType.AGENT_RENAMED, time=1.0, agent_id=agent, session_id=session, data=data)
        for (agent, session), data in ((old, names), (new, names | former))
    ]


@pytest.mark.parametrize(
    ("renames", "current"),
    [
        ([(A, B), (B, C)], {A: C, B: C, C: None}),
        ([(A, B), (B, A)], {A: None, B: A}),
        ([(A, B), (B, A), (A, C)], {A: C, B: C, C: None}),
        ([(A, C), (B, C)], {A: C, B: C, C: None}),
    ],
    ids=["chain", "back", "back-and-on", "two-to-one"],
)
async def test_former_name_leads_to_the_current_one(
    tmp_path: Path, renames: list[tuple[WorkerKey, WorkerKey]], current: dict[WorkerKey, WorkerKey | None]
) -> None:
    store = Store.open(f"sqlite:///{tmp_path / 'q.db'}")
    await store.append([event for pair in renames for event in make_rename_events(*pair)])

    current_names = await store.read(lambda conn: {key: find_current_name(conn, *key) for key in current})
    last_name = renames[-1][1]
    names = await store.read(lambda conn: all_names(conn, *last_name))
    await store.close()

    assert current_names == current
    assert set(names) == {key for pair in renames for key in pair}
