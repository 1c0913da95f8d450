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

from queenright.client.address import resolve_token, resolve_url
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
        transport: httpx.BaseTransport | None = None,
        ids: Callable[[], str] = _new_id,
        sleep: Callable[[float], object] = time.sleep,
    ) -> None:
        self._transport = Transport(
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

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Close the connections."""
        self._transport.close()

    # Each is imported on first use: a command needs only one of them and starts faster.

    @cached_property
    def agents(self) -> Agents:
        """Workers, and agents that run inside the service."""
        from queenright.client.synchronous.agents import Agents

        return Agents(self._transport)

    @cached_property
    def tickets(self) -> Tickets:
        """Tickets about workers."""
        from queenright.client.synchronous.tickets import Tickets

        return Tickets(self._transport)

    @cached_property
    def breakers(self) -> Breakers:
        """Circuit breakers."""
        from queenright.client.synchronous.breakers import Breakers

        return Breakers(self._transport)

    @cached_property
    def recoveries(self) -> Recoveries:
        """Recoveries of tasks."""
        from queenright.client.synchronous.recoveries import Recoveries

        return Recoveries(self._transport)

    @cached_property
    def interventions(self) -> Interventions:
        """Interventions on workers."""
        from queenright.client.synchronous.decisions import Interventions

        return Interventions(self._transport)

    @cached_property
    def escalations(self) -> Escalations:
        """Escalations to the orchestrator."""
        from queenright.client.synchronous.decisions import Escalations

        return Escalations(self._transport)

    @cached_property
    def approvals(self) -> Approvals:
        """Requests of the queen to terminate a worker."""
        from queenright.client.synchronous.decisions import Approvals

        return Approvals(self._transport)

    @cached_property
    def permissions(self) -> Permissions:
        """Permission requests of coding agents."""
        from queenright.client.synchronous.decisions import Permissions

        return Permissions(self._transport)

    @cached_property
    def silences(self) -> Silences:
        """Silences at Alertmanager."""
        from queenright.client.synchronous.silences import Silences

        return Silences(self._transport)

    @cached_property
    def events(self) -> Events:
        """The event stream."""
        from queenright.client.synchronous.events import Events

        return Events(self._transport, self._sleep)

    @cached_property
    def audit(self) -> Audit:
        """The event log."""
        from queenright.client.synchronous.audit import Audit

        return Audit(self._transport)

    @cached_property
    def service(self) -> Service:
        """The service itself."""
        from queenright.client.synchronous.service import Service

        return Service(self._transport)
