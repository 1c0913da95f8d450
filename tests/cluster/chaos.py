"""
Disturb a cluster at random, under load: ``python -m tests.cluster.chaos --kills 1000``.

Processes are killed, stopped and paused, and PostgreSQL and NATS are killed. If the machine allows a private
network, processes are also cut off from PostgreSQL, NATS, or both. Meanwhile, agents start, repeat one call
and end, and a real cluster of two Alertmanagers sends notifications about each.

At the end, each acknowledged call must be stored exactly once, each agent must have one ticket, and receivers
must have one firing and one resolved message per ticket. New owners may replay only a small share of the
events.

Each disturbance is printed to stderr.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import os
import random
import re
import secrets
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections import Counter, defaultdict
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Final

import httpx

from queenright.alerting.recorder import RecordedMessage
from tests.alerting.real import Receivers, alertmanager_peers, run_receivers
from tests.cluster.conftest import Cluster, Nats, Process
from tests.cluster.test_partitions import wait_for_shares
from tests.databases import Postgres, connected
from tests.isolation import isolate
from tests.ports import reserve_port

CLERK_COUNT: Final = 4
"""Number of agents ("clerks") that run concurrently."""
_NOTIFICATION_SECONDS: Final = 300
"""Time limit for a notification, on a busy machine and after a disturbance of the database."""
_SETTLE_SECONDS: Final = 120
_OVERHEAD_SECONDS: Final = 240
"""Time for the start and the final checks, on a busy machine."""
_TAKEOVER_SECONDS: Final = 10.0
"""Time limit after a disturbance until all workers are monitored again."""
_MAX_REPLAYED_SHARE: Final = 0.15
"""Largest share of all events that new owners may replay."""
_POLL_SECONDS: Final = 0.4
"""Seconds between two checks of the cluster status."""
_CALL_SECONDS: Final = 0.25
"""Seconds between two requests of a clerk."""
DISTURBANCES: Final = ("kill", "kill", "stop", "pause", "kill nats", "kill postgresql")
"""The kinds of disturbances. A kind that is listed twice is chosen more often."""
NETWORK_CUTS: Final = {
    "cut from postgresql": ("postgres",),
    "cut from nats": ("nats",),
    "cut from both": ("postgres", "nats"),
}
"""Disturbances that need a private network."""
_SETTINGS: Final = {
    "health_monitoring": {
        "judge": {"interval_seconds": 5, "start_grace_seconds": 4, "triage_timeout_seconds": 10},
        "tickets": {"hold_seconds": 1},
        # Otherwise the agents of one storm would share a message.
        "intervention": {"storm": {"workers": 1000}},
    }
}


@dataclass(eq=False)
class ChaosMember:
    """
    A process with its own addresses of PostgreSQL and NATS in a private network, so that it can be cut off.

    Attributes:
        is_started: False while the process restarts.
        is_healthy: Whether it has reported no fault since its last disturbance.
    """

    process: Process
    postgres: str
    nats: str
    is_started: bool = True
    is_healthy: bool = True


class Chaos:
    """
    A cluster, its load, and the results.

    Args:
        cluster: A cluster without processes; `start` adds them.
        all_receivers: The receivers of Alertmanager.
        messages: The number of messages by clerk, channel and status.
        rng: Chooses disturbances and times.
    """

    def __init__(
        self,
        cluster: Cluster,
        all_receivers: Receivers,
        messages: Counter[tuple[str, str, str]],
        rng: random.Random,
    ) -> None:
        self.cluster = cluster
        self.receivers = all_receivers
        self.messages = messages
        self.rng = rng
        self.members: list[ChaosMember] = []
        self.acknowledged: set[str] = set()
        self.clerks: list[str] = []
        self.refused = 0
        self.seconds: dict[str, list[float]] = defaultdict(list)
        """Seconds until all partitions were monitored again, by disturbance."""
        self.wrong: list[str] = []
        self.stored = 0
        """Number of events in the event logs."""
        self.replayed_count = 0
        """Number of events that new owners replayed."""
        self._starting: list[asyncio.Task[None]] = []
        self._client = httpx.AsyncClient(trust_env=False, timeout=5)

    def start(self, processes: int) -> None:
        """Start the processes."""
        self.members += [add_member(self.cluster, number) for number in range(1, processes + 1)]

    async def run(self, kills: int, kinds: Sequence[str], seconds: float) -> None:
        """Make ``kills`` disturbances, or stop after ``seconds``, while clerks start and end."""
        disturbances: Mapping[str, Callable[[], Awaitable[float]]] = {
            "kill": self._kill,
            "stop": self._stop,
            "pause": self._pause,
            "kill nats": self._kill_nats,
            "kill postgresql": self._kill_postgres,
            **{kind: partial(self._cut_network, names) for kind, names in NETWORK_CUTS.items()},
        }
        is_over = asyncio.Event()
        async with asyncio.TaskGroup() as group:
            await self._wait_until_shared()
            for _ in range(CLERK_COUNT):
                group.create_task(self._replace_clerks(is_over))
            started_at = time.monotonic()
            for number in range(1, kills + 1):
                if (elapsed := time.monotonic() - started_at) > seconds:
                    break
                kind = self.rng.choice(kinds)
                self.seconds[kind].append(await disturbances[kind]())
                self.report(
                    f"{number}: {elapsed:.0f} s: {kind}, recovered after {self.seconds[kind][-1]:.1f} s"
                )
                await asyncio.sleep(self.rng.uniform(0, 2))
                await self._settle()
            await asyncio.gather(*self._starting)
            for member in self.members:
                # By the end, every process must have recovered.
                member.is_healthy = True
            await self._settle()
            is_over.set()
        self.report("checking")
        await self._check_results()
        await self._client.aclose()

    def report(self, text: str) -> None:
        """Print a text with the time of day and the load average of the machine."""
        print(
            f"{time.strftime('%H:%M:%S')}, load {os.getloadavg()[0]:.0f}: {text}", file=sys.stderr, flush=True
        )

    async def _kill(self) -> float:
        member = await self._choose_victim()
        member.process.kill()
        return await self._restart(member)

    async def _stop(self) -> float:
        member = await self._choose_victim()
        if (code := await asyncio.to_thread(member.process.stop)) != 0:
            self.wrong.append(f"a stopped process exited with {code}")
        return await self._restart(member)

    async def _restart(self, member: ChaosMember) -> float:
        seconds = await self._settle(excluded=member)
        # Only one process restarts at a time; the next disturbance may begin meanwhile.
        await asyncio.gather(*self._starting)
        member.is_started = False
        self._starting = [asyncio.create_task(self._start(member))]
        return seconds

    async def _start(self, member: ChaosMember) -> None:
        await asyncio.to_thread(member.process.start)
        member.is_started = True

    async def _pause(self) -> float:
        member = await self._choose_victim()
        member.process.signal(signal.SIGSTOP)
        try:
            return await self._settle(excluded=member)
        finally:
            member.process.signal(signal.SIGCONT)

    async def _kill_nats(self) -> float:
        self.cluster.nats.kill()
        await asyncio.sleep(self.rng.uniform(0, 2))
        await asyncio.to_thread(self.cluster.nats.start)
        return await self._settle()

    async def _kill_postgres(self) -> float:
        await asyncio.to_thread(self.cluster.postgres.crash)
        await asyncio.sleep(self.rng.uniform(0, 2))
        await asyncio.to_thread(self.cluster.postgres.start)
        return await self._settle()

    async def _cut_network(self, names: Sequence[str]) -> float:
        member = await self._choose_victim()
        addresses = [getattr(member, name) for name in names]
        async with cut_off(addresses):
            seconds = await self._settle(excluded=member)
            await asyncio.sleep(self.rng.uniform(0, 2))
        return seconds

    async def _choose_victim(self) -> ChaosMember:
        """Return a process, preferably one that owns partitions."""
        states = {
            member: state for member in self.members if (state := await self._read_state(member)) is not None
        }
        owners = [
            partition["owner"] for state in list(states.values())[:1] for partition in state["partitions"]
        ]
        [member] = self.rng.choices(
            [*states], [1 + 4 * owners.count(state["answered_by"]) for state in states.values()]
        )
        return member

    async def _read_state(self, member: ChaosMember) -> dict[str, Any] | None:
        """Return the cluster status of a process; None if it does not answer."""
        if not member.is_started:
            return None
        with contextlib.suppress(httpx.HTTPError):
            response = await self._client.get(f"{member.process.url}/api/cluster")
            state: dict[str, Any] = response.json()
            return state if response.status_code == 200 else None
        return None

    async def _settle(self, *, excluded: ChaosMember | None = None) -> float:
        """
        Wait until the other processes own all partitions and report no fault; return the seconds that this
        took.

        A process that an earlier disturbance affected may still report a fault, unless it owns partitions.
        """
        if excluded is not None:
            excluded.is_healthy = False
        other_members = [member for member in self.members if member is not excluded]
        started_at = time.monotonic()
        states: list[dict[str, Any] | None] = []
        while time.monotonic() - started_at < _SETTLE_SECONDS:
            states = [*await asyncio.gather(*(self._read_state(member) for member in other_members))]
            for member, state in zip(other_members, states, strict=True):
                member.is_healthy = member.is_started and (
                    member.is_healthy or (state is not None and not _list_unexpected_faults(state))
                )
            healthy_states = [
                state for state in states if state is not None and not _list_unexpected_faults(state)
            ]
            owners = {partition["owner"] for state in healthy_states for partition in state["partitions"]}
            are_healthy = healthy_states and len(healthy_states) >= sum(
                member.is_healthy for member in other_members
            )
            if are_healthy and owners <= {state["answered_by"] for state in healthy_states}:
                return time.monotonic() - started_at
            await asyncio.sleep(_POLL_SECONDS)
        raise TimeoutError(f"after {_SETTLE_SECONDS} s: {states}")

    async def _wait_until_shared(self) -> None:
        for member in self.members:
            await wait_for_shares(
                self._client,
                member.process,
                lambda shares: "none" not in shares and max(shares.values()) - min(shares.values()) < 2,
            )

    async def _replace_clerks(self, is_over: asyncio.Event) -> None:
        """
        Run one clerk after another: each repeats a call until its firing message arrives, and then ends.
        """
        while not is_over.is_set():
            clerk = f"clerk-{len(self.clerks):05}"
            self.clerks.append(clerk)
            trace, root = secrets.token_hex(16), secrets.token_hex(8)
            started_at = time.monotonic()
            while not self.messages[clerk, "slack", "firing"]:
                await self._send_spans([_make_tool_span(clerk, trace, root) for _ in range(3)])
                await asyncio.sleep(_CALL_SECONDS)
                if time.monotonic() - started_at > _NOTIFICATION_SECONDS:
                    self.wrong.append(f"no message about {clerk} arrived")
                    break
            await asyncio.sleep(self.rng.uniform(0, 5))
            await self._send_spans([_make_span(clerk, trace, root, "invoke_agent", f"invoke_agent {clerk}")])

    async def _send_spans(self, spans: Sequence[dict[str, Any]]) -> None:
        """Send spans until a process acknowledges or rejects them."""
        [agent] = {_get_attribute(span, "gen_ai.agent.name") for span in spans}
        resource = {"attributes": [_make_attribute("service.name", agent)]}
        body = {"resourceSpans": [{"resource": resource, "scopeSpans": [{"spans": [*spans]}]}]}
        while True:
            process = self.rng.choice(self.members).process
            with contextlib.suppress(httpx.HTTPError):
                response = await self._client.post(f"{process.otlp_url}/v1/traces", json=body)
                if response.status_code == 200:
                    break
                if response.status_code != 503:
                    self.wrong.append(f"{response.status_code}: {response.text}")
                    break
            self.refused += 1
            await asyncio.sleep(0.1)
        self.acknowledged |= {call for span in spans if (call := _get_attribute(span, "gen_ai.tool.call.id"))}

    async def _check_results(self) -> None:
        expected_messages = Counter(
            (clerk, channel, status)
            for clerk in self.clerks
            for channel in ("slack", "pagerduty")
            for status in ("firing", "resolved")
        )
        for _ in range(4 * _SETTLE_SECONDS):
            if not expected_messages - self.messages:
                list_stored_calls = await asyncio.to_thread(self._list_stored_calls)
                if len(list_stored_calls) >= len(self.acknowledged):
                    break
            await asyncio.sleep(0.5)
        # By now a duplicate message would have arrived.
        await asyncio.sleep(60)
        # In a thread, because an Alertmanager that gets no response in time sends its message again.
        call_counts = Counter(await asyncio.to_thread(self._list_stored_calls))
        self.wrong += [f"call {call} is lost" for call in self.acknowledged - call_counts.keys()]
        self.wrong += [f"call {call} is stored {n} times" for call, n in call_counts.items() if n > 1]
        rows = await asyncio.to_thread(self._query_all_partitions, "SELECT session_id FROM {}tickets")
        tickets = Counter(session for (session,) in rows)
        expected_sessions = Counter(f"{clerk}-session" for clerk in self.clerks)
        for session, n in (tickets - expected_sessions).items():
            query = f"SELECT body FROM {{}}tickets WHERE session_id = '{session}'"
            bodies = [body for (body,) in await asyncio.to_thread(self._query_all_partitions, query)]
            self.wrong.append(f"{session} has {n} extra tickets: {bodies}")
        self.wrong += [f"{session} has no ticket" for session in expected_sessions - tickets]
        self.wrong += [
            f"{n} extra messages: {message_key}"
            for message_key, n in (self.messages - expected_messages).items()
        ]
        self.wrong += [f"no message: {message_key}" for message_key in expected_messages - self.messages]
        self.wrong += [
            f"the receivers rejected a message: {reason}" for reason in self.receivers.recorder.rejections
        ]
        self.stored = sum(
            n for (n,) in await asyncio.to_thread(self._query_all_partitions, "SELECT count(*) FROM {}events")
        )
        for member in self.members:
            log = await asyncio.to_thread(member.process.log)
            if "Traceback" in log:
                self.wrong.append(f"traceback in {member.process.folder / 'log'}")
            self.replayed_count += sum(map(int, re.findall(r"replayed (\d+) events", log)))
        if self.replayed_count > _MAX_REPLAYED_SHARE * self.stored:
            self.wrong.append(f"{self.replayed_count} of {self.stored} events were replayed")

    def _list_stored_calls(self) -> list[str]:
        query = "SELECT agent_id, (data::json)->>'call_id' FROM {}events WHERE type = 'tool_call_completed'"
        # The judge calls tools too.
        return [call for agent, call in self._query_all_partitions(query) if agent in self.clerks]

    def _query_all_partitions(self, query: str) -> list[Any]:
        """
        Run a query in the schema of every partition, and return all rows. ``{}`` in the query is the schema.
        """
        with connected(self.cluster.database) as conn:
            schemas = conn.exec_driver_sql("SELECT schemaname FROM pg_tables WHERE tablename = 'events'")
            return [
                row
                for (schema,) in schemas.fetchall()
                for row in conn.exec_driver_sql(query.format(f"{schema}.")).fetchall()
            ]


def _list_unexpected_faults(state: Mapping[str, Any]) -> list[str]:
    """Return the faults that a process reports, except lost members, which the disturbances cause."""
    return [fault for fault in state["faults"] if "was not seen for" not in fault]


def add_member(cluster: Cluster, number: int) -> ChaosMember:
    """Start a process with its own addresses."""
    # All of 127.0.0.0/8 is this machine, so every process can have different addresses.
    postgres, nats = f"127.0.{number}.2", f"127.0.{number}.3"
    process = cluster.add(
        database=cluster.database.replace("127.0.0.1", postgres),
        nats_url=cluster.nats.url.replace("127.0.0.1", nats),
    )
    return ChaosMember(process, postgres, nats)


@contextlib.asynccontextmanager
async def cut_off(addresses: Sequence[str]) -> AsyncIterator[None]:
    """Block all packets to and from these addresses inside the context. This requires a private network."""
    for address in addresses:
        await _change_route(address, "add")
    try:
        yield
    finally:
        for address in addresses:
            await _change_route(address, "del")


async def _change_route(address: str, change: str) -> None:
    """Add or delete the rules that block packets to and from an address of this machine."""
    for preference, direction in ((10, "to"), (11, "from")):
        rule = ("ip", "rule", change, "pref", str(preference), direction, address, "blackhole")
        process = await asyncio.create_subprocess_exec(*rule)
        assert await process.wait() == 0, rule


def _make_attribute(key: str, value: str) -> dict[str, Any]:
    return {"key": key, "value": {"stringValue": value}}


def _get_attribute(span: Mapping[str, Any], key: str) -> str:
    return next(
        (attribute["value"]["stringValue"] for attribute in span["attributes"] if attribute["key"] == key), ""
    )


def _make_tool_span(clerk: str, trace: str, root: str) -> dict[str, Any]:
    attributes = {
        "gen_ai.tool.name": "search",
        "gen_ai.tool.call.arguments": '{"query": "again"}',
        "gen_ai.tool.call.id": secrets.token_hex(8),
    }
    span = _make_span(clerk, trace, secrets.token_hex(8), "execute_tool", "execute_tool search", **attributes)
    return {**span, "parentSpanId": root}


def _make_span(
    clerk: str, trace: str, span: str, operation: str, name: str, /, **extra_attributes: str
) -> dict[str, Any]:
    now_ns = time.time_ns()
    attributes = {
        "gen_ai.operation.name": operation,
        "gen_ai.agent.name": clerk,
        "gen_ai.conversation.id": f"{clerk}-session",
        **extra_attributes,
    }
    return {
        "traceId": trace,
        "spanId": span,
        "name": name,
        "startTimeUnixNano": str(now_ns),
        "endTimeUnixNano": str(now_ns + 1000),
        "attributes": [_make_attribute(key, value) for key, value in attributes.items()],
    }


@contextlib.contextmanager
def run_servers(folder: Path, host: str) -> Iterator[tuple[Postgres, Nats]]:
    """Run PostgreSQL and NATS, listening on ``host``."""
    with contextlib.ExitStack() as stack:
        postgres = Postgres(listen_addresses=host)
        stack.callback(postgres.remove)
        nats = Nats(folder, stack.enter_context(reserve_port("nats-server")), host=host)
        nats.start()
        stack.callback(nats.kill)
        yield postgres, nats


async def disturb(
    folder: Path,
    *,
    kills: int,
    seed: int,
    processes: int = 4,
    partitions: int = 4,
    kinds: Sequence[str] = DISTURBANCES,
    is_private: bool = False,
    seconds: float = float("inf"),
) -> dict[str, Any]:
    """
    Disturb a cluster, and return the results; ``wrong`` lists the faults.

    Args:
        folder: Folder for all files.
        kills: Number of disturbances.
        seed: Seed of the random choices.
        processes: Number of processes.
        partitions: Number of partitions.
        kinds: The kinds of disturbances.
        is_private: Whether this is a private network, which network cuts need.
        seconds: Seconds after which no disturbance begins.
    """
    messages: Counter[tuple[str, str, str]] = Counter()

    def count_message(message: RecordedMessage) -> None:
        for clerk in set(re.findall(r"clerk-\d+", message.title)):
            message_key = (clerk, message.channel, message.status)
            messages[message_key] += 1
            if messages[message_key] > 1:
                chaos.report(f"{messages[message_key]} messages: {message_key}")

    async with contextlib.AsyncExitStack() as stack:
        all_receivers = await stack.enter_async_context(run_receivers(count_message))
        # Nearly Alertmanager's defaults, with the group interval of our configuration.
        peers = await stack.enter_async_context(
            alertmanager_peers(folder, all_receivers, peer_timeout="15s", group_interval="40s", gossip=())
        )
        host = "0.0.0.0" if is_private else "127.0.0.1"
        postgres, nats = stack.enter_context(run_servers(folder, host))
        settings = _SETTINGS | {
            "alerting": {"alertmanager_urls": [*peers.urls]},
            "cluster": {"partitions": partitions},
        }
        cluster = Cluster(folder, postgres, postgres.migrated(), nats, settings)
        chaos = Chaos(cluster, all_receivers, messages, random.Random(seed))
        stack.callback(kill_all, cluster)
        await asyncio.to_thread(chaos.start, processes)
        await chaos.run(kills, kinds, seconds)
    return {
        "disturbances": {
            kind: {
                "times": len(durations),
                "recovery": f"median {statistics.median(durations):.1f} s, worst {max(durations):.1f} s",
                "later than 10 s": sum(duration > _TAKEOVER_SECONDS for duration in durations),
            }
            for kind, durations in sorted(chaos.seconds.items())
        },
        "acknowledged": len(chaos.acknowledged),
        "refused": chaos.refused,
        "clerks": len(chaos.clerks),
        "messages": messages.total(),
        "events": chaos.stored,
        "read again": f"{chaos.replayed_count}, {chaos.replayed_count / max(1, chaos.stored):.1%}",
        "wrong": chaos.wrong,
    }


def kill_all(cluster: Cluster) -> None:
    """Kill all processes of a cluster."""
    for process in cluster.processes:
        process.kill()


def wrap_in_network_namespace(*command: str | Path) -> list[str | Path] | None:
    """Return a command that runs ``command`` in a private network; None if the machine does not allow it."""
    # Packets to local addresses must reach our rules first, so move the rule for local addresses behind them.
    prepare = "ip link set lo up && ip rule add pref 100 lookup local && ip rule del pref 0"
    private = ["unshare", "--net", "sh", "-ec", f'{prepare}; exec "$@"', "sh"]
    if shutil.which("unshare") is None or shutil.which("ip") is None:
        return None
    if subprocess.run([*private, "true"], capture_output=True, check=False).returncode:
        return None
    return [*private, *command]


def _disturb_clusters(count: int, *, kills: int, seed: int, folder: Path | None) -> int:
    """
    Disturb several clusters concurrently, because each mostly waits for leases. Return the worst exit code.
    """
    children = []
    for number in range(count):
        options = ["--clusters", "1", "--seed", str(seed + number)]
        options += ["--kills", str(kills // count + (number < kills % count))]
        options += [] if folder is None else ["--folder", str(folder / str(number))]
        # If an option occurs twice, the last occurrence applies.
        children.append(
            subprocess.Popen([sys.executable, "-m", "tests.cluster.chaos", *sys.argv[1:], *options])
        )
    return max(child.wait() for child in children)


def main() -> int:
    """Parse the command line, disturb clusters, and print the results; return 1 if anything is wrong."""
    parser = argparse.ArgumentParser(prog="python -m tests.cluster.chaos", description=__doc__)
    parser.add_argument("--kills", type=int, default=1000)
    parser.add_argument(
        "--clusters", type=int, default=1, help="number of concurrent clusters, which share the kills"
    )
    parser.add_argument("--minutes", type=float, default=float("inf"), help="time limit for the disturbances")
    parser.add_argument(
        "--since", type=float, help="when the minutes began, in seconds since the epoch; by default now"
    )
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--processes", type=int, default=4)
    parser.add_argument("--partitions", type=int, default=4)
    parser.add_argument(
        "--kinds",
        default="",
        help="comma-separated kinds of disturbances; by default all that this machine allows",
    )
    parser.add_argument("--folder", type=Path, help="store all files in this folder")
    parser.add_argument("--private", action="store_true", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.clusters > 1:
        return _disturb_clusters(args.clusters, kills=args.kills, seed=args.seed, folder=args.folder)
    if not args.private and (
        command := wrap_in_network_namespace(sys.executable, "-m", "tests.cluster.chaos")
    ):
        os.execvp(command[0], [*map(str, command), *sys.argv[1:], "--private"])
    seconds = 60 * args.minutes - (0 if args.since is None else time.time() - args.since)
    if seconds < _OVERHEAD_SECONDS:
        print(
            f"no disturbances: {max(0, seconds):.0f} s remain; start and checks take {_OVERHEAD_SECONDS}",
            file=sys.stderr,
        )
        return 0
    isolate()
    if args.folder is not None:
        args.folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as folder:
        results = asyncio.run(
            disturb(
                args.folder or Path(folder),
                kills=args.kills,
                seed=args.seed,
                processes=args.processes,
                partitions=args.partitions,
                kinds=args.kinds.split(",")
                if args.kinds
                else [*DISTURBANCES, *(NETWORK_CUTS if args.private else ())],
                is_private=args.private,
                seconds=seconds - _OVERHEAD_SECONDS,
            )
        )
    print(json.dumps(results, indent=2))
    return 1 if results["wrong"] else 0


if __name__ == "__main__":
    sys.exit(main())
