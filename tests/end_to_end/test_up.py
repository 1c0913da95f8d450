"""`queenright up` as users run it: a process in a terminal, ended by Ctrl-C or killed."""

from __future__ import annotations

import asyncio
import contextlib
import os
import re
import signal
import socket
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from queenright.server.ops.child_processes import Child
from queenright.server.ops.programs import find_program
from queenright.server.service import Service
from queenright.server.settings import Settings
from queenright.server.up import up as up_in_process
from queenright.server.up_options import UpOptions
from tests import warm
from tests.waiting import until

FREE_PORTS = [
    "--port=0",
    "--otlp-port=0",
    "--prometheus-port=0",
    "--alertmanager-port=0",
    "--receiver-port=0",
]


class UpCommand:
    """A running `queenright up`, and its output so far."""

    def __init__(self, storage: Path, *arguments: str) -> None:
        self.storage = storage
        self._log = storage.parent / f"{storage.name}-{time.monotonic_ns()}.txt"
        with self._log.open("wb") as output, Path(os.devnull).open("rb") as nothing:
            self.process = warm.Command(
                *("up", f"--storage={storage}", *arguments),
                streams=(nothing.fileno(), output.fileno(), output.fileno()),
                own_session=True,
            )

    @property
    def printed(self) -> str:
        return self._log.read_text("utf-8")

    def wait_for_output(self, pattern: str, seconds: float = 180) -> str:
        deadline = time.monotonic() + seconds
        while not (match := re.search(pattern, self.printed)):
            assert not self.process.ended(), self.printed
            assert time.monotonic() < deadline, (
                f"{pattern!r} was not printed within {seconds} s:\n{self.printed}"
            )
            time.sleep(0.05)
        return match[match.lastindex or 0]

    def end(self, number: int = signal.SIGINT) -> int:
        self.process.send_signal(number)
        return self.process.wait()


@pytest.fixture
def storage(tmp_path: Path) -> Path:
    return tmp_path / "storage"


@contextlib.contextmanager
def run_demo(storage: Path) -> Iterator[UpCommand]:
    """Run the service with the demo fleet; kill it if it still runs at the end."""
    command = UpCommand(storage, *FREE_PORTS, "--files", str(Path(__file__).parents[2] / "docs"))
    try:
        yield command
    finally:
        if not command.process.ended():
            command.end(signal.SIGKILL)


@pytest.fixture(scope="module")
def demo(tmp_path_factory: pytest.TempPathFactory) -> Iterator[UpCommand]:
    """Yield a service that the tests share; the last of them ends it."""
    with run_demo(tmp_path_factory.mktemp("up") / "storage") as command:
        yield command


def is_listening(url: str) -> bool:
    host, port = url.removeprefix("http://").split(":")
    with socket.socket() as probe:
        return probe.connect_ex((host, int(port))) == 0


def is_closed(url: str, seconds: float = 10) -> bool:
    deadline = time.monotonic() + seconds
    while is_listening(url):
        if time.monotonic() > deadline:
            return False
        time.sleep(0.05)
    return True


def test_second_service_on_the_same_folder_is_refused(demo: UpCommand) -> None:
    demo.wait_for_output("Ctrl-C stops everything")

    second = UpCommand(demo.storage, *FREE_PORTS)

    assert second.process.wait() == 1
    assert "already running" in second.printed
    assert str(demo.process.pid) in second.printed


def test_second_service_names_the_service_on_its_port(demo: UpCommand) -> None:
    port = demo.wait_for_output(r"Console\s+http://\S+:(\d+)")

    second = UpCommand(demo.storage.with_name("elsewhere"), *FREE_PORTS[1:], f"--port={port}")

    assert second.process.wait() == 1
    assert "another Queenright" in second.printed


def test_demo_pages_once_and_ctrl_c_stops_every_process(demo: UpCommand) -> None:
    """The README promises this first. The test ends the service that the tests above share."""
    page = demo.wait_for_output(r"Console\s+(http://\S+)")
    prometheus = demo.wait_for_output(r"Prometheus\s+(http://\S+)")
    alertmanager = demo.wait_for_output(r"Alertmanager\s+(http://\S+)")
    demo.wait_for_output("slack firing: researcher")
    demo.wait_for_output("pagerduty firing: researcher")
    demo.wait_for_output("slack resolved: .*researcher")

    code = demo.end()

    assert code == 0
    assert demo.printed.count("slack firing: researcher") == 1
    assert demo.printed.rstrip().endswith("Stopped.")
    assert "Traceback" not in demo.printed
    assert "not delivered" not in demo.printed
    assert is_closed(page)
    assert is_closed(prometheus)
    assert is_closed(alertmanager)


@pytest.mark.parametrize(
    ("option", "content", "expected"),
    [
        ("--slack-url-file", None, "cannot be read"),
        ("--slack-url-file", "", "does not contain a Slack webhook URL"),
        ("--slack-url-file", "hunter2", "does not contain a Slack webhook URL"),
        ("--pagerduty-key-file", "two words", "does not contain a PagerDuty routing key"),
    ],
)
def test_unusable_secret_file_is_refused_at_start(
    storage: Path, tmp_path: Path, option: str, content: str | None, expected: str
) -> None:
    file = tmp_path / "secret"
    if content is not None:
        file.write_text(content, encoding="utf-8")

    result = warm.queenright("up", f"--storage={storage}", *FREE_PORTS, f"{option}={file}")
    printed = result.stdout + result.stderr

    assert result.returncode == 1
    assert f"{option} {file} {expected}" in " ".join(printed.split())
    assert "hunter2" not in printed


