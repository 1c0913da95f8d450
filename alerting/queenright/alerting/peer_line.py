"""The line to one Alertmanager peer: sends what is due, backs off by itself, knows what it has said."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, Literal, Protocol

from queenright.alerting.alertmanager import (
    AlertmanagerClient,
    AlertmanagerError,
    AlertsRejectedError,
    PeerUnavailableError,
)
from queenright.alerting.delivery_plan import Plan, Post, Said, is_end_repeated, plan
from queenright.alerting.notification import Notification, Receipt
from queenright.alerting.peer import PeerAddress
from queenright.alerting.settings import AlertingSettings

_log = logging.getLogger(__name__)

_BATCH: Final = 100
_FIRST_BACKOFF: Final = 1.0
_BACKOFF: Final = 30.0
# A refused connection costs neither side anything, and a peer that has just come up should hear at once.
_BACKOFF_UNREACHED: Final = 5.0

Outcome = Literal["delivered", "retried", "failed"]


@dataclass(frozen=True, slots=True)
class Failure:
    """What could not be handed over: ``final`` if it will not be tried again as it is."""

    post: Post
    notification: Notification
    error: str
    attempts: int
    final: bool


@dataclass(slots=True)
class Round:
    """What one look at the outbox led to."""

    receipts: list[Receipt] = field(default_factory=list)
    delivered: list[tuple[Notification, Receipt]] = field(default_factory=list)
    """Told for the first time."""
    failures: list[Failure] = field(default_factory=list)
    """At most one for each outage, and one for each alert that was refused."""


class Count(Protocol):
    """Counts notifications by what became of them."""

    def __call__(self, outcome: Outcome, amount: int) -> None:
        """Count ``amount`` more."""


class PeerLine:
    """
    Tells one peer what is due.

    Args:
        peer: The peer.
        settings: How often to repeat.
        client: How it is spoken to.
        count: Told what became of each notification.
        jitter: Gives a factor for each pause, so that peers and services do not retry in step.
    """

    def __init__(
        self,
        peer: PeerAddress,
        settings: AlertingSettings,
        client: AlertmanagerClient,
        *,
        count: Count,
        jitter: Callable[[], float] = lambda: random.uniform(0.8, 1.2),
    ) -> None:
        self.peer = peer
        self.pending: dict[int, float] = {}
        """Notifications the peer should have been told of already, and since when."""
        self.refused: dict[str, tuple[float, dict[str, Any]]] = {}
        """Alerts it refused: the state of their text, and what to show of it."""
        self.failing_since: float | None = None
        self.error = ""
        self.next_attempt_at = 0.0
        self._settings = settings
        self._client = client
        self._count = count
        self._jitter = jitter
        self._said: dict[str, Said] = {}
        self._ends: set[str] = set()
        """Alerts whose end this process told the peer since it was last restarted."""
        self._peer_starts: set[str] = set()
        """When the peer says that it was started: several times if a load balancer stands before several."""
        self._start_read_at: float | None = None
        self._restart_check: asyncio.Task[None] | None = None
        self._attempts: dict[tuple[int, str], int] = {}
        self._failed_in_row = 0

    def __repr__(self) -> str:
        return f"PeerLine({self.peer.name!r}, pending={len(self.pending)}, error={self.error!r})"

    def resting(self, now: float) -> bool:
        """Return whether the peer failed so lately that it is left alone."""
        # The second bound is for a clock that was set back.
        return now < self.next_attempt_at <= now + 2 * _BACKOFF

    def note_pending(self, notifications: Sequence[Notification], now: float) -> None:
        """Note what the peer should have been told already, and send nothing."""
        self.pending = self._plan(notifications, now).pending

    def is_done_with(self, notification: Notification, now: float) -> bool:
        """Return whether the peer took a notification's end so long ago that it surely told people."""
        is_told = any(notification.key in keys for keys in (self._ends, self._said, self.refused))
        if not is_told and not notification.is_replaced:
            return False
        return is_end_repeated(notification, self.peer.name, now)

    async def tell(self, notifications: Sequence[Notification], now: float) -> tuple[Round, float]:
        """Send what is due; return what came of it, and when to look again."""
        self._begin_restart_check(notifications, now)
        todo = self._plan(notifications, now)
        self.pending = todo.pending
        told = Round()
        told.receipts += [self._receipt(n, "resolved", now) for n in todo.silent]
        for batch in _batches(todo.posts):
            if not await self._send(batch, told, now):
                return told, self.next_attempt_at
        self._forget(notifications)
        if not todo.posts:
            return told, todo.next_due
        # What was sent has set new times.
        again = self._plan(_as_told(notifications, told), now)
        self.pending = again.pending
        return told, now if again.posts or again.silent else again.next_due

    async def finish_restart_check(self) -> None:
        """Wait until the peer has said when it was started, if it is being asked."""
        if self._restart_check is not None:
            await self._restart_check

    async def aclose(self) -> None:
        """Stop asking the peer when it was started."""
        if self._restart_check is not None:
            self._restart_check.cancel()
            await asyncio.wait([self._restart_check])

    def _begin_restart_check(self, notifications: Sequence[Notification], now: float) -> None:
        """
        Ask the peer when it was started, if an end may have to be repeated and it was not asked lately.

        It is asked in a task of its own: no notification waits for the answer, which counts from the next
        look at the outbox on.
        """
        if self._restart_check is not None and not self._restart_check.done():
            return
        read_at = self._start_read_at
        # A clock that was set back must not silence this.
        if read_at is not None and read_at <= now < read_at + self._settings.resend_seconds:
            return
        if all(notification.ends_at is None for notification in notifications):
            return
        self._start_read_at = now
        self._restart_check = asyncio.create_task(self._check_restart())

    async def _check_restart(self) -> None:
        """
        Forget which ends the peer took if it was restarted since, or may have been.

        A new connection is opened without a word, so a restart between two requests makes none fail.
        """
        started = ""
        with contextlib.suppress(AlertmanagerError, TimeoutError):
            async with asyncio.timeout(self._settings.timeout_seconds):
                started = str((await self._client.status(self.peer)).get("uptime") or "")
        # One that never says it, as behind a proxy that lets alerts through alone, is not asked in vain.
        if self._peer_starts and started not in self._peer_starts:
            self._ends.clear()
        if started:
            self._peer_starts.add(started)

    def _plan(self, notifications: Sequence[Notification], now: float) -> Plan:
        refused = {key: content for key, (content, _) in self.refused.items()}
        return plan(
            notifications,
            self.peer.name,
            said=self._said,
            ends=self._ends,
            refused=refused,
            settings=self._settings,
            now=now,
        )

    async def _send(self, batch: Sequence[Post], told: Round, now: float) -> bool:
        """Send one batch; False if the peer cannot take anything now."""
        for post in batch:
            for notification in post.about:
                at = (notification.id, post.status)
                self._attempts[at] = self._attempts.get(at, 0) + 1
        try:
            await self._post(batch)
        except PeerUnavailableError as error:
            self._fail(batch, error, told, now)
            return False
        except AlertsRejectedError as error:
            if len(batch) > 1:
                # The peer does not say which: one by one, so that the others are known to have arrived.
                for post in batch:
                    if not await self._send([post], told, now):
                        return False
                return True
            self._refuse(batch[0], error, told, now)
        else:
            for post in batch:
                self._accept(post, told, now)
        if self.failing_since is not None:
            _log.info("Alertmanager %s takes notifications again", self.peer.name)
        self.failing_since, self.error, self._failed_in_row, self.next_attempt_at = None, "", 0, 0.0
        return True

    async def _post(self, batch: Sequence[Post]) -> None:
        limit = self._settings.timeout_seconds
        try:
            async with asyncio.timeout(limit):
                await self._client.post_alerts(self.peer, [post.alert for post in batch])
        except TimeoutError:
            raise PeerUnavailableError(self.peer.name, f"did not answer in {limit:g} s") from None

    def _accept(self, post: Post, told: Round, now: float) -> None:
        self.refused.pop(post.key, None)
        if post.status == "firing":
            self._said[post.key] = Said(now, post.content)
            self._ends.discard(post.key)
        else:
            self._said.pop(post.key, None)
            self._ends.add(post.key)
        for notification in post.about:
            receipt = self._receipt(notification, post.status, now)
            told.receipts.append(receipt)
            told.delivered.append((notification, receipt))
        self._count("delivered", len(post.about))

    def _refuse(self, post: Post, error: AlertsRejectedError, told: Round, now: float) -> None:
        _log.error("%s; it is not sent again as it is", error)
        shown = {
            "ticket_ids": [n.ticket_id for n in post.about],
            "peer": self.peer.name,
            "status": post.status,
            "error": error.reason,
        }
        self.refused[post.key] = (post.content, shown)
        for notification in post.about:
            receipt = self._receipt(notification, post.status, now, error.reason)
            told.receipts.append(receipt)
            told.failures.append(Failure(post, notification, error.reason, receipt.attempts, final=True))
        self._count("failed", max(1, len(post.about)))

    def _fail(self, batch: Sequence[Post], error: PeerUnavailableError, told: Round, now: float) -> None:
        about = [(post, notification) for post in batch for notification in post.about]
        self._count("retried", max(1, len(about)))
        # It may have been restarted, and have lost ends that it took.
        self._ends.clear()
        if self.failing_since is None:
            self.failing_since = now
            _log.warning("%s; trying again until it takes them", error)
            for post, notification in about[:1]:
                attempts = self._attempts[(notification.id, post.status)]
                told.failures.append(Failure(post, notification, error.reason, attempts, final=False))
        self.error = error.reason
        limit = _BACKOFF if error.reached else _BACKOFF_UNREACHED
        pause = min(_FIRST_BACKOFF * 2 ** min(self._failed_in_row, 10), limit)
        self._failed_in_row += 1
        self.next_attempt_at = now + pause * self._jitter()

    def _receipt(self, about: Notification, status: Any, now: float, error: str | None = None) -> Receipt:
        return Receipt(
            notification_id=about.id,
            peer=self.peer.name,
            status=status,
            at=now,
            attempts=self._attempts.get((about.id, status), 0),
            error=error,
        )

    def _forget(self, notifications: Sequence[Notification]) -> None:
        """Keep no memory of what is over."""
        ids, keys = {n.id for n in notifications}, {n.key for n in notifications}
        self._attempts = {at: count for at, count in self._attempts.items() if at[0] in ids}
        self._said = {key: said for key, said in self._said.items() if key in keys}
        self._ends &= keys
        self.refused = {key: shown for key, shown in self.refused.items() if key in keys}


def _batches(posts: Sequence[Post]) -> Iterator[Sequence[Post]]:
    for start in range(0, len(posts), _BATCH):
        yield posts[start : start + _BATCH]


def _as_told(notifications: Sequence[Notification], told: Round) -> list[Notification]:
    """Return the notifications as the store will know them once the receipts are written."""
    known = {n.id: n for n in notifications}
    for receipt in told.receipts:
        if receipt.error is None:
            about = known[receipt.notification_id]
            taken = about.fired if receipt.status == "firing" else about.resolved
            taken.setdefault(receipt.peer, receipt.at)
    return list(known.values())
