"""The content and frequency of the service's log lines during failures."""

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

DISK_FULL_ERROR = StoreError("cannot write to hive.db: database or disk is full")


class LogLines:
    """The lines of a log, at times that the test sets."""

    def __init__(self) -> None:
        self._once = RateLimiter()
        self.logged_lines: list[str] = []

    def log_at(
        self,
        log_time: float,
        message: str,
        *args: object,
        error: Exception | None = None,
        level: int = logging.ERROR,
    ) -> None:
        exc_info = (type(error), error, None) if error is not None else None
        record = logging.LogRecord("queenright", level, "file.py", 1, message, args, exc_info)
        record.created = log_time
        is_passed = self._once.filter_record(record)
        if is_passed is not None:
            self.logged_lines.append(logging.Formatter().format(is_passed))


@pytest.fixture
def lines() -> LogLines:
    return LogLines()


def test_repeated_failure_is_logged_every_half_minute_with_a_count(lines: LogLines) -> None:
    for second in range(61):
        lines.log_at(1000.0 + second, "%d findings wait: %s", second, DISK_FULL_ERROR)

    assert INTERVAL_SECONDS == 30
    assert lines.logged_lines == [
        f"0 findings wait: {DISK_FULL_ERROR}",
        f"30 findings wait: {DISK_FULL_ERROR} (and 29 more like this in the 30 s before)",
        f"60 findings wait: {DISK_FULL_ERROR} (and 29 more like this in the 30 s before)",
    ]


def test_same_cause_for_many_workers_is_one_repeated_message(lines: LogLines) -> None:
    for agent in ("ant", "bee", "cicada"):
        lines.log_at(1.0, "acting on %r failed: %s", agent, "the disk is full")
    lines.log_at(1.0, "acting on %r failed: %s", "dragonfly", "it is unreachable")

    assert lines.logged_lines == [
        "acting on 'ant' failed: the disk is full",
        "acting on 'dragonfly' failed: it is unreachable",
    ]


def test_own_error_is_one_line_and_unexpected_error_has_a_traceback(lines: LogLines) -> None:
    lines.log_at(1.0, "a sweep failed", error=DISK_FULL_ERROR)
    lines.log_at(1.0, "a sweep failed", error=ZeroDivisionError("by 0"))

    assert lines.logged_lines == [
        f"a sweep failed: {DISK_FULL_ERROR}",
        "a sweep failed\nZeroDivisionError: by 0",
    ]


def test_ordinary_records_are_always_logged(lines: LogLines) -> None:
    lines.log_at(1.0, "read %d events", 3, level=logging.INFO)
    lines.log_at(1.0, "read %d events", 3, level=logging.INFO)

    assert len(lines.logged_lines) == 2


def test_clock_that_is_set_back_suppresses_no_lines(lines: LogLines) -> None:
    lines.log_at(1000.0, "it failed")
    lines.log_at(1.0, "it failed")

    assert len(lines.logged_lines) == 2


def test_number_of_remembered_kinds_is_bounded(lines: LogLines) -> None:
    for number in range(1_001):
        lines.log_at(number / 1000, "it failed for %s", "x" * number)
    lines.log_at(2.0, "it failed for %s", "x" * 1000)
    lines.log_at(2.0, "it failed for %s", "")

    assert len(lines.logged_lines) == 1_002


class CountingHandler(logging.Handler):
    """A handler that counts all log records, and stores those that pass the limit."""

    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self._once = RateLimiter()
        self.attempted: list[str] = []
        self.logged_lines: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.attempted.append(str(record.msg))
        if (result := self._once.filter_record(record)) is not None:
            self.logged_lines.append(logging.Formatter().format(result))


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
    """Otherwise invalid requests to a port would fill the log."""
    handler = CountingHandler()
    monkeypatch.setattr(logging.getLogger(), "handlers", [handler])
    for name in ("uvicorn", "uvicorn.error"):  # Another server in this process may have set up the handlers.
        monkeypatch.setattr(logging.getLogger(name), "handlers", [])
        monkeypatch.setattr(logging.getLogger(name), "propagate", True)
    async with serving(demo_settings(tmp_path)) as running:
        for url in [running.url, running.otlp_url] * 20:
            reader, writer = await asyncio.open_connection("127.0.0.1", urlsplit(url).port)
            writer.write(b"\x00\x01 garbage\r\n\r\n")
            await asyncio.wait_for(reader.read(), 60)
            writer.close()

    assert len([socket_ for socket_ in handler.attempted if "Invalid HTTP" in socket_]) == 40
    assert len([socket_ for socket_ in handler.logged_lines if "Invalid HTTP" in socket_]) == 1
    for name in ("uvicorn", "uvicorn.error"):
        assert not logging.getLogger(name).handlers, "uvicorn's own handlers have no limit"


async def test_repeated_retry_is_logged_once(tmp_path: Path, log: CountingHandler) -> None:
    async with serving(demo_settings(tmp_path)) as running:
        service = running.service
        await service.store.transact(lambda conn: conn.exec_driver_sql("PRAGMA busy_timeout = 10").close())
        with locked(f"sqlite:///{tmp_path / 'queenright.db'}"):
            service.bus.fan_out(*looping(service.clock()))
            await until(
                lambda: sum("findings and states, retrying" in line for line in log.attempted) >= 3,
                "the write is retried",
            )

    [result] = [line for line in log.logged_lines if "findings and states, retrying" in line]
    assert "retrying: cannot write to" in result
    assert not any("Traceback" in line for line in log.logged_lines)


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
    """As after ``<&-`` in a shell. Files and sockets must not get the descriptors of standard streams."""
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


def test_serve_logs_the_database_first_and_lists_no_tools(tmp_path: Path) -> None:
    first_lines, second_lines = read_first_lines_of_serve(tmp_path), read_first_lines_of_serve(tmp_path)

    assert "revision " in first_lines.splitlines()[0]
    assert "revision " not in second_lines
    assert "alembic" not in first_lines + second_lines
