"""
`python -m tests.attack`: send bodies and connections to a real service that are meant to block it.

Each attack has its own `queenright serve`, on free ports of loopback and in its own folder. It monitors a
looping agent, and must page about it during the attack. A test double replaces Alertmanager. The exit code is
1 if the event loop is blocked for more than 50 ms, memory grows by more than 300 MB, or a page is 15 s late.
"""

from __future__ import annotations

import argparse
import contextlib
import http.client
import http.server
import json
import os
import re
import resource
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from multiprocessing import get_context
from multiprocessing.queues import Queue
from pathlib import Path
from typing import Any, Final
from urllib.parse import urlsplit

from rich.console import Console
from rich.table import Table

from queenright.server.up_options import DEMO_DEFAULTS
from tests.attack.attacker import HALF_OPEN_ATTACKS, REQUEST_HEADS, attack
from tests.isolation import ROOT

MAX_BLOCK_MS: Final = 50.0
MAX_MEMORY_MB: Final = 300.0
MAX_PAGE_DELAY_SECONDS: Final = 15.0
AGENT: Final = ROOT / "tests/end_to_end/agents/looping_worker.py"
ATTACK_DELAY_SECONDS: Final = 2.0
"""Seconds from the agent's start to the attack; the agent's page is not due by then."""
ATTACK_SECONDS: Final = 6.0
PAGE_SECONDS: Final = 45.0
"""Time limit in seconds after the attack for a page or a response."""
MAX_DESCRIPTORS: Final = 1_024
ATTACKS: Final = (
    *HALF_OPEN_ATTACKS,
    *REQUEST_HEADS,
    "empty resources",
    "many more empty resources",
    "empty resources, not compressed",
    "empty records",
    "empty attributes",
    "values in a list",
    "spans with a list each",
    "lists in JSON",
    "texts in JSON",
    "ordinary spans in JSON",
    "times of day",
    "commands in errors",
    "streams of gzip",
)


class Alertmanager(http.server.ThreadingHTTPServer):
    """A test double that accepts alerts, and records when the first alert arrived."""

    def __init__(self) -> None:
        self.fired = threading.Event()
        self.fired_at = 0.0
        super().__init__(("127.0.0.1", 0), _Peer)
        threading.Thread(target=self.serve_forever, daemon=True).start()

    @property
    def url(self) -> str:
        """The URL of the test double."""
        return f"http://127.0.0.1:{self.server_address[1]}"


