"""
Disturb a cluster at random, under load: ``python -m tests.cluster.chaos --kills 1000``.

Processes are killed, stopped and paused, and PostgreSQL and NATS are killed. If the machine allows a private
network, a process is cut off from PostgreSQL, NATS, or both. Meanwhile agents that repeat one call start and
end, and a real cluster of two Alertmanagers notifies about each. At the end, each acknowledged call is stored
once, each agent has one ticket, and receivers got one firing and one resolved message per ticket. New owners
replay only few events.

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

CLERKS: Final = 4
"""Number of concurrent clerks."""
_NOTIFIED_SECONDS: Final = 300
"""Time limit on a busy machine after a disturbance of the database."""
_SETTLED_SECONDS: Final = 120
_LEAST_SECONDS: Final = 240
"""Time limit for the start and the checks, on a busy machine."""
_WATCHED_SECONDS: Final = 10.0
"""Time limit after a disturbance until all workers are monitored again."""
_MOST_READ_AGAIN: Final = 0.15
"""Share of all events."""
_ASK_SECONDS: Final = 0.4
"""Seconds between two checks whether all workers are monitored."""
_CALLS_SECONDS: Final = 0.25
"""Seconds between two requests of a clerk."""
KINDS: Final = ("kill", "kill", "stop", "pause", "kill nats", "kill postgresql")
"""The disturbances; a repeated one is more frequent."""
CUTS: Final = {
    "cut from postgresql": ("postgres",),
    "cut from nats": ("nats",),
    "cut from both": ("postgres", "nats"),
}
"""Disturbances that need a private network."""
_SETTINGS: Final = {
    "health_monitoring": {
        "judge": {"interval_seconds": 5, "start_grace_seconds": 4, "triage_timeout_seconds": 10},
        "tickets": {"hold_seconds": 1},
        # Otherwise agents of one storm share a message.
        "intervention": {"storm": {"workers": 1000}},
    }
}


@dataclass(eq=False)
class Lane:
    """
    A process with its own addresses of PostgreSQL and NATS in a private network.

    Attributes:
        is_started: Whether it runs or is stopping.
        is_well: Whether it has reported no fault since its last disturbance.
    """

    process: Process
    postgres: str
    nats: str
    is_started: bool = True
    is_well: bool = True


class Chaos:
    """
    A cluster, its load, and the results.

    Args:
        cluster: Its processes are added by `start`.
        everybody: The receivers of Alertmanager.
        messages: Counts the messages about each clerk, by channel and status.
        chance: Chooses disturbances and times.
    """

    def __init__(
        self,
        cluster: Cluster,
        everybody: Receivers,
        messages: Counter[tuple[str, str, str]],
        chance: random.Random,
    ) -> None:
        self.cluster = cluster
        self.people = everybody
        self.messages = messages
        self.chance = chance
        self.lanes: list[Lane] = []
        self.acknowledged: set[str] = set()
        self.clerks: list[str] = []
        self.refused = 0
        self.seconds: dict[str, list[float]] = defaultdict(list)
        """Seconds until all partitions were monitored again, by disturbance."""
        self.wrong: list[str] = []
        self.stored = 0
        """All events."""
        self.read_again = 0
        """The events that new owners read."""
        self._starting: list[asyncio.Task[None]] = []
        self._client = httpx.AsyncClient(trust_env=False, timeout=5)

    def start(self, processes: int) -> None:
        """Start the processes."""
        self.lanes += [add_lane(self.cluster, number) for number in range(1, processes + 1)]

    async def run(self, kills: int, kinds: Sequence[str], seconds: float) -> None:
        """Disturb ``kills`` times, for at most ``seconds``, while clerks start and end."""
        disturbances: Mapping[str, Callable[[], Awaitable[float]]] = {
            "kill": self._kill,
            "stop": self._stop,
            "pause": self._pause,
            "kill nats": self._kill_nats,
            "kill postgresql": self._kill_postgres,
            **{what: partial(self._cut, names) for what, names in CUTS.items()},
        }
        is_over = asyncio.Event()
        async with asyncio.TaskGroup() as group:
            await self._wait_shared()
            for _ in range(CLERKS):
                group.create_task(self._replace_clerks(is_over))
            began = time.monotonic()
            for number in range(1, kills + 1):
                if (at := time.monotonic() - began) > seconds:
                    break
                what = self.chance.choice(kinds)
                self.seconds[what].append(await disturbances[what]())
                self.report(f"{number}: {at:.0f} s: {what}, watched after {self.seconds[what][-1]:.1f} s")
                await asyncio.sleep(self.chance.uniform(0, 2))
                await self._settle()
            await asyncio.gather(*self._starting)
            for lane in self.lanes:
                # All have recovered by the end.
                lane.is_well = True
            await self._settle()
            is_over.set()
        self.report("checking")
        await self._check()
        await self._client.aclose()

    def report(self, text: str) -> None:
        """Print a text with the time and the load of the machine."""
        print(
            f"{time.strftime('%H:%M:%S')}, load {os.getloadavg()[0]:.0f}: {text}", file=sys.stderr, flush=True
        )

    async def _kill(self) -> float:
        lane = await self._choose_victim()
        lane.process.kill()
        return await self._restart(lane)

    async def _stop(self) -> float:
        lane = await self._choose_victim()
        if (code := await asyncio.to_thread(lane.process.stop)) != 0:
            self.wrong.append(f"a stopped process exited with {code}")
        return await self._restart(lane)

    async def _restart(self, lane: Lane) -> float:
        seconds = await self._settle(without=lane)
        # One restart at a time, while the next disturbance starts.
        await asyncio.gather(*self._starting)
        lane.is_started = False
        self._starting = [asyncio.create_task(self._start(lane))]
        return seconds

    async def _start(self, lane: Lane) -> None:
        await asyncio.to_thread(lane.process.start)
        lane.is_started = True

    async def _pause(self) -> float:
        lane = await self._choose_victim()
        lane.process.signal(signal.SIGSTOP)
        try:
            return await self._settle(without=lane)
        finally:
            lane.process.signal(signal.SIGCONT)

    async def _kill_nats(self) -> float:
        self.cluster.nats.kill()
        await asyncio.sleep(self.chance.uniform(0, 2))
        await asyncio.to_thread(self.cluster.nats.start)
        return await self._settle()

    async def _kill_postgres(self) -> float:
        await asyncio.to_thread(self.cluster.postgres.crash)
        await asyncio.sleep(self.chance.uniform(0, 2))
        await asyncio.to_thread(self.cluster.postgres.start)
        return await self._settle()

    async def _cut(self, names: Sequence[str]) -> float:
        lane = await self._choose_victim()
        addresses = [getattr(lane, name) for name in names]
        async with cut_off(addresses):
            seconds = await self._settle(without=lane)
            await asyncio.sleep(self.chance.uniform(0, 2))
        return seconds

    async def _choose_victim(self) -> Lane:
        """Return a process, preferably one that owns partitions."""
        states = {lane: state for lane in self.lanes if (state := await self._read_state(lane)) is not None}
        owners = [
            partition["owner"] for state in list(states.values())[:1] for partition in state["partitions"]
        ]
        [lane] = self.chance.choices(
            [*states], [1 + 4 * owners.count(state["answered_by"]) for state in states.values()]
        )
        return lane

    async def _read_state(self, lane: Lane) -> dict[str, Any] | None:
        """Return the cluster status of a process; None if it does not answer."""
        if not lane.is_started:
            return None
        with contextlib.suppress(httpx.HTTPError):
            answer = await self._client.get(f"{lane.process.url}/api/cluster")
            state: dict[str, Any] = answer.json()
            return state if answer.status_code == 200 else None
        return None

    async def _settle(self, *, without: Lane | None = None) -> float:
        """
        Return the seconds until other processes without a fault own all partitions.

        A process that was disturbed earlier may still have a fault if it owns nothing.
        """
        if without is not None:
            without.is_well = False
        others = [lane for lane in self.lanes if lane is not without]
        began = time.monotonic()
        states: list[dict[str, Any] | None] = []
        while time.monotonic() - began < _SETTLED_SECONDS:
            states = [*await asyncio.gather(*(self._read_state(lane) for lane in others))]
            for lane, state in zip(others, states, strict=True):
                lane.is_well = lane.is_started and (
                    lane.is_well or (state is not None and not _own_faults(state))
                )
            well = [state for state in states if state is not None and not _own_faults(state)]
            owners = {partition["owner"] for state in well for partition in state["partitions"]}
            are_well = well and len(well) >= sum(lane.is_well for lane in others)
            if are_well and owners <= {state["answered_by"] for state in well}:
                return time.monotonic() - began
            await asyncio.sleep(_ASK_SECONDS)
        raise TimeoutError(f"after {_SETTLED_SECONDS} s: {states}")

    async def _wait_shared(self) -> None:
        for lane in self.lanes:
            await wait_for_shares(
                self._client,
                lane.process,
                lambda found: "none" not in found and max(found.values()) - min(found.values()) < 2,
            )

    async def _replace_clerks(self, is_over: asyncio.Event) -> None:
        """Let clerks in sequence repeat a call until the firing message arrives, and end."""
        while not is_over.is_set():
            clerk = f"clerk-{len(self.clerks):05}"
            self.clerks.append(clerk)
            trace, root = secrets.token_hex(16), secrets.token_hex(8)
            began = time.monotonic()
            while not self.messages[clerk, "slack", "firing"]:
                await self._send([_call(clerk, trace, root) for _ in range(3)])
                await asyncio.sleep(_CALLS_SECONDS)
                if time.monotonic() - began > _NOTIFIED_SECONDS:
                    self.wrong.append(f"no message about {clerk} arrived")
                    break
            await asyncio.sleep(self.chance.uniform(0, 5))
            await self._send([_span(clerk, trace, root, "invoke_agent", f"invoke_agent {clerk}")])

    async def _send(self, spans: Sequence[dict[str, Any]]) -> None:
        """Send spans until a process acknowledges them."""
        [agent] = {_attribute(span, "gen_ai.agent.name") for span in spans}
        resource = {"attributes": [_text("service.name", agent)]}
        body = {"resourceSpans": [{"resource": resource, "scopeSpans": [{"spans": [*spans]}]}]}
        while True:
            process = self.chance.choice(self.lanes).process
            with contextlib.suppress(httpx.HTTPError):
                answer = await self._client.post(f"{process.otlp_url}/v1/traces", json=body)
                if answer.status_code == 200:
                    break
                if answer.status_code != 503:
                    self.wrong.append(f"{answer.status_code}: {answer.text}")
                    break
            self.refused += 1
            await asyncio.sleep(0.1)
        self.acknowledged |= {call for span in spans if (call := _attribute(span, "gen_ai.tool.call.id"))}

    async def _check(self) -> None:
        expected_messages = Counter(
            (clerk, channel, status)
            for clerk in self.clerks
            for channel in ("slack", "pagerduty")
            for status in ("firing", "resolved")
        )
        for _ in range(4 * _SETTLED_SECONDS):
            if not expected_messages - self.messages:
                stored = await asyncio.to_thread(self._stored)
                if len(stored) >= len(self.acknowledged):
                    break
            await asyncio.sleep(0.5)
        # By now a duplicate message would have arrived.
        await asyncio.sleep(60)
        # In a thread, because Alertmanager would repeat its message without a response.
        counted = Counter(await asyncio.to_thread(self._stored))
        self.wrong += [f"call {call} is lost" for call in self.acknowledged - counted.keys()]
        self.wrong += [f"call {call} is stored {n} times" for call, n in counted.items() if n > 1]
        rows = await asyncio.to_thread(self._rows, "SELECT session_id FROM {}tickets")
        tickets = Counter(session for (session,) in rows)
        expected = Counter(f"{clerk}-session" for clerk in self.clerks)
        for session, n in (tickets - expected).items():
            query = f"SELECT body FROM {{}}tickets WHERE session_id = '{session}'"
            bodies = [body for (body,) in await asyncio.to_thread(self._rows, query)]
            self.wrong.append(f"{session} has {n} extra tickets: {bodies}")
        self.wrong += [f"{session} has no ticket" for session in expected - tickets]
        self.wrong += [
            f"{n} extra messages: {what}" for what, n in (self.messages - expected_messages).items()
        ]
        self.wrong += [f"no message: {what}" for what in expected_messages - self.messages]
        self.wrong += [f"refused by the recorder: {reason}" for reason in self.people.recorder.rejections]
        self.stored = sum(n for (n,) in await asyncio.to_thread(self._rows, "SELECT count(*) FROM {}events"))
        for lane in self.lanes:
            log = await asyncio.to_thread(lane.process.log)
            if "Traceback" in log:
                self.wrong.append(f"a traceback in {lane.process.folder / 'log'}")
            self.read_again += sum(map(int, re.findall(r"replayed (\d+) events", log)))
        if self.read_again > _MOST_READ_AGAIN * self.stored:
            self.wrong.append(f"{self.read_again} of {self.stored} events were read again")

    def _stored(self) -> list[str]:
        query = "SELECT agent_id, (data::json)->>'call_id' FROM {}events WHERE type = 'tool_call_completed'"
        # The judge calls tools, too.
        return [call for agent, call in self._rows(query) if agent in self.clerks]

    def _rows(self, query: str) -> list[Any]:
        """Return the rows of all partitions."""
        with connected(self.cluster.database) as conn:
            schemas = conn.exec_driver_sql("SELECT schemaname FROM pg_tables WHERE tablename = 'events'")
            return [
                row
                for (schema,) in schemas.fetchall()
                for row in conn.exec_driver_sql(query.format(f"{schema}.")).fetchall()
            ]


def _own_faults(state: Mapping[str, Any]) -> list[str]:
    """Return the faults of a process, except those about lost members, which are intended."""
    return [fault for fault in state["faults"] if "was not seen for" not in fault]


def add_lane(cluster: Cluster, number: int) -> Lane:
    """Start a process with its own addresses."""
    # All of 127.0.0.0/8 is this machine.
    postgres, nats = f"127.0.{number}.2", f"127.0.{number}.3"
    process = cluster.add(
        database=cluster.database.replace("127.0.0.1", postgres),
        nats_url=cluster.nats.url.replace("127.0.0.1", nats),
    )
    return Lane(process, postgres, nats)


@contextlib.asynccontextmanager
async def cut_off(addresses: Sequence[str]) -> AsyncIterator[None]:
    """Cut a process off from its own addresses, in a private network."""
    for address in addresses:
        await _route(address, "add")
    try:
        yield
    finally:
        for address in addresses:
            await _route(address, "del")


async def _route(address: str, change: str) -> None:
    """Block or unblock packets to and from an address of this machine."""
    for preference, way in ((10, "to"), (11, "from")):
        rule = ("ip", "rule", change, "pref", str(preference), way, address, "blackhole")
        done = await asyncio.create_subprocess_exec(*rule)
        assert await done.wait() == 0, rule


def _text(key: str, value: str) -> dict[str, Any]:
    return {"key": key, "value": {"stringValue": value}}


def _attribute(span: Mapping[str, Any], key: str) -> str:
    return next((each["value"]["stringValue"] for each in span["attributes"] if each["key"] == key), "")


def _call(clerk: str, trace: str, root: str) -> dict[str, Any]:
    more = {
        "gen_ai.tool.name": "search",
        "gen_ai.tool.call.arguments": '{"query": "again"}',
        "gen_ai.tool.call.id": secrets.token_hex(8),
    }
    span = _span(clerk, trace, secrets.token_hex(8), "execute_tool", "execute_tool search", **more)
    return {**span, "parentSpanId": root}


def _span(clerk: str, trace: str, span: str, operation: str, name: str, /, **more: str) -> dict[str, Any]:
    now = time.time_ns()
    attributes = {
        "gen_ai.operation.name": operation,
        "gen_ai.agent.name": clerk,
        "gen_ai.conversation.id": f"{clerk}-session",
        **more,
    }
    return {
        "traceId": trace,
        "spanId": span,
        "name": name,
        "startTimeUnixNano": str(now),
        "endTimeUnixNano": str(now + 1000),
        "attributes": [_text(key, value) for key, value in attributes.items()],
    }


@contextlib.contextmanager
def running_servers(folder: Path, host: str) -> Iterator[tuple[Postgres, Nats]]:
    """Run PostgreSQL and NATS on a host."""
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
    kinds: Sequence[str] = KINDS,
    is_private: bool = False,
    seconds: float = float("inf"),
) -> dict[str, Any]:
    """
    Disturb a cluster, and return the results; ``wrong`` lists the faults.

    Args:
        folder: Folder for all files.
        kills: Number of disturbances.
        seed: Seed of the disturbances.
        processes: Number of processes.
        partitions: Number of partitions.
        kinds: The kinds of disturbances.
        is_private: Whether this is a private network, which some kinds need.
        seconds: No disturbance starts after this time.
    """
    messages: Counter[tuple[str, str, str]] = Counter()

    def note(message: RecordedMessage) -> None:
        for clerk in set(re.findall(r"clerk-\d+", message.title)):
            what = (clerk, message.channel, message.status)
            messages[what] += 1
            if messages[what] > 1:
                chaos.report(f"{messages[what]} messages: {what}")

    async with contextlib.AsyncExitStack() as stack:
        everybody = await stack.enter_async_context(run_receivers(note))
        # Nearly their defaults, with our group interval.
        peers = await stack.enter_async_context(
            alertmanager_peers(folder, everybody, peer_timeout="15s", group_interval="40s", gossip=())
        )
        host = "0.0.0.0" if is_private else "127.0.0.1"
        postgres, nats = stack.enter_context(running_servers(folder, host))
        settings = _SETTINGS | {
            "alerting": {"alertmanager_urls": [*peers.urls]},
            "cluster": {"partitions": partitions},
        }
        cluster = Cluster(folder, postgres, postgres.migrated(), nats, settings)
        chaos = Chaos(cluster, everybody, messages, random.Random(seed))
        stack.callback(kill_all, cluster)
        await asyncio.to_thread(chaos.start, processes)
        await chaos.run(kills, kinds, seconds)
    return {
        "disturbances": {
            what: {
                "times": len(found),
                "watched again after": f"median {statistics.median(found):.1f} s, worst {max(found):.1f} s",
                "later than 10 s": sum(each > _WATCHED_SECONDS for each in found),
            }
            for what, found in sorted(chaos.seconds.items())
        },
        "acknowledged": len(chaos.acknowledged),
        "refused": chaos.refused,
        "clerks": len(chaos.clerks),
        "messages": messages.total(),
        "events": chaos.stored,
        "read again": f"{chaos.read_again}, {chaos.read_again / max(1, chaos.stored):.1%}",
        "wrong": chaos.wrong,
    }


def kill_all(cluster: Cluster) -> None:
    """Kill all processes of a cluster."""
    for process in cluster.processes:
        process.kill()


def private_command(*command: str | Path) -> list[str | Path] | None:
    """Return a command that runs another in a private network; None if the machine does not allow it."""
    # Rules that take effect before the one for local addresses.
    prepare = "ip link set lo up && ip rule add pref 100 lookup local && ip rule del pref 0"
    private = ["unshare", "--net", "sh", "-ec", f'{prepare}; exec "$@"', "sh"]
    if shutil.which("unshare") is None or shutil.which("ip") is None:
        return None
    if subprocess.run([*private, "true"], capture_output=True, check=False).returncode:
        return None
    return [*private, *command]


def _disturb_clusters(count: int, *, kills: int, seed: int, folder: Path | None) -> int:
    """Disturb several clusters at a time, because each mostly waits for leases."""
    children = []
    for number in range(count):
        own = ["--clusters", "1", "--seed", str(seed + number)]
        own += ["--kills", str(kills // count + (number < kills % count))]
        own += [] if folder is None else ["--folder", str(folder / str(number))]
        # The last occurrence of an option applies.
        children.append(subprocess.Popen([sys.executable, "-m", "tests.cluster.chaos", *sys.argv[1:], *own]))
    return max(child.wait() for child in children)


def main() -> int:
    """Parse the command line, disturb, print; return 1 if anything is wrong."""
    parser = argparse.ArgumentParser(prog="python -m tests.cluster.chaos", description=__doc__)
    parser.add_argument("--kills", type=int, default=1000)
    parser.add_argument(
        "--clusters", type=int, default=1, help="number of concurrent clusters, which share the kills"
    )
    parser.add_argument("--minutes", type=float, default=float("inf"), help="time limit for the disturbances")
    parser.add_argument("--since", type=float, help="start of those minutes, in seconds since the epoch")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--processes", type=int, default=4)
    parser.add_argument("--partitions", type=int, default=4)
    parser.add_argument("--kinds", default="", help="comma-separated; by default all that are possible")
    parser.add_argument("--folder", type=Path, help="store all files in this folder")
    parser.add_argument("--private", action="store_true", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.clusters > 1:
        return _disturb_clusters(args.clusters, kills=args.kills, seed=args.seed, folder=args.folder)
    if not args.private and (command := private_command(sys.executable, "-m", "tests.cluster.chaos")):
        os.execvp(command[0], [*map(str, command), *sys.argv[1:], "--private"])
    seconds = 60 * args.minutes - (0 if args.since is None else time.time() - args.since)
    if seconds < _LEAST_SECONDS:
        print(
            f"no disturbances: {max(0, seconds):.0f} s are left, and they need {_LEAST_SECONDS}",
            file=sys.stderr,
        )
        return 0
    isolate()
    if args.folder is not None:
        args.folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as folder:
        found = asyncio.run(
            disturb(
                args.folder or Path(folder),
                kills=args.kills,
                seed=args.seed,
                processes=args.processes,
                partitions=args.partitions,
                kinds=args.kinds.split(",") if args.kinds else [*KINDS, *(CUTS if args.private else ())],
                is_private=args.private,
                seconds=seconds - _LEAST_SECONDS,
            )
        )
    print(json.dumps(found, indent=2))
    return 1 if found["wrong"] else 0


if __name__ == "__main__":
    sys.exit(main())
