"""
All rules on a real Prometheus with 10,000 agents and the service.

The history of the longest windows is written first (remote write), because a rule over six hours costs
almost nothing if only two minutes are stored. Only single series are selected over a day or more.
"""

from __future__ import annotations

import asyncio
import os
import re
import statistics
import subprocess
import tempfile
import threading
import time
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Final

import httpx
import yaml

from queenright.alerting.files import rules_folder
from queenright.runtime.events import AgentEvent, EventType
from queenright.server.build import build
from queenright.server.ops.sockets import find_free_port
from queenright.server.settings import load_settings
from tests.programs import NEWEST, program
from tools.benchmarks.row import Row
from tools.benchmarks.samples.fleet import JOB, Fleet
from tools.benchmarks.samples.remote_write import encode_samples, encode_series, write

AGENTS: Final = int(os.environ.get("BENCH_AGENTS", "10000"))
INTERVAL: Final = 15.0
EVALUATIONS: Final = 12
SKIPPED_EVALUATIONS: Final = 2
"""The first evaluations read samples that were just written."""
MAX_HISTORY_SECONDS: Final = 6 * 3600
SLOW_RULE: Final = 1.0
"""Seconds above which a rule is listed."""
_UNIT: Final = {"s": 1, "m": 60, "h": 3600, "d": 86_400}


CONFIG: Final = """
global: {{scrape_interval: {interval}s, evaluation_interval: {interval}s}}
rule_files: {rules}
scrape_configs:
  - job_name: queenright
    metrics_path: /service
    static_configs: [{{targets: ["127.0.0.1:{port}"], labels: {{instance: queenright}}}}]
  - job_name: {job}
    static_configs: {targets}
"""


def run() -> list[Row]:
    """Measure the bundled version, and the newest if it is installed."""
    versions = ["bundled"] + ["newest"] * (NEWEST / "prometheus").is_file()
    if chosen_version := os.environ.get("BENCH_VERSION"):
        versions = [chosen_version]
    with _serve_metrics(Fleet(AGENTS)) as (fleet, port):
        return [row for version in versions for row in _measure(version, fleet, port)]


def _measure(version: str, fleet: Fleet, port: int) -> list[Row]:
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        with _run_prometheus(version, folder, fleet, port) as client:
            sample_count = _write_history(client, fleet)
            _configure(folder, fleet, port, rules=True)
            client.post("/-/reload").raise_for_status()
            durations, slowest = _watch_evaluations(client)
            metrics = _read_own_metrics(client)
    groups = {group: (statistics.median(times), max(times)) for group, times in durations.items()}
    total_seconds = sum(worst for _, worst in groups.values())
    series_text = f"{metrics['prometheus_tsdb_head_series']:,.0f} series"
    memory = f"{metrics['process_resident_memory_bytes'] / 1e9:.1f} GB"
    title = f"rules, Prometheus {version}"
    contents = f"{series_text}, {sample_count / 1e6:.0f} M samples before, {memory}"
    rows = [Row(f"{title}: {AGENTS:,} agents", contents, "", True)]
    for group, (median, worst) in sorted(groups.items()):
        measured = f"median {median * 1e3:.0f} ms, worst {worst * 1e3:.0f} ms"
        rows.append(Row(f"{title}: {group}", measured, "<= 5 s", worst <= 5))
    for duration, rule in slowest[:3]:
        rows.append(Row(f"{title}: slow", f"{rule} {duration * 1e3:.0f} ms", "<= 1 s", duration <= SLOW_RULE))
    share = total_seconds / INTERVAL
    rows.append(Row(f"{title}: share of the interval", f"{share:.0%}", "<= 50 %", share <= 0.5))
    return rows


# -- scrape targets -----------------------------------------------------------------------------


