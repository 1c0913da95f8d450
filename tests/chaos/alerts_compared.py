"""Compare decisions with the alerts that two Alertmanagers accepted, and with the messages."""

from __future__ import annotations

import json
from collections import Counter, defaultdict
from dataclasses import dataclass
from datetime import datetime
from itertools import pairwise
from typing import Any

from sqlalchemy import Connection, select

from queenright.alerting.alertmanager import AlertmanagerClient, PostedAlert
from queenright.alerting.notification import Notification, alert_key
from queenright.alerting.peer import PeerAddress
from queenright.alerting.recorder import RecordedMessage, Recorder
from queenright.health.store.event_log import read_events
from queenright.health.store.store import Store
from queenright.health.store.tables import OUTBOX, OUTBOX_DELIVERIES
from queenright.health.tickets.ticket import EscalationTicket, TicketStatus
from queenright.health.tickets.ticket_table import ticket_history
from queenright.runtime.events import EventType
from queenright.server.settings import Settings
from tests.chaos.faulty_proxy import FaultyProxy, ForwardedPost

Identity = tuple[str, int]
"""The key of an alert's labels, and its start in milliseconds since the epoch."""

_MESSAGE_SECONDS = 3.0
"""Seconds in which Alertmanager sends a pending message and reports it, on a busy machine."""

_NOTIFIED = {TicketStatus.INTERVENING, TicketStatus.ACKNOWLEDGED, TicketStatus.RESOLVED}


@dataclass
class ObservedAlerts:
    """The settings, and everything that was observed outside the service."""

    settings: Settings
    proxies: list[FaultyProxy]
    ports: list[int]
    messages: list[RecordedMessage]
    recorder: Recorder
    peer_timeout: float
    """Seconds for which the second Alertmanager waits for the first."""


@dataclass
class StoredAlerts:
    """The contents of the database."""

    rows: list[Notification]
    receipts: dict[tuple[int, str, str], float]
    """Times of acceptance, by id of the notification, peer and status."""
    tickets: dict[str, EscalationTicket]
    delivered: Counter[tuple[str, str, str]]
    """Number of delivery events, by ticket, peer and status."""


def _read_stored_alerts(conn: Connection) -> StoredAlerts:
    rows = []
    for row in conn.execute(select(OUTBOX).order_by(OUTBOX.c.id)):
        values = dict(row._mapping)
        values["key"] = values.pop("alert_key")
        del values["active"]
        rows.append(Notification(**values))
    table = OUTBOX_DELIVERIES
    cursor = conn.execute(select(table).where(table.c.delivered_at.is_not(None), table.c.peer != ""))
    events = read_events(conn, types=[EventType.NOTIFICATION_DELIVERED], limit=1_000_000)
    deliveries = [(event.data["ticket_id"], event.data["peer"], event.data["status"]) for _, event in events]
    return StoredAlerts(
        rows,
        {(row.outbox_id, row.peer, row.status): row.delivered_at for row in cursor},
        {ticket.ticket_id: ticket for ticket in ticket_history(conn, limit=1_000_000)},
        Counter(deliveries),
    )


async def compare(observed: ObservedAlerts) -> dict[str, Any]:
    """Return counts, and under ``differences`` a sentence for each difference."""
    store = Store.open(observed.settings.database_url, read_only=True)
    stored = await store.read(_read_stored_alerts)
    await store.close()
    differences = [
        *_check_identities(stored),
        *_check_single_notification(stored),
        *observed.recorder.rejections,
    ]
    for proxy, port in zip(observed.proxies, observed.ports, strict=True):
        differences += _check_deliveries(stored, proxy)
        differences += await _check_active_alerts(stored, port)
    message_check = _count_messages(stored, observed)
    return {
        "tickets": len(stored.tickets),
        "notifications": len(stored.rows),
        "posts": [len(proxy.accepted_posts) for proxy in observed.proxies],
        "messages": dict(Counter(f"{message.channel} {message.status}" for message in observed.messages)),
        "repeated_messages": message_check.repeats,
        "differences": differences + message_check.differences,
    }


