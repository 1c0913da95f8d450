"""The assignment of partitions to members."""

from __future__ import annotations

import itertools
import random
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from queenright.server.cluster.assignment import assign_partitions
from queenright.server.cluster.partition import make_partition_settings
from queenright.server.reload import read_reloadable, watch_reloadable
from queenright.server.settings import load_settings

MEMBERS = st.sets(st.text("abcdefgh", min_size=1, max_size=3), min_size=1, max_size=6)


@st.composite
def draw_clusters(draw: st.DrawFn, most_partitions: int = 64) -> tuple[list[str | None], set[str]]:
    """Draw the owner of each partition and the set of live members. Some owners are no longer running."""
    members = draw(MEMBERS)
    owner = st.sampled_from([None, "gone", *sorted(members)])
    return draw(st.lists(owner, min_size=1, max_size=most_partitions)), members


@given(draw_clusters())
def test_every_partition_goes_to_a_live_member_in_equal_shares(
    cluster: tuple[list[str | None], set[str]],
) -> None:
    owners, members = cluster

    assignment = assign_partitions(owners, members)

    assert len(assignment) == len(owners)
    assert set(assignment) <= members
    counts = [Counter(assignment)[member] for member in members]
    assert max(counts) - min(counts) <= 1


@given(draw_clusters(), st.randoms())
def test_every_member_computes_the_same_assignment(
    cluster: tuple[list[str | None], set[str]], chance: random.Random
) -> None:
    owners, members = cluster
    order = sorted(members)
    chance.shuffle(order)

    assert assign_partitions(owners, order) == assign_partitions(owners, members)


@given(draw_clusters(most_partitions=6))
def test_as_few_partitions_move_as_possible(cluster: tuple[list[str | None], set[str]]) -> None:
    owners, members = cluster
    members = set(sorted(members)[:3])

    def count_kept(assigned: tuple[str | None, ...]) -> int:
        return sum(
            old_owner == new_owner
            for old_owner, new_owner in zip(owners, assigned, strict=True)
            if old_owner in members
        )

    most_kept = max(
        count_kept(assignment)
        for assignment in itertools.product(sorted(members), repeat=len(owners))
        if max(counts := [assignment.count(member) for member in members]) - min(counts) <= 1
    )
    assert count_kept(tuple(assign_partitions(owners, members))) == most_kept


@given(draw_clusters(), st.randoms())
def test_moving_one_partition_at_a_time_reaches_a_stable_assignment(
    cluster: tuple[list[str | None], set[str]], chance: random.Random
) -> None:
    """Whatever the order in which members release and claim partitions, no partition moves more than once."""
    owners, members = cluster
    move_counts: Counter[int] = Counter()
    while (target := assign_partitions(owners, members)) != owners:
        misplaced = [index for index, owner in enumerate(owners) if owner != target[index]]
        index = chance.choice(misplaced)
        if owners[index] in members:
            owners[index] = None
        else:
            owners[index] = target[index]
            move_counts[index] += 1
        assert move_counts[index] <= 1
    assert assign_partitions(owners, members) == owners


@given(draw_clusters(), st.data())
def test_failed_member_gets_no_more_partitions(
    cluster: tuple[list[str | None], set[str]], data: st.DataObject
) -> None:
    """Otherwise the other members would repeatedly hand over partitions that it cannot run."""
    owners, members = cluster
    failed_members = data.draw(st.sets(st.sampled_from(sorted(members))))

    assignment = assign_partitions(owners, members, failed_members)

    assert set(assignment) <= members
    if failed_members < members:
        counts, old_counts = Counter(assignment), Counter(owners)
        assert all(counts[member] <= old_counts[member] for member in failed_members)
        other_counts = [counts[member] for member in members - failed_members]
        assert max(other_counts) - min(other_counts) <= 1
    else:
        assert assignment == assign_partitions(owners, members)


def test_without_members_partitions_have_no_owner() -> None:
    assert assign_partitions(["a", None], ()) == [None, None]


def test_new_member_gets_its_share_and_the_lowest_partitions_stay() -> None:
    assert assign_partitions(["a", "a", "a", "a"], ["a", "b"]) == ["a", "a", "b", "b"]
    assert sorted(Counter(assign_partitions(["a", "a", "b", "b"], ["a", "b", "c"])).values()) == [1, 1, 2]


def test_only_the_first_partition_loads_agents(tmp_path: Path) -> None:
    """The setting `agents.load` applies once per fleet."""
    shared_settings: dict[str, Any] = {"database": "postgresql://queenright@127.0.0.1/queenright"}
    nats = {"nats": "nats://127.0.0.1:4222"}
    settings = load_settings(agents={"load": [tmp_path]}, cluster=nats | {"partitions": 4}, **shared_settings)
    all_settings = [make_partition_settings(settings, number) for number in range(4)]
    assert [len(loaded.agents.load) for loaded in all_settings] == [1, 0, 0, 0]
    single_settings = load_settings(cluster=nats, **shared_settings)
    assert make_partition_settings(single_settings, 0) is single_settings


def test_taken_over_partition_has_the_reloaded_settings(tmp_path: Path) -> None:
    """The new owner of the partition started before the file was changed and before `POST /-/reload`."""
    file = tmp_path / "queenright.yaml"
    file.write_text("health_monitoring: {tickets: {hold_seconds: 60}}\n")
    settings = make_partition_settings(load_settings(file), 0)
    file.write_text("health_monitoring: {tickets: {hold_seconds: 7}}\nstorage: elsewhere\n")
    reloaded, fault = read_reloadable(settings)
    assert fault == ""
    assert reloaded.health_monitoring.tickets.hold_seconds == 7
    assert reloaded.storage == settings.storage
    file.write_text("health_monitoring: {tickets: {hold_seconds: never}}\n")
    reloaded, fault = read_reloadable(settings)
    assert reloaded is settings
    assert "never" in fault


async def test_invalid_settings_are_logged_once(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    file = tmp_path / "queenright.yaml"
    file.write_text("{}")
    settings = load_settings(file)
    contents = iter(["storage: [1]", "storage: [1]", "storage: [2]", "{}", "storage: [2]"])

    async def write_next(_seconds: float) -> None:
        file.write_text(next(contents))

    log_counts = []
    watcher = watch_reloadable(settings, write_next)
    for _ in range(5):
        assert await anext(watcher) == settings
        log_counts.append(len(caplog.records))

    assert log_counts == [1, 1, 2, 2, 3]