@contextmanager
def _serve_metrics(fleet: Fleet) -> Iterator[tuple[Fleet, int]]:
    """Serve the metrics of the fleet, and those of a real service with as many agents."""
    page = _render_service_page()

    class Pages(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            body = page if self.path == "/service" else fleet.page(int(self.path.rpartition("/")[2]))
            self.send_response(200)
            self.send_header("Content-Type", "text/plain; version=0.0.4")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *args: object) -> None:
            """Do not log requests."""

    port = find_free_port("127.0.0.1", 0, what="the fleet", option="")
    server = ThreadingHTTPServer(("127.0.0.1", port), Pages)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        yield fleet, port
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


def _render_service_page() -> bytes:
    async def render() -> bytes:
        with tempfile.TemporaryDirectory() as folder:
            service = await build(load_settings(storage=Path(folder)))
            await service.start()
            events = [
                AgentEvent(
                    type=EventType.EXECUTION_STARTED,
                    time=time.time(),
                    agent_id=f"agent-{n:05}",
                    session_id="s",
                )
                for n in range(AGENTS)
            ]
            await service.ingest(events)
            page = await service.metrics.render()
            await service.stop()
            return page

    return asyncio.run(render())


# -- Prometheus ---------------------------------------------------------------------------------


@contextmanager
def _run_prometheus(version: str, folder: Path, fleet: Fleet, port: int) -> Iterator[httpx.Client]:
    _configure(folder, fleet, port, rules=False)
    listen = f"127.0.0.1:{find_free_port('127.0.0.1', 0, what='Prometheus', option='')}"
    with (folder / "log").open("wb") as log:
        process = subprocess.Popen(
            [
                program("prometheus", version),
                f"--config.file={folder / 'prometheus.yml'}",
                f"--storage.tsdb.path={folder / 'data'}",
                # Prometheus accepts six hours of history only while they fit into the head with the scrapes.
                "--storage.tsdb.min-block-duration=1d",
                "--storage.tsdb.max-block-duration=1d",
                "--web.enable-remote-write-receiver",
                "--web.enable-lifecycle",
                f"--web.listen-address={listen}",
            ],
            stdout=log,
            stderr=log,
        )
        try:
            with httpx.Client(base_url=f"http://{listen}", timeout=120, trust_env=False) as client:
                _wait_until_ready(client, process, folder / "log")
                yield client
        finally:
            process.terminate()
            process.wait(60)


def _configure(folder: Path, fleet: Fleet, port: int, *, rules: bool) -> None:
    targets = [
        {
            "targets": [f"127.0.0.1:{port}"],
            "labels": {"instance": f"process-{number:02}", "__metrics_path__": f"/agents/{number}"},
        }
        for number in range(fleet.processes)
    ]
    text = CONFIG.format(
        interval=int(INTERVAL),
        rules=[str(path) for path in sorted(rules_folder().glob("*.yml"))] if rules else [],
        port=port,
        job=JOB,
        targets=targets if rules else [],
    )
    (folder / "prometheus.yml").write_text(text)


def _wait_until_ready(client: httpx.Client, process: subprocess.Popen[bytes], log: Path) -> None:
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline and process.poll() is None:
        try:
            if client.get("/-/ready").status_code == 200:
                return
        except httpx.TransportError:
            pass  # not listening yet
        time.sleep(0.2)
    raise RuntimeError(f"Prometheus does not become ready:\n{log.read_text()[-2000:]}")


# -- history ------------------------------------------------------------------------------------


def _write_history(client: httpx.Client, fleet: Fleet) -> int:
    """Write the history of the rules' windows; return the number of samples."""
    now, sample_count = time.time(), 0
    windows = read_windows()
    steps = _read_own_intervals()
    for series in fleet.series:
        if not (seconds := windows.get(series.name, 0)):
            continue
        values = [(at, series.at(at)) for at in _list_sample_times(now, seconds)]
        samples = encode_samples(values)
        labels = {"__name__": series.name, **dict(series.labels)}
        _write_all(client, fleet, labels, samples)
        sample_count += len(values) * fleet.agents
    for name, seconds in windows.items():
        # Recorded for each worker and read over hours: the most expensive series.
        if name.startswith("agent_instance:"):
            values = [(at, 10.0) for at in _list_sample_times(now, seconds, steps.get(name, INTERVAL))]
            _write_all(client, fleet, {"__name__": name}, encode_samples(values))
            sample_count += len(values) * fleet.agents
    return sample_count


