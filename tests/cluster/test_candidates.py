"""Which members of a cluster can own partitions."""

from __future__ import annotations

from typing import Any

import pytest

from queenright.health.cluster.cluster_lease import Member, MemberState, Ownership, SeenMember, View
from queenright.server.cluster.assignment import find_candidates, find_partition_count, is_oldest_member


def make_seen_member(
    name: str,
    *,
    partitions: int = 4,
    unseen_seconds: float = 0.5,
    is_connected: bool = True,
    version: str = "1",
    **state: Any,
) -> SeenMember:
    return SeenMember(
        member=Member(
            member_id=name, host=name, api_port=1, otlp_port=2, version=version, partitions=partitions
        ),
        state=MemberState(**state),
        uptime_seconds=9.0,
        unseen_seconds=unseen_seconds,
        is_connected=is_connected,
    )


@pytest.mark.parametrize(
    ("other_member", "expected"),
    [
        (make_seen_member("other"), {"own", "other"}),
        (make_seen_member("other", unseen_seconds=7.0), {"own"}),
        (make_seen_member("other", is_connected=False), {"own"}),
        (make_seen_member("other", can_publish=False), {"own"}),
        (make_seen_member("other", partitions=2), {"own"}),
    ],
    ids=["alive", "paused", "gone", "without NATS", "other number"],
)
def test_member_that_cannot_monitor_is_not_a_candidate(other_member: SeenMember, expected: set[str]) -> None:
    view = View(members=(make_seen_member("own"), other_member), partitions=(Ownership(),) * 4)

    assert find_candidates(view, 4) == expected


def test_all_live_members_are_candidates_if_none_reaches_nats() -> None:
    members = (
        make_seen_member("own", can_publish=False),
        make_seen_member("other", can_publish=False),
        make_seen_member("gone", is_connected=False),
        make_seen_member("stopping", can_publish=False, is_stopping=True),
    )

    assert find_candidates(View(members=members, partitions=(Ownership(),)), 4) == {"own", "other"}


@pytest.mark.parametrize(
    ("members", "stored_partitions", "expected"),
    [
        ((make_seen_member("old", partitions=4), make_seen_member("own", partitions=1)), 4, 4),
        ((make_seen_member("own", partitions=1),), 4, 4),
        ((make_seen_member("wrong", partitions=1), make_seen_member("own", partitions=4)), 4, 4),
        ((make_seen_member("grown", partitions=8), make_seen_member("own", partitions=8)), 4, 8),
        ((make_seen_member("first", partitions=2),), 0, 2),
        ((), 0, 1),
        ((make_seen_member("joined", partitions=8, is_counted=False),), 4, 4),
        (
            (
                make_seen_member("joined", partitions=8, is_counted=False),
                make_seen_member("own", partitions=4),
            ),
            4,
            4,
        ),
        ((make_seen_member("joined", partitions=8, is_counted=False),), 0, 8),
    ],
    ids=[
        "same as the database",
        "only a member with fewer",
        "older member has fewer",
        "all members have more",
        "new database",
        "no members",
        "uncounted member has more",
        "older uncounted member has more",
        "uncounted member and a new database",
    ],
)
def test_agreed_number_of_partitions_ignores_members_with_fewer_than_stored(
    members: tuple[SeenMember, ...], stored_partitions: int, expected: int
) -> None:
    view = View(members=members, partitions=(Ownership(),), stored_partitions=stored_partitions)

    count = find_partition_count(view, 1)

    assert count == expected
    assert {
        candidate.member.partitions
        for candidate in members
        if candidate.member.member_id in find_candidates(view, count)
    } <= {count}


def test_first_process_is_the_oldest_running_one() -> None:
    ended_member, oldest_member, younger_member = (
        make_seen_member("gone", is_connected=False),
        make_seen_member("first"),
        make_seen_member("second"),
    )
    view = View(members=(ended_member, oldest_member, younger_member), partitions=())

    assert [is_oldest_member(view, name) for name in ("gone", "first", "second")] == [False, True, False]
    assert is_oldest_member(View(members=(), partitions=()), "own")
