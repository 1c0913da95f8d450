"""
Permissions: permission requests of coding agents that wait for an answer.

A request lives only as long as its hook call, so it is kept in memory. Each answer is an intervention, which
is durable before the agent gets it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Final, Literal

from queenright.health.action_kind import ActionKind
from queenright.health.interventions.intervention import Intervention
from queenright.health.interventions.permit import ActionRefusedError
from queenright.health.interventions.target import Target
from queenright.instrumentation.durations import format_duration
from queenright.instrumentation.errors import NotFoundError
from queenright.instrumentation.identity import new_id
from queenright.instrumentation.redaction import redact
from queenright.runtime.deadline import Sleep
from queenright.runtime.events import Clock

PermissionDecision = Literal["allow", "deny"]
ANSWERS: Final[tuple[PermissionDecision, ...]] = ("allow", "deny")

MAX_OPEN: Final = 1_000
"""The maximum number of open requests. Further requests are left to the coding agent's own prompt."""
MAX_CLOSED: Final = 1_000
"""The maximum number of closed requests that are kept to explain why an answer is late."""

_TERMINAL: Final = "the person at the terminal is asked"
_AGENT_CONTINUED: Final = "the agent has continued: its user answered at the terminal"


@dataclass(frozen=True, slots=True, kw_only=True)
class PermissionRequest:
    """A permission request of one incarnation of a worker. Times are seconds since the epoch."""

    request_id: str
    agent_id: str
    session_id: str
    incarnation_id: str
    tool: str
    question: str
    """The action to allow, with secrets masked."""
    asked_at: float
    expires_at: float
    """The deadline for an answer. After it, the coding agent's own prompt asks."""

    @property
    def target(self) -> Target:
        """The worker that sent the request."""
        return Target(self.agent_id, self.session_id, self.incarnation_id)


@dataclass(frozen=True, slots=True, kw_only=True)
class PermissionAnswer:
    """A person's answer to a permission request."""

    decision: PermissionDecision
    by: str
    reason: str = ""


class PermissionNotFoundError(NotFoundError):
    """Raised when an unknown permission request is answered."""

    def __init__(self, request_id: str) -> None:
        super().__init__(
            f"there is no permission request {request_id[:64]!r}; list them: queenright permissions"
        )


RecordAnswer = Callable[..., Awaitable[Intervention]]
"""Records an answer, then delivers it: ``InterventionService.answer_permission``."""


@dataclass(slots=True)
class _OpenRequest:
    request: PermissionRequest
    answer: asyncio.Future[PermissionAnswer | None]
    is_pending: Callable[[], bool]