def _list_sample_times(now: float, seconds: float, step: float = INTERVAL) -> list[float]:
    count = int(min(seconds, MAX_HISTORY_SECONDS) / step)
    return [now - step * steps_back for steps_back in range(count, 0, -1)]


def _read_own_intervals() -> dict[str, float]:
    """Return the interval of each recording rule in a group with its own interval, in seconds."""
    groups = [
        group
        for path in rules_folder().glob("*.yml")
        for group in yaml.safe_load(path.read_text())["groups"]
        if "interval" in group
    ]
    return {
        rule["record"]: int(group["interval"][:-1]) * _UNIT[group["interval"][-1]]
        for group in groups
        for rule in group["rules"]
    }


def _write_all(client: httpx.Client, fleet: Fleet, labels: dict[str, str], samples: bytes) -> None:
    batch: list[bytes] = []
    for agent, instance in fleet.list_agents():
        batch.append(encode_series({**labels, "agent": agent, "job": JOB, "instance": instance}, samples))
        if len(batch) * len(samples) > 4e6:
            write(client, batch)
            batch = []
    if batch:
        write(client, batch)


def read_windows() -> dict[str, float]:
    """Return the longest window, in seconds, that a rule selects of each metric."""
    values: dict[str, float] = defaultdict(float)
    for path in rules_folder().glob("*.yml"):
        for group in yaml.safe_load(path.read_text())["groups"]:
            for rule in group["rules"]:
                mentions = re.findall(
                    r"([a-zA-Z_:][\w:]*)(?:\{[^}]*\})?(?:\[|\s+offset\s+)(\d+)([smhd])", rule["expr"]
                )
                for name, number, unit in mentions:
                    values[name] = max(values[name], int(number) * _UNIT[unit])
    return values


# -- cost of the evaluations --------------------------------------------------------------------


def _watch_evaluations(client: httpx.Client) -> tuple[dict[str, list[float]], list[tuple[float, str]]]:
    """Return the duration of each evaluation of each group, and the rules by their worst duration."""
    times: dict[str, list[float]] = defaultdict(list)
    last_seen: dict[str, str] = {}
    rules: dict[str, float] = defaultdict(float)
    start = time.monotonic()
    while time.monotonic() - start < INTERVAL * (SKIPPED_EVALUATIONS + EVALUATIONS + 2):
        for group in client.get("/api/v1/rules").json()["data"]["groups"]:
            evaluation_time = group["lastEvaluation"]
            if evaluation_time == last_seen.get(group["name"]) or evaluation_time.startswith("0001"):
                continue
            last_seen[group["name"]] = group["lastEvaluation"]
            times[group["name"]].append(group["evaluationTime"])
            if len(times[group["name"]]) > SKIPPED_EVALUATIONS:
                for rule in group["rules"]:
                    result = f"{rule['name']} {rule.get('labels', {}).get('window', '')}".strip()
                    rules[result] = max(rules[result], rule["evaluationTime"])
                    if rule.get("lastError"):
                        raise RuntimeError(f"{rule['name']}: {rule['lastError']}")
        time.sleep(1)
    # A group with its own interval is evaluated once or twice in this time.
    steady_times = {
        group: duration[SKIPPED_EVALUATIONS:] or duration[-1:] for group, duration in times.items()
    }
    return steady_times, sorted(((duration, rule) for rule, duration in rules.items()), reverse=True)


def _read_own_metrics(client: httpx.Client) -> dict[str, float]:
    lines = client.get("/metrics").text.splitlines()
    metric_names = ("prometheus_tsdb_head_series", "process_resident_memory_bytes")
    pairs = (line.rsplit(" ", 1) for line in lines if line.startswith(metric_names))
    return {name: float(value) for name, value in pairs}
