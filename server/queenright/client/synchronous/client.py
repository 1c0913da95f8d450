"""The client of one service."""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable
from functools import cached_property
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Self

import httpx

from queenright.client.address import token_of, url_of
from queenright.client.synchronous.transport import Transport

if TYPE_CHECKING:
    from queenright.client.synchronous.agents import Agents
    from queenright.client.synchronous.audit import Audit
    from queenright.client.synchronous.breakers import Breakers
    from queenright.client.synchronous.decisions import (
        Approvals,
        Escalations,
        Interventions,
        Permissions,
    )
    from queenright.client.synchronous.events import Events
    from queenright.client.synchronous.recoveries import Recoveries
    from queenright.client.synchronous.service import Service
    from queenright.client.synchronous.silences import Silences
    from queenright.client.synchronous.tickets import Tickets


def _new_id() -> str:
    return str(uuid.uuid4())


class Queenright:
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
        transport: httpx.BaseTransport | None = None,
        ids: Callable[[], str] = _new_id,
        sleep: Callable[[float], object] = time.sleep,
    ) -> None:
        self._ask = Transport(
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

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Give up its connections."""
        self._ask.close()

    # Each is imported when it is asked for: a command has to do with one of them, and starts sooner.

    @cached_property
    def agents(self) -> Agents:
        """Workers, and agents that run inside the service."""
        from queenright.client.synchronous.agents import Agents

        return Agents(self._ask)

    @cached_property
    def tickets(self) -> Tickets:
        """What the judge found, and what becomes of it."""
        from queenright.client.synchronous.tickets import Tickets

        return Tickets(self._ask)

    @cached_property
    def breakers(self) -> Breakers:
        """Circuit breakers."""
        from queenright.client.synchronous.breakers import Breakers

        return Breakers(self._ask)

    @cached_property
    def recoveries(self) -> Recoveries:
        """Tasks that are brought back."""
        from queenright.client.synchronous.recoveries import Recoveries

        return Recoveries(self._ask)

    @cached_property
    def interventions(self) -> Interventions:
        """What was done to workers."""
        from queenright.client.synchronous.decisions import Interventions

        return Interventions(self._ask)

    @cached_property
    def escalations(self) -> Escalations:
        """Questions to the orchestrator."""
        from queenright.client.synchronous.decisions import Escalations

        return Escalations(self._ask)

    @cached_property
    def approvals(self) -> Approvals:
        """What waits for somebody to allow it."""
        from queenright.client.synchronous.decisions import Approvals

        return Approvals(self._ask)

    @cached_property
    def permissions(self) -> Permissions:
        """What coding agents ask permission for."""
        from queenright.client.synchronous.decisions import Permissions

        return Permissions(self._ask)

    @cached_property
    def silences(self) -> Silences:
        """What nobody is told about for a while."""
        from queenright.client.synchronous.silences import Silences

        return Silences(self._ask)

    @cached_property
    def events(self) -> Events:
        """The event stream."""
        from queenright.client.synchronous.events import Events

        return Events(self._ask, self._sleep)

    @cached_property
    def audit(self) -> Audit:
        """The event log, to be looked up."""
        from queenright.client.synchronous.audit import Audit

        return Audit(self._ask)

    @cached_property
    def service(self) -> Service:
        """The service itself."""
        from queenright.client.synchronous.service import Service

        return Service(self._ask)
