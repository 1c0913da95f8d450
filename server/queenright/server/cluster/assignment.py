"""
Decide which member of a cluster should own which partition.

The results depend only on the state in the database, so all members compute the same results.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from hashlib import blake2b

from queenright.health.cluster.cluster_lease import View


def find_partition_count(view: View, own_count: int) -> int:
    """
    Return the cluster's number of partitions: the setting of the oldest live member whose setting counts.

    It is at least the number in the database; otherwise some workers and tickets would not be watched.

    Args:
        view: The cluster.
        own_count: The setting of this process, for a database without tables while no other process runs.
    """
    alive = view.alive
    configured_count = next(
        (member_view.member.partitions for member_view in alive if member_view.state.is_counted), 0
    )
    return max(configured_count, view.stored_partitions) or (
        alive[0].member.partitions if alive else own_count
    )


def is_oldest_member(view: View, member_id: str) -> bool:
    """Return whether this member is the oldest running one."""
    return next((member_view.member.member_id for member_view in view.alive), member_id) == member_id


def find_candidates(view: View, partitions: int) -> set[str]:
    """
    Return the members that can own partitions: those that reach NATS, or all if none does.

    Stopping members are excluded.

    Args:
        view: The cluster.
        partitions: The number of partitions; members with a different number own none.
    """
    candidates = [
        member_view
        for member_view in view.alive
        if member_view.member.partitions == partitions and not member_view.state.is_stopping
    ]
    return {
        member_view.member.member_id
        for member_view in (
            [member_view for member_view in candidates if member_view.state.can_publish] or candidates
        )
    }


def assign_partitions(
    owners: Sequence[str | None], members: Collection[str], failed_members: Collection[str] = ()
) -> list[str | None]:
    """
    Return the member that should own each partition; None for all if there are no members.

    The shares of members differ by at most one partition. An owner keeps its partitions, lowest numbers
    first, up to its share. The larger shares go to the members that own the most.

    Args:
        owners: The current owner of each partition, by number. None, or an unknown member, means no owner.
        members: The members that can own partitions.
        failed_members: Members that recently failed to run a partition. They get no further ones, unless all
            failed.
    """
    if not members:
        return [None] * len(owners)
    owned_partitions = {
        member: [number for number, owner in enumerate(owners) if owner == member] for member in members
    }
    shares = _compute_shares(
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
                open_members,
                key=lambda member: (len(kept_partitions[member]), _compute_rank(member, str(partition))),
            )
            kept_partitions[owner].add(partition)
        assignment.append(owner)
    return assignment


def _compute_shares(
    count: int, owned_counts: Mapping[str, int], failed_members: Collection[str]
) -> dict[str, int]:
    """Return the number of partitions that each member should own, given the numbers that they own now."""
    share, larger_count = divmod(count, len(owned_counts))
    members_by_size = sorted(
        owned_counts, key=lambda member: (-owned_counts[member], _compute_rank(member, "share"))
    )
    shares = {member: share + (index < larger_count) for index, member in enumerate(members_by_size)}
    capped_shares = {
        member: owned_counts[member]
        for member in failed_members
        if member in owned_counts and owned_counts[member] < shares[member]
    }
    if not capped_shares:
        return shares
    other_counts = {member: size for member, size in owned_counts.items() if member not in capped_shares}
    return capped_shares | _compute_shares(count - sum(capped_shares.values()), other_counts, failed_members)


def _compute_rank(member: str, purpose: str) -> bytes:
    """Return a pseudo-random rank of a member, which breaks ties differently for each purpose."""
    return blake2b(f"{purpose} {member}".encode(), digest_size=8).digest()
