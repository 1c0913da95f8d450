"""Merge the parts of incidents from all partitions of a cluster. A single process has one part."""

from __future__ import annotations

from collections.abc import Iterable
from operator import attrgetter
from typing import Self, TypeVar

from queenright import api
from queenright.health.findings import Severity


class IncidentPart(api.Incident):
    """The part of an incident in one partition. It may have a single worker."""

    group: str
    """The key that all parts of an incident share."""

    def join(self, later: Self) -> Self:
        """Merge this part with a later part of the same incident."""
        closed_times = [part.closed_at for part in (self, later) if part.closed_at is not None]
        worst = max((self, later), key=lambda part: (part.open_tickets > 0, Severity(part.severity).rank))
        return self.model_copy(
            update={
                "severity": worst.severity,
                "closed_at": max(closed_times) if len(closed_times) == 2 else None,
                "workers": self.workers + later.workers,
                "open_tickets": self.open_tickets + later.open_tickets,
                # Ids are ordered by time.
                "ticket_ids": sorted(self.ticket_ids + later.ticket_ids),
            }
        )


Part = TypeVar("Part", bound=IncidentPart)


def join_parts(parts: Iterable[Part]) -> list[Part]:
    """
    Merge parts into incidents, oldest first.

    An incident has the id of its first ticket. A part that begins after all earlier parts have closed belongs
    to another incident. Parts with a single worker in total are not an incident.
    """
    incidents: list[Part] = []
    latest: dict[str, int] = {}
    for part in sorted(parts, key=attrgetter("opened_at", "incident_id")):
        number = latest.get(part.group)
        closed_at = None if number is None else incidents[number].closed_at
        if number is None or (closed_at is not None and closed_at < part.opened_at):
            latest[part.group] = len(incidents)
            incidents.append(part)
        else:
            incidents[number] = incidents[number].join(part)
    return [incident for incident in incidents if incident.workers > 1]