def test_taken_port_is_named_with_a_remedy(storage: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]

        second = warm.queenright("up", f"--storage={storage}", *FREE_PORTS[1:], f"--port={port}")

    assert second.returncode == 1
    assert f"Port {port}" in second.stdout + second.stderr
    assert "--port" in second.stdout + second.stderr


def test_failed_start_leaves_no_folder_behind(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        taken_port = f"--otlp-port={listener.getsockname()[1]}"

        result = warm.queenright("up", f"--storage={tmp_path / 'new' / 'storage'}", *FREE_PORTS, taken_port)

    assert result.returncode == 1
    assert list(tmp_path.iterdir()) == []


async def test_exited_program_is_reported_and_service_is_not_ready(
    settings: Settings, tmp_path: Path
) -> None:
    program = find_program("alertmanager")
    assert program, "this test needs the alertmanager program: `make test` fetches it"
    pid, arguments, wrapper = (tmp_path / name for name in ("pid", "arguments", "alertmanager"))
    wrapper.write_text(
        f'#!/bin/sh\necho $$ > {pid}\necho "$@" > {arguments}\nexec {program} "$@"\n', encoding="utf-8"
    )
    wrapper.chmod(0o755)
    lines: list[str] = []
    options = UpOptions(demo=False, prometheus_port=0, alertmanager_port=0, receiver_port=0)

    def find_wrapper(name: str) -> Path | None:
        return wrapper if name == "alertmanager" else None

    async with up_in_process(settings, options, say=lines.append, find=find_wrapper) as running_service:
        ready = running_service.service.ready()
        os.kill(int(pid.read_text("utf-8")), signal.SIGKILL)
        await until(lambda: bool(running_service.service.faults), "a fault")

        [problem] = running_service.service.ready()
        alertmanager = await asyncio.create_subprocess_exec(
            program, *arguments.read_text("utf-8").split(), stderr=asyncio.subprocess.DEVNULL
        )
        try:
            await until(lambda: not running_service.service.faults, "the problem ends")
        finally:
            alertmanager.kill()
            await alertmanager.wait()

    assert ready == []
    assert "Alertmanager" in problem
    assert "restart `queenright up`" in problem
    assert any(problem in line for line in lines)


async def test_alertmanager_outlives_the_service(settings: Settings, monkeypatch: pytest.MonkeyPatch) -> None:
    """Alertmanager accepts what the service sends while it stops, so no delivery fails at the end."""
    stop_order: list[str] = []
    stop_service, stop_child = Service.stop, Child.stop

    async def record_service(service: Service) -> None:
        await stop_service(service)
        stop_order.append("the service")

    async def record_child(child: Child) -> None:
        stop_order.append(child.name)
        await stop_child(child)

    monkeypatch.setattr(Service, "stop", record_service)
    monkeypatch.setattr(Child, "stop", record_child)
    options = UpOptions(demo=False, prometheus_port=0, alertmanager_port=0, receiver_port=0)

    async with up_in_process(settings, options, say=lambda line: None):
        pass

    assert stop_order == ["the service", "Prometheus", "Alertmanager"]


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux can tie a child's life to its parent's")
def test_killed_demo_leaves_no_process_and_the_next_one_does_not_page_its_agents(storage: Path) -> None:
    with run_demo(storage) as killed_demo:
        addresses = [
            killed_demo.wait_for_output(rf"{name}\s+(http://\S+)") for name in ("Prometheus", "Alertmanager")
        ]
        killed_demo.wait_for_output("slack firing: researcher")
        killed_demo.end(signal.SIGKILL)
        assert all(is_closed(address) for address in addresses)

    with run_demo(storage) as next_demo:
        # Wait until after the stall threshold of the demo's clock.
        next_demo.wait_for_output("slack resolved: .*researcher")
        time.sleep(5)
        code = next_demo.end()

    assert code == 0
    assert "has stalled" not in next_demo.printed
    assert "cannot be reached" not in next_demo.printed, "nothing is sent before Alertmanager is up"


def test_unusable_storage_is_reported_in_one_line(tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.touch()

    result = warm.queenright("up", f"--storage={file}", *FREE_PORTS)

    assert result.returncode == 1
    assert "cannot be used" in result.stdout + result.stderr
    assert "Traceback" not in result.stdout + result.stderr


async def test_up_without_the_programs_starts_and_reports_them(settings: Settings) -> None:
    lines: list[str] = []
    options = UpOptions(demo=False, receiver_port=0)

    async with up_in_process(settings, options, say=lines.append, find=lambda name: None) as running_service:
        async with httpx.AsyncClient(trust_env=False) as client:
            ready = await client.get(f"{running_service.url}/readyz")

        assert ready.status_code == 200
        assert (running_service.prometheus_url, running_service.alertmanager_url) == (None, None)
    assert any("prometheus" in line for line in lines)
    assert any("alertmanager" in line for line in lines)
