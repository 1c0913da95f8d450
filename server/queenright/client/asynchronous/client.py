"""The client of one service."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Awaitable, Callable
from pathlib import Path
from types import TracebackType
from typing import Self

import httpx

from queenright.client.address import token_of, url_of
from queenright.client.asynchronous.agents import AsyncAgents
from queenright.client.asynchronous.audit import AsyncAudit
from queenright.client.asynchronous.breakers import AsyncBreakers
from queenright.client.asynchronous.decisions import AsyncApprovals, AsyncEscalations, AsyncInterventions
from queenright.client.asynchronous.events import AsyncEvents
from queenright.client.asynchronous.recoveries import AsyncRecoveries
from queenright.client.asynchronous.service import AsyncService
from queenright.client.asynchronous.silences import AsyncSilences
from queenright.client.asynchronous.tickets import AsyncTickets
from queenright.client.asynchronous.transport import AsyncTransport


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
        Misaddressed: The URL is none, or the token cannot be read.
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
        ask = AsyncTransport(
            url_of(url),
            token_of(token, file=token_file),
            timeout=timeout,
            transport=transport,
            ids=ids,
        )
        self._ask = ask
        self.agents = AsyncAgents(ask)
        self.tickets = AsyncTickets(ask)
        self.breakers = AsyncBreakers(ask)
        self.recoveries = AsyncRecoveries(ask)
        self.interventions = AsyncInterventions(ask)
        self.escalations = AsyncEscalations(ask)
        self.approvals = AsyncApprovals(ask)
        self.silences = AsyncSilences(ask)
        self.events = AsyncEvents(ask, sleep)
        self.audit = AsyncAudit(ask)
        self.service = AsyncService(ask)

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
