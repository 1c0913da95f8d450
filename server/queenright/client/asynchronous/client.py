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

from queenright.client.address import resolve_token, resolve_url
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
    A client of one running service.

    Args:
        url: URL of the service. Default: ``QUEENRIGHT_URL``, then http://127.0.0.1:8420.
        token: Access token. Default: ``QUEENRIGHT_TOKEN``, then the content of ``QUEENRIGHT_TOKEN_FILE``.
        token_file: A file with the token, instead of ``token``.
        timeout: Seconds to wait for a response; actions wait up to 300.
        transport: The httpx transport. Default: sockets.
        ids: Makes the idempotency key of each action.
        sleep: Waits for a number of seconds.

    Raises:
        InvalidAddressError: The URL is invalid, or the token cannot be read.
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
        self._transport = AsyncTransport(
            resolve_url(url),
            resolve_token(token, file=token_file),
            timeout=timeout,
            transport=transport,
            ids=ids,
        )
        self._sleep = sleep

    @property
    def url(self) -> str:
        """URL of the service."""
        return self._transport.url

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.url!r})"

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.aclose()

    async def aclose(self) -> None:
        """Close the connections."""
        await self._transport.aclose()

    # Each is imported on first use: a command needs only one of them and starts faster.

    @cached_property
    def agents(self) -> AsyncAgents:
        """Workers, and agents that run inside the service."""
        from queenright.client.asynchronous.agents import AsyncAgents

        return AsyncAgents(self._transport)

    @cached_property
    def tickets(self) -> AsyncTickets:
        """Tickets about workers."""
        from queenright.client.asynchronous.tickets import AsyncTickets

        return AsyncTickets(self._transport)

    @cached_property
    def breakers(self) -> AsyncBreakers:
        """Circuit breakers."""
        from queenright.client.asynchronous.breakers import AsyncBreakers

        return AsyncBreakers(self._transport)

    @cached_property
    def recoveries(self) -> AsyncRecoveries:
        """Recoveries of tasks."""
        from queenright.client.asynchronous.recoveries import AsyncRecoveries

        return AsyncRecoveries(self._transport)

    @cached_property
    def interventions(self) -> AsyncInterventions:
        """Interventions on workers."""
        from queenright.client.asynchronous.decisions import AsyncInterventions

        return AsyncInterventions(self._transport)

    @cached_property
    def escalations(self) -> AsyncEscalations:
        """Escalations to the orchestrator."""
        from queenright.client.asynchronous.decisions import AsyncEscalations

        return AsyncEscalations(self._transport)

    @cached_property
    def approvals(self) -> AsyncApprovals:
        """Requests of the queen to terminate a worker."""
        from queenright.client.asynchronous.decisions import AsyncApprovals

        return AsyncApprovals(self._transport)

    @cached_property
    def permissions(self) -> AsyncPermissions:
        """Permission requests of coding agents."""
        from queenright.client.asynchronous.decisions import AsyncPermissions

        return AsyncPermissions(self._transport)

    @cached_property
    def silences(self) -> AsyncSilences:
        """Silences at Alertmanager."""
        from queenright.client.asynchronous.silences import AsyncSilences

        return AsyncSilences(self._transport)

    @cached_property
    def events(self) -> AsyncEvents:
        """The event stream."""
        from queenright.client.asynchronous.events import AsyncEvents

        return AsyncEvents(self._transport, self._sleep)

    @cached_property
    def audit(self) -> AsyncAudit:
        """The event log."""
        from queenright.client.asynchronous.audit import AsyncAudit

        return AsyncAudit(self._transport)

    @cached_property
    def service(self) -> AsyncService:
        """The service itself."""
        from queenright.client.asynchronous.service import AsyncService

        return AsyncService(self._transport)
