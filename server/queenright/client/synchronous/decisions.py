"""Interventions, escalations, approvals and permission requests."""

from __future__ import annotations

from collections.abc import Iterator

from queenright import api
from queenright.client.address import build_path
from queenright.client.responses import json_body
from queenright.client.synchronous.resource import Resource


class Interventions(Resource):
    """Interventions on workers: done, refused, or logged by a dry run."""

    def list(
        self,
        *,
        agent_id: str | None = None,
        kind: str | None = None,
        outcome: str | None = None,
        limit: int | None = None,
    ) -> Iterator[api.Intervention]:
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


class Escalations(Resource):
    """Escalations to the orchestrator, and their decisions."""

    def list(self, *, only_open: bool | None = None, limit: int | None = None) -> Iterator[api.Escalation]:
        """Yield escalations, newest first; with ``only_open``, those without a decision."""
        params = {"open": only_open}
        return self._transport.list_models(api.Escalation, "/api/escalations", "escalations", limit, **params)

    def decide(
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
        return self._transport.send_for_model(
            api.Escalation, build_path("api", "escalations", escalation_id, "decision"), body
        )


class Approvals(Resource):
    """Requests of the queen to terminate a worker."""

    def list(self, *, only_open: bool | None = None, limit: int | None = None) -> Iterator[api.Approval]:
        """Yield requests, newest first; with ``only_open``, the pending ones."""
        params = {"open": only_open}
        return self._transport.list_models(api.Approval, "/api/approvals", "approvals", limit, **params)

    def approve(self, approval_id: str, *, by: str | None = None, reason: str | None = None) -> api.Approval:
        """Approve a request: terminate the worker if the request is still valid."""
        body = json_body(by=by, reason=reason)
        return self._transport.send_for_model(
            api.Approval, build_path("api", "approvals", approval_id, "approve"), body
        )

    def deny(self, approval_id: str, *, by: str | None = None, reason: str | None = None) -> api.Approval:
        """Deny a request; the worker keeps running."""
        body = json_body(by=by, reason=reason)
        return self._transport.send_for_model(
            api.Approval, build_path("api", "approvals", approval_id, "deny"), body
        )


class Permissions(Resource):
    """Permission requests of coding agents."""

    def list(
        self, *, agent_id: str | None = None, limit: int | None = None
    ) -> Iterator[api.PermissionRequest]:
        """Yield pending requests, newest first."""
        return self._transport.list_models(
            api.PermissionRequest, "/api/permissions", "permissions", limit, agent_id=agent_id
        )

    def answer(
        self, request_id: str, decision: str, *, by: str | None = None, reason: str | None = None
    ) -> api.PermissionResult:
        """Answer a request: ``allow`` or ``deny``."""
        body = json_body(decision=decision, by=by, reason=reason)
        url_path = build_path("api", "permissions", request_id, "answer")
        return self._transport.send_for_model(api.PermissionResult, url_path, body)
