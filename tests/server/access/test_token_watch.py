"""What became of tokens is in the event log, and nothing that is secret."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest_asyncio

from queenright.health.audit.audit_page import read_page
from queenright.health.store.store import Store
from queenright.runtime.events import AgentEvent, EventType
from queenright.server.access.roles import Role
from queenright.server.access.token_file import TokenFile, edit_tokens
from queenright.server.access.token_watch import TokenWatch
from queenright.server.access.tokens import Tokens, new_token

NOW = 1_000_000.0
SECRET = "s" * 43


class Office:
    """A file of tokens, and a log that says what became of them."""

    def __init__(self, folder: Path, store: Store) -> None:
        self.file = folder / "tokens.json"
        self.store = store
        self.now = NOW

    def watch(self) -> TokenWatch:
        """A service that starts."""
        return TokenWatch(TokenFile(self.file), self.store, self._publish, clock=lambda: self.now)

    async def _publish(self, event: AgentEvent) -> None:
        await self.store.append([event])

    def make(self, name: str, role: Role, *, id_: str, expires_at: float | None = None) -> None:
        token, _ = new_token(name, role, id_=id_, secret=SECRET, now=self.now, expires_at=expires_at)
        self._edit(lambda tokens: tokens.with_token(token, self.now))

    def revoke(self, name: str) -> None:
        self._edit(lambda tokens: tokens.without(name, self.now))

    def _edit(self, change: Callable[[Tokens], Tokens]) -> None:
        edit_tokens(self.file, change)

    async def said(self) -> list[dict[str, Any]]:
        """What is in the log, oldest first."""
        found = await self.store.read(lambda conn: read_page(conn, types=[EventType.TOKENS_CHANGED]))
        return [one.event["data"] for one in reversed(found)]


@pytest_asyncio.fixture
async def office(tmp_path: Path) -> AsyncIterator[Office]:
    store = Store.open(f"sqlite:///{tmp_path / 'q.db'}")
    yield Office(tmp_path, store)
    await store.close()


async def test_added_and_removed_tokens_are_published_once_with_the_reason(office: Office) -> None:
    watch = office.watch()
    await watch.check()
    office.make("ada", Role.ADMIN, id_="0" * 8)
    office.make("bob", Role.VIEWER, id_="1" * 8, expires_at=NOW + 60)
    await watch.check()
    await watch.check()
    office.revoke("ada")
    await watch.check()
    office.now += 60
    await watch.check()

    first, second, third = await office.said()
    assert first["came"] == [{"name": "ada", "role": "admin"}, {"name": "bob", "role": "viewer"}]
    assert second["went"] == [{"name": "ada", "role": "admin", "why": "revoked"}]
    assert [one["name"] for one in second["live"]] == ["bob"]
    assert third["went"] == [{"name": "bob", "role": "viewer", "why": "expired"}]
    text = json.loads(office.file.read_text())["tokens"]
    for secret in (SECRET, *(one["sha256"] for one in text)):
        assert secret not in json.dumps([first, second, third])


async def test_changes_during_downtime_are_published_after_the_restart(office: Office) -> None:
    office.make("ada", Role.ADMIN, id_="0" * 8)
    await office.watch().check()
    office.revoke("ada")
    office.now += 1
    office.make("ada", Role.OPERATOR, id_="1" * 8)
    back = office.watch()
    await back.check()
    await office.watch().check()

    _, second = await office.said()
    assert second["came"] == [{"name": "ada", "role": "operator"}]
    assert [(one["name"], one["role"]) for one in second["went"]] == [("ada", "admin")]


async def test_unusable_token_file_publishes_nothing(office: Office) -> None:
    office.make("ada", Role.ADMIN, id_="0" * 8)
    watch = office.watch()
    await watch.check()
    office.file.write_text("{")
    await watch.check()

    assert len(await office.said()) == 1
