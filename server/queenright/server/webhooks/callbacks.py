"""
Handle callbacks from Slack, PagerDuty and Alertmanager.

Callbacks of Slack and PagerDuty call the ticket service; those of Alertmanager are recorded. A repeated
callback has no effect. The response explains a failure.
"""

from __future__ import annotations

import asyncio
import hashlib
import logging
import re
from collections.abc import Awaitable, Callable
from typing import Any, Final

from pydantic import SecretStr
from sqlalchemy import Connection, insert, select

from queenright.alerting import notification_ledger
from queenright.alerting.callbacks.alertmanager import parse_notification
from queenright.alerting.callbacks.pagerduty import (
    MAX_AGE_SECONDS,
    MAX_AHEAD_SECONDS,
    IncidentChange,
    IncidentEvent,
    read_event,
)
from queenright.alerting.callbacks.signatures import check_pagerduty, check_slack
from queenright.alerting.callbacks.slack_buttons import ACKNOWLEDGE, Click, build_reply, read_click
from queenright.alerting.notification_table import read_held
from queenright.health.store.store import Store, StoreError
from queenright.health.store.tables import CALLBACKS
from queenright.health.ticket_service import TicketService
from queenright.health.tickets.ticket import (
    AckChannel,
    EscalationTicket,
    TicketClosedError,
    TicketError,
    TicketNotFoundError,
    TicketStatus,
    TicketStatusError,
)
from queenright.health.tickets.ticket_table import ended_tickets_of_incidents, live_tickets_of_incidents
from queenright.instrumentation.counts import format_count
from queenright.instrumentation.errors import NotFoundError
from queenright.runtime.events import AgentEvent, Clock, EventType

_log = logging.getLogger(__name__)

_ANSWER_SECONDS: Final = 2.5
"""Maximum seconds until the response to Slack. Slack's limit is three."""
_ID_PATTERN: Final = re.compile(r"[\x21-\x7e]{1,100}")
_DEDUP_KEY_PATTERN: Final = re.compile(r"[0-9a-f]{64}")
_NOT_RECORDED: Final = "Your click could not be recorded. Try again, or use the ticket's page in the console."


class CallbackNotConfiguredError(NotFoundError):
    """Raised when a callback cannot be verified, because no secret is configured."""

    def __init__(self, sender: str, secret: str, setting: str) -> None:
        super().__init__(f"callbacks from {sender} are not configured: set {setting} to a file with {secret}")


