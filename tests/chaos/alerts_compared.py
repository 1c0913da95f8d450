"""What was decided, held against what two Alertmanagers took and people were told."""

from __future__ import annotations

from collections import Counter, defaultdict
from dataclasses import dataclass
from datetime import datetime
from itertools import pairwise
from typing import Any

from sqlalchemy import Connection, select

from queenright.alerting.alertmanager import AlertmanagerClient, PostedAlert
from queenright.alerting.notification import Notification, alert_key
from queenright.alerting.peer import PeerAddress
from queenright.alerting.recorder import Message, Recorder
from queenright.health.event_log import read_events
from queenright.health.store import Store
from queenright.health.tables import OUTBOX, OUTBOX_DELIVERIES
from queenright.health.ticket_table import ticket_history
from queenright.health.tickets import EscalationTicket, TicketStatus
from queenright.runtime.events import EventType
from queenright.server.settings import Settings
from tests.chaos.bad_way import BadWay

Identity = tuple[str, int]
"""The labels' key, and when it began, in milliseconds."""

_TOLD = {TicketStatus.INTERVENING, TicketStatus.ACKNOWLEDGED, TicketStatus.RESOLVED}


@dataclass
class Fire:
    """Everything that was heard outside the service."""

    settings: Settings
    ways: list[BadWay]
    ports: list[int]
    messages: list[Message]
    recorder: Recorder


@dataclass
class Kept:
    """What is in the database."""

    rows: list[Notification]
    receipts: dict[tuple[int, str, str], float]
    """Notification, peer and status → when it was taken."""
    tickets: dict[str, EscalationTicket]
    delivered: Counter[tuple[str, str, str]]
    """Events by ticket, peer and status."""


def _read(conn: Connection) -> Kept:
    rows = []
    for row in conn.execute(select(OUTBOX).order_by(OUTBOX.c.id)):
        values = dict(row._mapping)
        values["key"] = values.pop("alert_key")
        del values["active"]
        rows.append(Notification(**values))
    table = OUTBOX_DELIVERIES
    taken = conn.execute(select(table).where(table.c.delivered_at.is_not(None), table.c.peer != ""))
    events = read_events(conn, types=[EventType.NOTIFICATION_DELIVERED], limit=1_000_000)
    said = [(e.data["ticket_id"], e.data["peer"], e.data["status"]) for _, e in events]
    return Kept(
        rows,
        {(one.outbox_id, one.peer, one.status): one.delivered_at for one in taken},
        {one.ticket_id: one for one in ticket_history(conn, limit=1_000_000)},
        Counter(said),
    )


async def compared(fire: Fire) -> dict[str, Any]:
    """Return how much there was, and what is wrong, in words."""
    store = Store.open(fire.settings.database_url, read_only=True)
    kept = await store.read(_read)
    await store.close()
    wrong = [*_identities(kept), *_said_once(kept), *fire.recorder.refused]
    for way, port in zip(fire.ways, fire.ports, strict=True):
        wrong += _taken(kept, way)
        wrong += await _active(kept, port)
    told = _told(kept, fire.messages)
    return {
        "tickets": len(kept.tickets),
        "notifications": len(kept.rows),
        "posts": [len(way.taken) for way in fire.ways],
        "messages": dict(Counter(f"{m.channel} {m.status}" for m in fire.messages)),
        "told_again_as_a_peer_was_behind": told.again,
        "wrong": wrong + told.wrong,
    }


def _identities(kept: Kept) -> list[str]:
    told = {row.ticket_id for row in kept.rows}
    wrong = [
        f"ticket {ticket.ticket_id} is {ticket.status.value}, and nobody was to be told"
        for ticket in kept.tickets.values()
        if ticket.status in _TOLD and ticket.notified_severity is not None and ticket.ticket_id not in told
    ]
    holding = Counter(row.ticket_id for row in kept.rows if row.ends_at is None)
    wrong += [f"ticket {which} holds under {n} identities" for which, n in holding.items() if n > 1]
    begun = Counter((row.ticket_id, row.key, row.starts_at) for row in kept.rows)
    return wrong + [f"{which} is written {n} times" for which, n in begun.items() if n > 1]


def _said_once(kept: Kept) -> list[str]:
    names = {row.id: row.ticket_id for row in kept.rows}
    due = Counter((names[row], peer, status) for row, peer, status in kept.receipts)
    return [
        f"{which} was said to be delivered {n} times, and was {due[which]} times"
        for which, n in kept.delivered.items()
        if n > due[which]
    ]


