"""What was done to workers, and what waits for a word: interventions, escalations, approvals."""

from __future__ import annotations

from collections.abc import AsyncIterator

from queenright import api
from queenright.client.address import path
from queenright.client.answers import body
from queenright.client.asynchronous.group import AsyncGroup


class AsyncInterventions(AsyncGroup):
    """What was done to workers, refused, or would have been done."""

    def list(
        self,
        *,
        agent_id: str | None = None,
        kind: str | None = None,
        outcome: str | None = None,
        limit: int | None = None,
    ) -> AsyncIterator[api.Intervention]:
        """Yield interventions, newest first."""
        return self._ask.every(
            api.Intervention,
            "/api/interventions",
            "interventions",
            limit,
            agent_id=agent_id,
            kind=kind,
            outcome=outcome,
        )


class AsyncEscalations(AsyncGroup):
    """Questions to the orchestrator, and their answers."""

    def list(
        self, *, only_open: bool | None = None, limit: int | None = None
    ) -> AsyncIterator[api.Escalation]:
        """Yield escalations, newest first; with ``only_open`` those without an answer."""
        asked = {"open": only_open}
        return self._ask.every(api.Escalation, "/api/escalations", "escalations", limit, **asked)

    async def decide(
        self,
        escalation_id: str,
        decision: str,
        *,
        reason: str | None = None,
        more_time_seconds: float | None = None,
        by: str | None = None,
    ) -> api.Escalation:
        """Answer one: ``more_time``, ``hand_off`` or ``terminate``."""
        sent = body(decision=decision, reason=reason, more_time_seconds=more_time_seconds, by=by)
        return await self._ask.acted(
            api.Escalation, path("api", "escalations", escalation_id, "decision"), sent
        )


class AsyncApprovals(AsyncGroup):
    """The queen's requests to stop a worker."""

    def list(self, *, only_open: bool | None = None, limit: int | None = None) -> AsyncIterator[api.Approval]:
        """Yield requests, newest first; with ``only_open`` those that are not over."""
        asked = {"open": only_open}
        return self._ask.every(api.Approval, "/api/approvals", "approvals", limit, **asked)

    async def approve(
        self, approval_id: str, *, by: str | None = None, reason: str | None = None
    ) -> api.Approval:
        """Stop the worker, if everything still holds."""
        sent = body(by=by, reason=reason)
        return await self._ask.acted(api.Approval, path("api", "approvals", approval_id, "approve"), sent)

    async def deny(
        self, approval_id: str, *, by: str | None = None, reason: str | None = None
    ) -> api.Approval:
        """Leave the worker alone."""
        sent = body(by=by, reason=reason)
        return await self._ask.acted(api.Approval, path("api", "approvals", approval_id, "deny"), sent)


class AsyncPermissions(AsyncGroup):
    """What coding agents ask permission for."""

    def list(
        self, *, agent_id: str | None = None, limit: int | None = None
    ) -> AsyncIterator[api.PermissionRequest]:
        """Yield the requests that wait for an answer, newest first."""
        return self._ask.every(
            api.PermissionRequest, "/api/permissions", "permissions", limit, agent_id=agent_id
        )

    async def answer(
        self, request_id: str, decision: str, *, by: str | None = None, reason: str | None = None
    ) -> api.PermissionResult:
        """Answer one: ``allow`` or ``deny``."""
        sent = body(decision=decision, by=by, reason=reason)
        where = path("api", "permissions", request_id, "answer")
        return await self._ask.acted(api.PermissionResult, where, sent)