class Callbacks:
    """
    Handles callbacks.

    Args:
        store: Stores notifications, and the responses to handled callbacks.
        tickets: The ticket service.
        slack: Slack's signing secret; None rejects clicks.
        pagerduty: Secrets of PagerDuty's webhook subscriptions; an empty tuple rejects webhooks.
        clock: Seconds since the epoch.
        publish: Stores and publishes events.
        patience: Maximum seconds until the response to Slack.
    """

    def __init__(
        self,
        store: Store,
        tickets: TicketService,
        *,
        slack: SecretStr | None,
        pagerduty: tuple[SecretStr, ...],
        clock: Clock,
        publish: Callable[..., Awaitable[None]],
        patience: float = _ANSWER_SECONDS,
    ) -> None:
        self._store = store
        self._tickets = tickets
        self._slack = slack
        self._pagerduty = pagerduty
        self._clock = clock
        self._publish = publish
        self._patience = patience

    def __repr__(self) -> str:
        return f"Callbacks(slack={self._slack is not None}, pagerduty={len(self._pagerduty)})"

    # -- Alertmanager -------------------------------------------------------------------------------

    async def record_notification(self, body: bytes) -> int:
        """
        Record a notification that Alertmanager sent. Return the number of its alerts with a ticket.

        Raises:
            InvalidWebhookError: The body is not an Alertmanager webhook.
            StoreError: Writing failed; Alertmanager retries.
        """
        notification, now = parse_notification(body), self._clock()
        if notification.truncated:
            _log.warning(
                "a notification to %s has %d unlisted alerts; their tickets do not show it",
                notification.receiver,
                notification.truncated,
            )
        alerts = [
            (alert.ticket_id, alert.alert_key, alert.status)
            for alert in notification.alerts
            if _ID_PATTERN.fullmatch(alert.ticket_id)
        ]
        if not alerts:
            return 0
        record_count = await self._store.transact(
            lambda conn: notification_ledger.record_deliveries(
                conn, notification.receiver, notification.dedup_key, alerts, now
            )
        )
        if record_count:
            data = {"receiver": notification.receiver, "alerts": record_count}
            await self._publish(AgentEvent(type=EventType.RECEIVER_NOTIFIED, time=now, data=data))
        return record_count

    # -- Slack --------------------------------------------------------------------------------------

    async def handle_slack_click(
        self, body: bytes, *, timestamp: str, signature: str
    ) -> tuple[dict[str, Any], str]:
        """
        Handle a click on a button. Return the response for Slack, and the URL to post a copy to, or "".

        Raises:
            CallbackNotConfiguredError: No signing secret is configured.
            InvalidSignatureError: The signature is wrong or too old.
            InvalidInteractionError: The body is not a click.
        """
        if self._slack is None:
            raise CallbackNotConfiguredError(
                "Slack", "the app's signing secret", "alerting.slack_signing_secret_file"
            )
        check_slack(body, timestamp=timestamp, signature=signature, secret=self._slack, now=self._clock())
        click = read_click(body)
        try:
            async with asyncio.timeout(self._patience):
                answer = await self._answer_once(f"slack {signature}", lambda: self._handle_click(click))
                return answer, click.reply_url
        except (TimeoutError, StoreError) as error:
            _log.warning("cannot record a click in Slack: %s", error or "the store takes too long")
        except Exception:
            _log.exception("cannot record a click in Slack")
        return build_reply(_NOT_RECORDED, to_all=False), click.reply_url

    async def _handle_click(self, click: Click) -> dict[str, Any]:
        if click.action != ACKNOWLEDGE:
            return build_reply(
                f"Unknown action {click.action[:100]!r}; only `acknowledge` works.", to_all=False
            )
        ids = [ticket for ticket in click.tickets if _ID_PATTERN.fullmatch(ticket)]
        if not ids:
            return build_reply("This message has no ticket to acknowledge.", to_all=False)
        handled_count, lines = 0, list[str]()
        for ticket_id in ids:
            is_acknowledged, text = await self._acknowledge(ticket_id, click.by, AckChannel.SLACK)
            handled_count += is_acknowledged
            lines.append(text)
        if len(ids) > 1:
            lines = [
                f"{handled_count} of {format_count(len(ids), 'ticket')} acknowledged by {click.by}.",
                *_list_other_lines(ids, lines, click.by),
            ]
        return build_reply("\n".join(lines), to_all=handled_count > 0)

    # -- PagerDuty ----------------------------------------------------------------------------------

    async def handle_pagerduty_event(self, body: bytes, *, signatures: str) -> dict[str, Any]:
        """
        Handle an event of an incident. Return a description of what was done.

        Raises:
            CallbackNotConfiguredError: No subscription secret is configured.
            InvalidSignatureError: No secret matches the signature.
            InvalidEventError: The body is not an event.
            StoreError: The store failed; PagerDuty retries.
        """
        if not self._pagerduty:
            secret_name = "the secret of the webhook subscription"
            raise CallbackNotConfiguredError(
                "PagerDuty", secret_name, "alerting.pagerduty_webhook_secret_files"
            )
        check_pagerduty(body, signatures=signatures, secrets=self._pagerduty)
        event = read_event(body)
        return await self._answer_once(f"pagerduty {event.event_id}", lambda: self._handle_event(event))

    async def _handle_event(self, event: IncidentEvent) -> dict[str, Any]:
        if event.change is None:
            return _make_outcome(f"nothing: {event.event_type} changes no ticket")
        if self._clock() - event.at > MAX_AGE_SECONDS:
            return _make_outcome("nothing: the event is more than a day old")
        if (seconds_ahead := event.at - self._clock()) > MAX_AHEAD_SECONDS:
            return _make_outcome(
                f"nothing: the event is dated {seconds_ahead:.0f} s ahead of this machine's clock; at most "
                f"{MAX_AHEAD_SECONDS:.0f} s are allowed. If the event is new, set the clock"
            )
        if event.change is IncidentChange.RESOLVED and not event.by_person:
            return _make_outcome("nothing: the incident was not resolved by a person")
        ticket_ids: set[str] = set()
        if _DEDUP_KEY_PATTERN.fullmatch(event.dedup_key):
            ticket_ids = await self._store.read(
                lambda conn: notification_ledger.list_group_tickets(conn, event.dedup_key)
            )
        if not ticket_ids:
            return _make_outcome(
                "nothing: no ticket is known for this incident. Alertmanager must also post its PagerDuty "
                "notifications to /api/alertmanager/notifications"
            )
        live_tickets = await self._store.read(lambda conn: live_tickets_of_incidents(conn, ticket_ids))
        outcomes = {
            ticket.ticket_id: await self._apply_to_live(ticket.ticket_id, event) for ticket in live_tickets
        }
        if not live_tickets and event.change in (IncidentChange.ACKNOWLEDGED, IncidentChange.RESOLVED):
            outcomes = await self._apply_to_ended(ticket_ids, event)
        return _make_outcome("see tickets" if outcomes else "nothing: its tickets are closed") | {
            "tickets": outcomes
        }

    async def _apply_to_ended(self, ticket_ids: set[str], event: IncidentEvent) -> dict[str, str]:
        """Apply an event to the ended tickets of an incident that the next ticket would join."""
        now, is_resolved = self._clock(), event.change is IncidentChange.RESOLVED
        ended_tickets = await self._store.read(
            lambda conn: ended_tickets_of_incidents(conn, ticket_ids, read_held(conn, now))
        )
        outcomes = {}
        for ticket in ended_tickets:
            updated_ticket = await self._tickets.acknowledge_ended(
                ticket.ticket_id,
                by=event.by,
                via=AckChannel.PAGERDUTY,
                note="resolved in PagerDuty" if is_resolved else "",
                is_resolved=is_resolved,
            )
            outcomes[ticket.ticket_id] = (
                f"Incident resolved by {event.by}; the next ticket pages again."
                if is_resolved
                else f"Acknowledged by {updated_ticket.acknowledged_by}; this also covers the next ticket."
            )
        return outcomes

    async def _apply_to_live(self, ticket_id: str, event: IncidentEvent) -> str:
        if event.change is IncidentChange.ACKNOWLEDGED:
            return (await self._acknowledge(ticket_id, event.by, AckChannel.PAGERDUTY))[1]
        if event.change is IncidentChange.RESOLVED:
            return await self._resolve(ticket_id, event.by)
        try:
            await self._tickets.unacknowledge(
                ticket_id,
                by=event.by,
                via=AckChannel.PAGERDUTY,
                only_via=AckChannel.PAGERDUTY,
            )
        except TicketError as error:
            return str(error)
        return "No longer acknowledged."

    async def _resolve(self, ticket_id: str, by: str) -> str:
        """Resolve a ticket that only a person can end. For other tickets, resolve the incident."""
        try:
            await self._tickets.resolve(ticket_id, "resolved in PagerDuty", by=by)
        except TicketStatusError:
            return await self._resolve_incident(ticket_id, by)
        except TicketError as error:
            return str(error)
        return f"Resolved by {by}."

    async def _resolve_incident(self, ticket_id: str, by: str) -> str:
        note = "resolved in PagerDuty; the ticket ends when its condition does"
        try:
            ticket = await self._tickets.resolve_incident(
                ticket_id, by=by, via=AckChannel.PAGERDUTY, note=note
            )
        except TicketError as error:
            return _explain_error(await self._tickets.find(ticket_id), error)
        prefix = "Acknowledged" if ticket.acknowledged_by == by else "Already acknowledged"
        return f"{prefix} by {ticket.acknowledged_by}."

    # -- both ---------------------------------------------------------------------------------------

    async def _acknowledge(self, ticket_id: str, by: str, via: AckChannel) -> tuple[bool, str]:
        """Acknowledge a ticket. Return whether this person has acknowledged it, and a text."""
        try:
            await self._tickets.acknowledge(ticket_id, by=by, via=via)
        except TicketNotFoundError:
            return False, "This ticket does not exist."
        except TicketError as error:
            ticket = await self._tickets.find(ticket_id)
            is_acknowledged = ticket is not None and ticket.is_live and ticket.acknowledged_by == by
            return is_acknowledged, f"Acknowledged by {by}." if is_acknowledged else _explain_error(
                ticket, error
            )
        return True, f"Acknowledged by {by}."

    async def _answer_once(
        self, callback_id: str, handle: Callable[[], Awaitable[dict[str, Any]]]
    ) -> dict[str, Any]:
        """
        Handle a callback once. A repeated callback gets the stored response.

        The response is stored afterwards, because handling a callback again after a crash changes nothing.
        """
        key = hashlib.sha256(callback_id.encode("utf-8", "replace")).hexdigest()
        if (stored_answer := await self._store.read(lambda conn: find_answer(conn, key))) is not None:
            return stored_answer
        answer = await handle()
        await self._store.transact(lambda conn: save_answer(conn, key, answer, self._clock()))
        return answer


