"""Compares decisions with the alerts that two Alertmanagers accepted, and with the messages."""

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
"""The key of the labels, and the start in milliseconds."""

_MESSAGE_SECONDS = 3.0
"""Seconds that an Alertmanager may need on a busy machine to send a pending message and report it."""

_NOTIFIED = {TicketStatus.INTERVENING, TicketStatus.ACKNOWLEDGED, TicketStatus.RESOLVED}


@dataclass
class Fire:
    """Everything observed outside the service."""

    settings: Settings
    ways: list[FaultyProxy]
    ports: list[int]
    messages: list[RecordedMessage]
    recorder: Recorder
    peer_timeout: float
    """How long the second Alertmanager waits for the first, in seconds."""


@dataclass
class StoredAlerts:
    """The contents of the database."""

    rows: list[Notification]
    receipts: dict[tuple[int, str, str], float]
    """Notification, peer and status → time of acceptance."""
    tickets: dict[str, EscalationTicket]
    delivered: Counter[tuple[str, str, str]]
    """Events by ticket, peer and status."""


def _read(conn: Connection) -> StoredAlerts:
    rows = []
    for row in conn.execute(select(OUTBOX).order_by(OUTBOX.c.id)):
        values = dict(row._mapping)
        values["key"] = values.pop("alert_key")
        del values["active"]
        rows.append(Notification(**values))
    table = OUTBOX_DELIVERIES
    cursor = conn.execute(select(table).where(table.c.delivered_at.is_not(None), table.c.peer != ""))
    events = read_events(conn, types=[EventType.NOTIFICATION_DELIVERED], limit=1_000_000)
    deliveries = [(e.data["ticket_id"], e.data["peer"], e.data["status"]) for _, e in events]
    return StoredAlerts(
        rows,
        {(one.outbox_id, one.peer, one.status): one.delivered_at for one in cursor},
        {one.ticket_id: one for one in ticket_history(conn, limit=1_000_000)},
        Counter(deliveries),
    )


async def compare(fire: Fire) -> dict[str, Any]:
    """Return counts, and a sentence for each difference."""
    store = Store.open(fire.settings.database_url, read_only=True)
    result = await store.read(_read)
    await store.close()
    wrong = [*_identities(result), *_check_single_notification(result), *fire.recorder.rejections]
    for way, port in zip(fire.ways, fire.ports, strict=True):
        wrong += _check_deliveries(result, way)
        wrong += await _active(result, port)
    notified = _count_messages(result, fire)
    return {
        "tickets": len(result.tickets),
        "notifications": len(result.rows),
        "posts": [len(way.taken) for way in fire.ways],
        "messages": dict(Counter(f"{m.channel} {m.status}" for m in fire.messages)),
        "told_again": notified.again,
        "wrong": wrong + notified.wrong,
    }


def _identities(kept: StoredAlerts) -> list[str]:
    ticket_ids = {row.ticket_id for row in kept.rows}
    wrong = [
        f"ticket {ticket.ticket_id} is {ticket.status.value}, without a notification"
        for ticket in kept.tickets.values()
        if ticket.status in _NOTIFIED
        and ticket.notified_severity is not None
        and ticket.ticket_id not in ticket_ids
    ]
    holding = Counter(row.ticket_id for row in kept.rows if row.ends_at is None)
    wrong += [f"ticket {which} fires under {n} identities" for which, n in holding.items() if n > 1]
    result = Counter((row.ticket_id, row.key, row.starts_at) for row in kept.rows)
    return wrong + [f"{which} is stored {n} times" for which, n in result.items() if n > 1]


def _check_single_notification(kept: StoredAlerts) -> list[str]:
    names = {row.id: row.ticket_id for row in kept.rows}
    due = Counter((names[row], peer, status) for row, peer, status in kept.receipts)
    return [
        f"{which} was reported as delivered {n} times, and was {due[which]} times"
        for which, n in kept.delivered.items()
        if n > due[which]
    ]


def _check_deliveries(kept: StoredAlerts, way: FaultyProxy) -> list[str]:
    """Check that every decision arrived unchanged, and that an end is final."""
    peer = f"127.0.0.1:{way.port}"
    known = {_identity(row) for row in kept.rows}
    by_key: dict[str, list[tuple[Identity, bool]]] = defaultdict(list)
    for post in way.taken:
        key = alert_key(post.alert["labels"])
        by_key[key].append(((key, _ms(post.alert["startsAt"])), _fires(post)))
    wrong = [f"{peer} refused an alert: {answer}" for answer in way.refused]
    wrong += [f"{peer} never got {row.labels}" for row in kept.rows if row.key not in by_key]
    for key, posts in by_key.items():
        wrong += [f"{peer} got {which}, which was not decided" for which, _ in posts if which not in known]
        for (before, fired), (after, fires) in pairwise(posts):
            if not fired and fires and before == after:
                wrong.append(f"{peer} got the end of {after}, and then that it fires")
        holds = any(row.key == key and row.ends_at is None for row in kept.rows)
        if posts[-1][1] != holds:
            wrong.append(f"{peer} last heard that {key} {'ended' if holds else 'holds'}, and that is wrong")
    return wrong


def _identity(row: Notification) -> Identity:
    # As on the wire: whole milliseconds.
    alert = PostedAlert(labels={}, annotations={}, starts_at=row.starts_at, ends_at=row.starts_at)
    return row.key, _ms(alert.to_dict()["startsAt"])


