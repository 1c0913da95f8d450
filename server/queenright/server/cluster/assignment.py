"""
Which member of a cluster should own which partition.

A pure function of what is in the database, so that all members come to the same result.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from hashlib import blake2b


def assign_partitions(owners: Sequence[str | None], members: Collection[str]) -> list[str | None]:
    """
    Return the member that should own each partition; None for all if there are no members.

    The shares of members differ by one partition at most. An owner keeps its partitions, the lowest numbers
    first, up to its share; the larger shares go to those who own most.

    Args:
        owners: The current owner of each partition, by number; None, or no member, if there is none.
        members: The members that can own partitions.
    """
    if not members:
        return [None] * len(owners)
    owned = {member: [k for k, owner in enumerate(owners) if owner == member] for member in members}
    share, larger = divmod(len(owners), len(members))
    by_size = sorted(members, key=lambda member: (-len(owned[member]), _rank(member, "share")))
    shares = {member: share + (place < larger) for place, member in enumerate(by_size)}
    kept = {member: set(owned[member][: shares[member]]) for member in members}
    assigned: list[str | None] = []
    for partition, owner in enumerate(owners):
        if owner not in kept or partition not in kept[owner]:
            open_members = [member for member in members if len(kept[member]) < shares[member]]
            owner = min(open_members, key=lambda member: (len(kept[member]), _rank(member, str(partition))))
            kept[owner].add(partition)
        assigned.append(owner)
    return assigned


def _rank(member: str, what: str) -> bytes:
    """Return a value that differs by member, so that equal members do not all get the same."""
    return blake2b(f"{what} {member}".encode(), digest_size=8).digest()