def _check_identities(stored: StoredAlerts) -> list[str]:
    ticket_ids = {row.ticket_id for row in stored.rows}
    differences = [
        f"ticket {ticket.ticket_id} is {ticket.status.value}, without a notification"
        for ticket in stored.tickets.values()
        if ticket.status in _NOTIFIED
        and ticket.notified_severity is not None
        and ticket.ticket_id not in ticket_ids
    ]
    firing = Counter(row.ticket_id for row in stored.rows if row.ends_at is None)
    differences += [
        f"ticket {ticket_id} fires under {n} identities" for ticket_id, n in firing.items() if n > 1
    ]
    copies = Counter((row.ticket_id, row.key, row.starts_at) for row in stored.rows)
    return differences + [f"{identity} is stored {n} times" for identity, n in copies.items() if n > 1]


def _check_single_notification(stored: StoredAlerts) -> list[str]:
    ticket_ids = {row.id: row.ticket_id for row in stored.rows}
    received = Counter((ticket_ids[row_id], peer, status) for row_id, peer, status in stored.receipts)
    return [
        f"{delivery} was reported as delivered {n} times, and was received {received[delivery]} times"
        for delivery, n in stored.delivered.items()
        if n > received[delivery]
    ]


def _check_deliveries(stored: StoredAlerts, proxy: FaultyProxy) -> list[str]:
    """Check that a peer accepted every decision unchanged, and no start after the end of an alert."""
    peer = f"127.0.0.1:{proxy.port}"
    decided = {_make_identity(row) for row in stored.rows}
    by_key: dict[str, list[tuple[Identity, bool]]] = defaultdict(list)
    for post in proxy.accepted_posts:
        key = alert_key(post.alert["labels"])
        by_key[key].append(((key, _parse_milliseconds(post.alert["startsAt"])), _is_firing(post)))
    differences = [f"{peer} refused an alert: {response}" for response in proxy.rejections]
    differences += [f"{peer} never accepted {row.labels}" for row in stored.rows if row.key not in by_key]
    for key, posts in by_key.items():
        differences += [
            f"{peer} accepted {identity}, which was not decided"
            for identity, _ in posts
            if identity not in decided
        ]
        for (earlier, was_firing), (later, is_firing) in pairwise(posts):
            if not was_firing and is_firing and earlier == later:
                differences.append(f"{peer} accepted the end of {later}, and then that it fires")
        should_fire = any(row.key == key and row.ends_at is None for row in stored.rows)
        if posts[-1][1] != should_fire:
            differences.append(
                f"{peer} last accepted that {key} {'has ended' if should_fire else 'fires'}, which is wrong"
            )
    return differences


def _make_identity(row: Notification) -> Identity:
    # Alertmanager receives whole milliseconds.
    alert = PostedAlert(labels={}, annotations={}, starts_at=row.starts_at, ends_at=row.starts_at)
    return row.key, _parse_milliseconds(alert.to_dict()["startsAt"])


def _parse_milliseconds(timestamp: str) -> int:
    return round(datetime.fromisoformat(timestamp).timestamp() * 1000)


async def _check_active_alerts(stored: StoredAlerts, port: int) -> list[str]:
    client = AlertmanagerClient()
    alerts = await client.alerts(PeerAddress.parse(f"http://127.0.0.1:{port}"))
    await client.aclose()
    active = {(alert_key(alert["labels"]), _parse_milliseconds(alert["startsAt"])) for alert in alerts}
    expected = {_make_identity(row) for row in stored.rows if row.ends_at is None}
    return [f"at port {port}, {key} is active: {key in active}" for key in sorted(active ^ expected)]


@dataclass
class MessageCheck:
    """The differences of the messages, and the number of repeated ones."""

    differences: list[str]
    repeats: int = 0


