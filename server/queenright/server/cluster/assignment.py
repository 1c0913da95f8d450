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
    first = next((seen.member.partitions for seen in alive if seen.state.is_counted), 0)
    return max(first, view.stored_partitions) or (alive[0].member.partitions if alive else own)


def is_first(view: View, member_id: str) -> bool:
    """Return whether no member that runs was started before this one."""
    return next((seen.member.member_id for seen in view.alive), member_id) == member_id


def find_candidates(view: View, partitions: int) -> set[str]:
    """
    Return the members that can own partitions: those that reach NATS, or all if none does. None is stopping.

    Args:
        view: The cluster.
        partitions: The number of partitions; members with another number own none.
    """
    able = [
        seen for seen in view.alive if seen.member.partitions == partitions and not seen.state.is_stopping
    ]
    return {seen.member.member_id for seen in ([seen for seen in able if seen.state.can_publish] or able)}


def assign_partitions(
    owners: Sequence[str | None], members: Collection[str], failed: Collection[str] = ()
) -> list[str | None]:
    """
    Return the member that should own each partition; None for all if there are no members.

    The shares of members differ by one partition at most. An owner keeps its partitions, the lowest numbers
    first, up to its share; the larger shares go to those who own most.

    Args:
        owners: The current owner of each partition, by number; None, or not a member, without an owner.
        members: The members that can own partitions.
        failed: Members that recently failed to run a partition: they get no more, unless all have failed.
    """
    if not members:
        return [None] * len(owners)
    owned = {member: [k for k, owner in enumerate(owners) if owner == member] for member in members}
    shares = _shares(
        len(owners),
        {member: len(numbers) for member, numbers in owned.items()},
        set() if set(members) <= set(failed) else failed,
    )
    kept = {member: set(owned[member][: shares[member]]) for member in members}
    assigned: list[str | None] = []
    for partition, owner in enumerate(owners):
        if owner not in kept or partition not in kept[owner]:
            open_members = [member for member in members if len(kept[member]) < shares[member]]
            owner = min(open_members, key=lambda member: (len(kept[member]), _rank(member, str(partition))))
            kept[owner].add(partition)
        assigned.append(owner)
    return assigned


def _shares(count: int, owned: Mapping[str, int], failed: Collection[str]) -> dict[str, int]:
    """Return how many partitions each member should own, from how many each owns now."""
    share, larger = divmod(count, len(owned))
    by_size = sorted(owned, key=lambda member: (-owned[member], _rank(member, "share")))
    shares = {member: share + (place < larger) for place, member in enumerate(by_size)}
    full = {member: owned[member] for member in failed if member in owned and owned[member] < shares[member]}
    if not full:
        return shares
    others = {member: size for member, size in owned.items() if member not in full}
    return full | _shares(count - sum(full.values()), others, failed)


def _rank(member: str, what: str) -> bytes:
    """Return a value that differs by member, so that equal members do not all get the same."""
    return blake2b(f"{what} {member}".encode(), digest_size=8).digest()
