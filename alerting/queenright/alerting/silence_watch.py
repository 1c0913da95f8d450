"""
Watching silences: every peer is asked again and again, so that it is known of which tickets nobody hears.

A peer that cannot be asked is said to be unknown. What it said last holds until it answers, or until its
silences end: that nobody silences a ticket is never concluded from nobody having answered.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Final

from queenright.alerting.alert import LABEL_REMINDER
from queenright.alerting.alertmanager import AlertmanagerClient, AlertmanagerError, SilenceNotFoundError
from queenright.alerting.notification import read_labels
from queenright.alerting.peer import PeerAddress
from queenright.alerting.settings import AlertingSettings
from queenright.alerting.silences import (
    NewSilence,
    PeerView,
    Silence,
    Silenced,
    silenced,
    unknown,
)
from queenright.health.store import Store, StoreError
from queenright.instrumentation.errors import QueenrightError
from queenright.instrumentation.names import ALERT_LABEL_TICKET_ID
from queenright.runtime.events import AgentEvent, Clock

_log = logging.getLogger(__name__)

_REST: Final = 0.1
"""Seconds between two looks at the outbox."""
_REST_PER_TICKET: Final = 0.0005
"""As many more for each ticket: a crowd has thousands."""
_OF_ONE_ALERT: Final = frozenset(
    {LABEL_REMINDER, "severity", "ticket_severity", "storm", ALERT_LABEL_TICKET_ID}
)
"""Labels that differ from alert to alert of one agent and cause: a silence must outlast that."""


class NothingToSilenceError(QueenrightError):
    """Raised when a ticket has no notification that holds: nobody would be told of it anyway."""

    def __init__(self, ticket_id: str) -> None:
        super().__init__(
            f"ticket {ticket_id[:64]!r} has no notification that holds, so there is nothing to silence; "
            "`queenright tickets` shows those that are open"
        )


class NoPeerError(QueenrightError):
    """Raised when no Alertmanager is named in the settings."""

    def __init__(self) -> None:
        super().__init__("no Alertmanager is known here: name its URL in alerting.alertmanager_urls")


class SilenceWatch:
    """
    What is known of silences.

    Args:
        store: Where the notifications are.
        settings: The peers, and how often they are asked.
        client: Speaks to Alertmanager.
        clock: Seconds since the epoch.
    """

    def __init__(
        self, store: Store, settings: AlertingSettings, client: AlertmanagerClient, *, clock: Clock
    ) -> None:
        self._store = store
        self._every = settings.silences_seconds
        self._client = client
        self._clock = clock
        self._peers = [PeerAddress.parse(url) for url in settings.alertmanager_urls]
        self._views = [PeerView(peer=peer.name, error="has not been asked yet") for peer in self._peers]
        self._labels: Mapping[str, dict[str, str]] = {}
        """Of each ticket with a notification that holds, the labels of it."""
        self._changed = asyncio.Event()

    def __repr__(self) -> str:
        return f"SilenceWatch({[peer.name for peer in self._peers]})"

    def changed(self, event: AgentEvent) -> None:
        """Take note of an event after which there may be other notifications."""
        self._changed.set()

    def of_ticket(self, ticket_id: str) -> Silenced | None:
        """Return the silence because of which nobody hears of a ticket; None if somebody would, or may."""
        labels = self._labels.get(ticket_id)
        return None if labels is None else silenced(labels, self._views, self._clock())

    def silenced_until(self, ticket_id: str) -> float | None:
        """Return until when nobody hears of a ticket, in seconds since the epoch; None if somebody would."""
        found = self.of_ticket(ticket_id)
        return None if found is None else found.until

    @property
    def unknown(self) -> str:
        """Of which peers it is not known what they silence, and why; empty if all answered."""
        return unknown(self._views)

    def views(self) -> Sequence[PeerView]:
        """Return what is known of each peer."""
        return tuple(self._views)

    def silences(self) -> list[tuple[Silence, list[str], list[str]]]:
        """Return every silence that holds or will, with peers that know it and tickets it is about."""
        now, found = self._clock(), dict[str, tuple[Silence, list[str], list[str]]]()
        for view in self._views:
            for one in view.said.silences if view.said is not None else ():
                if now < one.ends_at:
                    found.setdefault(one.id, (one, [], []))[1].append(view.peer)
        for ticket_id, labels in self._labels.items():
            said = [view.said for view in self._views if view.said is not None]
            for by in {by for one in said for by in one.ids_of(labels)}:
                if by in found:
                    found[by][2].append(ticket_id)
        return sorted(found.values(), key=lambda one: (one[0].ends_at, one[0].id))

    async def read_peers(self) -> None:
        """Ask every peer now."""
        self._views = list(await asyncio.gather(*map(self._ask, self._peers, self._views)))

    async def read_notifications(self) -> None:
        """
        See which notifications hold now.

        Raises:
            StoreError: the store cannot be read; what was known stays.
        """
        self._labels = await self._store.read(read_labels)

    async def run(self) -> None:
        """Keep up until cancelled."""
        try:
            async with asyncio.TaskGroup() as group:
                group.create_task(self._follow())
                group.create_task(self._keep_asking())
        finally:
            await self._client.aclose()

    async def add(self, ticket_id: str, *, by: str, comment: str, seconds: float) -> tuple[str, str]:
        """
        Silence what is told of a ticket, and of its agent for the same cause, however bad it gets.

        Args:
            ticket_id: The ticket.
            by: Who wants it.
            comment: Why.
            seconds: For how long from now.

        Returns:
            The silence's id, and the peer that made it. The others of its cluster hear of it from that one.

        Raises:
            NothingToSilenceError: The ticket has no notification that holds.
            NoPeerError: There is nobody to ask.
            AlertmanagerError: No peer made it; of the last one asked.
        """
        await self.read_notifications()
        labels = self._labels.get(ticket_id)
        if labels is None:
            raise NothingToSilenceError(ticket_id)
        now = self._clock()
        silence = NewSilence(
            labels={name: value for name, value in labels.items() if name not in _OF_ONE_ALERT},
            by=by,
            comment=comment,
            starts_at=now,
            ends_at=now + seconds,
        )
        refused: QueenrightError = NoPeerError()
        for peer in self._peers:
            try:
                made = await self._client.silence(peer, silence)
            except AlertmanagerError as error:
                refused = error
                continue
            await self.read_peers()
            return made, peer.name
        raise refused

    async def expire(self, silence_id: str) -> str:
        """
        Let a silence end now; return the peer that did it.

        Raises:
            NoPeerError: There is nobody to ask.
            SilenceNotFoundError: Every peer that answered knows none with this id.
            AlertmanagerError: No peer did it; of the last one asked that cannot say that it knows none.
        """
        refused: QueenrightError = NoPeerError()
        for peer in self._peers:
            try:
                await self._client.expire(peer, silence_id)
            except AlertmanagerError as error:
                if not isinstance(error, SilenceNotFoundError) or isinstance(refused, NoPeerError):
                    refused = error
                continue
            await self.read_peers()
            return peer.name
        raise refused

    async def _ask(self, peer: PeerAddress, before: PeerView) -> PeerView:
        try:
            said = await self._client.silences(peer)
        except AlertmanagerError as error:
            if not before.error:
                _log.warning("what %s silences is not known now: %s", peer.name, error.reason)
            return replace(before, error=error.reason)
        return PeerView(peer=peer.name, said=said, read_at=self._clock())

    async def _keep_asking(self) -> None:
        while True:
            try:
                await self.read_peers()
            except Exception:
                _log.exception("silences could not be read in a way that was not foreseen; tried again")
            await asyncio.sleep(self._every)

    async def _follow(self) -> None:
        while True:
            self._changed.clear()
            try:
                await self.read_notifications()
            except StoreError as error:
                _log.error("the notifications cannot be read, and are tried again: %s", error)
            await asyncio.sleep(_REST + _REST_PER_TICKET * len(self._labels))
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(self._every):
                    await self._changed.wait()
