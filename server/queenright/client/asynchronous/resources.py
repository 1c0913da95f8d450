"""Tickets, breakers, recoveries, decisions, silences, events, and the service itself."""

from __future__ import annotations

import random
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Sequence

from queenright import api
from queenright.client.address import build_path
from queenright.client.asynchronous.stream import AsyncEventStream
from queenright.client.asynchronous.transport import AsyncResource, AsyncTransport
from queenright.client.notices import Notice, ignore
from queenright.client.responses import parse_json_body, parse_model


class AsyncTickets(AsyncResource):
    """The tickets of a service."""

    def list(
        self,
        *,
        status: str | None = None,
        severity: str | None = None,
        agent_id: str | None = None,
        since: float | None = None,
        limit: int | None = None,
    ) -> AsyncIterator[api.Ticket]:
        """Yield open and closed tickets, newest first; ``since`` is in seconds since the epoch."""
        return self._transport.iterate_items(
            api.Ticket,
            "/api/tickets",
            "tickets",
            limit,
            status=status,
            severity=severity,
            agent_id=agent_id,
            since=since,
        )

    async def incidents(self) -> Sequence[api.Incident]:
        """Return the incidents of the last seven days, newest first."""
        return (await self._transport.get_model(api.Incidents, "/api/incidents")).incidents

    async def get(self, ticket_id: str) -> api.Ticket:
        """Return a ticket."""
        return await self._transport.get_model(api.Ticket, _ticket_path(ticket_id))

    async def acknowledge(
        self, ticket_id: str, *, by: str | None = None, via: str | None = None, note: str | None = None
    ) -> api.Ticket:
        """Acknowledge a ticket: reminders stop."""
        return await self._transport.send_and_parse(
            api.Ticket, _ticket_path(ticket_id, "acknowledge"), parse_json_body(by=by, via=via, note=note)
        )

    async def unacknowledge(
        self, ticket_id: str, *, by: str | None = None, via: str | None = None
    ) -> api.Ticket:
        """Withdraw an acknowledgement: reminders start again."""
        return await self._transport.send_and_parse(
            api.Ticket, _ticket_path(ticket_id, "unacknowledge"), parse_json_body(by=by, via=via)
        )

    async def dismiss(self, ticket_id: str, reason: str, *, by: str | None = None) -> api.Ticket:
        """Dismiss a ticket that is not a problem."""
        return await self._transport.send_and_parse(
            api.Ticket, _ticket_path(ticket_id, "dismiss"), parse_json_body(reason=reason, by=by)
        )

    async def resolve(self, ticket_id: str, reason: str, *, by: str | None = None) -> api.Ticket:
        """Resolve a ticket that a person has dealt with, such as one about a failed recovery."""
        return await self._transport.send_and_parse(
            api.Ticket, _ticket_path(ticket_id, "resolve"), parse_json_body(reason=reason, by=by)
        )

    async def timeline(self, ticket_id: str) -> api.Timeline:
        """Return the timeline of a ticket, oldest first."""
        return await self._transport.get_model(api.Timeline, _ticket_path(ticket_id, "timeline"))

    async def chat(
        self, ticket_id: str, message: str, *, by: str | None = None, act: bool | None = None
    ) -> api.ChatMessage:
        """Send the queen a message about a ticket and return her answer; with ``act``, it is an order."""
        return await self._transport.send_and_parse(
            api.ChatMessage, _ticket_path(ticket_id, "chat"), parse_json_body(message=message, by=by, act=act)
        )

    async def messages(
        self, ticket_id: str, *, after: str | None = None, limit: int | None = None
    ) -> Sequence[api.ChatMessage]:
        """Return the newest messages about a ticket, or those after a message, oldest first."""
        chat = await self._transport.get_model(
            api.ChatMessages, _ticket_path(ticket_id, "chat"), after=after, limit=limit
        )
        return chat.messages


def _ticket_path(ticket_id: str, *parts: str) -> str:
    return build_path("api", "tickets", ticket_id, *parts)


class AsyncBreakers(AsyncResource):
    """The circuit breakers of a service."""

    def list(self, *, only_open: bool | None = None, limit: int | None = None) -> AsyncIterator[api.Breaker]:
        """Yield circuit breakers, ordered by name; with ``only_open``, those that are not closed."""
        params = {"open": only_open}
        return self._transport.iterate_items(api.Breaker, "/api/breakers", "breakers", limit, **params)

    async def get(self, name: str) -> api.Breaker:
        """Return a circuit breaker."""
        return await self._transport.get_model(api.Breaker, build_path("api", "breakers", name))

    async def reset(self, name: str, *, by: str | None = None) -> api.Breaker:
        """Close a circuit breaker; calls go through again."""
        return await self._transport.send_and_parse(
            api.Breaker, build_path("api", "breakers", name, "reset"), parse_json_body(by=by)
        )


