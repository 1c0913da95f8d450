"""A fleet of agents as Prometheus scrapes it: copies of the changing series of a real worker."""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from prometheus_client import CollectorRegistry

from queenright.instrumentation import names
from queenright.instrumentation.metrics import WorkerFamilies

JOB: Final = "queenright-workers"
AGENTS_PER_PROCESS: Final = 500
"""Agents per process: the limit of the instrumentation."""
TOOL, MODEL = "search", "gpt"


@dataclass(frozen=True, slots=True)
class Series:
    """One series of every agent; ``kind`` is timestamp, counter or gauge."""

    name: str
    labels: tuple[tuple[str, str], ...]
    kind: str
    value: float

    def at(self, moment: float) -> float:
        """Return the value of a healthy agent at a time."""
        if self.kind == "timestamp":
            return round(moment - 2, 3)
        # Counters that are 0 for the real worker, such as errors, stay 0.
        return count_at(moment) if self.kind == "counter" and self.value else self.value


def read_worker_series() -> tuple[Series, ...]:
    """Return the series of a real worker, without its name."""
    registry = CollectorRegistry()
    agent = WorkerFamilies.of(registry).acquire("agent")
    agent.set_info("custom", "1")
    for verdict in ("accept", "retry"):
        agent.count_step("plan", verdict, 1.0, None)
    agent.count_tool_call(TOOL, "ok", 1.0, None)
    agent.count_tokens(MODEL, 1, 1)
    for stamp in (agent.heartbeat, agent.activity, agent.progress, agent.set_checkpoint):
        stamp(1.0)
    agent.set_waiting("user_input", is_waiting=False)
    agent.set_bad_steps(1, 1)
    rows = []
    for family in registry.collect():
        for sample in family.samples:
            if "agent" not in sample.labels or sample.name.endswith("_created"):
                continue
            kind = "gauge"
            if sample.name == names.WORKER_STALLS.name:
                kind = "gauge"  # none
            elif sample.name.endswith("_timestamp_seconds"):
                kind = "timestamp"
            elif family.type in ("counter", "histogram"):
                kind = "counter"
            labels = tuple((name, value) for name, value in sample.labels.items() if name != "agent")
            rows.append(Series(sample.name, labels, kind, sample.value))
    return tuple(rows)


class Fleet:
    """
    Agents in processes of ``AGENTS_PER_PROCESS``.

    Of every hundred agents, one is stalled, one waits for its user, and one retries endlessly, so that alerts
    fire during the evaluation.
    """

    def __init__(self, agents: int) -> None:
        self.agents = agents
        self.began = time.time()
        self.series = read_worker_series()

    @property
    def processes(self) -> int:
        """Number of targets for Prometheus to scrape."""
        return -(-self.agents // AGENTS_PER_PROCESS)

    def list_agents(self) -> Iterator[tuple[str, str]]:
        """Yield each agent and its process."""
        for number in range(self.agents):
            yield f"agent-{number:05}", f"process-{number // AGENTS_PER_PROCESS:02}"

    def page(self, process: int) -> bytes:
        """Return the current metrics of a process."""
        now = time.time()
        pages = {state: self._page(state, now) for state in ("well", "stalled", "waiting", "storm")}
        numbers = range(process * AGENTS_PER_PROCESS, min(self.agents, (process + 1) * AGENTS_PER_PROCESS))
        return "".join(pages[_state(n)].replace("@", f"agent-{n:05}") for n in numbers).encode()

    def _page(self, state: str, now: float) -> str:
        return "".join(
            f"{series.name}{{{labels}}} {self._value(series, state, now)}\n"
            for series in self.series
            for labels in [", ".join(f'{name}="{value}"' for name, value in (("agent", "@"), *series.labels))]
        )

    def _value(self, series: Series, state: str, now: float) -> float:
        if (
            state == "stalled"
            and series.kind == "timestamp"
            and series.name != names.WORKER_LAST_HEARTBEAT.name
        ):
            return self.began - 1000
        if state == "waiting" and series.name == names.WORKER_WAITING.name:
            return 1.0
        if state == "storm" and series.name == names.WORKER_STEPS_SINCE_ACCEPT.name:
            return 12.0
        return series.at(now)


def count_at(moment: float) -> float:
    """Return the value of every counter, which grows by one every fifteen seconds."""
    return moment // 15


def _state(number: int) -> str:
    return {1: "stalled", 2: "waiting", 3: "storm"}.get(number % 100, "well")
