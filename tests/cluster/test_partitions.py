"""The partitions of a cluster are distributed over its processes, and move when a process joins or leaves."""

from __future__ import annotations

import asyncio
import contextlib
import signal
import time
from collections import Counter
from collections.abc import Callable
from typing import Any

import httpx
import pytest

from queenright.server.access.login_sessions import SESSION_COOKIE
from queenright.server.access.roles import Role
from queenright.server.access.token_file import edit_tokens
from queenright.server.access.tokens import build_token
from tests.cluster.conftest import Cluster, Process
from tests.cluster.test_takeover import Sender, make_tool_spans
from tests.databases import connected
from tests.server.streams import Follower
from tests.waiting import until

pytestmark = pytest.mark.asyncio

PARTITIONS = 4
SCHEMAS = ("public", *(f"queenright_{number}" for number in range(1, PARTITIONS)))


@pytest.fixture
def cluster_settings() -> dict[str, Any]:
    return {}


@pytest.fixture
def partitioned(cluster: Cluster) -> Cluster:
    cluster.settings["cluster"] = {"partitions": PARTITIONS}
    return cluster


async def read_status(client: httpx.AsyncClient, process: Process) -> dict[str, Any]:
    cluster_status: dict[str, Any] = (await client.get(f"{process.url}/api/cluster")).json()
    return cluster_status


async def count_owned(client: httpx.AsyncClient, process: Process) -> dict[str, int]:
    """
    Return how many partitions each process owns, by URL, as ``process`` sees it. The key "none" counts
    partitions without an owner.
    """
    status = await read_status(client, process)
    urls = {member["member_id"]: member["url"] for member in status["members"]}
    owners = [partition["owner"] for partition in status["partitions"]]
    return dict(Counter(urls.get(owner, "none") for owner in owners))


async def wait_for_shares(
    client: httpx.AsyncClient, process: Process, is_expected: Callable[[dict[str, int]], bool]
) -> dict[str, int]:
    async with asyncio.timeout(60):
        while True:
            with contextlib.suppress(httpx.HTTPError, KeyError):
                shares = await count_owned(client, process)
                if is_expected(shares):
                    return shares
            await asyncio.sleep(0.1)


async def wait_for_faults(
    client: httpx.AsyncClient, process: Process, is_expected: Callable[[list[str]], bool]
) -> list[str]:
    """
    Wait until a process reports the expected faults, and return them. One that has just started may report
    others, because it has not reached NATS yet.
    """
    async with asyncio.timeout(60):
        while True:
            faults: list[str] = (await read_status(client, process))["faults"]
            if is_expected(faults):
                return faults
            await asyncio.sleep(0.1)


async def wait_for_answers(client: httpx.AsyncClient, *processes: Process) -> None:
    """Wait until all processes respond for all partitions. An owner is known before its service starts."""
    async with asyncio.timeout(60):
        for process in processes:
            while True:
                if (await client.get(f"{process.url}/api/agents")).status_code == 200:
                    break
                await asyncio.sleep(0.1)


def list_stored_calls(cluster: Cluster) -> list[tuple[str, str]]:
    """
    Return the session id and call id of each completed tool call, from the event logs of all partitions.
    """
    with connected(cluster.database) as conn:
        rows: list[Any] = []
        for schema in SCHEMAS:
            if conn.exec_driver_sql(f"SELECT to_regclass('{schema}.events') IS NOT NULL").scalar():
                rows += conn.exec_driver_sql(
                    f"SELECT session_id, (data::json)->>'call_id' FROM {schema}.events"
                    " WHERE type = 'tool_call_completed' AND agent_id LIKE 'clerk%%'"
                ).fetchall()
        return [tuple(row) for row in rows]


async def send_spans_of_sessions(sender: Sender, rounds: int) -> None:
    """Send spans of twelve sessions, each from a different service."""
    for _ in range(rounds):
        for number in range(12):
            body = make_tool_spans(f"clerk-{number}", f"session-{number}", 3)
            [attribute] = body["resourceSpans"][0]["resource"]["attributes"]
            attribute["value"]["stringValue"] = f"shop-{number}"
            await sender.send(body)


