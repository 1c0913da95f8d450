"""The client of one service."""

from __future__ import annotations

import uuid
from collections.abc import Awaitable, Callable
from pathlib import Path
from types import TracebackType
from typing import Self

import httpx

from queenright.client.address import remove_credentials, resolve_token, resolve_url
from queenright.client.asynchronous import agents, resources
from queenright.client.asynchronous.transport import AsyncTransport


def new_id() -> str:
    """Return a random id."""
    return str(uuid.uuid4())


async def _sleep(seconds: float) -> None:
    import asyncio  # not needed by the synchronous client and the command line

    await asyncio.sleep(seconds)


class AsyncQueenright:
    """
    A client of one running service.

    Args:
        url: URL of the service. Default: ``QUEENRIGHT_URL``, then http://127.0.0.1:8420.
        token: Access token. Default: ``QUEENRIGHT_TOKEN``, then the content of ``QUEENRIGHT_TOKEN_FILE``.
        token_file: A file with the token, instead of ``token``.
        timeout: Seconds to wait for a response; actions wait up to 300.
        transport: The httpx transport. Default: sockets.
        ids: Returns a new idempotency key for each action.
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
        ids: Callable[[], str] = new_id,
        sleep: Callable[[float], Awaitable[object]] = _sleep,
    ) -> None:
        self._transport = AsyncTransport(
            resolve_url(url),
            resolve_token(token, file=token_file),
            timeout=timeout,
            transport=transport,
            ids=ids,
        )
        self.agents = agents.AsyncAgents(self._transport)
        self.tickets = resources.AsyncTickets(self._transport)
        self.breakers = resources.AsyncBreakers(self._transport)
        self.recoveries = resources.AsyncRecoveries(self._transport)
        self.interventions = resources.AsyncInterventions(self._transport)
        self.escalations = resources.AsyncEscalations(self._transport)
        self.approvals = resources.AsyncApprovals(self._transport)
        self.permissions = resources.AsyncPermissions(self._transport)
        self.silences = resources.AsyncSilences(self._transport)
        self.audit = resources.AsyncAudit(self._transport)
        self.service = resources.AsyncService(self._transport)
        self.events = resources.AsyncEvents(self._transport, sleep)

    @property
    def url(self) -> str:
        """URL of the service."""
        return self._transport.url

    def __repr__(self) -> str:
        return f"{type(self).__name__}({remove_credentials(self.url)!r})"

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.aclose()

    async def aclose(self) -> None:
        """Close the connections."""
        await self._transport.aclose()