def _taken(kept: Kept, way: BadWay) -> list[str]:
    """Everything that was decided arrived, as what it was decided as, and an end is an end."""
    peer = f"127.0.0.1:{way.port}"
    known = {_identity(row) for row in kept.rows}
    by_key: dict[str, list[tuple[Identity, bool]]] = defaultdict(list)
    for taken in way.taken:
        key = alert_key(taken.alert["labels"])
        by_key[key].append(
            ((key, _ms(taken.alert["startsAt"])), _ms(taken.alert["endsAt"]) > taken.at * 1000)
        )
    wrong = [f"{peer} called an alert wrong: {answer}" for answer in way.refused]
    wrong += [f"{peer} never heard of {row.labels}" for row in kept.rows if row.key not in by_key]
    for key, posts in by_key.items():
        wrong += [
            f"{peer} was told of {which}, which nobody decided" for which, _ in posts if which not in known
        ]
        for (before, fired), (after, fires) in pairwise(posts):
            if not fired and fires and before == after:
                wrong.append(f"{peer} was told that {after} has ended, and then that it holds")
        holds = any(row.key == key and row.ends_at is None for row in kept.rows)
        if posts[-1][1] != holds:
            wrong.append(f"{peer} last heard that {key} {'ended' if holds else 'holds'}, and that is wrong")
    return wrong


def _identity(row: Notification) -> Identity:
    # As it is on the wire: whole milliseconds.
    sent = PostedAlert(labels={}, annotations={}, starts_at=row.starts_at, ends_at=row.starts_at)
    return row.key, _ms(sent.to_dict()["startsAt"])


def _ms(stamp: str) -> int:
    return round(datetime.fromisoformat(stamp).timestamp() * 1000)


async def _active(kept: Kept, port: int) -> list[str]:
    client = AlertmanagerClient()
    found = await client.alerts(PeerAddress.parse(f"http://127.0.0.1:{port}"))
    await client.aclose()
    there = {(alert_key(one["labels"]), _ms(one["startsAt"])) for one in found}
    due = {_identity(row) for row in kept.rows if row.ends_at is None}
    return [f"at {port} {key} is active: {key in there}" for key in sorted(there ^ due)]


@dataclass
class _Told:
    wrong: list[str]
    again: int = 0


def _told(kept: Kept, messages: list[Message]) -> _Told:
    """One message a page: as many as there were notifications at most, one at least, and the end."""
    told = _Told([])
    groups: dict[tuple[str, str], list[Notification]] = defaultdict(list)
    for row in kept.rows:
        groups[row.labels["agent"], row.labels["cause"]].append(row)
    incidents = _incidents(messages)
    for group, pages in groups.items():
        # Of a worker that ended while Alertmanager still gathered, nobody need hear.
        gone = all(kept.tickets[row.ticket_id].status is TicketStatus.WORKER_GONE for row in pages)
        said = incidents.pop(group, [])
        if not said:
            told.wrong += [] if gone else [f"nobody was paged for {group}"]
        elif (said[-1][1] == "firing") != any(row.ends_at is None for row in pages):
            told.wrong.append(f"the last that was said of {group} is {said[-1]}")
        if len({key for key, _ in said}) > 1:
            told.wrong.append(f"{group} is several incidents: {said}")
    told.wrong += [f"there is an incident of {group}, which nobody decided" for group in incidents]
    for agent in {agent for agent, _ in groups}:
        pages = [row for row in kept.rows if row.labels["agent"] == agent]
        fired = sum(m.channel == "slack" and m.status == "firing" and agent in m.title for m in messages)
        behind = sum(_behind(kept, row) for row in pages)
        told.again += max(0, fired - len(pages))
        if fired > len(pages) + behind:
            told.wrong.append(
                f"{agent} had {len(pages)} pages, {behind} late at a peer, and {fired} messages"
            )
    return told


def _incidents(messages: list[Message]) -> dict[tuple[str, str], list[tuple[str, str]]]:
    """Return what PagerDuty was told of each agent and cause: incident and status. All here is critical."""
    found: dict[tuple[str, str], list[tuple[str, str]]] = defaultdict(list)
    groups: dict[str, tuple[str, str]] = {}
    for m in messages:
        if m.channel == "pagerduty":
            key = m.body["dedup_key"]
            if m.status == "firing":
                groups[key] = m.body["payload"]["component"], m.body["payload"]["class"]
            found[groups[key]].append((key, m.status))
    return found


def _behind(kept: Kept, row: Notification) -> bool:
    """
    Whether one Alertmanager still held it when the other had told people of its end.

    Then it says so, for all it knows: Alertmanagers tell each other what was said, not what they took.
    """
    ends = [at for (which, _, status), at in kept.receipts.items() if (which, status) == (row.id, "resolved")]
    return bool(ends) and max(ends) - min(ends) > 0.5
