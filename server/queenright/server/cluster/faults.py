"""What is wrong with the members of a cluster, as all of them see it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final

from queenright.health.cluster.cluster_lease import LEASE_SECONDS, SeenMember, View
from queenright.instrumentation.durations import format_duration
from queenright.server.cluster.assignment import agreed_partitions

MAX_CLOCK_OFFSET: Final = 2.0
"""Seconds; ages of events and limits that several processes share are wrong by as much."""


def find_faults(view: View, own_id: str = "") -> list[str]:
    """
    Return what is wrong, as sentences; empty if all is well.

    Args:
        own_id: The member that asks. It reports its own number of partitions itself.
    """
    return [
        *_lost_members(view),
        *_unwatched_partitions(view),
        *_numbers(view, own_id),
        *_settings(view),
        *_clocks(view),
    ]


def name_partitions(numbers: Sequence[int]) -> str:
    """Return partitions in messages."""
    return f"partition{'s' if len(numbers) > 1 else ''} {', '.join(map(str, numbers))}"


def _lost_members(view: View) -> Iterator[str]:
    for each in view.members:
        if each.unseen_seconds >= LEASE_SECONDS and not each.state.is_stopping:
            why = "it hangs" if each.is_connected else "it crashed, or cannot reach the database"
            yield f"{each.member.api_url} was not seen for {format_duration(each.unseen_seconds)}: {why}"


def _unwatched_partitions(view: View) -> Iterator[str]:
    for each in view.alive:
        numbers = [
            number
            for number in range(len(view.partitions))
            if view.find_owner(number) == each.member and not view.is_served(number)
        ]
        if numbers:
            which = f" of {name_partitions(numbers)}" if len(view.partitions) > 1 else ""
            yield (
                f"the workers{which} are not watched at the moment: {each.member.api_url} is taking them "
                "over or handing them over"
            )


def _numbers(view: View, own_id: str) -> Iterator[str]:
    count = agreed_partitions(view, 0)
    for member in (each.member for each in view.alive):
        if member.partitions != count and member.member_id != own_id:
            yield (
                f"cluster.partitions is {member.partitions} at {member.api_url}, and the cluster has "
                f"{count}: it owns nothing and takes no telemetry"
            )


def _settings(view: View) -> Iterator[str]:
    """Compare each member with the oldest one of its version: versions have different settings."""
    oldest: dict[str, SeenMember] = {}
    for member_view in view.alive:
        first = oldest.setdefault(member_view.member.version, member_view)
        first_settings, own = first.state.settings, member_view.state.settings
        if blocks := sorted(
            name for name in first_settings.keys() | own.keys() if first_settings.get(name) != own.get(name)
        ):
            yield (
                f"the settings of {member_view.member.api_url} and {first.member.api_url} differ in "
                f"{', '.join(blocks)}; give both the same file, and restart the one that had another"
            )


def _clocks(view: View) -> Iterator[str]:
    for each in view.alive:
        if fault := describe_clock(each.state.clock_offset):
            yield f"{each.member.api_url}: {fault}"


def describe_clock(offset: float) -> str:
    """
    Return what is wrong with the clock of a machine; empty if nothing is.

    Args:
        offset: How many seconds it is ahead of that of the database.
    """
    if abs(offset) <= MAX_CLOCK_OFFSET:
        return ""
    where = "ahead of" if offset > 0 else "behind"
    return (
        f"the clock of its machine is {format_duration(abs(offset))} {where} the clock of the database; "
        "synchronise both"
    )
