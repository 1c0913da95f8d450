"""5,000 sessions that stall at the same time: their list, one page of it, and Ctrl-C."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from typing import Final

import httpx

from tools.benchmarks.otlp import make_requests
from tools.benchmarks.row import Row
from tools.benchmarks.start import PROGRAM, Service, children_time, process_time, serve

SESSIONS: Final = int(os.environ.get("FLEET_SESSIONS", "5000"))
PAGES: Final = 20
SETTINGS: Final = """
health_monitoring:
  judge: {interval_seconds: 30, start_grace_seconds: 4}
  stall: {idle_seconds: 10, llm_seconds: 10, tool_seconds: 10, unknown_seconds: 10}
"""
UP: Final = ("up", "--no-demo", "--prometheus-port=0", "--alertmanager-port=0", "--receiver-port=0")


def run() -> list[Row]:
    """Run all measurements, with a real Alertmanager."""
    with serve(*UP, settings=SETTINGS) as service, httpx.Client(trust_env=False, timeout=120) as http:
        for request in make_requests(500, spans=3 * SESSIONS, agents=SESSIONS):
            http.post(
                f"{service.otlp}/v1/traces",
                content=request,
                headers={"content-type": "application/x-protobuf"},
            ).raise_for_status()
        while http.get(f"{service.url}/api/agents", params={"state": "stuck"}).json()["total"] < SESSIONS:
            time.sleep(1)
        in_storm = _measure_list(service, "as they stall", budget=10)
        _wait_until_idle(service)
        return [
            in_storm,
            _measure_list(service, "afterwards", budget=2),
            _measure_page(service, http),
            _measure_stop(service),
        ]


def _wait_until_idle(service: Service) -> None:
    """Wait up to two minutes until the service uses less than a fifth of a core."""
    for _ in range(40):
        before = process_time(service.pid)
        time.sleep(3)
        if process_time(service.pid) - before < 0.6:
            return


def _measure_list(service: Service, when: str, *, budget: float) -> Row:
    start, before, service_before = time.perf_counter(), children_time(), process_time(service.pid)
    command = [str(PROGRAM), "list", "--url", service.url]
    output = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    elapsed, cpu = time.perf_counter() - start, children_time() - before
    service_cpu = process_time(service.pid) - service_before
    assert output.count("\nstuck ") == SESSIONS
    return Row(
        f"queenright list with {SESSIONS:,} stalled sessions, {when}",
        f"{elapsed:.1f} s; CPU {cpu:.1f} s, and {service_cpu:.1f} s of the service",
        f"<= {budget:.0f} s",
        elapsed <= budget,
    )


def _measure_page(service: Service, http: httpx.Client) -> Row:
    before = process_time(service.pid)
    for _ in range(PAGES):
        http.get(f"{service.url}/api/agents", params={"limit": 60}).raise_for_status()
    cpu = (process_time(service.pid) - before) / PAGES
    return Row(
        "a page of 60 of them, CPU of the service",
        f"{cpu * 1e3:.0f} ms",
        "<= 100 ms",
        cpu <= 0.1,
    )


def _measure_stop(service: Service) -> Row:
    start = time.perf_counter()
    os.kill(service.pid, signal.SIGINT)
    os.waitid(os.P_PID, service.pid, os.WEXITED | os.WNOWAIT)
    elapsed = time.perf_counter() - start
    return Row("Ctrl-C of queenright up with these sessions", f"{elapsed:.1f} s", "<= 3 s", elapsed <= 3)
