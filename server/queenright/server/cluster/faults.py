"""Find the faults of a cluster's members. Every member reports them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final

from queenright.health.cluster.cluster_lease import LEASE_SECONDS, SeenMember, View
from queenright.instrumentation.durations import format_duration
from queenright.server.cluster.assignment import find_partition_count

MAX_CLOCK_OFFSET: Final = 2.0
"""Maximum clock offset, in seconds. Event ages and shared limits are wrong by this much."""


def find_faults(view: View, own_id: str = "") -> list[str]:
    """
    Return the faults, as sentences.

    Args:
        view: The cluster.
        own_id: The calling member, which reports its own number of partitions itself.
    """
    return [
        *_describe_lost_members(view),
        *_describe_unwatched_partitions(view),
        *_compare_partition_counts(view, own_id),
        *_compare_settings(view),
        *_describe_clocks(view),
    ]


def format_partitions(numbers: Sequence[int]) -> str:
    """Format partition numbers for messages."""
    return f"partition{'s' if len(numbers) > 1 else ''} {', '.join(map(str, numbers))}"


def _describe_lost_members(view: View) -> Iterator[str]:
    for member_view in view.members:
        if member_view.unseen_seconds >= LEASE_SECONDS and not member_view.state.is_stopping:
            reason = "it hangs" if member_view.is_connected else "it crashed, or cannot reach the database"
            duration = format_duration(member_view.unseen_seconds)
            yield f"{member_view.member.api_url} was not seen for {duration}: {reason}"


def _describe_unwatched_partitions(view: View) -> Iterator[str]:
    for member_view in view.alive:
        numbers = [
            number
            for number in range(len(view.partitions))
            if view.find_owner(number) == member_view.member and not view.is_served(number)
        ]
        if numbers:
            scope = f" of {format_partitions(numbers)}" if len(view.partitions) > 1 else ""
            yield (
                f"the workers{scope} are not watched at the moment, because {member_view.member.api_url} is "
                "taking them over or handing them over"
            )


def _compare_partition_counts(view: View, own_id: str) -> Iterator[str]:
    count = find_partition_count(view, 0)
    for member in (member_view.member for member_view in view.alive):
        if member.partitions != count and member.member_id != own_id:
            yield (
                f"cluster.partitions is {member.partitions} at {member.api_url}, but the cluster has "
                f"{count}, so this process owns no partition and accepts no telemetry"
            )


def _compare_settings(view: View) -> Iterator[str]:
    """Compare each member with the oldest of its version, because versions have different settings."""
    oldest: dict[str, SeenMember] = {}
    for member_view in view.alive:
        oldest_view = oldest.setdefault(member_view.member.version, member_view)
        first_settings, own_settings = oldest_view.state.settings, member_view.state.settings
        if blocks := sorted(
            name
            for name in first_settings.keys() | own_settings.keys()
            if first_settings.get(name) != own_settings.get(name)
        ):
            yield (
                f"the settings of {member_view.member.api_url} and {oldest_view.member.api_url} differ in "
                f"{', '.join(blocks)}; give both the same settings, and restart the process that you changed"
            )


def _describe_clocks(view: View) -> Iterator[str]:
    for member_view in view.alive:
        if fault := describe_clock(member_view.state.clock_offset):
            yield f"{member_view.member.api_url}: {fault}"


def describe_clock(offset: float) -> str:
    """
    Return a sentence about a machine's wrong clock, or "" if the clock is accurate enough.

    Args:
        offset: Seconds by which the machine's clock is ahead of the database's clock.
    """
    if abs(offset) <= MAX_CLOCK_OFFSET:
        return ""
    direction = "ahead of" if offset > 0 else "behind"
    return (
        f"the clock of its machine is {format_duration(abs(offset))} {direction} the clock of the database; "
        "synchronize both"
    )