async def check_stored(cluster: Cluster, sender: Sender) -> None:
    """Check that every acknowledged call is stored exactly once."""
    await until(
        lambda: len(list_stored_calls(cluster)) >= sender.acknowledged, "all calls are stored", seconds=60
    )
    calls = [call for _, call in list_stored_calls(cluster)]
    assert len(calls) == len(set(calls)) == sender.acknowledged


async def test_two_processes_share_the_partitions_and_replace_each_other(
    partitioned: Cluster, client: httpx.AsyncClient
) -> None:
    """
    Each process owns two partitions. If one is killed, the other owns four; after a restart, each owns two
    again.
    """
    first_process, second_process = processes = [partitioned.add(), partitioned.add()]
    equal_shares = {first_process.url: 2, second_process.url: 2}
    sender = Sender(client, processes)
    await wait_for_shares(client, first_process, lambda shares: shares == equal_shares)
    await send_spans_of_sessions(sender, 1)
    first_process.kill()
    await send_spans_of_sessions(sender, 1)
    await wait_for_shares(client, second_process, lambda shares: shares == {second_process.url: 4})
    await check_stored(partitioned, sender)
    await asyncio.to_thread(first_process.start)
    sending_task = asyncio.create_task(send_spans_of_sessions(sender, 2))
    await wait_for_shares(
        client, second_process, lambda shares: shares == {first_process.url: 2, second_process.url: 2}
    )
    await sending_task
    await check_stored(partitioned, sender)
    assert await asyncio.to_thread(first_process.stop) == 0
    await wait_for_shares(client, second_process, lambda shares: shares == {second_process.url: 4})
    for process in processes:
        assert "Traceback" not in process.log(), process.log()


async def test_paused_process_loses_its_partitions_and_writes_nothing_more(
    partitioned: Cluster, client: httpx.AsyncClient
) -> None:
    """The owners of the partitions answer its requests, before, during and after the pause."""
    paused_process, other_process = processes = [partitioned.add(), partitioned.add()]
    equal_shares = {paused_process.url: 2, other_process.url: 2}
    await wait_for_shares(client, other_process, lambda shares: shares == equal_shares)
    sender = Sender(client, processes)
    await send_spans_of_sessions(sender, 1)
    await check_stored(partitioned, sender)
    agents = await list_agents_by_partition(client, other_process)
    assert sorted(agent for partition_agents in agents for agent in partition_agents) == sorted(
        f"clerk-{n}" for n in range(12)
    )
    assert sum(bool(partition_agents) for partition_agents in agents) > 1

    paused_process.signal(signal.SIGSTOP)
    sender.processes = [other_process]
    await send_spans_of_sessions(sender, 1)
    await wait_for_shares(client, other_process, lambda shares: shares == {other_process.url: 4})
    await check_stored(partitioned, sender)
    assert await list_agents_by_partition(client, other_process) == agents
    paused_process.signal(signal.SIGCONT)

    await send_spans_of_sessions(sender, 1)
    await wait_for_shares(
        client, paused_process, lambda shares: shares == {paused_process.url: 2, other_process.url: 2}
    )
    await check_stored(partitioned, sender)
    assert await list_agents_by_partition(client, paused_process) == agents
    # One log line for both partitions.
    assert "another process of the cluster has taken over (partition " in paused_process.log()
    # The metrics page may be slightly out of date.
    await wait_until_counted_once(client, processes)
    for process in processes:
        assert "Traceback" not in process.log(), process.log()


async def wait_until_counted_once(client: httpx.AsyncClient, processes: list[Process]) -> None:
    """Wait until each partition is in the metrics of exactly one process."""
    series = [
        series
        for number in range(PARTITIONS)
        for series in (
            f'queenright_cluster_owner{{partition="{number}"}} 1.0',
            f'queenright_agents{{partition="{number}",state="healthy"}} ',
        )
    ]
    async with asyncio.timeout(30):
        while True:
            pages = [(await client.get(f"{process.url}/metrics")).text for process in processes]
            if all(sum(name in page for page in pages) == 1 for name in series):
                return
            await asyncio.sleep(0.1)


