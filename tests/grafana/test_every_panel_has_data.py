"""Every query of every panel, run by a real Prometheus that scrapes every metric there is."""

from __future__ import annotations

import itertools
import math
import re
import socket
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from prometheus_client import CollectorRegistry, start_http_server
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.registry import Collector

from queenright.grafana import annotation_queries, queries
from queenright.grafana.promql import age_by, share_by
from queenright.grafana.states import SEVERITIES, STATES
from queenright.health.findings import HealthState
from queenright.instrumentation import names
from queenright.server.programs import find_program

Dashboard = dict[str, Any]

AGE = 30.0
SCRAPES = 4
WINDOW = "4s"
VALUES: dict[str, list[str]] = {
    "agent": ["deep_research_agent", "billing_agent"],
    "state": list(STATES),
    "severity": list(SEVERITIES),
    "verdict": ["accept", "retry", "continue", "escalate", "error"],
    "outcome": [*names.ToolOutcome, "delivered"],
    "reason": list(names.WaitingReason),
    "phase": list(names.Phase),
    "decision": ["dismiss", "intervene", "bypass"],
}


class EveryMetric(Collector):
    """Every metric of the table with every one of its labels; counters and buckets grow with each scrape."""

    def __init__(self) -> None:
        self.scrapes = 0

    def collect(self) -> Iterator[Metric]:
        self.scrapes += 1
        for metric in names.METRICS.values():
            yield self._family(metric)

    def _family(self, metric: names.MetricName) -> Metric:
        rows = list(itertools.product(*(VALUES.get(label, [f"some_{label}"]) for label in metric.labels)))
        if metric.kind == "counter":
            counter = CounterMetricFamily(metric.name, metric.help, labels=metric.labels)
            for row in rows:
                counter.add_metric(row, 2.0 * self.scrapes)
            return counter
        if metric.kind == "histogram":
            histogram = HistogramMetricFamily(metric.name, metric.help, labels=metric.labels)
            for row in rows:
                seen = float(self.scrapes)
                histogram.add_metric(row, [("0.5", seen), ("5", 2 * seen), ("+Inf", 2 * seen)], seen)
            return histogram
        gauge = GaugeMetricFamily(metric.name, metric.help, labels=metric.labels)
        for row in rows:
            gauge.add_metric(row, self._gauge(metric, row))
        return gauge

    def _gauge(self, metric: names.MetricName, row: tuple[str, ...]) -> float:
        if metric.name.endswith("_timestamp_seconds"):
            return 0.0 if "billing_agent" in row else time.time() - AGE
        if metric is names.AGENT_STATE:
            return float(
                row in {("deep_research_agent", HealthState.STUCK), ("billing_agent", HealthState.HEALTHY)}
            )
        return 1.0


CONFIG = """
global: {{scrape_interval: 1s, scrape_timeout: 1s, evaluation_interval: 1s}}
rule_files: [{folder}/rules.yml]
scrape_configs:
  - job_name: queenright
    static_configs: [{{targets: ["127.0.0.1:{port}"]}}]
"""
RULES = """
groups:
  - name: always
    rules: [{alert: QueenrightAlways, expr: vector(1), labels: {severity: critical}}]
"""


@pytest.fixture(scope="module")
def prometheus(tmp_path_factory: pytest.TempPathFactory) -> Iterator[httpx.Client]:
    """A client of a Prometheus that has scraped every metric a few times."""
    program = find_program("prometheus")
    assert program is not None, "this test needs the real prometheus; `make test` fetches it"
    registry, metrics = CollectorRegistry(), EveryMetric()
    registry.register(metrics)
    server, thread = start_http_server(0, "127.0.0.1", registry)
    folder = tmp_path_factory.mktemp("prometheus")
    (folder / "rules.yml").write_text(RULES)
    (folder / "prometheus.yml").write_text(CONFIG.format(folder=folder, port=server.server_port))
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{free.getsockname()[1]}"
    log = (folder / "log").open("wb")
    process = subprocess.Popen(
        [
            program,
            f"--config.file={folder}/prometheus.yml",
            f"--storage.tsdb.path={folder}/data",
            f"--web.listen-address={address}",
        ],
        stdout=log,
        stderr=log,
    )
    try:
        with httpx.Client(base_url=f"http://{address}/api/v1") as client:
            wait_for_scrapes(client, process, folder / "log")
            yield client
    finally:
        process.terminate()
        process.wait(10)
        log.close()
        server.shutdown()
        server.server_close()
        thread.join()


