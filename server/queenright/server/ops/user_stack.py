"""Clients of the user's Prometheus and Tempo, which the judge and the queen may query."""

from __future__ import annotations

from queenright.health.store.store import Store
from queenright.judge.settings import JudgeSettings
from queenright.judge.stack.event_traces import EventTraces
from queenright.judge.stack.http import StackAddress
from queenright.judge.stack.prometheus import Prometheus
from queenright.judge.stack.tempo import Tempo
from queenright.judge.stack.tools import stack_tools
from queenright.runtime.events import Clock
from queenright.runtime.tooling.tools import Tool
from queenright.server.ops.secret_files import read_stack_tokens


class UserStack:
    """
    Clients of the user's Prometheus and Tempo. Without Tempo, traces come from the event log.

    Args:
        settings: URLs and token files.
        store: The store of the event log.
        clock: Seconds since the epoch.

    Raises:
        InvalidSecretError: A token file cannot be used.
    """

    def __init__(self, settings: JudgeSettings, store: Store, clock: Clock) -> None:
        prometheus_token, tempo_token = read_stack_tokens(settings)
        self._prometheus: Prometheus | None = None
        self._tempo: Tempo | None = None
        if settings.prometheus_url is not None:
            url = settings.prometheus_url.get_secret_value()
            self._prometheus = Prometheus(StackAddress.parse(url, prometheus_token))
        if settings.tempo_url is not None:
            url = settings.tempo_url.get_secret_value()
            self._tempo = Tempo(StackAddress.parse(url, tempo_token))
        self.tools: list[Tool] = stack_tools(
            prometheus=self._prometheus, traces=self._tempo or EventTraces(store), clock=clock
        )
        """``query_metrics`` if a Prometheus is configured, and ``get_trace``."""

    async def aclose(self) -> None:
        """Close the connections."""
        for client in (self._prometheus, self._tempo):
            if client is not None:
                await client.aclose()
