"""
Create silences in Alertmanager, and poll every peer's silences to know which tickets are silenced.

The silences of a peer that does not answer are reported as unknown. Its last answer stays valid until it
answers again or the silences end, so a missing answer never means that a ticket is not silenced.
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
from queenright.alerting.notification_table import read_labels
from queenright.alerting.peer import PeerAddress
from queenright.alerting.peer_silences import (
    ActiveSilence,
    NewSilence,
    PeerView,
    Silence,
    describe_unknown_peers,
    find_active_silence,
)
from queenright.alerting.settings import AlertingSettings
from queenright.health.store.store import Store, StoreError
from queenright.instrumentation.errors import ConflictError, QueenrightError
from queenright.instrumentation.names import ALERT_LABEL_TICKET_ID
from queenright.runtime.events import AgentEvent, Clock

_log = logging.getLogger(__name__)

POLL_SECONDS: Final = 30.0
"""Seconds between polls, because Alertmanager cannot push silences."""
RETRY_SECONDS: Final = 5.0
"""Seconds between polls while a peer does not answer, because it may be starting."""
_PAUSE_SECONDS: Final = 0.1
"""Minimum seconds between two reads of the outbox."""
_PAUSE_PER_TICKET_SECONDS: Final = 0.0005
"""Additional seconds per ticket, because a large fleet may have thousands of them."""
_SINGLE_ALERT_LABELS: Final = frozenset(
    {LABEL_REMINDER, "severity", "ticket_severity", "storm", ALERT_LABEL_TICKET_ID}
)
"""Labels that differ between alerts of one agent and cause. A silence must not match them."""


class NothingToSilenceError(ConflictError):
    """Raised when a ticket has no active notification, so there is nothing to silence."""

    def __init__(self, ticket_id: str) -> None:
        super().__init__(
            f"ticket {ticket_id[:64]!r} has no active notification, so there is nothing to silence: "
            "it is closed, or nobody was notified; list open tickets with `queenright tickets`"
        )


class NoPeerError(ConflictError):
    """Raised when no Alertmanager is configured."""

    def __init__(self) -> None:
        super().__init__("no Alertmanager is configured; set alerting.alertmanager_urls")


class SilenceWatch:
    """Tracks the silences of all peers."""

    def __init__(
        self, store: Store, settings: AlertingSettings, client: AlertmanagerClient, *, clock: Clock
    ) -> None:
        self._store = store
        self._client = client
        self._clock = clock
        self._peers = [PeerAddress.parse(url) for url in settings.alertmanager_urls]
        self._views = [PeerView(peer=peer.name, error="has not answered yet") for peer in self._peers]
        self._labels: Mapping[str, dict[str, str]] = {}
        """Labels of the active notification, by ticket id."""
        self._changed = asyncio.Event()

    def __repr__(self) -> str:
        return f"SilenceWatch({[peer.name for peer in self._peers]})"

    def note_change(self, event: AgentEvent) -> None:
        """Schedule a read of the notifications, which an event may have changed."""
        self._changed.set()

    def find_silence(self, ticket_id: str) -> ActiveSilence | None:
        """Return the silence that mutes a ticket; None if the ticket is not silenced or that is unknown."""
        labels = self._labels.get(ticket_id)
        return None if labels is None else find_active_silence(labels, self._views, self._clock())

    def silenced_until(self, ticket_id: str) -> float | None:
        """
        Return when a ticket's silence ends, in seconds since the epoch; None if the ticket is not silenced.
        """
        silence = self.find_silence(ticket_id)
        return None if silence is None else silence.until

    @property
    def unknown(self) -> str:
        """A text with the peers whose silences are unknown, and why; "" if all answered."""
        return describe_unknown_peers(self._views)

    def views(self) -> Sequence[PeerView]:
        """Return what is known about each peer."""
        return tuple(self._views)

    def silences(self) -> list[tuple[Silence, list[str], list[str]]]:
        """Return every active or pending silence, with the peers that have it and the ids of its tickets."""
        now, by_id = self._clock(), dict[str, tuple[Silence, list[str], list[str]]]()
        answers = [(view.peer, view.answer) for view in self._views if view.answer is not None]
        for peer, answer in answers:
            for silence in answer.silences:
                if now < silence.ends_at:
                    by_id.setdefault(silence.id, (silence, [], []))[1].append(peer)
        for ticket_id, labels in self._labels.items():
            for silence_id in {id_ for _, answer in answers for id_ in answer.silence_ids(labels)}:
                if silence_id in by_id:
                    by_id[silence_id][2].append(ticket_id)
        return sorted(by_id.values(), key=lambda entry: (entry[0].ends_at, entry[0].id))

    async def read_peers(self) -> None:
        """Read the silences of every peer now."""
        self._views = list(await asyncio.gather(*map(self._read_peer, self._peers, self._views)))

    async def read_notifications(self) -> None:
        """
        Read the active notifications.

        Raises:
            StoreError: The store cannot be read; the previous state is kept.
        """
        self._labels = await self._store.read(read_labels)

    async def run(self) -> None:
        """Poll peers and notifications until cancelled."""
        try:
            async with asyncio.TaskGroup() as group:
                group.create_task(self._follow_notifications())
                group.create_task(self._poll_peers())
        finally:
            await self._client.aclose()

    async def add(self, ticket_id: str, *, by: str, comment: str, seconds: float) -> tuple[str, str]:
        """
        Silence the notifications of a ticket, and of its agent for the same cause at any severity.

        Returns:
            The silence's id and the name of the peer that created it. The peer replicates it to its cluster.

        Raises:
            NothingToSilenceError: The ticket has no active notification.
            NoPeerError: No Alertmanager is configured.
            AlertmanagerError: No peer created the silence. This is the error of the last peer.
        """
        await self.read_notifications()
        labels = self._labels.get(ticket_id)
        if labels is None:
            raise NothingToSilenceError(ticket_id)
        now = self._clock()
        silence = NewSilence(
            labels={name: value for name, value in labels.items() if name not in _SINGLE_ALERT_LABELS},
            by=by,
            comment=comment,
            starts_at=now,
            ends_at=now + seconds,
        )
        last_error: QueenrightError = NoPeerError()
        for peer in self._peers:
            try:
                silence_id = await self._client.silence(peer, silence)
            except AlertmanagerError as error:
                last_error = error
                continue
            await self.read_peers()
            return silence_id, peer.name
        raise last_error

    async def expire(self, silence_id: str) -> str:
        """
        Expire a silence now. Return the name of the peer that expired it.

        Raises:
            NoPeerError: No Alertmanager is configured.
            SilenceNotFoundError: No peer that answered has a silence with this id.
            AlertmanagerError: No peer expired it. This is the last error other than SilenceNotFoundError.
        """
        last_error: QueenrightError = NoPeerError()
        for peer in self._peers:
            try:
                await self._client.expire(peer, silence_id)
            except AlertmanagerError as error:
                if not isinstance(error, SilenceNotFoundError) or isinstance(last_error, NoPeerError):
                    last_error = error
                continue
            await self.read_peers()
            return peer.name
        raise last_error

    async def _read_peer(self, peer: PeerAddress, view: PeerView) -> PeerView:
        try:
            answer = await self._client.silences(peer)
        except AlertmanagerError as error:
            if not view.error:
                _log.warning("Cannot read the silences of Alertmanager %s: %s", peer.name, error.reason)
            return replace(view, error=error.reason)
        return PeerView(peer=peer.name, answer=answer, read_at=self._clock())

    async def _poll_peers(self) -> None:
        while True:
            try:
                await self.read_peers()
            except Exception:
                _log.exception("Reading the silences failed unexpectedly; retrying")
            await asyncio.sleep(RETRY_SECONDS if self.unknown else POLL_SECONDS)

    async def _follow_notifications(self) -> None:
        while True:
            self._changed.clear()
            try:
                await self.read_notifications()
            except StoreError as error:
                _log.error("Cannot read the notifications; retrying: %s", error)
            await asyncio.sleep(_PAUSE_SECONDS + _PAUSE_PER_TICKET_SECONDS * len(self._labels))
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(POLL_SECONDS):
                    await self._changed.wait()
