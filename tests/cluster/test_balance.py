"""When a process hands partitions over to other processes."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast
from unittest.mock import Mock

import pytest

from queenright.health.cluster.cluster_lease import Ownership, SeenMember, View
from queenright.server.cluster.member import ClusterMember, compute_refresh_pause
from tests.cluster.test_candidates import make_seen_member


@pytest.mark.parametrize(
    ("own_state", "seconds"), [({"can_publish": False}, 3.0), ({}, 6.0)], ids=["without NATS", "surplus"]
)
def test_process_hands_over_partitions_of_others(own_state: dict[str, Any], seconds: float) -> None:
    """B117: sooner if the process cannot reach NATS, because nobody monitors its workers meanwhile."""
    own, other = make_seen_member("own", partitions=2, **own_state), make_seen_member("other", partitions=2)
    view = View(members=(own, other), partitions=(Ownership(owner_id="own", is_vacant=False),) * 2)
    base_state = {"is_ending": False, "surplus_since": None, "vacant_since": None, "unserved_since": None}
    partitions = [Mock(number=number, is_claimed=True, **base_state) for number in range(2)]
    member = cast(
        ClusterMember,
        SimpleNamespace(
            member=own.member, partitions=partitions, _is_stopping=False, _is_moving=lambda now: False
        ),
    )

    ClusterMember._balance_partitions(member, view, 100.0)
    ClusterMember._balance_partitions(member, view, 100.0 + seconds)
    assert not any(partition.hand_over.called for partition in partitions)
    ClusterMember._balance_partitions(member, view, 100.1 + seconds)
    assert partitions[1].hand_over.called


@pytest.mark.parametrize(
    "other_members", [(), (make_seen_member("other", can_publish=False, is_stopping=True),)]
)
def test_stopping_process_claims_no_partition(other_members: tuple[SeenMember, ...]) -> None:
    """This also holds for the last process while its slowest partition ends."""
    own = make_seen_member("own", can_publish=False, is_stopping=True)
    view = View(members=(own, *other_members), partitions=(Ownership(),) * 4)
    partitions = [Mock(is_claimed=False, vacant_since=0.0, surplus_since=None) for _ in range(4)]
    member = cast(ClusterMember, SimpleNamespace(member=own.member, partitions=partitions, _is_stopping=True))

    ClusterMember._balance_partitions(member, view, 100.0)

    assert not any(partition.claim.called for partition in partitions)


@pytest.mark.parametrize(("expires_in", "pause"), [(None, 1), (5.0, 1), (0.4, 0.4), (0.0, 0.1)])
def test_view_is_refreshed_when_the_next_lease_expires(expires_in: float | None, pause: float) -> None:
    """B117: a takeover starts at that time, not up to a second later."""
    view = None if expires_in is None else View(members=(), partitions=(), expires_in=expires_in)
    assert compute_refresh_pause(view) == pause