def _ms(stamp: str) -> int:
    return round(datetime.fromisoformat(stamp).timestamp() * 1000)


async def _active(kept: StoredAlerts, port: int) -> list[str]:
    client = AlertmanagerClient()
    alerts = await client.alerts(PeerAddress.parse(f"http://127.0.0.1:{port}"))
    await client.aclose()
    there = {(alert_key(one["labels"]), _ms(one["startsAt"])) for one in alerts}
    due = {_identity(row) for row in kept.rows if row.ends_at is None}
    return [f"at {port} {key} is active: {key in there}" for key in sorted(there ^ due)]


@dataclass
class Messages:
    wrong: list[str]
    again: int = 0


def _count_messages(kept: StoredAlerts, fire: Fire) -> Messages:
    """
    Check for one incident per ticket, firing before its end, and at least one message per page and its end.
    """
    result = Messages([])
    by_ticket: dict[str, list[Notification]] = defaultdict(list)
    for row in kept.rows:
        by_ticket[row.ticket_id].append(row)
    incidents = _incidents(fire.messages)
    for ticket_id, pages in by_ticket.items():
        # A worker that ended while Alertmanager still collected need not be notified.
        gone = kept.tickets[ticket_id].status is TicketStatus.WORKER_GONE
        messages = incidents.pop(ticket_id, [])
        if not messages:
            result.wrong += [] if gone else [f"no page was sent for {ticket_id}"]
        elif (messages[-1][1] == "firing") != any(row.ends_at is None for row in pages):
            result.wrong.append(f"the last message about {ticket_id} is {messages[-1]}")
        if len({key for key, _ in messages}) > 1:
            result.wrong.append(f"{ticket_id} has several incidents: {messages}")
    result.wrong += [
        f"the incident {which}: {messages}, which was not decided" for which, messages in incidents.items()
    ]
    for agent in {row.labels["agent"] for row in kept.rows}:
        pages = [row for row in kept.rows if row.labels["agent"] == agent]
        said_of = [m for m in fire.messages if m.channel == "slack" and agent in m.title]
        fired = sum(m.status == "firing" for m in said_of)
        again = sum(is_allowed_repeat(fire, *two, {row.key for row in pages}) for two in pairwise(said_of))
        result.again += max(0, fired - len(pages))
        if fired > len(pages) + again:
            observed_messages = [(round(m.time, 2), m.status, _sender(m, fire.ports)) for m in said_of]
            result.wrong.append(
                f"{agent} had {len(pages)} pages, {again} excused, and was told of so: {observed_messages}"
            )
    return result


def _incidents(messages: list[RecordedMessage]) -> dict[str, list[tuple[str, str]]]:
    """Return incident and status in PagerDuty for each ticket. All alerts here are critical."""
    found: dict[str, list[tuple[str, str]]] = defaultdict(list)
    tickets: dict[str, str] = {}
    for m in messages:
        if m.channel == "pagerduty":
            key = m.body["dedup_key"]
            if m.status == "firing":
                tickets[key] = str(m.body["payload"]["custom_details"]["ticket"]).strip()
            # B124: an incident that was resolved before it fired has no ticket, and is wrong.
            found[tickets.get(key, f"{key} without a start")].append((key, m.status))
    return found


def is_allowed_repeat(fire: Fire, before: RecordedMessage, message: RecordedMessage, keys: set[str]) -> bool:
    """
    Return whether an Alertmanager repeated a message because it could not know of another's.

    Alertmanagers exchange what they notified, not the alerts they got. If one notifies the end while the
    other's pending evaluation still had the alert firing, the other notifies that. If both notify a start at
    the same time, because they got it at different times, neither knows of the other.
    """
    sender, other = _sender(message, fire.ports), _sender(before, fire.ports)
    if message.status != "firing" or sender == other:
        return False
    if before.status == "firing" and message.time - before.time < _MESSAGE_SECONDS:
        return True
    look = message.time - fire.peer_timeout - _MESSAGE_SECONDS, message.time
    here, there = (fire.ways[fire.ports.index(port)] for port in (sender, other))
    return any(_is_stale_alert(here, look, there, before.time, key) for key in keys)


def _is_stale_alert(
    here: FaultyProxy, look: tuple[float, float], there: FaultyProxy, said: float, key: str
) -> bool:
    """
    Return whether one had the alert firing, when it may have evaluated, although the other already had the
    end.
    """
    looked, spoke = look
    known = [taken for taken in _posts(there, key) if taken.at <= said]
    if not known or _fires(known[-1]):
        return False
    posts = _posts(here, key)
    held = [t for t in posts if t.at <= looked][-1:] + [t for t in posts if looked < t.at <= spoke]
    return any(_fires(t) and _ms(t.alert["startsAt"]) <= known[-1].at * 1000 for t in held)


def _posts(way: FaultyProxy, key: str) -> list[ForwardedPost]:
    return [taken for taken in way.taken if alert_key(taken.alert["labels"]) == key]


def _fires(taken: ForwardedPost) -> bool:
    return _ms(taken.alert["endsAt"]) > taken.at * 1000


def _sender(message: RecordedMessage, ports: list[int]) -> int:
    """Return the port of the Alertmanager that sent a message, from the link to its silences."""
    body = json.dumps(message.body)
    return next(port for port in ports if f":{port}/#/" in body)