class _Peer(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_POST(self) -> None:
        alerts = json.loads(self.rfile.read(int(self.headers["content-length"])))
        alertmanager: Any = self.server
        if self.path.endswith("/alerts") and alerts and not alertmanager.fired.is_set():
            alertmanager.fired_at = time.monotonic()
            alertmanager.fired.set()
        self._send_json({})

    def do_GET(self) -> None:
        self._send_json({"cluster": {"status": "disabled"}} if self.path.endswith("/status") else [])

    def _send_json(self, content: object) -> None:
        body = json.dumps(content).encode()
        self.send_response(200)
        self.send_header("content-type", "application/json")
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        """Do not log requests."""


@dataclass(slots=True)
class AttackResult:
    """The effects of an attack."""

    name: str
    answer: str = ""
    block_ms: float = 0.0
    memory_mb: float = 0.0
    page_after: float | None = None
    faults: list[str] = field(default_factory=list)


def main() -> int:
    """Run the attacks, and return the exit code."""
    parser = argparse.ArgumentParser(prog="python -m tests.attack", description=(__doc__ or "").strip())
    parser.add_argument("--queenright", default=shutil.which("queenright", path=Path(sys.executable).parent))
    parser.add_argument("attacks", nargs="*", metavar="ATTACK", help=f"one of: {', '.join(ATTACKS)}")
    options = parser.parse_args()
    if unknown := set(options.attacks) - set(ATTACKS):
        parser.error(f"there is no attack {unknown.pop()!r}; the attacks are: {', '.join(ATTACKS)}")
    # Also stop the child processes if this process is terminated.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(2))
    baseline = _measure_attack("none", options.queenright)
    if baseline.page_after is None:
        print("no page arrived without an attack; the machine may be too busy", file=sys.stderr)
        return 2
    results = [baseline, *(_measure_attack(name, options.queenright) for name in options.attacks or ATTACKS)]
    table = Table("attack", "answer", "loop blocked, worst", "memory", "page after", "")
    for result in results:
        _find_faults(result, baseline.page_after)
        table.add_row(
            result.name,
            result.answer,
            f"{result.block_ms:,.0f} ms",
            f"+{result.memory_mb:,.0f} MB",
            "never" if result.page_after is None else f"{result.page_after:.0f} s",
            ", ".join(result.faults) or "ok",
        )
    Console(width=None if sys.stdout.isatty() else 130).print(table)
    return 1 if any(result.faults for result in results) else 0


def _find_faults(result: AttackResult, baseline_page_after: float) -> None:
    is_late = result.page_after is None or result.page_after - baseline_page_after > MAX_PAGE_DELAY_SECONDS
    is_exceeded = {
        "blocked": result.block_ms > MAX_BLOCK_MS,
        "memory": result.memory_mb > MAX_MEMORY_MB,
        "page late": is_late,
    }
    result.faults = [name for name, is_fault in is_exceeded.items() if is_fault]


def _measure_attack(name: str, program: str) -> AttackResult:
    """Attack a new service, and return the effects."""
    print(f"{name} ...", flush=True)
    result = AttackResult(name)
    with (
        tempfile.TemporaryDirectory(prefix="attack-") as folder,
        Alertmanager() as alertmanager,
        _run_service(program, Path(folder), alertmanager.url) as (pid, url, otlp),
    ):
        memory_before = _read_memory_mb(pid, "VmRSS")
        # The attacker generates its bodies before the clock starts.
        with (
            _attacker(name, url, otlp) as attacker,
            _run_agent(url, otlp, Path(folder)) as started_at,
            _Probe(url, pid) as probe,
        ):
            time.sleep(ATTACK_DELAY_SECONDS)
            attacker.go()
            time.sleep(ATTACK_SECONDS)
            alertmanager.fired.wait(PAGE_SECONDS)
            result.answer = attacker.stop()
            probe.stop()
        result.block_ms = probe.worst_ms
        result.memory_mb = _read_memory_mb(pid, "VmHWM") - memory_before
        if alertmanager.fired.is_set():
            result.page_after = alertmanager.fired_at - started_at
        after = "never" if result.page_after is None else f"{result.page_after:.0f} s"
        print(f"  {result.block_ms:.0f} ms, +{result.memory_mb:.0f} MB, page after {after}", flush=True)
        alertmanager.shutdown()
    return result


def _build_environment() -> dict[str, str]:
    """Return an environment for child processes, without endpoints or settings of the caller."""
    return {
        name: value for name, value in os.environ.items() if not name.startswith(("OTEL_", "QUEENRIGHT_"))
    }


@contextlib.contextmanager
def _run_service(program: str, folder: Path, alertmanager: str) -> Iterator[tuple[int, str, str]]:
    """Yield the service's process id, its URL, and its telemetry URL."""
    config = {
        **DEMO_DEFAULTS,
        "storage": str(folder / "storage"),
        "http": {"port": 0},
        "otlp": {"port": 0},
        "alerting": {"alertmanager_urls": [alertmanager]},
    }
    (folder / "queenright.yaml").write_text(json.dumps(config), encoding="utf-8")

    def limit_descriptors() -> None:
        _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        resource.setrlimit(resource.RLIMIT_NOFILE, (MAX_DESCRIPTORS, hard))

    with (folder / "log").open("w+") as log:
        process = subprocess.Popen(
            [program, "serve", "--config", str(folder / "queenright.yaml")],
            stdout=log,
            stderr=subprocess.STDOUT,
            cwd=folder,
            env=_build_environment(),
            preexec_fn=limit_descriptors,  # before this process starts a thread
        )
        try:
            deadline = time.monotonic() + 60
            match = None
            while match is None:
                text = (folder / "log").read_text()
                match = re.search(r"Console (\S+), telemetry (\S+)", text)
                if process.poll() is not None or time.monotonic() > deadline:
                    raise RuntimeError(f"{program} serve did not start: {text[-2000:]}")
                time.sleep(0.05)
            yield process.pid, match[1], match[2]
        finally:
            process.terminate()
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(20)
            process.kill()
            process.wait()


@contextlib.contextmanager
def _run_agent(url: str, otlp: str, folder: Path) -> Iterator[float]:
    """Run a looping agent, and yield its start time."""
    process = subprocess.Popen(
        [sys.executable, str(AGENT), str(folder / "recover"), str(folder / "stop")],
        env={
            **_build_environment(),
            "OTEL_EXPORTER_OTLP_ENDPOINT": otlp,
            "QUEENRIGHT_ENDPOINT": url,
            "QUEENRIGHT_STORAGE": str(folder / "agent"),
        },
        stderr=subprocess.DEVNULL,
    )
    try:
        yield time.monotonic()
    finally:
        process.kill()
        process.wait()


class _Probe:
    """
    Polls ``/healthz`` repeatedly, and records the longest response time.

    The time that threads wait for a processor does not count: that of the probe, that of the service's main
    thread, and the longest of its other threads, which may have held the interpreter's lock.
    """

    def __init__(self, url: str, pid: int) -> None:
        self.worst_ms = 0.0
        self._address = urlsplit(url).netloc
        self._tasks = Path(f"/proc/{pid}/task")
        self._main = self._tasks / str(pid)
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run)

    def __enter__(self) -> _Probe:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def stop(self) -> None:
        """Wait for the last response, and stop."""
        self._stopping.set()
        self._thread.join()

    def _run(self) -> None:
        while not self._stopping.is_set():
            before, start = self._read_waits(), time.monotonic()
            try:
                client = http.client.HTTPConnection(self._address, timeout=PAGE_SECONDS)
                client.request("GET", "/healthz")
                client.getresponse().read()
                client.close()
            except TimeoutError:
                pass
            except (OSError, http.client.HTTPException):
                time.sleep(0.02)  # A refused request is not a blocked one; the page shows the effect.
                continue
            elapsed = time.monotonic() - start - _sum_waits(before, self._read_waits(), self._main)
            self.worst_ms = max(self.worst_ms, elapsed * 1e3)
            time.sleep(0.01)

    def _read_waits(self) -> dict[Path, float]:
        """Return the seconds for which each thread has waited for a processor, by its folder."""
        waits = {}
        with contextlib.suppress(OSError):
            for thread in (Path("/proc/thread-self"), *self._tasks.iterdir()):
                with contextlib.suppress(OSError):
                    waits[thread] = int((thread / "schedstat").read_text().split()[1]) / 1e9
        return waits