def wait_for_scrapes(client: httpx.Client, process: subprocess.Popen[bytes], log: Path) -> None:
    deadline = time.monotonic() + 60
    expr = f"min(count_over_time(up[1m])) >= {SCRAPES} and count(ALERTS) > 0"
    while time.monotonic() < deadline and process.poll() is None:
        try:
            if client.get("/query", params={"query": expr}).json()["data"]["result"]:
                return
        except (httpx.TransportError, KeyError, ValueError):
            pass  # still starting: nobody there, no answer yet, or 503 in words
        time.sleep(0.2)
    raise AssertionError(log.read_text())


def run(client: httpx.Client, expr: str) -> list[float]:
    """Every number a panel would draw for ``expr`` over the last seconds; NaN is nothing to draw."""
    now = time.time()
    asked = {"query": expr, "start": str(now - 2), "end": str(now), "step": "1"}
    answer = client.get("/query_range", params=asked).json()
    assert answer["status"] == "success", answer
    numbers = [float(value) for series in answer["data"]["result"] for _, value in series["values"]]
    return [number for number in numbers if not math.isnan(number)]


def test_every_query_of_every_panel_has_data(prometheus: httpx.Client, dashboard: Dashboard) -> None:
    found = queries(dashboard, variables={"__rate_interval": WINDOW})

    empty = [query for query in found if not run(prometheus, query.expr)]

    assert empty == []
    assert len(found) >= len(dashboard["panels"])


def test_every_mark_has_data(prometheus: httpx.Client, dashboard: Dashboard) -> None:
    found = annotation_queries(dashboard, variables={"__rate_interval": WINDOW})

    assert [query for query in found if not run(prometheus, query.expr)] == []


def test_choosing_an_agent_shows_that_agent_only(prometheus: httpx.Client, dashboard: Dashboard) -> None:
    nobody = queries(dashboard, variables={"__rate_interval": WINDOW, "agent": "nobody"})
    about_agents = [query for query in nobody if 'agent=~"nobody"' in query.expr]

    assert len(about_agents) >= 5
    assert [query for query in about_agents if run(prometheus, query.expr)] == []


@pytest.mark.parametrize(
    ("name", "choices"),
    [("job", ["queenright"]), ("instance", None), ("agent", ["billing_agent", "deep_research_agent"])],
)
def test_every_variable_offers_its_choices(
    prometheus: httpx.Client, dashboard: Dashboard, name: str, choices: list[str] | None
) -> None:
    [variable] = [v for v in dashboard["templating"]["list"] if v["name"] == name]
    match = re.fullmatch(r"label_values\((.+), (\w+)\)", variable["query"])
    assert match is not None

    selector = re.sub(r"\$\w+", ".+", match[1])
    offered = prometheus.get(f"/label/{match[2]}/values", params={"match[]": selector}).json()["data"]

    assert offered == choices if choices else len(offered) == 1


def test_the_worst_state_of_an_agent_is_its_rank(prometheus: httpx.Client, dashboard: Dashboard) -> None:
    [rank] = {
        query.expr for query in queries(dashboard, variables={}) if names.AGENT_STATE.name in query.expr
    }

    result = prometheus.get("/query", params={"query": rank}).json()["data"]["result"]

    assert {series["metric"]["agent"]: float(series["value"][1]) for series in result} == {
        "deep_research_agent": STATES[HealthState.STUCK][0],
        "billing_agent": STATES[HealthState.HEALTHY][0],
    }


def test_a_tool_without_errors_shows_none_rather_than_nothing(prometheus: httpx.Client) -> None:
    expr = share_by("tool", names.WORKER_TOOL_CALLS, 'outcome="no such outcome"')
    for variable in ("$job", "$instance", "$agent"):
        expr = expr.replace(variable, ".+")

    assert set(run(prometheus, expr.replace("$__rate_interval", WINDOW))) == {0.0}


def test_what_never_happened_has_no_age_rather_than_fifty_years(prometheus: httpx.Client) -> None:
    expr = age_by("agent", names.WORKER_LAST_CHECKPOINT)
    for variable in ("$job", "$instance", "$agent"):
        expr = expr.replace(variable, ".+")

    result = prometheus.get("/query", params={"query": expr}).json()["data"]["result"]

    assert [series["metric"]["agent"] for series in result] == ["deep_research_agent"]
    assert AGE <= float(result[0]["value"][1]) < AGE + 60