class AsyncRecoveries(AsyncResource):
    """The recoveries of a service."""

    def list(self, *, state: str | None = None, limit: int | None = None) -> AsyncIterator[api.Recovery]:
        """Yield recoveries, newest first."""
        return self._transport.iterate_items(
            api.Recovery, "/api/recoveries", "recoveries", limit, state=state
        )

    async def get(self, task_id: str) -> api.RecoveryStatus:
        """Return the recovery status of a task: attempts, limits, current attempt."""
        return await self._transport.get_model(api.RecoveryStatus, build_path("api", "recoveries", task_id))

    async def recover(
        self,
        task_id: str,
        *,
        by: str | None = None,
        reviewed: bool | None = None,
        from_start: bool | None = None,
        session_id: str | None = None,
        incarnation_id: str | None = None,
    ) -> api.RecoveryResult:
        """
        Recover a task.

        ``reviewed``: a person has reviewed the failure, which allows one attempt beyond the limit.
        ``from_start``: without a valid checkpoint, start over and repeat completed work.
        """
        body = parse_json_body(
            task_id=task_id,
            by=by,
            reviewed=reviewed,
            from_start=from_start,
            session_id=session_id,
            incarnation_id=incarnation_id,
        )
        return await self._transport.send_and_parse(api.RecoveryResult, "/api/recoveries", body)


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
        return self._transport.iterate_items(
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
        return self._transport.iterate_items(
            api.Escalation, "/api/escalations", "escalations", limit, **params
        )

    async def decide(
        self,
        escalation_id: str,
        decision: str,
        *,
        reason: str | None = None,
        more_time_seconds: float | None = None,
        by: str | None = None,
        incarnation_id: str | None = None,
    ) -> api.Escalation:
        """Decide on an escalation: ``more_time``, ``hand_off`` or ``terminate``."""
        body = parse_json_body(
            decision=decision,
            reason=reason,
            more_time_seconds=more_time_seconds,
            by=by,
            incarnation_id=incarnation_id,
        )
        return await self._transport.send_and_parse(
            api.Escalation, build_path("api", "escalations", escalation_id, "decision"), body
        )


class AsyncApprovals(AsyncResource):
    """Requests of the queen to terminate a worker."""

    def list(self, *, only_open: bool | None = None, limit: int | None = None) -> AsyncIterator[api.Approval]:
        """Yield requests, newest first; with ``only_open``, the pending ones."""
        params = {"open": only_open}
        return self._transport.iterate_items(api.Approval, "/api/approvals", "approvals", limit, **params)

    async def approve(
        self,
        approval_id: str,
        *,
        by: str | None = None,
        reason: str | None = None,
        incarnation_id: str | None = None,
    ) -> api.Approval:
        """Approve a request: terminate the worker if the request is still valid."""
        body = parse_json_body(by=by, reason=reason, incarnation_id=incarnation_id)
        return await self._transport.send_and_parse(
            api.Approval, build_path("api", "approvals", approval_id, "approve"), body
        )

    async def deny(
        self,
        approval_id: str,
        *,
        by: str | None = None,
        reason: str | None = None,
        incarnation_id: str | None = None,
    ) -> api.Approval:
        """Deny a request; the worker keeps running."""
        body = parse_json_body(by=by, reason=reason, incarnation_id=incarnation_id)
        return await self._transport.send_and_parse(
            api.Approval, build_path("api", "approvals", approval_id, "deny"), body
        )


class AsyncPermissions(AsyncResource):
    """Permission requests of coding agents."""

    def list(
        self, *, agent_id: str | None = None, limit: int | None = None
    ) -> AsyncIterator[api.PermissionRequest]:
        """Yield pending requests, newest first."""
        return self._transport.iterate_items(
            api.PermissionRequest, "/api/permissions", "permissions", limit, agent_id=agent_id
        )

    async def answer(
        self,
        request_id: str,
        decision: str,
        *,
        by: str | None = None,
        reason: str | None = None,
        incarnation_id: str | None = None,
    ) -> api.PermissionResult:
        """Answer a request: ``allow`` or ``deny``."""
        body = parse_json_body(decision=decision, by=by, reason=reason, incarnation_id=incarnation_id)
        url_path = build_path("api", "permissions", request_id, "answer")
        return await self._transport.send_and_parse(api.PermissionResult, url_path, body)


class AsyncSilences(AsyncResource):
    """The silences of a service's Alertmanagers."""

    def list(self) -> AsyncIterator[api.Silence]:
        """Yield active and pending silences, soonest expiry first."""
        return self._transport.iterate_items(api.Silence, "/api/silences", "silences")

    async def snapshot(self) -> api.Silences:
        """Return the silences, and which Alertmanagers did not answer."""
        return await self._transport.get_model(api.Silences, "/api/silences")

    async def add(
        self, ticket_id: str, *, seconds: float, comment: str, by: str | None = None
    ) -> api.SilenceResult:
        """Silence a ticket, and further tickets of its agent with the same cause."""
        body = parse_json_body(ticket_id=ticket_id, seconds=seconds, comment=comment, by=by)
        return await self._transport.send_and_parse(api.SilenceResult, "/api/silences", body)

    async def remove(self, silence_id: str) -> None:
        """End a silence now."""
        await self._transport.send(build_path("api", "silences", silence_id), method="DELETE")


class AsyncAudit(AsyncResource):
    """The event log of a service."""

    def list(
        self,
        *,
        types: Iterable[str] = (),
        agent_id: str | None = None,
        since: float | None = None,
        until: float | None = None,
        limit: int | None = None,
    ) -> AsyncIterator[api.AuditedEvent]:
        """
        Yield events of the log, newest first.

        Args:
            types: Event types. Default: all.
            agent_id: Only events of this worker.
            since: Start, in seconds since the epoch.
            until: End, in seconds since the epoch.
            limit: Maximum number. Default: no limit.
        """
        return self._transport.iterate_items(
            api.AuditedEvent,
            "/api/audit",
            "events",
            limit,
            type=tuple(types) or None,
            agent_id=agent_id,
            since=since,
            until=until,
        )


class AsyncEvents(AsyncResource):
    """The events of a service; ``sleep`` waits between two attempts to connect."""

    def __init__(self, transport: AsyncTransport, sleep: Callable[[float], Awaitable[object]]) -> None:
        super().__init__(transport)
        self._sleep = sleep

    def stream(
        self,
        *,
        types: Iterable[str] | str | None = None,
        agent_id: str | None = None,
        last_event_id: str | None = None,
        wait: bool = False,
        on_notice: Callable[[Notice], None] = ignore,
    ) -> AsyncEventStream:
        """
        Return an iterator over events from now on. It reconnects after every break.

        Args:
            types: Event types; ``"all"`` for every type. Default: chosen by the service.
            agent_id: Only events of this worker, which need not exist yet.
            last_event_id: Start after this event.
            wait: Also wait for a service that does not respond yet.
            on_notice: Called with notices about the stream itself.
        """
        if agent_id is not None:
            build_path(agent_id)  # raises for a blank name, which would select all workers
        type_list = types if types is None or isinstance(types, str) else ",".join(types)
        return AsyncEventStream(
            self._transport,
            "/api/events",
            {"types": type_list, "agent_id": agent_id},
            last_event_id=last_event_id,
            wait=wait,
            on_notice=on_notice,
            sleep=self._sleep,
            jitter=random.random,
        )


class AsyncService(AsyncResource):
    """State of the service, and settings for all workers."""

    async def status(self) -> api.Status:
        """Return the worst workers, the latest events, and interventions in progress."""
        return await self._transport.get_model(api.Status, "/api/status")

    async def attention(
        self, *, agent_id: str | None = None, session_id: str | None = None
    ) -> api.AttentionList:
        """Return the items that need a person, most urgent first."""
        return await self._transport.get_model(
            api.AttentionList, "/api/attention", agent_id=agent_id, session_id=session_id
        )

    async def caller(self) -> api.CurrentCaller:
        """Return the caller's identity and permissions."""
        return await self._transport.get_model(api.CurrentCaller, "/api/caller")

    async def version(self) -> api.Version:
        """Return the version of the service."""
        return await self._transport.get_model(api.Version, "/api/version")

    async def cluster(self) -> api.ClusterStatus:
        """Return the processes of the cluster, and the telemetry that is not stored yet."""
        return await self._transport.get_model(api.ClusterStatus, "/api/cluster")

    async def ready(self) -> api.Ready:
        """Return whether the service is ready, and what is missing."""
        return parse_model(api.Ready, await self._transport.get_json("/readyz", accepted_status=503))

    async def settings(self) -> api.CurrentSettings:
        """Return all settings in force, with secrets masked."""
        return await self._transport.get_model(api.CurrentSettings, "/api/settings")

    async def telemetry(self) -> api.Telemetry:
        """Return the telemetry sources, unused records with reasons, and what senders must configure."""
        return await self._transport.get_model(api.Telemetry, "/api/telemetry")

    async def providers(self) -> Sequence[api.Provider]:
        """Return the status of each model provider, from the fleet's calls of the last ten minutes."""
        return (await self._transport.get_model(api.Providers, "/api/providers")).providers

    async def reload(self) -> api.Reloaded:
        """Reload the settings; returns which changes need a restart."""
        return await self._transport.send_and_parse(api.Reloaded, "/-/reload")

    async def emergency_stop(self) -> api.EmergencyStop:
        """Return the state of the emergency stop."""
        return await self._transport.get_model(api.EmergencyStop, "/api/emergency-stop")

    async def set_emergency_stop(self, on: bool, reason: str, *, by: str | None = None) -> api.EmergencyStop:
        """Set or release the emergency stop."""
        body = parse_json_body(on=on, reason=reason, by=by)
        return await self._transport.send_and_parse(
            api.EmergencyStop, "/api/emergency-stop", body, method="PUT"
        )

    def notifications(self, *, limit: int | None = None) -> AsyncIterator[api.Notification]:
        """Yield the notifications sent to Alertmanager, newest first."""
        return self._transport.iterate_items(api.Notification, "/api/notifications", "notifications", limit)

    def judge_checks(self, *, limit: int | None = None) -> AsyncIterator[api.JudgeCheck]:
        """Yield the judge's checks, newest first, with trigger, result and cost."""
        return self._transport.iterate_items(api.JudgeCheck, "/api/judge/checks", "checks", limit)
