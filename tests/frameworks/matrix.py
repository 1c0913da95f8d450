"""
What a real service reports about the recorded runs of each pair of framework and instrumentation.

``python -m tests.frameworks matrix`` measures it. A test compares it, and the table in
``docs/frameworks.md``, with `EXPECTED`.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import time
import zlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from itertools import chain
from pathlib import Path
from typing import Any, Final
from unittest.mock import patch

import httpx

from queenright.health.findings import FindingKind
from queenright.health.monitoring.monitor import WorkerHealth
from queenright.health.vitals.session_outcome import WorkerStatus
from queenright.instrumentation.names import Phase
from queenright.server.serving import RunningService, serving
from queenright.server.settings import Settings, load_settings
from queenright.server.up_options import DEMO_DEFAULTS
from tests.clients.fixtures import Fixture, Record
from tests.frameworks.fixtures import fixture_path, load_fixture
from tests.frameworks.install import format_versions
from tests.frameworks.pairs import PAIRS, Pair
from tests.server.telemetry.replay import split_record

_STALL_SECONDS: Final = 10
"""Shorter than the hang of a recorded program, longer than the delivery of its spans and records."""
_HOLD_SECONDS: Final = 2.0
"""
Replaces the minute for which the service holds a run whose end is not reported. Tool calls in messages arrive
with the next request, and the recorded runs are shorter than that minute.
"""
_END_SECONDS: Final = 20.0
_LOOK_SECONDS: Final = 6.0
"""Slightly longer than the interval at which the service checks the runs that it holds."""
_FAILED_RUNS: Final = 4
_TICKET_SECONDS: Final = 60.0
_LOOPS: Final = {FindingKind.DOOM_LOOP, FindingKind.RETRY_STORM, FindingKind.ZERO_PROGRESS}
_TRACE_DIGITS: Final = 32


@dataclass(frozen=True, slots=True, kw_only=True)
class Cells:
    """What works for a pair. The defaults mean that everything does."""

    name: str = "line_counter"
    """The agent's name in the fleet; its own name is ``line_counter``."""
    session: str = "the trace"
    """What a session is: ``named`` by the framework, or each trace."""
    counts: str = "yes"
    """Steps, tool calls and tokens are correct; ``with content``: tool calls only if content is captured."""
    loop: str = "yes"
    """A repeated call is found while the run is active."""
    hang: str = "yes"
    """A hanging call opens a ticket with ``watch_spans()``, whether it is the first call or not."""
    provider: str = "yes"
    """Consecutive runs that fail because of the provider open a ticket."""
    clean: str = "yes"
    """Healthy runs have no finding, with and without content and span watch; two at once stay separate."""
    ends: str = "yes"
    """Runs end as completed or as failed."""


EXPECTED: Final[Mapping[str, Cells]] = {
    "langgraph-openinference": Cells(),
    "langgraph-openllmetry": Cells(),
    "langgraph-langsmith": Cells(),
    "langgraph-genai": Cells(),
    "openai-agents-openinference": Cells(),
    "openai-agents-openllmetry": Cells(),
    "openai-agents-logfire": Cells(),
    "openai-agents-genai": Cells(),
    "openai-agents-v2": Cells(),
    "crewai-openlit": Cells(counts="with content", ends="no"),
    "crewai-openinference": Cells(ends="no"),
    "anthropic-openllmetry": Cells(name="unknown_service:python", counts="with content", hang="no"),
    "google-adk": Cells(session="named"),
    "strands": Cells(),
    "pydantic-ai": Cells(session="named"),
    "llama-index-openinference": Cells(name="unknown_service:python"),
    "smolagents-openinference": Cells(name="unknown_service:python", provider="no", ends="no"),
    "agno-openinference": Cells(session="named"),
    "agent-framework": Cells(),
    "vercel-ai-sdk": Cells(),
    "vercel-ai-sdk-legacy": Cells(hang="no"),
}
"""The result for each pair without ``OTEL_SERVICE_NAME``, which would set the worker's name."""


def matrix_settings(storage: Path) -> Settings:
    """Return settings with frequent checks and a stall limit of ten seconds."""
    stall = dict.fromkeys(("idle_seconds", "llm_seconds", "tool_seconds", "unknown_seconds"), _STALL_SECONDS)
    monitoring: dict[str, Any] = {
        "stall": stall,
        "health_check": {"interval_seconds": 0.2},
        "judge": {"start_grace_seconds": 0},
        "intervention": {"escalation": {"orchestrator": "none"}},
    }
    return load_settings(
        defaults=DEMO_DEFAULTS | {"storage": storage},
        http={"port": 0},
        otlp={"port": 0},
        health_monitoring=monitoring,
    )