def _sum_waits(before: dict[Path, float], after: dict[Path, float], main: Path) -> float:
    waits = {thread: seconds - before.get(thread, seconds) for thread, seconds in after.items()}
    probe = waits.pop(Path("/proc/thread-self"), 0.0)
    return probe + waits.pop(main, 0.0) + max(waits.values(), default=0.0)


class _AttackerProcess:
    """The process of the attacker, which is separate so that it does not delay the measurement."""

    def __init__(self, name: str, url: str, otlp: str) -> None:
        context = get_context("spawn")
        self._results: Queue[str] = context.Queue()
        self._start, self._ready, self._stopping = context.Event(), context.Event(), context.Event()
        self._process = context.Process(
            target=attack, args=(name, url, otlp, self._ready, self._start, self._stopping, self._results)
        )
        self._process.start()
        self._ready.wait(60)

    def go(self) -> None:
        """Start the attack."""
        self._start.set()

    def stop(self) -> str:
        """Stop the attack, and return a summary of the service's responses."""
        self._stopping.set()
        self._start.set()
        try:
            return self._results.get(timeout=5)
        except Exception:
            return "none yet"

    def close(self) -> None:
        """End the process."""
        self._process.kill()
        self._process.join()


@contextlib.contextmanager
def _attacker(name: str, url: str, otlp: str) -> Iterator[_AttackerProcess]:
    with contextlib.closing(_AttackerProcess(name, url, otlp)) as attacker:
        yield attacker


def _read_memory_mb(pid: int, name: str) -> float:
    """Return a value of the process's memory statistics, in MB."""
    match = re.search(rf"{name}:\s+(\d+) kB", Path(f"/proc/{pid}/status").read_text())
    return int(match[1]) / 1e3 if match else 0.0


if __name__ == "__main__":
    sys.exit(main())