def _make_outcome(text: str) -> dict[str, Any]:
    return {"did": text, "tickets": {}}


def _explain_error(ticket: EscalationTicket | None, error: TicketError) -> str:
    if isinstance(error, TicketClosedError) and ticket is not None:
        return f"The ticket is closed ({ticket.status.value.replace('_', ' ')})."
    if ticket is not None and ticket.status is TicketStatus.ACKNOWLEDGED:
        return f"Already acknowledged by {ticket.acknowledged_by}."
    if ticket is not None and ticket.status is TicketStatus.DISMISSED:
        return "The ticket is dismissed."
    return str(error)


def _list_other_lines(ids: list[str], lines: list[str], by: str) -> list[str]:
    """Return a line for each ticket that this person has not acknowledged."""
    first_line = f"Acknowledged by {by}."
    return [f"{ticket_id}: {text}" for ticket_id, text in zip(ids, lines, strict=True) if text != first_line]


def find_answer(conn: Connection, callback_id: str) -> dict[str, Any] | None:
    """Return the stored response to a callback; None if the callback is new."""
    answer: dict[str, Any] | None = conn.execute(
        select(CALLBACKS.c.answer).where(CALLBACKS.c.callback_id == callback_id)
    ).scalar()
    return answer


def save_answer(conn: Connection, callback_id: str, answer: dict[str, Any], now: float) -> None:
    """Store the response to a callback unless one is stored. ``now`` is in seconds since the epoch."""
    if find_answer(conn, callback_id) is None:
        conn.execute(insert(CALLBACKS).values(callback_id=callback_id, received_at=now, answer=answer))
