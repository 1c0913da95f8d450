"""The faults that `queenright cluster status` reports about members."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import httpx
import pytest

from queenright.health.cluster.cluster_lease import Ownership, SeenMember, View
from queenright.server.cluster.faults import find_faults
from queenright.server.cluster.settings_hash import hash_settings
from queenright.server.settings import load_settings
from tests.cluster.conftest import Cluster, Process
from tests.cluster.test_candidates import make_seen_member
from tests.cluster.test_partitions import wait_for_faults

WATCH = (
    "the workers{} are not watched at the moment, because http://a:1 is taking them over or handing them over"
)


def make_view(*members: SeenMember, owners: tuple[str | None, ...] = ()) -> View:
    return View(
        members=members,
        partitions=tuple(Ownership(owner_id=owner, is_vacant=owner is None) for owner in owners),
    )


@pytest.mark.parametrize(
    ("lost_member", "expected"),
    [
        (make_seen_member("b", unseen_seconds=12), ["http://b:1 was not seen for 12 s: it hangs"]),
        (
            make_seen_member("b", unseen_seconds=12, is_connected=False),
            ["http://b:1 was not seen for 12 s: it crashed, or cannot reach the database"],
        ),
        (make_seen_member("b", unseen_seconds=12, is_connected=False, is_stopping=True), []),
        (make_seen_member("b", unseen_seconds=2, is_connected=False), []),
        (make_seen_member("b"), []),
    ],
    ids=["hangs", "crashed", "stopped", "reconnects", "runs"],
)
def test_lost_member_is_a_fault(lost_member: SeenMember, expected: list[str]) -> None:
    assert find_faults(make_view(make_seen_member("a"), lost_member)) == expected


def test_unmonitored_partition_is_a_fault_with_its_owner() -> None:
    owner, other_member = (
        make_seen_member("a", serving=frozenset({0})),
        make_seen_member("b", serving=frozenset({3})),
    )

    faults = find_faults(make_view(owner, other_member, owners=("a", "a", "a", "b", None)))

    assert faults == [WATCH.format(" of partitions 1, 2")]
    assert find_faults(make_view(make_seen_member("a"), owners=("a",))) == [WATCH.format("")]


def test_different_number_of_partitions_is_a_fault_at_every_process() -> None:
    """The cluster's number is that of the oldest counted member. A starting member is not counted yet."""
    starting_member = make_seen_member("b", is_counted=False)
    misconfigured = make_seen_member("c", partitions=3, is_counted=False)

    assert find_faults(make_view(make_seen_member("a"), starting_member, misconfigured)) == [
        (
            "cluster.partitions is 3 at http://c:1, but the cluster has 4, so this process owns no partition "
            "and accepts no telemetry"
        )
    ]
    assert find_faults(make_view(starting_member)) == []
    [fault] = find_faults(replace(make_view(make_seen_member("a")), stored_partitions=8))
    assert fault.startswith("cluster.partitions is 4 at http://a:1, but the cluster has 8, ")


def test_member_with_another_number_of_partitions_reports_the_fault_itself() -> None:
    members = make_view(make_seen_member("a"), make_seen_member("b", partitions=3))

    assert len(find_faults(members, "a")) == 1
    assert find_faults(members, "b") == []


def test_different_settings_are_a_fault_that_names_the_blocks() -> None:
    """Only members of the same version are compared, because another version has other settings."""
    first_member = make_seen_member("a", settings={"judging": "1", "alerting": "1"})
    same_member, different_member = (
        make_seen_member("b", settings=first_member.state.settings),
        make_seen_member("c", settings={"judging": "2"}),
    )
    newer_version_member = make_seen_member("d", settings={"judging": "3"}, version="2")

    [fault] = find_faults(make_view(first_member, same_member, different_member, newer_version_member))
    assert fault.startswith("the settings of http://c:1 and http://a:1 differ in alerting, judging; ")


@pytest.mark.parametrize(("offset", "expected"), [(3.4, "3 s ahead of"), (-90.0, "2 min behind")])
def test_wrong_clock_is_a_fault(offset: float, expected: str) -> None:
    [fault] = find_faults(
        make_view(make_seen_member("a", clock_offset=offset), make_seen_member("b", clock_offset=2.0))
    )

    assert fault.startswith(f"http://a:1: the clock of its machine is {expected} the clock of the database")


def hash_changed_settings(**settings: Any) -> dict[str, str]:
    return hash_settings(load_settings(**settings))


def test_settings_hash_ignores_paths_and_addresses() -> None:
    first_hash = hash_changed_settings(storage="first", http={"port": 1})
    second_hash = hash_changed_settings(
        storage="second",
        http={"port": 2, "host": "::1"},
        cluster={"host": "b"},
        alerting={"console_url": "http://b", "alertmanager_urls": ["http://b:9093"]},
        judging={"judge": {"prompt": "b.md"}},
    )

    assert first_hash == second_hash | {"judging": first_hash["judging"]}


@pytest.mark.parametrize(
    ("settings", "block"),
    [
        ({"cluster": {"replicas": 3}}, "cluster"),
        ({"health_monitoring": {"retention": {"days": 3}}}, "health_monitoring"),
        ({"health_monitoring": {"detectors": {"stall": "off"}}}, "health_monitoring"),
        ({"judging": {"budget": {"dollars_per_day": 3}}}, "judging"),
        ({"alerting": {"lifetime_seconds": 999}}, "alerting"),
    ],
)
def test_settings_hash_differs_only_in_the_changed_block(settings: dict[str, Any], block: str) -> None:
    default_hash, changed_hash = hash_changed_settings(), hash_changed_settings(**settings)

    assert [name for name in default_hash if default_hash[name] != changed_hash[name]] == [block]


async def test_every_process_names_the_members_with_different_settings(
    cluster: Cluster, client: httpx.AsyncClient
) -> None:
    """Different addresses, ports and folders are not a fault."""
    same_processes = [cluster.add(), cluster.add()]
    await cluster.owner()
    await wait_until_faults_are(client, same_processes[0], [])
    cluster.settings["judging"] = {"budget": {"dollars_per_day": 3}}

    different_process = cluster.add()

    expected_fault = (
        f"the settings of {different_process.url} and {same_processes[0].url} differ in judging; "
    )
    for process in (*same_processes, different_process):
        await wait_until_faults_are(client, process, [expected_fault])


async def wait_until_faults_are(client: httpx.AsyncClient, process: Process, prefixes: list[str]) -> None:
    """Wait until the cluster status lists faults with these prefixes, in this order."""
    await wait_for_faults(
        client,
        process,
        lambda faults: len(faults) == len(prefixes) and all(map(str.startswith, faults, prefixes)),
    )
