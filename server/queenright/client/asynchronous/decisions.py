"""Interventions, escalations, approvals and permission requests."""

from __future__ import annotations

from collections.abc import AsyncIterator

from queenright import api
from queenright.client.address import build_path
from queenright.client.asynchronous.resource import AsyncResource
from queenright.client.responses import json_body


class AsyncInterventions(AsyncResource):
    """Interventions on workers: done, refused, or logged by a dry run."""

    def list(
        self,
        *,
        agent_id: str | None = None,
        kind: str | None = None,
        outcome: str | None = None,
        limit: int | None = None,
    ) -> AsyncIterator[api.Intervention]:
        """Yield interventions, newest first."""
        return self._transport.list_models(
            api.Intervention,
            "/api/interventions",
            "interventions",
            limit,
            agent_id=agent_id,
            kind=kind,
            outcome=outcome,
        )


class AsyncEscalations(AsyncResource):
    """Escalations to the orchestrator, and their decisions."""

    def list(
        self, *, only_open: bool | None = None, limit: int | None = None
    ) -> AsyncIterator[api.Escalation]:
        """Yield escalations, newest first; with ``only_open``, those without a decision."""
        params = {"open": only_open}
        return self._transport.list_models(api.Escalation, "/api/escalations", "escalations", limit, **params)

    async def decide(
        self,
        escalation_id: str,
        decision: str,
        *,
        reason: str | None = None,
        more_time_seconds: float | None = None,
        by: str | None = None,
    ) -> api.Escalation:
        """Decide on an escalation: ``more_time``, ``hand_off`` or ``terminate``."""
        body = json_body(decision=decision, reason=reason, more_time_seconds=more_time_seconds, by=by)
        return await self._transport.send_for_model(
            api.Escalation, build_path("api", "escalations", escalation_id, "decision"), body
        )


class AsyncApprovals(AsyncResource):
    """Requests of the queen to terminate a worker."""

    def list(self, *, only_open: bool | None = None, limit: int | None = None) -> AsyncIterator[api.Approval]:
        """Yield requests, newest first; with ``only_open``, the pending ones."""
        params = {"open": only_open}
        return self._transport.list_models(api.Approval, "/api/approvals", "approvals", limit, **params)

    async def approve(
        self, approval_id: str, *, by: str | None = None, reason: str | None = None
    ) -> api.Approval:
        """Approve a request: terminate the worker if the request is still valid."""
        body = json_body(by=by, reason=reason)
        return await self._transport.send_for_model(
            api.Approval, build_path("api", "approvals", approval_id, "approve"), body
        )

    async def deny(
        self, approval_id: str, *, by: str | None = None, reason: str | None = None
    ) -> api.Approval:
        """Deny a request; the worker keeps running."""
        body = json_body(by=by, reason=reason)
        return await self._transport.send_for_model(
            api.Approval, build_path("api", "approvals", approval_id, "deny"), body
        )


class AsyncPermissions(AsyncResource):
    """Permission requests of coding agents."""

    def list(
        self, *, agent_id: str | None = None, limit: int | None = None
    ) -> AsyncIterator[api.PermissionRequest]:
        """Yield pending requests, newest first."""
        return self._transport.list_models(
            api.PermissionRequest, "/api/permissions", "permissions", limit, agent_id=agent_id
        )

    async def answer(
        self, request_id: str, decision: str, *, by: str | None = None, reason: str | None = None
    ) -> api.PermissionResult:
        """Answer a request: ``allow`` or ``deny``."""
        body = json_body(decision=decision, by=by, reason=reason)
        url_path = build_path("api", "permissions", request_id, "answer")
        return await self._transport.send_for_model(api.PermissionResult, url_path, body)