async def list_agents_by_partition(client: httpx.AsyncClient, process: Process) -> list[list[str]]:
    """Return the agents of each partition, read through one process."""
    agents = []
    for number in range(PARTITIONS):
        async with asyncio.timeout(60):
            while True:
                headers = {"x-queenright-partition": str(number)}
                response = await client.get(f"{process.url}/api/agents", headers=headers)
                if response.status_code == 200:
                    break
                assert (response.status_code, response.headers["retry-after"]) == (503, "2"), response.text
                await asyncio.sleep(0.1)
        agents.append(sorted(agent["agent_id"] for agent in response.json()["agents"]))
    return agents


@pytest.mark.parametrize("number", [2, 8])
async def test_process_with_another_number_of_partitions_owns_nothing(
    partitioned: Cluster, client: httpx.AsyncClient, number: int
) -> None:
    first_process = partitioned.add()
    await wait_for_shares(client, first_process, lambda shares: shares == {first_process.url: 4})
    partitioned.settings["cluster"]["partitions"] = number
    second_process = partitioned.add()

    # Send it immediately, before anybody has requested the cluster status.
    response = await client.post(
        f"{second_process.otlp_url}/v1/traces", json=make_tool_spans("clerk", "order-7", 5)
    )
    assert (response.status_code, f"cluster.partitions is {number} here" in response.text) == (503, True)
    [fault] = await wait_for_faults(client, second_process, lambda faults: len(faults) == 1)

    assert fault.startswith(f"cluster.partitions is {number} here, but the cluster has 4")
    [fault] = await wait_for_faults(client, first_process, lambda faults: len(faults) == 1)
    assert fault.startswith(f"cluster.partitions is {number} at http://127.0.0.1:")
    assert await count_owned(client, first_process) == {first_process.url: 4}
    assert (await client.get(f"{second_process.url}/readyz")).status_code == 503
    # With its own number of partitions, it would look for workers in the wrong partitions.
    response = await client.get(f"{second_process.url}/api/agents")
    assert (response.status_code, f"cluster.partitions is {number} here" in response.text) == (503, True)

    # It owns nothing when it is the only process either, and it does not block the others.
    first_process.kill()
    first_process.start()
    await wait_for_shares(client, first_process, lambda shares: shares == {first_process.url: 4})


async def test_third_process_gets_its_share_one_partition_at_a_time(
    partitioned: Cluster, client: httpx.AsyncClient
) -> None:
    processes = [partitioned.add(), partitioned.add()]
    first_process, second_process = processes
    await wait_for_shares(
        client, first_process, lambda shares: shares == {first_process.url: 2, second_process.url: 2}
    )
    sender = Sender(client, processes)
    sending_task = asyncio.create_task(send_spans_of_sessions(sender, 4))
    third_process = partitioned.add()

    final_shares = await wait_for_shares(
        client, first_process, lambda shares: shares.get(third_process.url) == 1
    )

    assert sorted(final_shares.values()) == [1, 1, 2]
    await sending_task
    await check_stored(partitioned, sender)
    handovers = [
        line for process in processes for line in process.log().splitlines() if "handed over" in line
    ]
    assert len(handovers) == 3  # two of them when the second process joined
    for process in partitioned.processes:
        assert "Traceback" not in process.log(), process.log()


async def test_process_that_cannot_run_a_partition_gets_no_more(
    partitioned: Cluster, client: httpx.AsyncClient
) -> None:
    """
    Otherwise the others would repeatedly hand partitions over to it. An example is a process with a full
    disk.
    """
    first_process = partitioned.add()
    await wait_for_shares(client, first_process, lambda shares: shares == {first_process.url: 4})
    (partitioned.folder / "member-1" / "storage").mkdir(parents=True)
    (partitioned.folder / "member-1" / "storage" / "partitions").write_text("no folder")
    second_process = partitioned.add()

    async def list_failures() -> list[str]:
        return [
            fault for fault in (await read_status(client, second_process))["faults"] if "could not" in fault
        ]

    async with asyncio.timeout(60):
        # The failure happens in another process, so there is no event to wait for.
        while not await list_failures():  # noqa: ASYNC110
            await asyncio.sleep(0.1)

    await wait_for_shares(client, second_process, lambda shares: shares == {first_process.url: 4})
    [fault] = await list_failures()
    assert fault.startswith("this process could not watch partition ")
    assert "partitions" in fault.partition(": ")[2]


