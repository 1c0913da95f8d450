"""The console in a real Chromium, with a real service."""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import shutil
import subprocess
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from pathlib import Path

import httpx
import pytest
import pytest_asyncio
from playwright.async_api import Browser, Page, async_playwright, expect

from queenright.server.ops.programs import find_program
from queenright.server.serving import RunningService, serving
from queenright.server.settings import Settings
from tests.browser import FLAGS
from tests.console.walk import DEFAULT_VARIANT, User, Variant
from tests.server.agents.parts import AgentService, run_agent_service, write_guide
from tests.server.conftest import settings
from tools import console

__all__ = ["settings"]

expect.set_options(timeout=60_000)  # a busy machine may need it

HOSTILE = "<img src=x onerror=alert(1)>"
"""Markup that an agent sends as text."""

BROWSER_MESSAGE = ("net::ERR_", "Failed to load resource")
"""The browser's own messages about failed requests, whose status the tests check instead."""


@pytest_asyncio.fixture(scope="session", loop_scope="session")
async def chromium() -> AsyncIterator[Browser]:
    """Yield one browser for all tests of a process, on the session's loop; each test has its own context."""
    program = find_program("chromium")
    assert program, "this test needs chromium: `make test` fetches it, or set CHROMIUM_BIN"
    async with async_playwright() as playwright:
        browser = await playwright.chromium.launch(executable_path=program, args=list(FLAGS))
        yield browser
        await browser.close()


@pytest_asyncio.fixture(loop_scope="session")
async def running_service(settings: Settings) -> AsyncIterator[RunningService]:
    async with serving(settings) as service:
        yield service


@pytest_asyncio.fixture(loop_scope="session")
async def http(running_service: RunningService) -> AsyncIterator[httpx.AsyncClient]:
    async with httpx.AsyncClient(base_url=running_service.url, trust_env=False, timeout=60) as client:
        yield client


@dataclass
class PageMonitor:
    """The errors and requests of a page."""

    faults: list[str] = field(default_factory=list)
    requests: list[str] = field(default_factory=list)

    def watch(self, page: Page) -> None:
        """Start recording errors and requests of a page."""
        page.on("pageerror", lambda error: self.faults.append(str(error)))
        page.on("dialog", lambda dialog: self.faults.append(dialog.message))
        page.on(
            "console",
            lambda message: (
                self.faults.append(message.text)
                if message.type == "error" and not message.text.startswith(BROWSER_MESSAGE)
                else None
            ),
        )
        page.on("request", lambda request: self.requests.append(request.url))


@pytest_asyncio.fixture(loop_scope="session")
async def page_monitor() -> AsyncIterator[PageMonitor]:
    """Yield a monitor that fails the test if a monitored page has errors."""
    monitor = PageMonitor()
    yield monitor
    assert monitor.faults == []


@pytest.fixture
def variant(request: pytest.FixtureRequest) -> Variant:
    return Variant.parse(getattr(request, "param", DEFAULT_VARIANT))


@pytest_asyncio.fixture(loop_scope="session")
async def page(chromium: Browser, page_monitor: PageMonitor, variant: Variant) -> AsyncIterator[Page]:
    context = await chromium.new_context(
        viewport={"width": variant.width, "height": 900}, color_scheme=variant.theme
    )
    new_page = await context.new_page()
    page_monitor.watch(new_page)
    yield new_page
    await context.close()


@pytest.fixture
def user(page: Page, variant: Variant) -> User:
    return User(page, has_mouse=variant.has_mouse)


@pytest_asyncio.fixture(loop_scope="session")
async def agent_service(tmp_path: Path) -> AsyncIterator[AgentService]:
    """Yield a service that may load the agent ``guide``."""
    write_guide(tmp_path / "agents" / "guide")
    async with run_agent_service(tmp_path) as service:
        yield service


@dataclass
class InterruptibleProxy:
    """A connection to a service that can be interrupted and restored."""

    host: str
    port: int
    url: str = ""
    is_connected: bool = True
    _silenced: set[asyncio.StreamWriter] = field(default_factory=set)
    _writers: set[asyncio.StreamWriter] = field(default_factory=set)

    async def relay(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Relay one connection."""
        if not self.is_connected:
            writer.close()
            return
        far_reader, far_writer = await asyncio.open_connection(self.host, self.port)
        pair = {writer, far_writer}
        self._writers |= pair
        try:
            async with asyncio.TaskGroup() as group:
                group.create_task(self._copy(reader, far_writer))
                group.create_task(self._copy(far_reader, writer))
        finally:
            self._writers -= pair

    def disconnect(self) -> None:
        """Close all connections, and refuse new ones."""
        self.is_connected = False
        for writer in self._writers:
            writer.transport.abort()

    def silence(self) -> None:
        """Stop relaying data and the end of open connections, and refuse new ones."""
        self.is_connected = False
        self._silenced |= self._writers

    async def _copy(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(OSError):
            while piece := await reader.read(65_536):
                if writer not in self._silenced:
                    writer.write(piece)
                    await writer.drain()
        if writer not in self._silenced:
            writer.close()


@pytest_asyncio.fixture(loop_scope="session")
async def proxy(running_service: RunningService) -> AsyncIterator[InterruptibleProxy]:
    host, port = running_service.url.removeprefix("http://").split(":")
    new_proxy = InterruptibleProxy(host, int(port))
    server = await asyncio.start_server(new_proxy.relay, "127.0.0.1", 0)
    new_proxy.url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    yield new_proxy
    new_proxy.disconnect()
    server.close()


@pytest.fixture(scope="session")
def packages(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """
    Return a copy of the console's sources with its npm packages; skip the test if they cannot be installed.
    """
    # As in the repository, because a test of the sources reads the runbooks.
    root = tmp_path_factory.getbasetemp().parent / "console-packages"
    folder = root / "server" / "console"
    folder.mkdir(parents=True, exist_ok=True)
    with Path(f"{root}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        ignored = shutil.ignore_patterns("node_modules")
        shutil.copytree(console.SOURCE, folder, ignore=ignored, dirs_exist_ok=True)
        runbooks = Path("alerting") / "runbooks"
        shutil.copytree(Path(__file__).parents[2] / runbooks, root / runbooks, dirs_exist_ok=True)
        if not (folder / "installed").exists():
            if (npm := shutil.which("npm")) is None:
                pytest.skip("npm is not installed")
            result = subprocess.run(
                [npm, "ci", "--silent"], cwd=folder, capture_output=True, text=True, check=False
            )
            if result.returncode:
                pytest.skip(f"npm cannot install the console's packages: {result.stderr[-200:]}")
            (folder / "installed").touch()
    return folder
