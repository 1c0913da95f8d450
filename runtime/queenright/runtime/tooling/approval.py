"""Approval of tool calls: a callback that decides before each tool runs."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from queenright.instrumentation.redaction import mask_traceback
from queenright.runtime.tooling.tools import ToolError

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class ApprovalRequest:
    """A tool call that awaits approval."""

    tool: str
    arguments: str
    """As written by the model: JSON text, possibly malformed."""
    call_id: str
    graph_id: str
    node_id: str
    session_id: str
    agent_id: str


ApprovalCallback = Callable[[ApprovalRequest], bool | Awaitable[bool]]
"""Returns whether a call may be made. It may take any time, and is called for one call at a time."""


class NotApprovedError(ToolError):
    """Raised instead of a tool call that was not approved."""


class ApprovalGate:
    """Asks a callback for approval of tool calls, one at a time; without a callback, all are approved."""

    def __init__(self) -> None:
        self.callback: ApprovalCallback | None = None
        self._lock = asyncio.Lock()

    async def check(self, request: ApprovalRequest) -> None:
        """
        Return if a call is approved.

        Raises:
            NotApprovedError: The call is not approved, or the callback failed.
        """
        async with self._lock:
            callback = self.callback
            if callback is None:
                return
            try:
                answer = callback(request)
                is_approved = answer if isinstance(answer, bool) else await answer
            except Exception as error:
                _log.error("the approval callback failed: %s", mask_traceback(error))
                raise NotApprovedError("the approval callback failed") from error
        if is_approved is not True:
            raise NotApprovedError("it was not approved")
