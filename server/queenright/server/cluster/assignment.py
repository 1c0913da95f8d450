"""
Decide which member of a cluster should own which partition.

The results depend only on the database, so that all members get the same ones.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from hashlib import blake2b

from queenright.health.cluster.cluster_lease import View


def agreed_partitions(view: View, own: int) -> int:
    """
    Return the number of partitions of the cluster: that of the oldest live member whose number counts.

    It is never less than the database has: workers and tickets would not be watched.

    Args:
        view: The cluster.
        own: The number of this process, which holds for a database without tables if no other runs.
    """
    alive = view.alive
    first = next((each.member.partitions for each in alive if each.state.is_counted), 0)
    return max(first, view.stored_partitions) or (alive[0].member.partitions if alive else own)


def is_first(view: View, member_id: str) -> bool:
    """Return whether no member that runs was started before this one."""
    return next((each.member.member_id for each in view.alive), member_id) == member_id


def find_candidates(view: View, partitions: int) -> set[str]:
    """
    Return the members that can own partitions: those that reach NATS, or all if none does. None is stopping.

    Args:
        view: The cluster.
        partitions: The number of partitions; members with another number own none.
    """
    able = [
        each for each in view.alive if each.member.partitions == partitions and not each.state.is_stopping
    ]
    return {each.member.member_id for each in ([each for each in able if each.state.can_publish] or able)}


def assign_partitions(
    owners: Sequence[str | None], members: Collection[str], failed_members: Collection[str] = ()
) -> list[str | None]:
    """
    Return the member that should own each partition; None for all if there are no members.

    The shares of members differ by one partition at most. An owner keeps its partitions, the lowest numbers
    first, up to its share; the larger shares go to those who own most.

    Args:
        owners: The current owner of each partition, by number; None, or not a member, without an owner.
        members: The members that can own partitions.
        failed_members: Members that recently failed to run a partition: they get no more, unless all have
            failed.
    """
    if not members:
        return [None] * len(owners)
    owned_partitions = {
        member: [k for k, owner in enumerate(owners) if owner == member] for member in members
    }
    shares = _shares(
        len(owners),
        {member: len(numbers) for member, numbers in owned_partitions.items()},
        set() if set(members) <= set(failed_members) else failed_members,
    )
    kept_partitions = {member: set(owned_partitions[member][: shares[member]]) for member in members}
    assignment: list[str | None] = []
    for partition, owner in enumerate(owners):
        if owner not in kept_partitions or partition not in kept_partitions[owner]:
            open_members = [member for member in members if len(kept_partitions[member]) < shares[member]]
            owner = min(
                open_members, key=lambda member: (len(kept_partitions[member]), _rank(member, str(partition)))
            )
            kept_partitions[owner].add(partition)
        assignment.append(owner)
    return assignment


def _shares(count: int, owned_counts: Mapping[str, int], failed_members: Collection[str]) -> dict[str, int]:
    """Return how many partitions each member should own, from how many each owns now."""
    share, larger = divmod(count, len(owned_counts))
    by_size = sorted(owned_counts, key=lambda member: (-owned_counts[member], _rank(member, "share")))
    shares = {member: share + (place < larger) for place, member in enumerate(by_size)}
    full = {
        member: owned_counts[member]
        for member in failed_members
        if member in owned_counts and owned_counts[member] < shares[member]
    }
    if not full:
        return shares
    others = {member: size for member, size in owned_counts.items() if member not in full}
    return full | _shares(count - sum(full.values()), others, failed_members)


def _rank(member: str, what: str) -> bytes:
    """Return a value that differs by member, so that equal members do not all get the same."""
    return blake2b(f"{what} {member}".encode(), digest_size=8).digest()
