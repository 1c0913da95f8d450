"""A client for the query API of Tempo. It gets a trace by id, and the newest trace of an agent."""

from __future__ import annotations

import json
from typing import Final

from queenright.instrumentation import names
from queenright.judge.stack.http import InvalidQueryError, StackClient, StackUnavailableError
from queenright.judge.stack.traces import TraceSpan, read_otlp, to_hexadecimal

_SEARCH_LIMIT: Final = 20


class Tempo(StackClient):
    """A Tempo server."""

    async def trace(self, trace_id: str) -> list[TraceSpan]:
        """
        Return the spans of a trace, oldest first. The list is empty if Tempo has no such trace.

        Raises:
            StackError: There is no valid answer.
        """
        try:
            answer = await self.get(f"/api/traces/{trace_id}", {})
        except InvalidQueryError as error:
            if error.reason.startswith("404"):
                return []
            raise
        try:
            return read_otlp(answer)
        except ValueError:
            raise StackUnavailableError(self.name, "the response is not a trace; check the address") from None

    async def newest(self, agent: str, start: float, end: float) -> str:
        """
        Return the hexadecimal id of an agent's newest trace, or an empty string if there is none.

        Raises:
            StackError: There is no valid answer.
        """
        # TraceQL quotes strings like Go, which is the same as in JSON for the characters of agent names.
        query = f"{{ span.{names.GEN_AI_AGENT_NAME} = {json.dumps(agent, ensure_ascii=False)} }}"
        params = {"q": query, "start": str(int(start)), "end": str(int(end) + 1), "limit": str(_SEARCH_LIMIT)}
        answer = await self.get("/api/search", params)
        try:
            traces = [
                (int(row.get("startTimeUnixNano") or 0), str(row["traceID"]))
                for row in answer.get("traces") or ()
            ]
        except (AttributeError, KeyError, TypeError, ValueError):
            raise StackUnavailableError(self.name, "the response is not a list of traces") from None
        if not traces:
            return ""
        # Search results omit the leading zeros of ids.
        newest = max(traces)[1]
        return newest.lower().zfill(32) if len(newest) <= 32 else to_hexadecimal(newest)
