"""
What a real service reports about the recorded runs of each pair of framework and instrumentation.

``python -m tests.frameworks matrix`` measures it. A test compares the result, and the
table in ``docs/frameworks.md``, with `EXPECTED`.
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
"""Shorter than the hang of a recorded program, and longer than its spans and records take to arrive."""
_HOLD_SECONDS: Final = 2.0
"""
Replaces the minute for which the service holds a run whose end is not reported, because the recorded runs are
shorter than a minute. Tool calls in messages arrive with the next request.
"""
_END_SECONDS: Final = 20.0
_CHECK_SECONDS: Final = 6.0
"""Slightly longer than the interval at which the service checks the runs that it holds."""
_FAILED_RUNS: Final = 4
_TICKET_SECONDS: Final = 60.0
_LOOP_FINDINGS: Final = {FindingKind.DOOM_LOOP, FindingKind.RETRY_STORM, FindingKind.ZERO_PROGRESS}
_TRACE_DIGITS: Final = 32


@dataclass(frozen=True, slots=True, kw_only=True)
class Cells:
    """What works for a pair. With the defaults, everything works."""

    name: str = "line_counter"
    """The name that the fleet shows for the agent ``line_counter``."""
    session: str = "the trace"
    """What a session is: ``named`` by the framework, or ``the trace``."""
    counts: str = "yes"
    """Steps, tool calls and tokens are correct; ``with content``: tool calls only if content is captured."""
    loop: str = "yes"
    """A repeated call is found while the run is active."""
    hang: str = "yes"
    """A hanging call opens a ticket with ``watch_spans()``, whether or not it is the first call."""
    provider: str = "yes"
    """Consecutive runs that fail because of the provider open a ticket."""
    clean: str = "yes"
    """Healthy runs have no finding, with or without content and span watch; concurrent runs stay separate."""
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
        serving(matrix_settings(storage)) as running_service,
        httpx.AsyncClient(base_url=running_service.otlp_url, trust_env=False, timeout=60) as client,
    ):
        return await _PairMeasurement(pair, running_service, client).measure_cells()


class _PairMeasurement:
    """Sends the scenarios of a pair to one service, one after the other."""

    def __init__(self, pair: Pair, running_service: RunningService, client: httpx.AsyncClient) -> None:
        self._pair = pair
        self._service = running_service.service
        self._client = client

    async def measure_cells(self) -> Cells:
        """Send all scenarios, and return the results. The failed runs of one agent come last."""
        paths = list(self._list_healthy_paths())
        healthy_workers = [await self._send_fixture(load_fixture(path)) for path in paths]
        concurrent_workers = await self._send_fixture(self._load_fixture("two_at_once"))
        looping_workers, is_loop_found = await self._send_loop()
        hangs = [await self._send_hang(path) for path in self._list_hang_paths()]
        failed_workers, is_ticket_open = await self._send_failed_runs()
        await self._wait_until_ended(
            [*chain(*healthy_workers), *concurrent_workers, *looping_workers, *failed_workers]
        )
        await self._post_records([Record(0.0, "/v1/traces", {})])
        [first_worker, *_] = healthy_workers[0]
        clean = [*(len(one) == 1 for one in healthy_workers), len(concurrent_workers) == 2]
        clean += [not worker.findings for one in (*healthy_workers, concurrent_workers) for worker in one]
        ends = [
            w.vitals.status is WorkerStatus.COMPLETED
            for one in (*healthy_workers, concurrent_workers, looping_workers)
            for w in one
        ]
        ends += [worker.vitals.status is WorkerStatus.FAILED for worker in failed_workers]
        expected_counts = (4, self._pair.tool_calls, 4080)
        has_expected_counts = [
            all(_list_counts(worker) == expected_counts for worker in one)
            for one in (*healthy_workers, concurrent_workers)
        ]
        is_hidden_path = [path.stem.endswith("-hidden") for path in (*paths, self._get_path("two_at_once"))]
        counts = _format_bool(all(has_expected_counts))
        if counts == "no" and all(
            one or is_hidden for one, is_hidden in zip(has_expected_counts, is_hidden_path, strict=True)
        ):
            counts = "with content"
        return Cells(
            name=first_worker.vitals.agent_id,
            session="the trace" if self._is_trace(first_worker.vitals.session_id) else "named",
            counts=counts,
            loop=_format_bool(is_loop_found),
            hang=_format_bool(all(hangs)),
            provider=_format_bool(is_ticket_open),
            clean=_format_bool(all(clean)),
            ends=_format_bool(all(ends)),
        )

    def _get_path(self, name: str) -> Path:
        return fixture_path(self._pair.name, name)

    def _load_fixture(self, name: str) -> Fixture:
        return load_fixture(self._get_path(name))

    async def _wait_until_ended(self, workers: list[WorkerHealth], seconds: float = _END_SECONDS) -> None:
        """Wait until these workers have ended, at most for ``seconds``."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                while any(worker.vitals.ended_at is None for worker in workers):  # noqa: ASYNC110
                    await asyncio.sleep(0.1)

    def _list_healthy_paths(self) -> Iterator[Path]:
        for name in ("healthy", "healthy-watched", "healthy-hidden"):
            if (path := self._get_path(name)).is_file():
                yield path

    async def _send_fixture(self, fixture: Fixture) -> list[WorkerHealth]:
        return await self._post_records(list(fixture.moved(time.time() - fixture.ended_at)))

    async def _post_records(self, records: list[Record]) -> list[WorkerHealth]:
        """Post requests and return the workers that they add."""
        earlier_keys = {worker.key for worker in self._service.monitor.workers()}
        for record in records:
            if record.path != "/v1/metrics":
                response = await self._client.post(record.path, json=record.body)
                assert response.status_code == 200, f"{self._pair.name}: {response.text}"
        await self._service.bus.drain()
        return [worker for worker in list(self._service.monitor.workers()) if worker.key not in earlier_keys]

    async def _send_loop(self) -> tuple[list[WorkerHealth], bool]:
        """Send a loop as if the run continued, with one request for each span at its end."""
        fixture = self._load_fixture("loop")
        moved = fixture.moved(time.time() - fixture.ended_at)
        spans = [one for record in moved if record.path == "/v1/traces" for one in split_record(record)]
        workers: list[WorkerHealth] = []
        is_found = False
        for record in sorted(spans, key=_read_end_time):
            workers += await self._post_records([record])
            findings = (finding for worker in workers for finding in self._get_current(worker).findings)
            is_found = is_found or any(one.kind in _LOOP_FINDINGS and one.ticket for one in findings)
        return [self._get_current(worker) for worker in workers], is_found

    def _list_hang_paths(self) -> list[Path]:
        suffix = "-watched" if "watched" in self._pair.variants else ""
        return [self._get_path(f"{name}{suffix}") for name in ("hang_first", "hang_later")]

    async def _send_hang(self, path: Path) -> bool:
        """Send what arrived before the program was stopped, and return whether a ticket opens."""
        fixture = load_fixture(path)
        moved = fixture.moved(time.time() - fixture.ended_at)
        workers = await self._post_records([record for record in moved if record.at <= fixture.ended_at])
        if len(workers) != 1:
            return False
        [worker] = workers
        has_ticket = await self._has_ticket({FindingKind.STALL}, {worker.key})
        if worker.vitals.phase is Phase.UNKNOWN:
            # Nothing reports the open call, so the run counts as ended unless something else is open.
            await self._wait_until_ended([worker], _HOLD_SECONDS + _CHECK_SECONDS)
        return has_ticket and not worker.vitals.has_ended

    async def _send_failed_runs(self) -> tuple[list[WorkerHealth], bool]:
        """Send failed runs of one agent, alternating between 429 and 500."""
        workers: list[WorkerHealth] = []
        for number in range(_FAILED_RUNS):
            fixture = self._load_fixture(("provider_429", "provider_500")[number % 2])
            records = [
                renumber_record(fixture, one, number) for one in fixture.moved(time.time() - fixture.ended_at)
            ]
            workers += await self._post_records(records)
        keys = {worker.key for worker in workers}
        is_open = await self._has_ticket({FindingKind.RUNS_FAILED, FindingKind.PROVIDER_FAILURE}, keys)
        return [self._get_current(worker) for worker in workers], is_open

    async def _has_ticket(self, kinds: set[FindingKind], keys: set[tuple[str, str]]) -> bool:
        """Return whether a ticket of one of these kinds opens for one of these workers in time."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_TICKET_SECONDS):
                while not any(  # noqa: ASYNC110  # no event reports it
                    ticket.kind in kinds and (ticket.agent_id, ticket.session_id) in keys
                    for ticket in self._service.tickets.open_tickets()
                ):
                    await asyncio.sleep(0.02)
                return True
        return False

    def _get_current(self, worker: WorkerHealth) -> WorkerHealth:
        return self._service.monitor.get(*worker.key) or worker

    def _is_trace(self, session: str) -> bool:
        return len(session) == _TRACE_DIGITS and session.isalnum()


def renumber_record(fixture: Fixture, record: Record, number: int) -> Record:
    """Return a copy of a record for another run, whose ids have another prefix."""
    prefix = zlib.crc32(f"{fixture.client}/{fixture.scenario}/{fixture.variant}".encode())
    text = json.dumps(record.body).replace(f"{prefix:08x}", f"{prefix ^ number << 12:08x}")
    return replace(record, body=json.loads(text))


def _read_end_time(record: Record) -> int:
    [group] = record.body["resourceSpans"]
    return int(group["scopeSpans"][0]["spans"][0]["endTimeUnixNano"])


def _list_counts(worker: WorkerHealth) -> tuple[int, int, int]:
    vitals = worker.vitals
    return vitals.steps_total, vitals.tool_calls_total, vitals.tokens


def _format_bool(holds: bool) -> str:
    return "yes" if holds else "no"


HEADER: Final = "| framework, instrumentation | versions | session | not seen |"


def render_table(expected: Mapping[str, Cells] = EXPECTED) -> str:
    """Return the table of the documentation."""
    lines = [HEADER, "|" + " --- |" * HEADER.count(" |")]
    for name, measure_cells in expected.items():
        pair = PAIRS[name]
        session = "named" if measure_cells.session == "named" else ""
        lines.append(
            f"| {pair.title} | {format_versions(pair)} | {session} | {_list_missing(measure_cells)} |"
        )
    return "\n".join(lines)


def _list_missing(measure_cells: Cells) -> str:
    """Return the features that do not work for a pair, as one text."""
    row = {
        "name": _format_bool(measure_cells.name == Cells().name),
        "steps": measure_cells.counts,
        "loop": measure_cells.loop,
        "hang": measure_cells.hang,
        "provider fails": measure_cells.provider,
        "healthy is clean": measure_cells.clean,
        "ends": measure_cells.ends,
    }
    missing = [
        feature if cell == "no" else f"{feature} only {cell}"
        for feature, cell in row.items()
        if cell != "yes"
    ]
    return ", ".join(missing) or "\N{EN DASH}"


def render_variables() -> str:
    """Return the table of variables that pairs need to send spans, or that hide content."""
    titles_by_variables: dict[tuple[str, str], list[str]] = {}
    for pair in PAIRS.values():
        hiding_variables = (
            "no setting"
            if pair.hiding_variables is None
            else _format_variables(pair.hiding_variables) or "in code"
        )
        titles_by_variables.setdefault(
            (_format_variables(pair.required) or "nothing", hiding_variables), []
        ).append(pair.title)
    lines = ["| framework, instrumentation | needs | hides content |", "| --- | --- | --- |"]
    lines += [
        f"| {'; '.join(titles)} | {needs} | {hiding_variables} |"
        for (needs, hiding_variables), titles in titles_by_variables.items()
    ]
    return "\n".join(lines)


def _format_variables(variables: Mapping[str, str]) -> str:
    return ", ".join(f"`{name}={value}`" for name, value in variables.items())
