"""Pages of lists that grow while they are read, on both databases."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import pytest
from sqlalchemy import Connection

from queenright.health.action_kind import ActionKind
from queenright.health.interventions.intervention import (
    Intervention,
    InterventionOutcome,
    intervention_table,
)
from queenright.health.store.rows import Place
from queenright.health.store.store import Store


@pytest.fixture
async def store(database_url: str) -> AsyncIterator[Store]:
    new_store = Store.open(database_url)
    yield new_store
    await new_store.close()


def make_nudge(number: int, created_at: float, agent: str = "bee") -> Intervention:
    return Intervention(
        intervention_id=f"i{number:04d}",
        agent_id=agent,
        session_id="s",
        incarnation_id="one",
        kind=ActionKind.NUDGE,
        outcome=InterventionOutcome.DONE,
        by="ada",
        reason="",
        created_at=created_at,
    )


async def insert_records(store: Store, *records: Intervention) -> None:
    def insert_all(conn: Connection) -> None:
        for record in records:
            intervention_table.write(conn, record)

    await store.transact(insert_all)


async def read_page(store: Store, limit: int, before: Place | None, **filters: Any) -> list[Intervention]:
    return await store.read(lambda conn: intervention_table.newest(conn, limit, before=before, **filters))


@pytest.mark.parametrize("size", [1, 3, 100])
async def test_paging_returns_each_row_once_in_order(store: Store, size: int) -> None:
    # Several rows with the same time, and a time without a short decimal representation.
    rows = [make_nudge(n, 1_700_000_000.1 + 0.1 * (n // 4)) for n in range(14)]
    await insert_records(store, *rows)
    read_rows: list[Intervention] = []
    before: Place | None = None
    while next_page := await read_page(store, size, before):
        read_rows += next_page
        before = (next_page[-1].created_at, next_page[-1].intervention_id)
        await insert_records(store, make_nudge(1000 + len(read_rows), 1_800_000_000.0), next_page[0])

    assert [intervention.intervention_id for intervention in read_rows] == [
        intervention.intervention_id for intervention in reversed(rows)
    ]


async def test_page_is_filtered(store: Store) -> None:
    await insert_records(
        store, make_nudge(1, 1.0), make_nudge(2, 2.0, "wasp"), make_nudge(3, 3.0), make_nudge(4, 4.0)
    )

    interventions = await read_page(store, 5, (4.0, "i0004"), agent_id="bee")

    assert [intervention.intervention_id for intervention in interventions] == ["i0003", "i0001"]
