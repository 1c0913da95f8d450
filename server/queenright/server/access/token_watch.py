"""Record changes of tokens in the event log, so that an audit shows who had access."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, Final

from queenright.health.audit.audit_page import read_page
from queenright.health.store.store import Store, StoreError
from queenright.instrumentation.redaction import redact
from queenright.runtime.events import AgentEvent, Clock, EventType
from queenright.server.access.token_file import TokenFile
from queenright.server.access.tokens import InvalidTokensError, Token, Tokens

_log = logging.getLogger(__name__)

CHECK_INTERVAL_SECONDS: Final = 5.0
"""Seconds between checks of the token file."""

_TokenKey = tuple[str, float]
"""The key of a token, without its secret: its name and creation time."""


class TokenWatch:
    """
    Publishes changes of the token file, including those made while the service was down.

    Args:
        file: The token file.
        store: The store with the last published event.
        publish: Stores and publishes an event.
        clock: Seconds since the epoch.
    """

    def __init__(
        self,
        file: TokenFile,
        store: Store,
        publish: Callable[[AgentEvent], Awaitable[None]],
        *,
        clock: Clock,
    ) -> None:
        self._file = file
        self._store = store
        self._publish = publish
        self._clock = clock
        self._published_roles: dict[_TokenKey, str] | None = None
        """The role of each live token in the last published event."""

    async def run(self) -> None:
        """Check every ``CHECK_INTERVAL_SECONDS``, until cancelled."""
        while True:
            try:
                await self.check()
            except StoreError as error:
                _log.error("cannot record token changes, retrying: %s", redact(str(error)))
            await asyncio.sleep(CHECK_INTERVAL_SECONDS)

    async def check(self) -> None:
        """
        Publish the changes since the last event.

        Raises:
            StoreError: The event cannot be stored.
        """
        try:
            tokens = self._file.load()
        except InvalidTokensError:
            return  # `TokenFile` logs the error and refuses all tokens
        if self._published_roles is None:
            self._published_roles = await self._load_last_published()
        now = self._clock()
        data = describe_changes(self._published_roles, tokens, now)
        if data["came"] or data["went"]:
            await self._publish(AgentEvent(type=EventType.TOKENS_CHANGED, time=now, data=data))
            self._published_roles = _map_roles_by_key(data["live"])

    async def _load_last_published(self) -> dict[_TokenKey, str]:
        rows = await self._store.read(
            lambda conn: read_page(
                conn,
                before=None,
                types=[EventType.TOKENS_CHANGED],
                agent_id=None,
                since=None,
                until=None,
                limit=1,
            )
        )
        return _map_roles_by_key(rows[0].event["data"]["live"]) if rows else {}


def describe_changes(published_roles: Mapping[_TokenKey, str], tokens: Tokens, now: float) -> dict[str, Any]:
    """
    Return the ``data`` of an event: added tokens, removed tokens with the reason, and live tokens.

    Args:
        published_roles: The roles of the previously live tokens, by key.
        tokens: All tokens of the file.
        now: Seconds since the epoch.
    """
    live = {_get_token_key(token): token for token in tokens.list_live(now)}
    tokens_by_key = {_get_token_key(token): token for token in tokens.all}
    return {
        "came": [
            {"name": token.name, "role": token.role.value}
            for key, token in live.items()
            if key not in published_roles
        ],
        "went": [
            {
                "name": key[0],
                "role": role,
                "why": tokens_by_key[key].state(now) if key in tokens_by_key else "removed",
            }
            for key, role in published_roles.items()
            if key not in live
        ],
        "live": [
            {"name": token.name, "role": token.role.value, "made_at": token.made_at}
            for token in live.values()
        ],
    }


def _get_token_key(token: Token) -> _TokenKey:
    return token.name, token.made_at


def _map_roles_by_key(live: list[dict[str, Any]]) -> dict[_TokenKey, str]:
    return {(token["name"], token["made_at"]): token["role"] for token in live}
