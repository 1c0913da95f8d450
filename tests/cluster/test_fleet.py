"""State that all partitions share: two services of one fleet, on a real PostgreSQL."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
from collections.abc import AsyncIterator, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio
from sqlalchemy import select

from queenright.health.cluster.cluster_lease import ClusterLease, LeaseError, Member
from queenright.health.findings import FindingKind
from queenright.health.store.engines import parse_address
from queenright.health.store.event_log import read_events
from queenright.health.store.store import Store, StoreError
from queenright.health.store.tables import OUTBOX
from queenright.health.tickets.ticket import TicketStatus
from queenright.judge.estimate import Cost, Estimate
from queenright.judge.judging_budget import ExceededLimit, Reservation
from queenright.runtime.events import AgentEvent, EventType
from queenright.server.app import create_app
from queenright.server.cluster.fleet import ClusterFleet, OwnedService
from queenright.server.cluster.gateway.gateway import Gateway
from queenright.server.cluster.gateway.pages import RowOrderMiddleware
from queenright.server.service import Service
from queenright.server.serving import run_service, serving
from queenright.server.settings import Settings, load_settings
from tests.cluster.test_gateway import make_client, unowned_app
from tests.cluster.test_gateway_equality import normalize_response
from tests.databases import Postgres, connected
from tests.server.conftest import HOUR, looping
from tests.server.test_shared_api import OVERLOADED_ERROR, make_model_calls
from tests.waiting import until

pytestmark = pytest.mark.asyncio


@dataclass
class Process:
    """A process that owns one partition. `exchange` does what the process does every second."""

    fleet: ClusterFleet
    owned_service: OwnedService

    @property
    def service(self) -> Service:
        return self.owned_service.service

    async def exchange(self) -> None:
        await self.fleet.exchange_values([self.owned_service])


def make_settings(database: str, storage: Path, health: dict[str, Any]) -> Settings:
    hours = dict.fromkeys(("idle_seconds", "llm_seconds", "tool_seconds", "unknown_seconds"), HOUR)
    return load_settings(
        storage=storage,
        database=database,
        http={"port": 0},
        otlp={"port": 0},
        health_monitoring={"stall": hours, "judge": {"start_grace_seconds": 0}, **health},
        judging={"budget": {"dollars_per_day": 10}},
    )


@contextlib.asynccontextmanager
async def run_process(database: str, partition: int, settings: Settings) -> AsyncIterator[Process]:
    member = Member(
        member_id=f"member-{partition}",
        host="127.0.0.1",
        api_port=1,
        otlp_port=2,
        version="1",
        partitions=3,
    )
    lease = ClusterLease(parse_address(database), member)
    fleet = ClusterFleet(lease)
    stores: list[Store] = []

    def open_store(url: str) -> Store:
        stores.append(Store.open(url, member_id=member.member_id, partition=partition))
        return stores[0]

    async with contextlib.AsyncExitStack() as stack:
        stack.push_async_callback(lease.close)
        stack.push_async_callback(fleet.close)
        service = await stack.enter_async_context(
            run_service(
                settings,
                "http://127.0.0.1:4318",
                open_store=open_store,
                folder=settings.storage / str(partition),
                fleet=fleet.get_partition_state(partition),
            )
        )
        yield Process(fleet, OwnedService(partition, stores[0].writer_token, service))


@pytest.fixture
def health() -> dict[str, Any]:
    """Return the block ``health_monitoring`` of the settings. Tests override this fixture."""
    return {}


@pytest.fixture
def database(postgres: Postgres) -> Any:
    url = postgres.migrated()
    yield url
    postgres.drop(url)


@pytest.fixture
def settings(database: str, tmp_path: Path, health: dict[str, Any]) -> Settings:
    return make_settings(database, tmp_path, health)


@pytest_asyncio.fixture
async def processes(database: str, settings: Settings) -> AsyncIterator[list[Process]]:
    async with contextlib.AsyncExitStack() as stack:
        processes = [
            await stack.enter_async_context(run_process(database, partition, settings))
            for partition in range(2)
        ]
        await exchange_values(processes)
        yield processes


async def exchange_values(processes: Sequence[Process]) -> None:
    """Exchange values until each process has the values of the others."""
    for _ in range(2):
        for process in processes:
            await process.exchange()


def list_recorded_stops(service: Service) -> list[bool]:
    """Return the value of each emergency stop event in the event log, oldest first."""
    rows = service.store.read_now(partial(read_events, types={EventType.EMERGENCY_STOP_CHANGED}))
    return [event.data["on"] for _, event in rows]


# -- the emergency stop -------------------------------------------------------------------------------


async def test_emergency_stop_applies_at_once_and_to_other_processes_at_their_next_exchange(
    processes: list[Process],
) -> None:
    first_process, other_process = processes[1], processes[0]

    state = await first_process.fleet.set_emergency_stop(True, by="ada", reason="a storm")

    assert (state.on, first_process.service.health.emergency_stop_state) == (True, state)
    await other_process.exchange()
    assert other_process.service.health.emergency_stop_state == state
    released_state = await other_process.fleet.set_emergency_stop(False, by="ada", reason="over")
    await first_process.exchange()
    assert first_process.service.health.emergency_stop_state == released_state
    assert not released_state.on


async def test_emergency_stop_is_recorded_once_in_the_first_partition(processes: list[Process]) -> None:
    """This holds even if the stop was released before the owner of the first partition read it."""
    first_process, second_process = processes
    await second_process.fleet.set_emergency_stop(True, by="ada", reason="a storm")
    await second_process.fleet.set_emergency_stop(False, by="ada", reason="over")
    assert list_recorded_stops(first_process.service) == []

    await exchange_values(processes)
    await until(
        lambda: list_recorded_stops(first_process.service) == [True, False], "both changes are in the log"
    )
    await exchange_values(processes)

    assert (list_recorded_stops(first_process.service), list_recorded_stops(second_process.service)) == (
        [True, False],
        [],
    )


async def test_partition_that_starts_during_the_emergency_stop_does_not_act(
    processes: list[Process], database: str, settings: Settings
) -> None:
    """Such a partition is new or has a new owner."""
    await processes[0].fleet.set_emergency_stop(True, by="ada", reason="a storm")

    async with run_process(database, 2, settings) as new_process:
        assert new_process.service.health.emergency_stop_state.on
        assert new_process.service.interventions.budget.count_used(0.0) == 0


async def test_emergency_stop_of_an_unpartitioned_fleet_holds_in_added_partitions(
    database: str, tmp_path: Path
) -> None:
    settings = make_settings(database, tmp_path, {})
    async with run_service(settings, "http://127.0.0.1:4318") as service:
        await service.health.emergency_stop(True, by="ada", reason="a storm")
    async with run_process(database, 1, settings) as new_process:
        assert new_process.service.health.emergency_stop_state.by == "ada"
        await new_process.exchange()
        assert new_process.fleet.emergency_stop.on


async def test_emergency_stop_holds_in_its_process_while_the_database_is_unavailable(
    processes: list[Process], database: str
) -> None:
    """The other processes get the stop once the database is back, even if a release failed meanwhile."""
    stopped_process, other_process = processes
    with lock_switches(database):
        with pytest.raises(StoreError, match="the stop applies in this process now"):
            await stopped_process.fleet.set_emergency_stop(True, by="ada", reason="a storm")
        with pytest.raises(StoreError, match="the stop was not released"):
            await stopped_process.fleet.set_emergency_stop(False, by="ada", reason="over")
    assert stopped_process.service.health.emergency_stop_state.on
    assert not other_process.service.health.emergency_stop_state.on

    await exchange_values(processes)

    assert other_process.service.health.emergency_stop_state.on
    await until(
        lambda: list_recorded_stops(stopped_process.service) == [True], "the emergency stop is in the log"
    )


async def test_release_replaces_an_emergency_stop_that_was_not_written(
    processes: list[Process], database: str
) -> None:
    with lock_switches(database), pytest.raises(StoreError):
        await processes[0].fleet.set_emergency_stop(True, by="ada", reason="a storm")

    await processes[0].fleet.set_emergency_stop(False, by="ada", reason="over")
    await exchange_values(processes)

    assert not any(process.service.health.emergency_stop_state.on for process in processes)


@contextlib.contextmanager
def lock_switches(database: str) -> Iterator[None]:
    """Lock the table of the emergency stop, so that reads and changes of it fail."""
    with connected(database) as conn:
        conn.exec_driver_sql("BEGIN; LOCK TABLE switches IN ACCESS EXCLUSIVE MODE")
        yield
        conn.exec_driver_sql("ROLLBACK")


# -- storms -------------------------------------------------------------------------------------------


async def loop_agents(process: Process, *names: str) -> None:
    """Let agents of a process loop."""
    service = process.service
    for name in names:
        await service.ingest(list(looping(service.clock(), agent=name)))


async def test_workers_that_become_unhealthy_in_several_partitions_are_one_storm(
    processes: list[Process],
) -> None:
    """B71: their tickets share one alert, including tickets opened before the storm was detected."""
    first_process, second_process = processes
    await loop_agents(first_process, "bee-0", "bee-1", "bee-2")
    await loop_agents(second_process, "bee-3")
    await exchange_values(processes)
    assert [process.service.remediation.storm.current for process in processes] == [None, None]

    await loop_agents(first_process, "bee-4")
    await exchange_values(processes)

    storms = [process.service.remediation.storm.current for process in processes]
    assert storms[0] is not None
    assert storms[0] == storms[1]
    now = first_process.service.clock()
    assert [process.service.remediation.storm.count_victims(now) for process in processes] == [5, 5]
    storm_id = storms[0][0]
    for process, count in ((first_process, 4), (second_process, 1)):
        # The judge may open a ticket whose check began before the storm was detected.
        await until(partial(_has_tickets, process.service, count), "the tickets of the process are open")
    await exchange_values(processes)
    for process, count in ((first_process, 4), (second_process, 1)):
        await until(
            partial(_has_storm_tickets, process.service, storm_id, count),
            "the tickets of the process are in the storm",
        )
    apps = [
        RowOrderMiddleware(create_app(process.service, bind_address="127.0.0.1")) for process in processes
    ]
    async with make_client(Gateway(lambda: apps, lambda agent, namespace="": 0, unowned_app)) as http:
        [incident] = (await http.get("/api/incidents")).json()["incidents"]
        assert (incident["cause"], incident["workers"], len(incident["ticket_ids"])) == ("storm", 5, 5)
        assert "group" not in incident
        [item] = (await http.get("/api/attention")).json()["items"]
        assert (item["item_id"], item["workers"]) == (incident["incident_id"], 5)
        assert sorted(item["agents"]) == ["bee-0", "bee-1", "bee-2", "bee-3", "bee-4"]
        acting = (await http.get("/api/status")).json()["acting"]
        assert (acting["storm"]["workers"], acting["budget"]["most"]) == (5, 10)
        assert acting["notices"] == []


def _has_tickets(service: Service, count: int) -> bool:
    return len(service.tickets.open_tickets()) == count


def _has_storm_tickets(service: Service, storm_id: str, count: int) -> bool:
    def read(conn: Any) -> list[str]:
        rows = conn.execute(select(OUTBOX.c.labels).where(OUTBOX.c.ends_at.is_(None))).scalars()
        return [labels.get("storm", "") for labels in rows]

    return service.store.read_now(read) == [storm_id] * count


async def test_simultaneous_storms_in_two_partitions_have_one_id(processes: list[Process]) -> None:
    """The processes have not exchanged values yet."""
    for number, process in enumerate(processes):
        await loop_agents(process, *(f"bee-{number}-{n}" for n in range(5)))
    storms = [process.service.remediation.storm.current for process in processes]
    assert storms[0] is not None
    assert storms[1] is not None
    assert storms[0][0] == storms[1][0]

    await exchange_values(processes)

    now = processes[0].service.clock()
    assert [process.service.remediation.storm.count_victims(now) for process in processes] == [10, 10]
    shared_ids = {process.fleet.get_storm_id(2) for process in processes}
    assert shared_ids == {storms[0][0]}


@pytest.mark.parametrize("worse_before_exchange", [0, 1, 5])
async def test_storm_continues_with_a_new_owner(
    worse_before_exchange: int, database: str, settings: Settings, caplog: pytest.LogCaptureFixture
) -> None:
    """B71, B77: workers that became unhealthy under the former owner count until the window has passed."""
    async with run_process(database, 0, settings) as former_process:
        async with run_process(database, 1, settings) as former:
            await exchange_values([former_process, former])
            await loop_agents(former, *(f"bee-{n}" for n in range(5)))
            await exchange_values([former_process, former])
            storm = former.service.remediation.storm.current
        async with run_process(database, 1, settings) as owner:
            # A standby reads the values before it takes over.
            await owner.fleet.exchange_values([])
            await loop_agents(owner, *(f"wasp-{n}" for n in range(worse_before_exchange)))
            await exchange_values([former_process, owner])
            await exchange_values([former_process, owner])

            assert storm is not None
            current_storms = [
                process.service.remediation.storm.current for process in (former_process, owner)
            ]
            assert [storm_state and storm_state[0] for storm_state in current_storms] == [storm[0]] * 2
            clock_time = owner.service.clock()
            victim_counts = [
                process.service.remediation.storm.count_victims(clock_time)
                for process in (former_process, owner)
            ]
            assert victim_counts == [5 + worse_before_exchange] * 2
    assert caplog.text.count("a storm:") == 1


async def test_storm_of_two_partitions_continues_with_new_owners(
    database: str, settings: Settings, caplog: pytest.LogCaptureFixture
) -> None:
    """Each partition has fewer workers than a storm needs."""
    async with (
        run_process(database, 0, settings) as first_process,
        run_process(database, 1, settings) as second_process,
    ):
        await loop_agents(first_process, "bee-0", "bee-1", "bee-2")
        await loop_agents(second_process, "bee-3", "bee-4")
        await exchange_values([first_process, second_process])
        storm = first_process.service.remediation.storm.current
    async with (
        run_process(database, 0, settings) as first_process,
        run_process(database, 1, settings) as second_process,
    ):
        await exchange_values([first_process, second_process])

        assert storm is not None
        current_storms = [
            process.service.remediation.storm.current for process in (first_process, second_process)
        ]
        assert [storm_state and storm_state[0] for storm_state in current_storms] == [storm[0]] * 2
    assert caplog.text.count("a storm:") == 1


async def test_unshared_storm_continues_with_a_new_owner(
    database: str, settings: Settings, caplog: pytest.LogCaptureFixture
) -> None:
    """The owner was killed in the second in which the storm began."""
    async with run_process(database, 1, settings) as former:
        await former.exchange()
        await loop_agents(former, *(f"bee-{n}" for n in range(5)))
        storm = former.service.remediation.storm.current
    async with run_process(database, 1, settings) as owner:
        await owner.fleet.exchange_values([])
        await loop_agents(owner, "wasp")
        await owner.exchange()

        assert storm is not None
        current = owner.service.remediation.storm.current
        assert current is not None
        assert (current[0], owner.service.remediation.storm.workers) == (storm[0], 6)
    assert caplog.text.count("a storm:") == 1


async def test_agent_that_crashes_in_one_partition_after_the_other_is_not_a_storm(
    processes: list[Process],
) -> None:
    """B123: the sessions of a coding agent are distributed over the partitions."""
    for number in range(6):
        process = processes[number % 2]
        now = process.service.clock() - 60 * (6 - number)
        *events, end = (
            dataclasses.replace(event, id=f"{number}-{place}", session_id=f"s{number}")
            for place, event in enumerate(looping(now, agent="bee", ended=True))
        )
        await process.service.ingest(events)
        assert process.service.remediation.storm.list_local_workers(process.service.clock()).keys() >= {
            ("bee", f"s{number}")
        }
        await process.service.ingest([end])
        await exchange_values(processes)

    assert [process.service.remediation.storm.workers for process in processes] == [1, 1]


async def test_tool_that_fails_in_several_partitions_is_one_incident(
    processes: list[Process],
) -> None:
    """B104: the tool fails for three workers in total, but for fewer in each partition."""
    first_process, second_process = processes
    await fail_calls(first_process, "bee-0")
    await fail_calls(second_process, "bee-1")
    for process in processes:
        await until(partial(_has_storm_tickets, process.service, "", 1), "a page is sent")
    await exchange_values(processes)

    await fail_calls(first_process, "bee-2")
    await until(lambda: len(first_process.service.tickets.open_tickets()) == 2, "another ticket is open")
    await exchange_values(processes)

    for process, count in ((first_process, 2), (second_process, 1)):
        await until(partial(_has_common_cause, process.service, count), "the tickets have the cause")


async def test_next_owner_removes_the_failing_workers_of_the_former_owner(
    processes: list[Process], database: str, settings: Settings
) -> None:
    """The workers of the next owner do not fail."""
    first_fleet = processes[0].fleet
    with connected(database) as conn:
        conn.exec_driver_sql(
            "INSERT INTO shared_values VALUES"
            """ ('failing/2', '{"tool:search": [["bee", "one"]]}', extract(epoch FROM now()))"""
        )
    await exchange_values(processes)
    assert first_fleet.list_failing_outside(0) == {"tool:search": {("bee", "one")}}

    async with run_process(database, 2, settings) as owner:
        await exchange_values([owner, *processes])

    assert first_fleet.list_failing_outside(0) == {}


async def test_cause_of_several_partitions_is_one_item_that_needs_attention(
    processes: list[Process], tmp_path: Path
) -> None:
    """B104: the response is the same as from one process, even if a partition has only one of the workers."""
    first_process, second_process = processes
    single_settings = make_settings(f"sqlite:///{tmp_path / 'alone.db'}", tmp_path / "alone", {})
    async with run_service(single_settings, "http://127.0.0.1:4318") as service:
        for agent, owner in (
            ("bee-0", first_process),
            ("bee-1", second_process),
            ("bee-2", first_process),
            ("bee-3", first_process),
        ):
            for watched_service in (service, owner.service):
                await watched_service.ingest(
                    make_model_calls(watched_service.clock(), agent, **OVERLOADED_ERROR)
                )
                await until(partial(_is_paged, watched_service, agent, f"{agent}-1"), "a page is sent")
        for watched_service in (service, second_process.service):
            await watched_service.ingest(list(looping(watched_service.clock(), agent="looper")))
            await until(partial(_is_paged, watched_service, "looper", "looper-session"), "a page is sent")
        await exchange_values(processes)
        for watched_service, count in ((service, 4), (first_process.service, 3), (second_process.service, 1)):
            await until(
                partial(_has_shared_provider_cause, watched_service, count), "the tickets have the cause"
            )
        apps = [
            RowOrderMiddleware(create_app(watched_service.service, bind_address="127.0.0.1"))
            for watched_service in processes
        ]
        gateway = Gateway(lambda: apps, lambda agent, namespace="": 0, unowned_app)
        async with (
            make_client(gateway) as http,
            make_client(create_app(service, bind_address="127.0.0.1")) as expected_http,
        ):
            for query, total in ({}, 2), ({"agent_id": "bee-1"}, 0), ({"agent_id": "looper"}, 1):
                answers = [
                    (await client.get("/api/attention", params=query)).json()
                    for client in (expected_http, http)
                ]
                assert normalize_response(answers[0]) == normalize_response(answers[1]), query
                assert answers[1]["total"] == total, query

            items = (await http.get("/api/attention")).json()["items"]
            [item] = [item for item in items if item["kind"] == "incident"]
            assert (item["agents"], item["workers"]) == (["bee-0", "bee-1", "bee-2", "bee-3"], 4)
            [incident] = (await http.get("/api/incidents")).json()["incidents"]
            assert incident["incident_id"] == item["item_id"]
            for ticket_id in incident["ticket_ids"]:
                response = await http.post(f"/api/tickets/{ticket_id}/acknowledge", json={"by": "ada"})
                assert response.status_code == 200, response.text
            [remaining_item] = (await http.get("/api/attention")).json()["items"]
            assert remaining_item["agent_id"] == "looper"


def _is_paged(service: Service, agent: str, session: str) -> bool:
    ticket = service.tickets.open_for(agent, session)
    return ticket is not None and ticket.status is TicketStatus.INTERVENING


def _has_shared_provider_cause(service: Service, count: int) -> bool:
    causes = [ticket.storm_id for ticket in service.tickets.open_tickets()]
    return causes.count("provider:anthropic") == count


def _has_common_cause(service: Service, count: int) -> bool:
    return [ticket.storm_id for ticket in service.tickets.open_tickets()] == ["tool:search"] * count


async def fail_calls(process: Process, agent: str) -> None:
    """Let a worker repeat a failing call."""
    service = process.service
    failure = {"outcome": "error", "error_type": "unavailable"}
    await service.ingest(
        [
            dataclasses.replace(event, data={**event.data, **failure})
            if event.type is EventType.TOOL_CALL_COMPLETED
            else event
            for event in looping(service.clock(), agent=agent)
        ]
    )


# -- limits -------------------------------------------------------------------------------------------


async def test_actions_per_minute_are_limited_in_the_whole_fleet(processes: list[Process]) -> None:
    """The limit holds however many requests arrive at the same moment."""
    budgets = [process.service.interventions.budget for process in processes]
    now = processes[0].service.clock()

    grants = await asyncio.gather(*(budget.take(now) for budget in budgets * 10))

    assert sum(grants) == budgets[0].most == 10
    assert await budgets[0].take(now, force=True)
    await exchange_values(processes)
    assert [budget.count_used(now) for budget in budgets] == [11, 11]
    assert await budgets[1].take(now + 61)


async def test_values_received_before_a_database_outage_reach_the_services(
    processes: list[Process], database: str
) -> None:
    first_process, second_process = processes
    now = first_process.service.clock()
    assert await second_process.service.interventions.budget.take(now)

    with lock_switches(database), pytest.raises(LeaseError):
        await first_process.exchange()
    await first_process.exchange()

    assert first_process.service.interventions.budget.count_used(now) == 1


@pytest.mark.parametrize("health", [{"spending": {"agent_day_usd": 5, "day_usd": 8}}])
async def test_spending_limits_apply_to_the_whole_fleet(processes: list[Process]) -> None:
    first_process, second_process = processes
    await record_spending(first_process, "bee", "s1", 3.0)
    await exchange_values(processes)
    assert list_findings(first_process, "bee", "s1") == []
    await record_spending(second_process, "bee", "s2", 2.5)
    assert list_findings(second_process, "bee", "s2") == ["$5.50 of $5.00 spent by this agent today"]
    await exchange_values(processes)
    await record_spending(first_process, "wasp", "s3", 2.0)
    assert list_findings(first_process, "wasp", "s3") == ["$7.50 of $8.00 spent by all agents today"]


async def record_spending(process: Process, agent: str, session: str, dollars: float) -> None:
    now = process.service.clock()

    def make_event(kind: EventType, **data: object) -> AgentEvent:
        return AgentEvent(
            type=kind, time=now, agent_id=agent, session_id=session, incarnation_id="one", data=data
        )

    await process.service.ingest(
        [
            make_event(EventType.EXECUTION_STARTED, framework="test"),
            make_event(EventType.LLM_CALL_COMPLETED, model="m", provider="p", cost_usd=dollars),
        ]
    )


def list_findings(process: Process, agent: str, session: str) -> list[str]:
    worker = process.service.monitor.get(agent, session)
    assert worker is not None
    return [finding.evidence for finding in worker.findings if finding.kind is FindingKind.SPENDING]


@pytest.mark.parametrize("health", [{"spending": {"agent_day_usd": 5}}])
async def test_spending_is_not_doubled_when_a_partition_has_a_new_owner(
    processes: list[Process], database: str, settings: Settings
) -> None:
    """The spending is not lost either if the former owner did not share it."""
    async with run_process(database, 2, settings) as former:
        await record_spending(former, "bee", "s1", 1.0)
        await exchange_values([former])
        await record_spending(former, "bee", "s1", 2.0)
    async with run_process(database, 2, settings) as new_owner:
        await exchange_values([*processes, new_owner])
        await record_spending(new_owner, "bee", "s2", 0.5)
        await exchange_values([*processes, new_owner])
        await record_spending(processes[0], "bee", "s3", 0.5)

        assert list_findings(processes[0], "bee", "s3") == ["$4.00 of $5.00 spent by this agent today"]


async def test_judging_budget_applies_to_the_whole_fleet(processes: list[Process]) -> None:
    """The limit is one dollar per hour."""
    budgets = [item.service.judging.budget for item in processes]
    estimate = Estimate(call=Cost(dollars=0.3))

    results = await asyncio.gather(*(budget.reserve("judge", estimate) for budget in budgets * 3))

    reservations = [item for item in results if isinstance(item, Reservation)]
    assert len(reservations) == 3
    assert sum(isinstance(item, ExceededLimit) for item in results) == 3
    await budgets[1].settle(reservations[0], Cost(dollars=0.1))
    await budgets[0].settle(reservations[1], Cost(dollars=0.1))
    await exchange_values(processes)
    assert [round(budget.sum_spending("hour", "dollars"), 6) for budget in budgets] == [0.5, 0.5]
    assert isinstance(await budgets[0].reserve("queen", estimate), Reservation)


async def test_former_owner_writes_nothing_more(processes: list[Process], database: str) -> None:
    """B116: the former owner was paused while another process opened the partition."""
    former = OwnedService(1, "former", processes[1].service)
    await loop_agents(processes[1], "bee-0")

    await processes[1].fleet.exchange_values([former])

    with connected(database) as conn:
        names = conn.exec_driver_sql("SELECT name FROM shared_values WHERE name LIKE 'worse/%%'").all()
    assert names == []


async def test_single_process_on_a_partitioned_database_reports_a_fault(
    processes: list[Process], database: str, tmp_path: Path
) -> None:
    """This is a process whose settings lack the block ``cluster``."""
    settings = make_settings(database, tmp_path / "single", {})
    await processes[0].service.stop()
    async with serving(settings) as running:
        [fault] = running.service.ready()
    assert fault.startswith("the database has 2 partitions")
    assert "--cluster NATS" in fault
