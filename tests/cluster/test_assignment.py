"""Which member should own which partition."""

from __future__ import annotations

import itertools
import random
from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from queenright.server.cluster.assignment import assign_partitions

MEMBERS = st.sets(st.text("abcdefgh", min_size=1, max_size=3), min_size=1, max_size=6)


@st.composite
def clusters(draw: st.DrawFn, most_partitions: int = 64) -> tuple[list[str | None], set[str]]:
    """Return owners by partition, some of them gone, and the live members."""
    members = draw(MEMBERS)
    owner = st.sampled_from([None, "gone", *sorted(members)])
    return draw(st.lists(owner, min_size=1, max_size=most_partitions)), members


@given(clusters())
def test_every_partition_goes_to_a_live_member_in_equal_shares(
    cluster: tuple[list[str | None], set[str]],
) -> None:
    owners, members = cluster

    found = assign_partitions(owners, members)

    assert len(found) == len(owners)
    assert set(found) <= members
    counts = [Counter(found)[member] for member in members]
    assert max(counts) - min(counts) <= 1


@given(clusters(), st.randoms())
def test_every_member_comes_to_the_same_result(
    cluster: tuple[list[str | None], set[str]], chance: random.Random
) -> None:
    owners, members = cluster
    order = sorted(members)
    chance.shuffle(order)

    assert assign_partitions(owners, order) == assign_partitions(owners, members)


@given(clusters(most_partitions=6))
def test_as_few_partitions_move_as_possible(cluster: tuple[list[str | None], set[str]]) -> None:
    owners, members = cluster
    members = set(sorted(members)[:3])

    def stays(assigned: tuple[str | None, ...]) -> int:
        return sum(
            before == after for before, after in zip(owners, assigned, strict=True) if before in members
        )

    best = max(
        stays(assigned)
        for assigned in itertools.product(sorted(members), repeat=len(owners))
        if max(counts := [assigned.count(member) for member in members]) - min(counts) <= 1
    )
    assert stays(tuple(assign_partitions(owners, members))) == best


@given(clusters(), st.randoms())
def test_moving_one_at_a_time_reaches_a_state_that_stays(
    cluster: tuple[list[str | None], set[str]], chance: random.Random
) -> None:
    """Whoever releases or claims first, no partition moves more than once."""
    owners, members = cluster
    moved: Counter[int] = Counter()
    while (wanted := assign_partitions(owners, members)) != owners:
        differing = [k for k, owner in enumerate(owners) if owner != wanted[k]]
        k = chance.choice(differing)
        if owners[k] in members:
            owners[k] = None
        else:
            owners[k] = wanted[k]
            moved[k] += 1
        assert moved[k] <= 1
    assert assign_partitions(owners, members) == owners


def test_without_members_nobody_owns_anything() -> None:
    assert assign_partitions(["a", None], ()) == [None, None]


def test_new_member_gets_its_share_and_the_lowest_partitions_stay() -> None:
    assert assign_partitions(["a", "a", "a", "a"], ["a", "b"]) == ["a", "a", "b", "b"]
    assert sorted(Counter(assign_partitions(["a", "a", "b", "b"], ["a", "b", "c"])).values()) == [1, 1, 2]