async def test_every_process_responds_for_all_partitions(
    partitioned: Cluster, client: httpx.AsyncClient
) -> None:
    """It lists all agents and every session, although it monitors only some of them."""
    first_process, second_process = processes = [partitioned.add(), partitioned.add()]
    await wait_for_shares(
        client, first_process, lambda shares: shares == {first_process.url: 2, second_process.url: 2}
    )
    sender = Sender(client, processes)
    await send_spans_of_sessions(sender, 1)
    await check_stored(partitioned, sender)
    names = [f"clerk-{number}" for number in range(12)]
    for process in processes:
        page = (await client.get(f"{process.url}/api/agents", params={"sort": "agent", "limit": 5})).json()
        assert page["total"] == 12
        next_page_query = {"sort": "agent", "limit": 100, "cursor": page["next"]}
        rows = (
            page["agents"]
            + (await client.get(f"{process.url}/api/agents", params=next_page_query)).json()["agents"]
        )
        assert [row["agent_id"] for row in rows] == sorted(names)
        for name in names:
            response = await client.get(f"{process.url}/api/agents/{name}/health")
            assert response.status_code == 200, response.text
        assert (await client.get(f"{process.url}/api/agents/nobody/health")).status_code == 404
        assert (await client.get(f"{process.url}/api/attention")).json()["total"] == 0
        assert "<html" in (await client.get(f"{process.url}/console/")).text


def require_token(cluster: Cluster, client: httpx.AsyncClient, role: Role) -> str:
    """Make the processes require tokens, give a token to the client, and return it."""
    token, token_text = build_token(
        "ada", role, id_="0" * 8, secret="s" * 43, now=time.time(), expires_at=None
    )
    tokens_file = cluster.folder / "tokens.json"
    edit_tokens(tokens_file, lambda tokens: tokens.with_token(token, time.time()))
    cluster.settings["auth"] = {"tokens_file": str(tokens_file), "required": True}
    client.headers["Authorization"] = f"Bearer {token_text}"
    return token_text


async def test_hook_with_a_token_is_accepted_at_every_process(
    partitioned: Cluster, client: httpx.AsyncClient
) -> None:
    """The hook call is forwarded to the owner of its session, which also checks the token."""
    require_token(partitioned, client, Role.ADMIN)
    first_process, second_process = [partitioned.add(), partitioned.add()]
    await wait_for_shares(
        client, first_process, lambda shares: shares == {first_process.url: 2, second_process.url: 2}
    )
    await wait_for_answers(client, first_process, second_process)

    for number in range(8):
        call = {
            "hook_event_name": "UserPromptSubmit",
            "session_id": f"s-{number}",
            "cwd": "/",
            "prompt": "go",
        }
        for process in (first_process, second_process):
            response = await client.post(f"{process.otlp_url}/hooks/claude-code", json=call)
            assert (response.status_code, response.json()) == (200, {}), process.url

    agents = (await client.get(f"{first_process.url}/api/agents")).json()["agents"]
    assert sorted(agent["session_id"] for agent in agents) == [f"s-{number}" for number in range(8)]


async def test_wrong_token_counts_as_one_failed_login(
    partitioned: Cluster, client: httpx.AsyncClient
) -> None:
    """
    It counts once, however many partitions the request concerns. Otherwise it would lock out its address.
    """
    require_token(partitioned, client, Role.VIEWER)
    first_process, second_process = [partitioned.add(), partitioned.add()]
    await wait_for_shares(
        client, first_process, lambda shares: shares == {first_process.url: 2, second_process.url: 2}
    )
    wrong_headers = {"Authorization": "Bearer wrong"}

    statuses = [
        (await client.get(f"{process.url}/api/agents", headers=wrong_headers)).status_code
        for process in (first_process, second_process)
        for _ in range(15)
    ]

    assert set(statuses) == {401}
    assert (await client.get(f"{second_process.url}/api/agents")).status_code == 200


