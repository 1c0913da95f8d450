"""Tempo's query API: a trace by its id, and the newest trace of an agent."""

from __future__ import annotations

import json
from typing import Final

from queenright.instrumentation import names
from queenright.judge.stack.http import (
    TIMEOUT_SECONDS,
    InvalidQueryError,
    StackAddress,
    StackClient,
    StackUnavailableError,
)
from queenright.judge.stack.traces import TraceSpan, hexadecimal, read_otlp

_NEWEST: Final = 20


class Tempo:
    """
    One Tempo.

    Args:
        address: Its base URL.
        timeout: Seconds that one answer may take.
    """

    def __init__(self, address: StackAddress, *, timeout: float = TIMEOUT_SECONDS) -> None:
        self._client = StackClient(address, timeout=timeout)

    @property
    def name(self) -> str:
        """Its address without credentials."""
        return self._client.address.name

    async def trace(self, trace_id: str) -> list[TraceSpan]:
        """
        Return the spans of a trace, oldest first; none if Tempo has no such trace.

        Raises:
            StackError: There is no answer.
        """
        try:
            answer = await self._client.get(f"/api/traces/{trace_id}", {})
        except InvalidQueryError as refusal:
            if refusal.reason.startswith("404"):
                return []
            raise
        try:
            return read_otlp(answer)
        except ValueError:
            raise StackUnavailableError(self.name, "its answer is no trace; is the address right?") from None

    async def newest(self, agent: str, start: float, end: float) -> str:
        """
        Return the id of the trace of ``agent`` that began last, in hexadecimal; empty if there is none.

        Args:
            agent: Its name, as in ``gen_ai.agent.name``.
            start: Not before, in seconds since the epoch.
            end: Not after.

        Raises:
            StackError: There is no answer.
        """
        # A TraceQL string is quoted like one of Go, and so, in what agents' names are made of, like JSON.
        query = f"{{ span.{names.GEN_AI_AGENT_NAME} = {json.dumps(agent, ensure_ascii=False)} }}"
        params = {"q": query, "start": str(int(start)), "end": str(int(end) + 1), "limit": str(_NEWEST)}
        answer = await self._client.get("/api/search", params)
        try:
            found = [
                (int(row.get("startTimeUnixNano") or 0), str(row["traceID"]))
                for row in answer.get("traces") or ()
            ]
        except (AttributeError, KeyError, TypeError, ValueError):
            raise StackUnavailableError(self.name, "its answer is no list of traces") from None
        if not found:
            return ""
        # Leading zeros are left out of the ids in a list.
        newest = max(found)[1]
        return newest.lower().zfill(32) if len(newest) <= 32 else hexadecimal(newest)

    async def aclose(self) -> None:
        """Close the connections."""
        await self._client.aclose()