async def measure(pair: Pair, storage: Path) -> Cells:
    """Send every recording of a pair to a service over HTTP, and return the results."""
    with patch.multiple(
        "queenright.server.telemetry.assembler",
        RUN_END_HOLD_SECONDS=_HOLD_SECONDS,
        UNSEEN_TOOL_HOLD_SECONDS=0.0,
    ):
        return await _measure(pair, storage)


async def _measure(pair: Pair, storage: Path) -> Cells:
    async with (
        serving(matrix_settings(storage)) as running,
        httpx.AsyncClient(base_url=running.otlp_url, trust_env=False, timeout=60) as client,
    ):
        return await _Measuring(pair, running, client).cells()


class _Measuring:
    """Sends the scenarios of a pair to one service, in sequence."""

    def __init__(self, pair: Pair, running: RunningService, client: httpx.AsyncClient) -> None:
        self._pair = pair
        self._service = running.service
        self._client = client

    async def cells(self) -> Cells:
        """Send all scenarios. The failed runs come last, because they belong to one agent."""
        paths = list(self._healthy_paths())
        healthy = [await self._send(load_fixture(path)) for path in paths]
        two = await self._send(self._fixture("two_at_once"))
        looping, is_loop_found = await self._loop()
        hangs = [await self._hang(path) for path in self._hang_paths()]
        failed, is_ticket_open = await self._fail()
        await self._until_ended([*chain(*healthy), *two, *looping, *failed])
        await self._post([Record(0.0, "/v1/traces", {})])
        [first, *_] = healthy[0]
        clean = [*(len(one) == 1 for one in healthy), len(two) == 2]
        clean += [not worker.findings for one in (*healthy, two) for worker in one]
        ends = [w.vitals.status is WorkerStatus.COMPLETED for one in (*healthy, two, looping) for w in one]
        ends += [worker.vitals.status is WorkerStatus.FAILED for worker in failed]
        counted = (4, self._pair.tool_calls, 4080)
        right = [all(_counts(worker) == counted for worker in one) for one in (*healthy, two)]
        hidden = [path.stem.endswith("-hidden") for path in (*paths, self._path("two_at_once"))]
        counts = _yes(all(right))
        if counts == "no" and all(one or is_hidden for one, is_hidden in zip(right, hidden, strict=True)):
            counts = "with content"
        return Cells(
            name=first.vitals.agent_id,
            session="the trace" if self._is_trace(first.vitals.session_id) else "named",
            counts=counts,
            loop=_yes(is_loop_found),
            hang=_yes(all(hangs)),
            provider=_yes(is_ticket_open),
            clean=_yes(all(clean)),
            ends=_yes(all(ends)),
        )

    def _path(self, name: str) -> Path:
        return fixture_path(self._pair.name, name)

    def _fixture(self, name: str) -> Fixture:
        return load_fixture(self._path(name))

    async def _until_ended(self, workers: list[WorkerHealth], seconds: float = _END_SECONDS) -> None:
        """Wait until these workers have ended, at most for the longest time that an end may take."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                while any(worker.vitals.ended_at is None for worker in workers):  # noqa: ASYNC110
                    await asyncio.sleep(0.1)

    def _healthy_paths(self) -> Iterator[Path]:
        for name in ("healthy", "healthy-watched", "healthy-hidden"):
            if (path := self._path(name)).is_file():
                yield path

    async def _send(self, fixture: Fixture) -> list[WorkerHealth]:
        return await self._post(list(fixture.moved(time.time() - fixture.ended_at)))

    async def _post(self, records: list[Record]) -> list[WorkerHealth]:
        """Post requests and return the workers that they add."""
        before = {worker.key for worker in self._service.monitor.workers()}
        for record in records:
            if record.path != "/v1/metrics":
                answer = await self._client.post(record.path, json=record.body)
                assert answer.status_code == 200, f"{self._pair.name}: {answer.text}"
        await self._service.bus.drain()
        return [worker for worker in list(self._service.monitor.workers()) if worker.key not in before]

    async def _loop(self) -> tuple[list[WorkerHealth], bool]:
        """Send a loop span by span, each at its end, as if the run continued."""
        fixture = self._fixture("loop")
        moved = fixture.moved(time.time() - fixture.ended_at)
        spans = [one for record in moved if record.path == "/v1/traces" for one in split_record(record)]
        workers: list[WorkerHealth] = []
        is_found = False
        for record in sorted(spans, key=_end_of):
            workers += await self._post([record])
            findings = (finding for worker in workers for finding in self._now(worker).findings)
            is_found = is_found or any(one.kind in _LOOPS and one.ticket for one in findings)
        return [self._now(worker) for worker in workers], is_found

    def _hang_paths(self) -> list[Path]:
        suffix = "-watched" if "watched" in self._pair.variants else ""
        return [self._path(f"{name}{suffix}") for name in ("hang_first", "hang_later")]

    async def _hang(self, path: Path) -> bool:
        """Send what arrived before the program was stopped; return whether a ticket opens."""
        fixture = load_fixture(path)
        moved = fixture.moved(time.time() - fixture.ended_at)
        workers = await self._post([record for record in moved if record.at <= fixture.ended_at])
        if len(workers) != 1:
            return False
        [worker] = workers
        has_ticket = await self._has_ticket({FindingKind.STALL}, {worker.key})
        if worker.vitals.phase is Phase.UNKNOWN:
            # Nothing reports the open call, so the run counts as ended unless something else is open.
            await self._until_ended([worker], _HOLD_SECONDS + _LOOK_SECONDS)
        return has_ticket and not worker.vitals.has_ended

    async def _fail(self) -> tuple[list[WorkerHealth], bool]:
        """Send failed runs of one agent, alternating between 429 and 500."""
        workers: list[WorkerHealth] = []
        for number in range(_FAILED_RUNS):
            fixture = self._fixture(("provider_429", "provider_500")[number % 2])
            records = [
                renumber_record(fixture, one, number) for one in fixture.moved(time.time() - fixture.ended_at)
            ]
            workers += await self._post(records)
        keys = {worker.key for worker in workers}
        is_open = await self._has_ticket({FindingKind.RUNS_FAILED, FindingKind.PROVIDER_FAILURE}, keys)
        return [self._now(worker) for worker in workers], is_open

    async def _has_ticket(self, kinds: set[FindingKind], keys: set[tuple[str, str]]) -> bool:
        """Return whether a ticket of one of these kinds opens for one of these workers in time."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_TICKET_SECONDS):
                while not any(  # noqa: ASYNC110  # there is no event for it
                    ticket.kind in kinds and (ticket.agent_id, ticket.session_id) in keys
                    for ticket in self._service.tickets.open_tickets()
                ):
                    await asyncio.sleep(0.02)
                return True
        return False

    def _now(self, worker: WorkerHealth) -> WorkerHealth:
        return self._service.monitor.get(*worker.key) or worker

    def _is_trace(self, session: str) -> bool:
        return len(session) == _TRACE_DIGITS and session.isalnum()


