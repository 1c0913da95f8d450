"""
Permissions: requests of coding agents that wait for an answer given here.

A request lives as long as the hook call that brought it, so it is kept in memory only; each answer is an
intervention, which is on the disk before it is handed over.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Final, Protocol

from queenright.health.interventions.permission_request import (
    Answered,
    PermissionAnswer,
    PermissionRequest,
)
from queenright.health.interventions.permit import ActionRefusedError
from queenright.health.interventions.record import Intervention
from queenright.health.interventions.target import ActionKind, Target
from queenright.instrumentation.durations import format_duration
from queenright.instrumentation.errors import QueenrightError
from queenright.instrumentation.identity import new_id
from queenright.instrumentation.redaction import redact
from queenright.runtime.deadline import Sleep
from queenright.runtime.events import Clock

MAX_OPEN: Final = 1_000
"""More requests than these are left to the person at the terminal at once."""
MAX_OVER: Final = 1_000
"""Requests that are over and still known, so that a late answer is told what became of them."""

_TERMINAL: Final = "the person at the terminal is asked"
_WENT_ON: Final = "the agent has gone on: its person has answered at the terminal"


class PermissionNotFoundError(QueenrightError):
    """Raised for an answer to a permission request that is not known."""

    def __init__(self, request_id: str) -> None:
        super().__init__(
            f"there is no permission request {request_id[:64]!r}; queenright permissions shows what waits"
        )


class Deliver(Protocol):
    """Writes an answer down and hands it over: ``InterventionService.answer_permission``."""

    def __call__(
        self,
        request: PermissionRequest,
        decision: Answered,
        *,
        by: str,
        reason: str,
        unless: Callable[[], str | None],
        deliver: Callable[[], None],
    ) -> Awaitable[Intervention]:
        """Answer a request."""
        ...


@dataclass(slots=True)
class _Open:
    request: PermissionRequest
    answer: asyncio.Future[PermissionAnswer | None]
    is_asked: Callable[[], bool]


class Permissions:
    """
    The permission requests that wait for an answer. Belongs to one event loop.

    Args:
        wait_seconds: How long each waits; 0: none does.
        answer: Writes an answer down and hands it over.
        clock: Seconds since the epoch.
        sleep: Waits on that clock.
        ids: Makes ids.
    """

    def __init__(
        self,
        wait_seconds: float,
        *,
        answer: Deliver,
        clock: Clock,
        sleep: Sleep = asyncio.sleep,
        ids: Callable[[], str] = new_id,
    ) -> None:
        self.wait_seconds = wait_seconds
        self._answer = answer
        self._clock = clock
        self._sleep = sleep
        self._ids = ids
        self._open: dict[str, _Open] = {}
        self._over: dict[str, tuple[PermissionRequest, str]] = {}
        self._is_closed = False

    @property
    def takes_more(self) -> bool:
        """Whether a request would wait now."""
        return self.wait_seconds > 0 and len(self._open) < MAX_OPEN and not self._is_closed

    def open_requests(self) -> list[PermissionRequest]:
        """Return what waits for an answer, newest first."""
        return sorted((one.request for one in self._open.values() if one.is_asked()), key=_newest_first)

    def release_answered(self) -> None:
        """Let go of the requests that the person at the terminal has answered meanwhile."""
        for one in self._open.values():
            if not one.answer.done() and not one.is_asked():
                one.answer.set_result(None)

    async def wait(
        self, target: Target, *, tool: str, question: str, is_asked: Callable[[], bool] = lambda: True
    ) -> PermissionAnswer | None:
        """
        Wait for the answer to one request; None: the person at the terminal is to be asked, or has answered.

        To be cancelled once its client does not wait any more.

        Args:
            target: Who asks.
            tool: What it asks about.
            question: What it wants to do, secrets masked.
            is_asked: Says whether the agent still waits for its person; it may be asked at the terminal, too.
        """
        if not self.takes_more:
            return None
        now = self._clock()
        request = PermissionRequest(
            request_id=self._ids(),
            agent_id=target.agent_id,
            session_id=target.session_id,
            incarnation_id=target.incarnation_id,
            tool=tool,
            question=question,
            asked_at=now,
            expires_at=now + self.wait_seconds,
        )
        answer: asyncio.Future[PermissionAnswer | None] = asyncio.get_running_loop().create_future()
        self._open[request.request_id] = _Open(request, answer, is_asked)
        timer = asyncio.ensure_future(self._sleep(self.wait_seconds))
        became = f"it is over since its client waits no longer: {_TERMINAL}, or it has ended"
        try:
            await asyncio.wait((answer, timer), return_when=asyncio.FIRST_COMPLETED)
            given = answer.result() if answer.done() else None
            if given is not None:
                became = f"it is answered already: {given.decision} by {given.by}"
            elif not is_asked():
                became = _WENT_ON
            else:
                after = format_duration(self.wait_seconds)
                became = f"it is over since nobody answered within {after}: {_TERMINAL}"
            return given
        finally:
            timer.cancel()
            self._finish(request, became)

    def _finish(self, request: PermissionRequest, became: str) -> None:
        del self._open[request.request_id]
        while len(self._over) >= MAX_OVER:
            del self._over[next(iter(self._over))]
        self._over[request.request_id] = (request, became)

    async def answer(self, request_id: str, decision: Answered, *, by: str, reason: str = "") -> Intervention:
        """
        Answer one request, for the life of the worker that asked; once.

        Raises:
            PermissionNotFoundError: There is none of this id.
            AgentNotFoundError: Its worker is not known any more.
            ActionRefusedError: The answer comes too late, or nothing may be done now.
            StoreError: It could not be written down; nothing was answered.
        """
        request, _ = self.find(request_id)

        def hand_over() -> None:
            if (too_late := self.find(request_id)[1]) is not None:
                raise ActionRefusedError(ActionKind.ANSWER, request.agent_id, too_late)
            self._open[request_id].answer.set_result(
                PermissionAnswer(decision=decision, by=redact(by, 100), reason=redact(reason, 2000))
            )

        return await self._answer(
            request,
            decision,
            by=by,
            reason=reason,
            unless=lambda: self.find(request_id)[1],
            deliver=hand_over,
        )

    def find(self, request_id: str) -> tuple[PermissionRequest, str | None]:
        """
        Return a request, and why an answer to it comes too late; None while it waits for one.

        Raises:
            PermissionNotFoundError: There is none of this id.
        """
        known = self._open.get(request_id)
        if known is not None and not known.answer.done():
            return known.request, None if known.is_asked() else f"the answer comes too late; {_WENT_ON}"
        if known is not None:
            return known.request, "the answer comes too late; it is answered already"
        if request_id not in self._over:
            raise PermissionNotFoundError(request_id)
        request, became = self._over[request_id]
        return request, f"the answer comes too late; {became}"

    def close(self) -> None:
        """Leave every request to the person at the terminal: the service stops."""
        self._is_closed = True
        for one in self._open.values():
            if not one.answer.done():
                one.answer.set_result(None)


def _newest_first(request: PermissionRequest) -> tuple[float, str]:
    return -request.asked_at, request.request_id