class Permissions:
    """
    The open permission requests. It belongs to one event loop.

    Args:
        wait_seconds: The seconds that each request waits; 0 turns waiting off.
    """

    def __init__(
        self,
        wait_seconds: float,
        *,
        answer: RecordAnswer,
        clock: Clock,
        sleep: Sleep = asyncio.sleep,
        ids: Callable[[], str] = new_id,
    ) -> None:
        self.wait_seconds = wait_seconds
        self._answer = answer
        self._clock = clock
        self._sleep = sleep
        self._ids = ids
        self._open: dict[str, _OpenRequest] = {}
        self._closures: dict[str, tuple[PermissionRequest, str]] = {}
        self._is_closed = False

    @property
    def has_capacity(self) -> bool:
        """Whether another request can wait for an answer."""
        return self.wait_seconds > 0 and len(self._open) < MAX_OPEN and not self._is_closed

    def open_requests(self) -> list[PermissionRequest]:
        """Return open requests, newest first."""
        pending = (entry.request for entry in self._open.values() if entry.is_pending())
        return sorted(pending, key=_sort_newest_first)

    def known_requests(self) -> list[PermissionRequest]:
        """Return the requests that ``find`` can return: open ones, and the last that closed."""
        closed = [request for request, _ in self._closures.values()]
        return [*(entry.request for entry in self._open.values()), *closed]

    def release_answered(self) -> None:
        """Release requests that were answered at the terminal in the meantime."""
        for entry in self._open.values():
            if not entry.answer.done() and not entry.is_pending():
                entry.answer.set_result(None)

    async def wait(
        self, target: Target, *, tool: str, question: str, is_pending: Callable[[], bool] = lambda: True
    ) -> PermissionAnswer | None:
        """
        Open a request and wait for its answer. Return None if the terminal answers instead.

        Cancel the call when its client no longer waits.

        Args:
            target: The worker that sends the request.
            question: The action to allow, with secrets masked.
            is_pending: Returns whether the agent still waits. Its user may also answer at the terminal.
        """
        if not self.has_capacity:
            return None
        now = self._clock()
        request = PermissionRequest(
            request_id=self._ids(),
            **target._asdict(),
            tool=tool,
            question=question,
            asked_at=now,
            expires_at=now + self.wait_seconds,
        )
        answer: asyncio.Future[PermissionAnswer | None] = asyncio.get_running_loop().create_future()
        self._open[request.request_id] = _OpenRequest(request, answer, is_pending)
        timer = asyncio.ensure_future(self._sleep(self.wait_seconds))
        why_closed = f"its client no longer waits: {_TERMINAL}, or it has ended"
        try:
            await asyncio.wait((answer, timer), return_when=asyncio.FIRST_COMPLETED)
            reply = answer.result() if answer.done() else None
            if reply is not None:
                why_closed = f"it was answered already: {reply.decision} by {reply.by}"
            elif not is_pending():
                why_closed = _AGENT_CONTINUED
            else:
                after = format_duration(self.wait_seconds)
                why_closed = f"nobody answered within {after}: {_TERMINAL}"
            return reply
        finally:
            timer.cancel()
            self._close_request(request, why_closed)

    def _close_request(self, request: PermissionRequest, why_closed: str) -> None:
        del self._open[request.request_id]
        while len(self._closures) >= MAX_CLOSED:
            del self._closures[next(iter(self._closures))]
        self._closures[request.request_id] = (request, why_closed)

    async def answer(
        self, request_id: str, decision: PermissionDecision, *, by: str, reason: str = ""
    ) -> Intervention:
        """
        Answer a request once, for the incarnation of the worker that sent it.

        Raises:
            PermissionNotFoundError: There is no request with this id.
            AgentNotFoundError: The worker of the request is unknown.
            ActionRefusedError: The answer comes too late, or no action is allowed now.
            StoreError: Recording failed, so nothing was answered.
        """
        request, _ = self.find(request_id)

        def deliver() -> None:
            if (objection := self.find(request_id)[1]) is not None:
                raise ActionRefusedError(ActionKind.ANSWER, request.agent_id, objection)
            self._open[request_id].answer.set_result(
                PermissionAnswer(decision=decision, by=redact(by, 100), reason=redact(reason, 2000))
            )

        return await self._answer(
            request,
            decision,
            by=by,
            reason=reason,
            unless=lambda: self.find(request_id)[1],
            deliver=deliver,
        )

    def find(self, request_id: str) -> tuple[PermissionRequest, str | None]:
        """
        Return a request, and why an answer would come too late, or None while the request is open.

        Raises:
            PermissionNotFoundError: There is no request with this id.
        """
        entry = self._open.get(request_id)
        if entry is not None and not entry.answer.done():
            return (
                entry.request,
                None if entry.is_pending() else f"the answer comes too late; {_AGENT_CONTINUED}",
            )
        if entry is not None:
            return entry.request, "the answer comes too late; it was answered already"
        if request_id not in self._closures:
            raise PermissionNotFoundError(request_id)
        request, why_closed = self._closures[request_id]
        return request, f"the answer comes too late; {why_closed}"

    def close(self) -> None:
        """Leave every open request to the terminal."""
        self._is_closed = True
        for entry in self._open.values():
            if not entry.answer.done():
                entry.answer.set_result(None)


def _sort_newest_first(request: PermissionRequest) -> tuple[float, str]:
    return -request.asked_at, request.request_id
