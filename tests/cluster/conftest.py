"""A cluster of real processes, with a real PostgreSQL and a real nats-server."""

from __future__ import annotations

import asyncio
import contextlib
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx
import pytest
import pytest_asyncio
import yaml

from tests.databases import Postgres
from tests.ports import reserve_port
from tests.warm import Command


class Nats:
    """
    A nats-server with JetStream on the loopback address.

    Args:
        options: Additional command-line options.
    """

    def __init__(
        self, folder: Path, port: int, *, host: str = "127.0.0.1", options: Sequence[str] = ()
    ) -> None:
        self.url = f"nats://127.0.0.1:{port}"
        self.port = port
        self._folder = folder
        self._host = host
        self._options = options
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        """Start the server, and wait until it accepts connections."""
        executable = (
            os.environ.get("NATS_BIN")
            or shutil.which("nats-server")
            or shutil.which("nats-server", path=Path(sys.executable).parent)
        )
        assert executable, "this test needs nats-server: `make test` installs it, or set NATS_BIN"
        with (self._folder / "nats.log").open("ab") as log:
            self._process = subprocess.Popen(
                [
                    *(executable, "-a", self._host, "-p", str(self.port)),
                    *("-js", "-sd", str(self._folder / "jetstream"), *self._options),
                ],
                stdout=log,
                stderr=log,
            )
        deadline = time.monotonic() + 30
        while True:
            with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", self.port), 1):
                return
            assert time.monotonic() < deadline, (self._folder / "nats.log").read_text()
            time.sleep(0.02)

    @property
    def pid(self) -> int | None:
        """The process id; None if the server is not running."""
        return None if self._process is None else self._process.pid

    def kill(self) -> None:
        """Kill the server at once, as in a power failure."""
        if self._process is not None:
            self._process.kill()
            self._process.wait(30)
            self._process = None

    def wipe(self) -> None:
        """Delete the server's stored data. The server must not be running."""
        subprocess.run(["rm", "-rf", self._folder / "jetstream"], check=True)


@pytest.fixture
def nats(tmp_path: Path) -> Iterator[Nats]:
    folder = tmp_path / "nats"
    folder.mkdir()
    with reserve_port("nats-server") as port:
        server = Nats(folder, port)
        server.start()
        yield server
        server.kill()


@dataclass
class Process:
    """A member of the cluster, started with `queenright serve`."""

    folder: Path
    config: Path
    environment: dict[str, str]
    url: str = ""
    otlp_url: str = ""
    _process: Command | None = field(default=None, repr=False)

    def start(self) -> None:
        """Start the process, and wait until its ports are open."""
        log = (self.folder / "log").open("ab")
        log_offset = (self.folder / "log").stat().st_size
        with log, Path(os.devnull).open("rb") as null_file:
            self._process = Command(
                *("serve", "--config", self.config),
                streams=(null_file.fileno(), log.fileno(), log.fileno()),
                cwd=self.folder,
                env=self.environment,
            )
        deadline = time.monotonic() + 120
        while True:
            output = self.log(log_offset)
            if "Console " in output:
                line = next(line for line in output.splitlines() if line.startswith("Console "))
                self.url, self.otlp_url = (address.split()[-1] for address in line.split(","))
                return
            assert not self._process.ended(), output
            assert time.monotonic() < deadline, output
            time.sleep(0.02)

    @property
    def pid(self) -> int:
        """The process id."""
        assert self._process is not None
        return self._process.pid

    def log(self, offset: int = 0) -> str:
        """Return the process's output from a byte offset on."""
        with (self.folder / "log").open("rb") as file:
            file.seek(offset)
            return file.read().decode(errors="replace")

    def signal(self, number: signal.Signals) -> None:
        """Send a signal to the process."""
        assert self._process is not None
        self._process.send_signal(number)

    def kill(self) -> None:
        """Kill the process if it is running."""
        if self._process is not None:
            if not self._process.ended():
                self._process.send_signal(signal.SIGKILL)
            self._process.wait()
            self._process = None

    def stop(self) -> int:
        """Stop the process with SIGTERM, as an operator does, and return its exit code."""
        assert self._process is not None
        self.signal(signal.SIGTERM)
        code = self._process.wait()
        self._process = None
        return code


@dataclass
class Cluster:
    """A database, a nats-server and processes."""

    folder: Path
    postgres: Postgres
    database: str
    nats: Nats
    settings: dict[str, Any]
    """Settings of every process. ``cluster`` is None if the processes do not form a cluster."""
    processes: list[Process] = field(default_factory=list)

    def add(self, *, nats_url: str | None = None, database: str | None = None) -> Process:
        """Start another process, optionally with its own addresses of NATS and the database."""
        folder = self.folder / f"member-{len(self.processes)}"
        folder.mkdir(parents=True, exist_ok=True)
        config = folder / "queenright.yaml"
        nats = {"nats": nats_url or self.nats.url, "host": "127.0.0.1"}
        own_settings = self.settings.get("cluster", {})
        content = {
            "storage": str(folder / "storage"),
            "database": database or self.database,
            "http": {"port": 0},
            "otlp": {"port": 0},
            **self.settings,
            "cluster": {} if own_settings is None else nats | own_settings,
        }
        config.write_text(yaml.safe_dump(content))
        process = Process(folder, config, dict(os.environ))
        self.processes.append(process)
        process.start()
        return process

    async def owner(self, *, other_than: Process | None = None) -> Process:
        """Wait until a process monitors the workers, and return that process."""
        async with asyncio.timeout(60), httpx.AsyncClient(trust_env=False, timeout=10) as client:
            while True:
                for process in self.processes:
                    if process is other_than or process._process is None:
                        continue
                    with contextlib.suppress(httpx.HTTPError):
                        metrics = (await client.get(f"{process.url}/metrics")).text
                        if "\nqueenright_cluster_owner 1.0" in metrics:
                            return process
                await asyncio.sleep(0.1)


@pytest.fixture
def cluster_settings() -> dict[str, Any]:
    """Return the settings of every process, except addresses. Test modules override this fixture."""
    return {}


@pytest_asyncio.fixture
async def cluster(
    tmp_path: Path, postgres: Postgres, nats: Nats, cluster_settings: dict[str, Any]
) -> AsyncIterator[Cluster]:
    database = postgres.migrated()
    cluster = Cluster(tmp_path, postgres, database, nats, cluster_settings)
    yield cluster
    for process in cluster.processes:
        if process._process is not None:
            process.signal(signal.SIGCONT)
        process.kill()
    postgres.drop(database)


@pytest_asyncio.fixture
async def client() -> AsyncIterator[httpx.AsyncClient]:
    async with httpx.AsyncClient(trust_env=False, timeout=5) as http:
        yield http
