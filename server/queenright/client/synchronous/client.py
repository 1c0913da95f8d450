"""The client of one service."""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from typing import Self

import httpx

from queenright.client.address import token_of, url_of
from queenright.client.synchronous.agents import Agents
from queenright.client.synchronous.audit import Audit
from queenright.client.synchronous.breakers import Breakers
from queenright.client.synchronous.decisions import Approvals, Escalations, Interventions
from queenright.client.synchronous.events import Events
from queenright.client.synchronous.recoveries import Recoveries
from queenright.client.synchronous.service import Service
from queenright.client.synchronous.silences import Silences
from queenright.client.synchronous.tickets import Tickets
from queenright.client.synchronous.transport import Transport


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
        Misaddressed: The URL is none, or the token cannot be read.
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
        ask = Transport(
            url_of(url),
            token_of(token, file=token_file),
            timeout=timeout,
            transport=transport,
            ids=ids,
        )
        self._ask = ask
        self.agents = Agents(ask)
        self.tickets = Tickets(ask)
        self.breakers = Breakers(ask)
        self.recoveries = Recoveries(ask)
        self.interventions = Interventions(ask)
        self.escalations = Escalations(ask)
        self.approvals = Approvals(ask)
        self.silences = Silences(ask)
        self.events = Events(ask, sleep)
        self.audit = Audit(ask)
        self.service = Service(ask)

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
