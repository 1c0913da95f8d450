"""Contents and frequency of the service's log lines during failures."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import urlsplit

import httpx
import pytest

from queenright.cli.output.log_filter import INTERVAL_SECONDS, RateLimiter
from queenright.health.store.store import StoreError
from queenright.server.serving import serving
from tests.databases import locked
from tests.server.conftest import demo_settings, looping
from tests.waiting import until
from tests.warm import PROGRAM, Command

FULL = StoreError("cannot write to hive.db: database or disk is full")


class LogLines:
    """The lines of a log, at times that the test sets."""

    def __init__(self) -> None:
        self._once = RateLimiter()
        self.logged: list[str] = []

    def log(
        self,
        at: float,
        message: str,
        *args: object,
        error: Exception | None = None,
        level: int = logging.ERROR,
    ) -> None:
        exc_info = (type(error), error, None) if error is not None else None
        record = logging.LogRecord("queenright", level, "file.py", 1, message, args, exc_info)
        record.created = at
        passed = self._once.filter_record(record)
        if passed is not None:
            self.logged.append(logging.Formatter().format(passed))


@pytest.fixture
def lines() -> LogLines:
    return LogLines()


def test_repeated_failure_is_logged_every_half_minute_with_a_count(lines: LogLines) -> None:
    for second in range(61):
        lines.log(1000.0 + second, "%d findings wait: %s", second, FULL)

    assert INTERVAL_SECONDS == 30
    assert lines.logged == [
        f"0 findings wait: {FULL}",
        f"30 findings wait: {FULL} (and 29 more like this in the 30 s before)",
        f"60 findings wait: {FULL} (and 29 more like this in the 30 s before)",
    ]


def test_equal_cause_of_many_workers_is_one_repeated_message(lines: LogLines) -> None:
    for agent in ("ant", "bee", "cicada"):
        lines.log(1.0, "acting on %r failed: %s", agent, "the disk is full")
    lines.log(1.0, "acting on %r failed: %s", "dragonfly", "it is unreachable")

    assert lines.logged == [
        "acting on 'ant' failed: the disk is full",
        "acting on 'dragonfly' failed: it is unreachable",
    ]


def test_own_error_is_one_line_and_unexpected_one_has_its_stack(lines: LogLines) -> None:
    lines.log(1.0, "a sweep failed", error=FULL)
    lines.log(1.0, "a sweep failed", error=ZeroDivisionError("by 0"))

    assert lines.logged == [f"a sweep failed: {FULL}", "a sweep failed\nZeroDivisionError: by 0"]


def test_ordinary_records_are_always_logged(lines: LogLines) -> None:
    lines.log(1.0, "read %d events", 3, level=logging.INFO)
    lines.log(1.0, "read %d events", 3, level=logging.INFO)

    assert len(lines.logged) == 2


def test_clock_set_back_suppresses_nothing(lines: LogLines) -> None:
    lines.log(1000.0, "it failed")
    lines.log(1.0, "it failed")

    assert len(lines.logged) == 2


def test_kinds_without_end_are_forgotten_from_the_oldest(lines: LogLines) -> None:
    for number in range(1_001):
        lines.log(number / 1000, "it failed for %s", "x" * number)
    lines.log(2.0, "it failed for %s", "x" * 1000)
    lines.log(2.0, "it failed for %s", "")

    assert len(lines.logged) == 1_002


class CountingHandler(logging.Handler):
    """Counts log records before the limit, and stores those that pass it."""

    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self._once = RateLimiter()
        self.attempted: list[str] = []
        self.logged: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.attempted.append(str(record.msg))
        if (result := self._once.filter_record(record)) is not None:
            self.logged.append(logging.Formatter().format(result))


@pytest.fixture
def log() -> Iterator[CountingHandler]:
    handler = CountingHandler()
    logger = logging.getLogger("queenright")
    logger.addHandler(handler)
    yield handler
    logger.removeHandler(handler)


async def test_requests_that_are_not_http_are_logged_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Invalid requests to a port do not fill the log."""
    handler = CountingHandler()
    monkeypatch.setattr(logging.getLogger(), "handlers", [handler])
    for name in ("uvicorn", "uvicorn.error"):  # another server in this process may have set the handlers up
        monkeypatch.setattr(logging.getLogger(name), "handlers", [])
        monkeypatch.setattr(logging.getLogger(name), "propagate", True)
    async with serving(demo_settings(tmp_path)) as running:
        for url in [running.url, running.otlp_url] * 20:
            reader, writer = await asyncio.open_connection("127.0.0.1", urlsplit(url).port)
            writer.write(b"\x00\x01 garbage\r\n\r\n")
            await asyncio.wait_for(reader.read(), 60)
            writer.close()

    assert len([socket_ for socket_ in handler.attempted if "Invalid HTTP" in socket_]) == 40
    assert len([socket_ for socket_ in handler.logged if "Invalid HTTP" in socket_]) == 1
    for name in ("uvicorn", "uvicorn.error"):
        assert not logging.getLogger(name).handlers, "uvicorn's own handlers have no limit"


async def test_repeated_retry_is_logged_once(tmp_path: Path, log: CountingHandler) -> None:
    async with serving(demo_settings(tmp_path)) as running:
        service = running.service
        await service.store.transact(lambda conn: conn.exec_driver_sql("PRAGMA busy_timeout = 10").close())
        with locked(f"sqlite:///{tmp_path / 'queenright.db'}"):
            service.bus.fan_out(*looping(service.clock()))
            await until(
                lambda: sum("findings and states, retrying" in one for one in log.attempted) >= 3,
                "the write is retried",
            )

    [result] = [one for one in log.logged if "findings and states, retrying" in one]
    assert "retrying: cannot write to" in result
    assert not any("Traceback" in one for one in log.logged)


def read_first_lines_of_serve(folder: Path) -> str:
    command = [str(PROGRAM), "serve", "--port", "0", "--otlp-port", "0"]
    pipe = subprocess.PIPE
    with subprocess.Popen(command, cwd=folder, stdout=pipe, stderr=pipe, text=True) as running:
        assert running.stdout is not None
        assert running.stdout.readline().startswith("Console ")
        running.terminate()
        _, output = running.communicate(timeout=30)
    return output


async def test_serve_without_standard_streams_stops_on_request(tmp_path: Path, port: int) -> None:
    """As after ``<&-`` in a shell: its files and sockets must not get the descriptors of standard streams."""
    serve = Command(
        *("serve", f"--storage={tmp_path / 's'}", f"--port={port}", "--otlp-port=0"),
        streams=(None, None, None),
    )
    async with asyncio.timeout(60), httpx.AsyncClient(trust_env=False) as http:
        is_ready = False
        while not is_ready:
            assert not serve.ended()
            with contextlib.suppress(httpx.TransportError):
                is_ready = (await http.get(f"http://127.0.0.1:{port}/readyz")).is_success
            await asyncio.sleep(0.05)
    serve.send_signal(signal.SIGTERM)
    assert await asyncio.to_thread(serve.wait) == 0


def test_serve_logs_the_database_first_and_no_tools(tmp_path: Path) -> None:
    first, second = read_first_lines_of_serve(tmp_path), read_first_lines_of_serve(tmp_path)

    assert "revision " in first.splitlines()[0]
    assert "revision " not in second
    assert "alembic" not in first + second