def renumber_record(fixture: Fixture, record: Record, number: int) -> Record:
    """Return a copy of a record for another run: its ids start with another number."""
    prefix = zlib.crc32(f"{fixture.client}/{fixture.scenario}/{fixture.variant}".encode())
    text = json.dumps(record.body).replace(f"{prefix:08x}", f"{prefix ^ number << 12:08x}")
    return replace(record, body=json.loads(text))


def _end_of(record: Record) -> int:
    [group] = record.body["resourceSpans"]
    return int(group["scopeSpans"][0]["spans"][0]["endTimeUnixNano"])


def _counts(worker: WorkerHealth) -> tuple[int, int, int]:
    vitals = worker.vitals
    return vitals.steps_total, vitals.tool_calls_total, vitals.tokens


def _yes(holds: bool) -> str:
    return "yes" if holds else "no"


HEADER: Final = "| framework, instrumentation | versions | session | not seen |"


def render_table(expected: Mapping[str, Cells] = EXPECTED) -> str:
    """Return the table of the documentation."""
    lines = [HEADER, "|" + " --- |" * HEADER.count(" |")]
    for name, cells in expected.items():
        pair = PAIRS[name]
        session = "named" if cells.session == "named" else ""
        lines.append(f"| {pair.title} | {format_versions(pair)} | {session} | {_missing(cells)} |")
    return "\n".join(lines)


def _missing(cells: Cells) -> str:
    """Return the features that do not work for a pair."""
    row = {
        "name": _yes(cells.name == Cells().name),
        "steps": cells.counts,
        "loop": cells.loop,
        "hang": cells.hang,
        "provider fails": cells.provider,
        "healthy is clean": cells.clean,
        "ends": cells.ends,
    }
    missing = [what if cell == "no" else f"{what} only {cell}" for what, cell in row.items() if cell != "yes"]
    return ", ".join(missing) or "\N{EN DASH}"


def render_variables() -> str:
    """Return the table of variables that pairs need to send spans, or that hide content."""
    alike: dict[tuple[str, str], list[str]] = {}
    for pair in PAIRS.values():
        hides = "no setting" if pair.hides is None else _variables(pair.hides) or "in code"
        alike.setdefault((_variables(pair.required) or "nothing", hides), []).append(pair.title)
    lines = ["| framework, instrumentation | needs | hides content |", "| --- | --- | --- |"]
    lines += [f"| {'; '.join(titles)} | {needs} | {hides} |" for (needs, hides), titles in alike.items()]
    return "\n".join(lines)


def _variables(variables: Mapping[str, str]) -> str:
    return ", ".join(f"`{name}={value}`" for name, value in variables.items())
