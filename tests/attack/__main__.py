"""
`python -m tests.attack`: bodies and connections that would block the service, sent to a real one.

Each attack has its own `queenright serve`, on free ports of loopback and in its own folder, that monitors a
looping agent and must page about it meanwhile; a test double replaces Alertmanager. The exit code is 1 if the
event loop is blocked for more than 50 ms, memory grows by more than 300 MB, or a page is 15 s late.
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
from tests.attack.attacker import HALF_OPEN_ON, HEADS, attack
from tests.isolation import ROOT

MOST_BLOCK_MS: Final = 50.0
MOST_MEMORY_MB: Final = 300.0
MOST_DELAY: Final = 15.0
AGENT: Final = ROOT / "tests/end_to_end/agents/looping_worker.py"
ATTACK_AFTER: Final = 2.0
"""Seconds after the agent's start, when its page is not due yet."""
ATTACK_SECONDS: Final = 6.0
PAGE_SECONDS: Final = 45.0
"""Time limit in seconds after the attack for a page or a response."""
DESCRIPTORS: Final = 1_024
ATTACKS: Final = (
    *HALF_OPEN_ON,
    *HEADS,
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
    """A test double that accepts alerts, and records when the first firing one arrived."""

    def __init__(self) -> None:
        self.fired = threading.Event()
        self.fired_at = 0.0
        super().__init__(("127.0.0.1", 0), _Peer)
        threading.Thread(target=self.serve_forever, daemon=True).start()

    @property
    def url(self) -> str:
        """Return its URL."""
        return f"http://127.0.0.1:{self.server_address[1]}"


class _Peer(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_POST(self) -> None:
        alerts = json.loads(self.rfile.read(int(self.headers["content-length"])))
        double: Any = self.server
        if self.path.endswith("/alerts") and alerts and not double.fired.is_set():
            double.fired_at = time.monotonic()
            double.fired.set()
        self._answer({})

    def do_GET(self) -> None:
        self._answer({"cluster": {"status": "disabled"}} if self.path.endswith("/status") else [])

    def _answer(self, content: object) -> None:
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
    """Run the command; return the exit code."""
    parser = argparse.ArgumentParser(prog="python -m tests.attack", description=(__doc__ or "").strip())
    parser.add_argument("--queenright", default=shutil.which("queenright", path=Path(sys.executable).parent))
    parser.add_argument("attacks", nargs="*", metavar="ATTACK", help=f"one of: {', '.join(ATTACKS)}")
    options = parser.parse_args()
    if unknown := set(options.attacks) - set(ATTACKS):
        parser.error(f"there is no attack {unknown.pop()!r}; the attacks are: {', '.join(ATTACKS)}")
    # Also stop the child processes if this process is terminated.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(2))
    quiet = _measure("none", options.queenright)
    if quiet.page_after is None:
        print("Without an attack there was no page; is the machine busy?", file=sys.stderr)
        return 2
    measured = [quiet, *(_measure(name, options.queenright) for name in options.attacks or ATTACKS)]
    table = Table("attack", "answer", "loop blocked, worst", "memory", "page after", "")
    for one in measured:
        _judge(one, quiet.page_after)
        table.add_row(
            one.name,
            one.answer,
            f"{one.block_ms:,.0f} ms",
            f"+{one.memory_mb:,.0f} MB",
            "never" if one.page_after is None else f"{one.page_after:.0f} s",
            ", ".join(one.faults) or "ok",
        )
    Console(width=None if sys.stdout.isatty() else 130).print(table)
    return 1 if any(one.faults for one in measured) else 0


def _judge(result: AttackResult, usual: float) -> None:
    late = result.page_after is None or result.page_after - usual > MOST_DELAY
    wrong = {
        "blocked": result.block_ms > MOST_BLOCK_MS,
        "memory": result.memory_mb > MOST_MEMORY_MB,
        "page late": late,
    }
    result.faults = [name for name, is_wrong in wrong.items() if is_wrong]


def _measure(name: str, program: str) -> AttackResult:
    """Attack a new service."""
    print(f"{name} ...", flush=True)
    measured = AttackResult(name)
    with (
        tempfile.TemporaryDirectory(prefix="attack-") as folder,
        Alertmanager() as alertmanager,
        _run_service(program, Path(folder), alertmanager.url) as (pid, url, otlp),
    ):
        before = _memory(pid, "VmRSS")
        # The attacker generates its bodies before the clock starts.
        with (
            _attacker(name, url, otlp) as attacker,
            _run_agent(url, otlp, Path(folder)) as start,
            _Probe(url, pid) as probe,
        ):
            time.sleep(ATTACK_AFTER)
            attacker.go()
            time.sleep(ATTACK_SECONDS)
            alertmanager.fired.wait(PAGE_SECONDS)
            measured.answer = attacker.stop()
            probe.stop()
        measured.block_ms = probe.worst_ms
        measured.memory_mb = _memory(pid, "VmHWM") - before
        if alertmanager.fired.is_set():
            measured.page_after = alertmanager.fired_at - start
        after = "never" if measured.page_after is None else f"{measured.page_after:.0f} s"
        print(f"  {measured.block_ms:.0f} ms, +{measured.memory_mb:.0f} MB, page after {after}", flush=True)
        alertmanager.shutdown()
    return measured


def _environment() -> dict[str, str]:
    """Return the children's environment, without endpoints or settings of the caller."""
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

    def usual_limits() -> None:
        _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        resource.setrlimit(resource.RLIMIT_NOFILE, (DESCRIPTORS, hard))

    with (folder / "log").open("w+") as log:
        process = subprocess.Popen(
            [program, "serve", "--config", str(folder / "queenright.yaml")],
            stdout=log,
            stderr=subprocess.STDOUT,
            cwd=folder,
            env=_environment(),
            preexec_fn=usual_limits,  # before this process starts a thread
        )
        try:
            until = time.monotonic() + 60
            found = None
            while found is None:
                text = (folder / "log").read_text()
                found = re.search(r"Console (\S+), telemetry (\S+)", text)
                if process.poll() is not None or time.monotonic() > until:
                    raise RuntimeError(f"{program} serve did not start: {text[-2000:]}")
                time.sleep(0.05)
            yield process.pid, found[1], found[2]
        finally:
            process.terminate()
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(20)
            process.kill()
            process.wait()


@contextlib.contextmanager
def _run_agent(url: str, otlp: str, folder: Path) -> Iterator[float]:
    """Start a looping agent; yield its start time."""
    process = subprocess.Popen(
        [sys.executable, str(AGENT), str(folder / "recover"), str(folder / "stop")],
        env={
            **_environment(),
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

    Time spent waiting for a processor is not counted: that of the probe, of the service's main thread, and of
    its longest-waiting other thread, which may have had the interpreter's lock.
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
        """Include the last response, and stop."""
        self._stopping.set()
        self._thread.join()

    def _run(self) -> None:
        while not self._stopping.is_set():
            before, start = self._waits(), time.monotonic()
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
            elapsed = time.monotonic() - start - _waited(before, self._waits(), self._main)
            self.worst_ms = max(self.worst_ms, elapsed * 1e3)
            time.sleep(0.01)

    def _waits(self) -> dict[Path, float]:
        """Return how long each thread has waited for a processor, in seconds."""
        waits = {}
        with contextlib.suppress(OSError):
            for thread in (Path("/proc/thread-self"), *self._tasks.iterdir()):
                with contextlib.suppress(OSError):
                    waits[thread] = int((thread / "schedstat").read_text().split()[1]) / 1e9
        return waits


def _waited(before: dict[Path, float], after: dict[Path, float], main: Path) -> float:
    waits = {thread: seconds - before.get(thread, seconds) for thread, seconds in after.items()}
    probe = waits.pop(Path("/proc/thread-self"), 0.0)
    return probe + waits.pop(main, 0.0) + max(waits.values(), default=0.0)


class _Attack:
    """The attacker's process, separate so that it takes no time from the measuring one."""

    def __init__(self, name: str, url: str, otlp: str) -> None:
        context = get_context("spawn")
        self._words: Queue[str] = context.Queue()
        self._go, self._ready, self._stopping = context.Event(), context.Event(), context.Event()
        self._process = context.Process(
            target=attack, args=(name, url, otlp, self._ready, self._go, self._stopping, self._words)
        )
        self._process.start()
        self._ready.wait(60)

    def go(self) -> None:
        """Start the attack."""
        self._go.set()

    def stop(self) -> str:
        """Stop the attack; return the service's responses."""
        self._stopping.set()
        self._go.set()
        try:
            return self._words.get(timeout=5)
        except Exception:
            return "none yet"

    def close(self) -> None:
        """End the process."""
        self._process.kill()
        self._process.join()


@contextlib.contextmanager
def _attacker(name: str, url: str, otlp: str) -> Iterator[_Attack]:
    with contextlib.closing(_Attack(name, url, otlp)) as attacker:
        yield attacker


def _memory(pid: int, name: str) -> float:
    """Return a value of the process's memory statistics, in MB."""
    match = re.search(rf"{name}:\s+(\d+) kB", Path(f"/proc/{pid}/status").read_text())
    return int(match[1]) / 1e3 if match else 0.0


if __name__ == "__main__":
    sys.exit(main())
