"""Changes of tokens are recorded in the event log, without secrets."""

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
from queenright.server.access.tokens import Tokens, build_token

NOW = 1_000_000.0
SECRET = "s" * 43


class WatchedTokens:
    """A token file, and an event log in which its changes are recorded."""

    def __init__(self, folder: Path, store: Store) -> None:
        self.file = folder / "tokens.json"
        self.store = store
        self.now = NOW

    def watch(self) -> TokenWatch:
        """Return the watch of a newly started service."""
        return TokenWatch(TokenFile(self.file), self.store, self._publish, clock=lambda: self.now)

    async def _publish(self, event: AgentEvent) -> None:
        await self.store.append([event])

    def create_token(self, name: str, role: Role, *, id_: str, expires_at: float | None = None) -> None:
        token, _ = build_token(name, role, id_=id_, secret=SECRET, now=self.now, expires_at=expires_at)
        self._edit(lambda tokens: tokens.with_token(token, self.now))

    def revoke_token(self, name: str) -> None:
        self._edit(lambda tokens: tokens.with_revoked(name, self.now))

    def _edit(self, change: Callable[[Tokens], Tokens]) -> None:
        edit_tokens(self.file, change)

    async def list_changes(self) -> list[dict[str, Any]]:
        """Return the changes in the event log, oldest first."""
        page = await self.store.read(lambda conn: read_page(conn, types=[EventType.TOKENS_CHANGED]))
        return [item.event["data"] for item in reversed(page)]


@pytest_asyncio.fixture
async def watched_tokens(tmp_path: Path) -> AsyncIterator[WatchedTokens]:
    store = Store.open(f"sqlite:///{tmp_path / 'q.db'}")
    yield WatchedTokens(tmp_path, store)
    await store.close()


async def test_added_and_removed_tokens_are_published_once_with_the_reason(
    watched_tokens: WatchedTokens,
) -> None:
    watch = watched_tokens.watch()
    await watch.check()
    watched_tokens.create_token("ada", Role.ADMIN, id_="0" * 8)
    watched_tokens.create_token("bob", Role.VIEWER, id_="1" * 8, expires_at=NOW + 60)
    await watch.check()
    await watch.check()
    watched_tokens.revoke_token("ada")
    await watch.check()
    watched_tokens.now += 60
    await watch.check()

    initial_change, removal_change, addition_change = await watched_tokens.list_changes()
    assert initial_change["came"] == [{"name": "ada", "role": "admin"}, {"name": "bob", "role": "viewer"}]
    assert removal_change["went"] == [{"name": "ada", "role": "admin", "why": "revoked"}]
    assert [token_id["name"] for token_id in removal_change["live"]] == ["bob"]
    assert addition_change["went"] == [{"name": "bob", "role": "viewer", "why": "expired"}]
    stored_tokens = json.loads(watched_tokens.file.read_text())["tokens"]
    for secret in (SECRET, *(token_id["sha256"] for token_id in stored_tokens)):
        assert secret not in json.dumps([initial_change, removal_change, addition_change])


async def test_changes_during_downtime_are_published_after_the_restart(watched_tokens: WatchedTokens) -> None:
    watched_tokens.create_token("ada", Role.ADMIN, id_="0" * 8)
    await watched_tokens.watch().check()
    watched_tokens.revoke_token("ada")
    watched_tokens.now += 1
    watched_tokens.create_token("ada", Role.OPERATOR, id_="1" * 8)
    token_id = watched_tokens.watch()
    await token_id.check()
    await watched_tokens.watch().check()

    _, last_change = await watched_tokens.list_changes()
    assert last_change["came"] == [{"name": "ada", "role": "operator"}]
    assert [(token["name"], token["role"]) for token in last_change["went"]] == [("ada", "admin")]


async def test_unusable_token_file_publishes_nothing(watched_tokens: WatchedTokens) -> None:
    watched_tokens.create_token("ada", Role.ADMIN, id_="0" * 8)
    watch = watched_tokens.watch()
    await watch.check()
    watched_tokens.file.write_text("{")
    await watch.check()

    assert len(await watched_tokens.list_changes()) == 1