def _count_messages(stored: StoredAlerts, observed: ObservedAlerts) -> MessageCheck:
    """
    Check that each ticket has one incident, which ends last, and that each page and end has a message.
    """
    result = MessageCheck([])
    by_ticket: dict[str, list[Notification]] = defaultdict(list)
    for row in stored.rows:
        by_ticket[row.ticket_id].append(row)
    incidents = _group_incidents(observed.messages)
    for ticket_id, pages in by_ticket.items():
        # A worker that ended during the group wait of Alertmanager needs no message.
        is_gone = stored.tickets[ticket_id].status is TicketStatus.WORKER_GONE
        messages = incidents.pop(ticket_id, [])
        if not messages:
            result.differences += [] if is_gone else [f"no page was sent for {ticket_id}"]
        elif (messages[-1][1] == "firing") != any(row.ends_at is None for row in pages):
            result.differences.append(f"the last message about {ticket_id} is {messages[-1]}")
        if len({key for key, _ in messages}) > 1:
            result.differences.append(f"{ticket_id} has several incidents: {messages}")
    result.differences += [
        f"the incident {incident}: {messages}, which was not decided"
        for incident, messages in incidents.items()
    ]
    for agent in {row.labels["agent"] for row in stored.rows}:
        pages = [row for row in stored.rows if row.labels["agent"] == agent]
        agent_messages = [
            message for message in observed.messages if message.channel == "slack" and agent in message.title
        ]
        firing_count = sum(message.status == "firing" for message in agent_messages)
        repeats = sum(
            is_allowed_repeat(observed, *pair, {row.key for row in pages})
            for pair in pairwise(agent_messages)
        )
        result.repeats += max(0, firing_count - len(pages))
        if firing_count > len(pages) + repeats:
            sent = [
                (round(message.time, 2), message.status, _find_sender_port(message, observed.ports))
                for message in agent_messages
            ]
            result.differences.append(
                f"{agent} had {len(pages)} pages and {repeats} allowed repeats, but these messages: {sent}"
            )
    return result


def _group_incidents(messages: list[RecordedMessage]) -> dict[str, list[tuple[str, str]]]:
    """Return the incident keys and statuses in PagerDuty by ticket. All alerts of this test are critical."""
    incidents: dict[str, list[tuple[str, str]]] = defaultdict(list)
    tickets: dict[str, str] = {}
    for message in messages:
        if message.channel == "pagerduty":
            key = message.body["dedup_key"]
            if message.status == "firing":
                tickets[key] = str(message.body["payload"]["custom_details"]["ticket"]).strip()
            # B124: an incident that was resolved before it fired has no ticket, and is a difference.
            incidents[tickets.get(key, f"{key} without a start")].append((key, message.status))
    return incidents


def is_allowed_repeat(
    observed: ObservedAlerts, previous: RecordedMessage, message: RecordedMessage, keys: set[str]
) -> bool:
    """
    Return whether an Alertmanager repeated a message because it could not know of the other's message.

    Alertmanagers share their notifications, and not the alerts that they accept. If one sends the end of an
    alert while a pending evaluation of the other still has it firing, the other sends that it fires. If both
    send a start at the same time, neither knows of the other's message.
    """
    sender, other = _find_sender_port(message, observed.ports), _find_sender_port(previous, observed.ports)
    if message.status != "firing" or sender == other:
        return False
    if previous.status == "firing" and message.time - previous.time < _MESSAGE_SECONDS:
        return True
    evaluation = message.time - observed.peer_timeout - _MESSAGE_SECONDS, message.time
    sender_proxy, other_proxy = (observed.proxies[observed.ports.index(port)] for port in (sender, other))
    return any(_is_stale_alert(sender_proxy, evaluation, other_proxy, previous.time, key) for key in keys)


def _is_stale_alert(
    sender_proxy: FaultyProxy,
    evaluation: tuple[float, float],
    other_proxy: FaultyProxy,
    previous_at: float,
    key: str,
) -> bool:
    """
    Return whether the sender had the alert firing at a possible evaluation, although the other had its end.
    """
    earliest, latest = evaluation
    other_posts = [post for post in _list_posts(other_proxy, key) if post.at <= previous_at]
    if not other_posts or _is_firing(other_posts[-1]):
        return False
    posts = _list_posts(sender_proxy, key)
    evaluated_posts = [post for post in posts if post.at <= earliest][-1:]
    evaluated_posts += [post for post in posts if earliest < post.at <= latest]
    return any(
        _is_firing(post) and _parse_milliseconds(post.alert["startsAt"]) <= other_posts[-1].at * 1000
        for post in evaluated_posts
    )


def _list_posts(proxy: FaultyProxy, key: str) -> list[ForwardedPost]:
    return [post for post in proxy.accepted_posts if alert_key(post.alert["labels"]) == key]


def _is_firing(post: ForwardedPost) -> bool:
    return _parse_milliseconds(post.alert["endsAt"]) > post.at * 1000


def _find_sender_port(message: RecordedMessage, ports: list[int]) -> int:
    """Return the port of the Alertmanager that sent a message, from the link to its silences."""
    body = json.dumps(message.body)
    return next(port for port in ports if f":{port}/#/" in body)