async def test_sign_in_and_stream_continue_at_another_process(
    partitioned: Cluster, client: httpx.AsyncClient
) -> None:
    """B120: this holds even after the process where they started was killed."""
    token_text = require_token(partitioned, client, Role.OPERATOR)
    first_process, second_process = [partitioned.add(), partitioned.add()]
    await wait_for_shares(
        client, first_process, lambda shares: shares == {first_process.url: 2, second_process.url: 2}
    )
    await wait_for_answers(client, first_process, second_process)
    async with httpx.AsyncClient(trust_env=False, timeout=30) as browser:
        login = await browser.post(
            f"{first_process.url}/login", data={"token": token_text}, headers={"Origin": first_process.url}
        )
        assert login.status_code == 303
        cookie = {"Cookie": f"{SESSION_COOKIE}={login.cookies[SESSION_COOKIE]}"}
        url = f"{first_process.url}/api/events?types=all"
        async with Follower(url, cookie) as follower:
            last_id = follower.last_id
        assert last_id is not None
        sender = Sender(client, [second_process])
        await send_spans_of_sessions(sender, 1)
        first_process.kill()
        await wait_for_shares(client, second_process, lambda shares: shares == {second_process.url: 4})
        await check_stored(partitioned, sender)
        while (
            agents := await browser.get(f"{second_process.url}/api/agents", headers=cookie)
        ).status_code == 503:
            pass
        assert (agents.status_code, agents.json().get("total")) == (200, 12), agents.text
        resume_headers = cookie | {"Last-Event-ID": last_id}
        async with Follower(
            f"{second_process.url}/api/events?types=tool_call_completed", resume_headers
        ) as follower:
            await follower.until(lambda: len(follower.ids) >= sender.acknowledged, "the missed events arrive")
        assert len({block.data["id"] for block in follower.events}) == sender.acknowledged
        assert not [block for block in follower.events if block.event == "reset"]


async def test_emergency_stop_can_be_set_at_a_process_without_partitions(
    partitioned: Cluster, client: httpx.AsyncClient
) -> None:
    """This also works while the owners do not respond. A partition that is taken over has the stop."""
    first_process, second_process = [partitioned.add(), partitioned.add()]
    await wait_for_shares(
        client, first_process, lambda shares: shares == {first_process.url: 2, second_process.url: 2}
    )
    second_process.signal(signal.SIGSTOP)

    body = {"on": True, "by": "ada", "reason": "a storm"}
    response = await client.put(f"{first_process.url}/api/emergency-stop", json=body)

    assert (response.status_code, response.json()["on"]) == (200, True), response.text
    second_process.kill()
    await wait_for_shares(client, first_process, lambda shares: shares == {first_process.url: 4})
    for number in range(PARTITIONS):
        headers = {"x-queenright-partition": str(number)}
        async with asyncio.timeout(60):
            while (
                status := await client.get(f"{first_process.url}/api/status", headers=headers)
            ).status_code == 503:
                pass
        stop = status.json()["acting"]["emergency_stop"]
        assert (stop["on"], stop["by"]) == (True, "ada"), number
    await asyncio.to_thread(second_process.start)
    assert (await client.get(f"{second_process.url}/api/emergency-stop")).json() == response.json()
    await until(
        lambda: list_stops_in_log(partitioned) == [(0, True)],
        "the stop is in the event log of the first partition",
    )


def list_stops_in_log(cluster: Cluster) -> list[tuple[int, bool]]:
    """Return the partition and the new value of each recorded change of the emergency stop."""
    with connected(cluster.database) as conn:
        return [
            (number, row[0] == "true")
            for number, schema in enumerate(SCHEMAS)
            for row in conn.exec_driver_sql(
                f"SELECT (data::json)->>'on' FROM {schema}.events WHERE type = 'emergency_stop_changed'"
            )
        ]
