"""The client of one service."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Awaitable, Callable
from functools import cached_property
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Self

import httpx

from queenright.client.address import token_of, url_of
from queenright.client.asynchronous.transport import AsyncTransport

if TYPE_CHECKING:
    from queenright.client.asynchronous.agents import AsyncAgents
    from queenright.client.asynchronous.audit import AsyncAudit
    from queenright.client.asynchronous.breakers import AsyncBreakers
    from queenright.client.asynchronous.decisions import (
        AsyncApprovals,
        AsyncEscalations,
        AsyncInterventions,
        AsyncPermissions,
    )
    from queenright.client.asynchronous.events import AsyncEvents
    from queenright.client.asynchronous.recoveries import AsyncRecoveries
    from queenright.client.asynchronous.service import AsyncService
    from queenright.client.asynchronous.silences import AsyncSilences
    from queenright.client.asynchronous.tickets import AsyncTickets


def _new_id() -> str:
    return str(uuid.uuid4())


class AsyncQueenright:
    """
    One running service, to be asked and told.

    Args:
        url: Where it is; ``QUEENRIGHT_URL`` or this machine, without.
        token: What it is asked with; ``QUEENRIGHT_TOKEN``, or what is in ``QUEENRIGHT_TOKEN_FILE``, without.
        token_file: A file with the token, in place of it.
        timeout: Seconds for an answer; an action is given up to 300.
        transport: What carries requests; sockets, without.
        ids: Makes the key of each action, under which it is done once though it may be sent twice.
        sleep: Waits, seconds.

    Raises:
        InvalidAddressError: The URL is none, or the token cannot be read.
    """

    def __init__(
        self,
        url: str | None = None,
        token: str | None = None,
        *,
        token_file: Path | str | None = None,
        timeout: float = 10.0,
        transport: httpx.AsyncBaseTransport | None = None,
        ids: Callable[[], str] = _new_id,
        sleep: Callable[[float], Awaitable[object]] = asyncio.sleep,
    ) -> None:
        self._ask = AsyncTransport(
            url_of(url),
            token_of(token, file=token_file),
            timeout=timeout,
            transport=transport,
            ids=ids,
        )
        self._sleep = sleep

    @property
    def url(self) -> str:
        """Where the service is."""
        return self._ask.url

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.url!r})"

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.aclose()

    async def aclose(self) -> None:
        """Give up its connections."""
        await self._ask.aclose()

    # Each is imported when it is asked for: a command has to do with one of them, and starts sooner.

    @cached_property
    def agents(self) -> AsyncAgents:
        """Workers, and agents that run inside the service."""
        from queenright.client.asynchronous.agents import AsyncAgents

        return AsyncAgents(self._ask)

    @cached_property
    def tickets(self) -> AsyncTickets:
        """What the judge found, and what becomes of it."""
        from queenright.client.asynchronous.tickets import AsyncTickets

        return AsyncTickets(self._ask)

    @cached_property
    def breakers(self) -> AsyncBreakers:
        """Circuit breakers."""
        from queenright.client.asynchronous.breakers import AsyncBreakers

        return AsyncBreakers(self._ask)

    @cached_property
    def recoveries(self) -> AsyncRecoveries:
        """Tasks that are brought back."""
        from queenright.client.asynchronous.recoveries import AsyncRecoveries

        return AsyncRecoveries(self._ask)

    @cached_property
    def interventions(self) -> AsyncInterventions:
        """What was done to workers."""
        from queenright.client.asynchronous.decisions import AsyncInterventions

        return AsyncInterventions(self._ask)

    @cached_property
    def escalations(self) -> AsyncEscalations:
        """Questions to the orchestrator."""
        from queenright.client.asynchronous.decisions import AsyncEscalations

        return AsyncEscalations(self._ask)

    @cached_property
    def approvals(self) -> AsyncApprovals:
        """What waits for somebody to allow it."""
        from queenright.client.asynchronous.decisions import AsyncApprovals

        return AsyncApprovals(self._ask)

    @cached_property
    def permissions(self) -> AsyncPermissions:
        """What coding agents ask permission for."""
        from queenright.client.asynchronous.decisions import AsyncPermissions

        return AsyncPermissions(self._ask)

    @cached_property
    def silences(self) -> AsyncSilences:
        """What nobody is told about for a while."""
        from queenright.client.asynchronous.silences import AsyncSilences

        return AsyncSilences(self._ask)

    @cached_property
    def events(self) -> AsyncEvents:
        """The event stream."""
        from queenright.client.asynchronous.events import AsyncEvents

        return AsyncEvents(self._ask, self._sleep)

    @cached_property
    def audit(self) -> AsyncAudit:
        """The event log, to be looked up."""
        from queenright.client.asynchronous.audit import AsyncAudit

        return AsyncAudit(self._ask)

    @cached_property
    def service(self) -> AsyncService:
        """The service itself."""
        from queenright.client.asynchronous.service import AsyncService

        return AsyncService(self._ask)
