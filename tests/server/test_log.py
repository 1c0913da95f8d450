"""What the service's log says, and how often, while something does not work."""

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


class Lines:
    """A log's lines, at times that the test says."""

    def __init__(self) -> None:
        self._once = RateLimiter()
        self.said: list[str] = []

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
            self.said.append(logging.Formatter().format(passed))


@pytest.fixture
def lines() -> Lines:
    return Lines()


def test_repeated_failure_is_logged_every_half_minute_with_a_count(lines: Lines) -> None:
    for second in range(61):
        lines.log(1000.0 + second, "%d findings wait: %s", second, FULL)

    assert INTERVAL_SECONDS == 30
    assert lines.said == [
        f"0 findings wait: {FULL}",
        f"30 findings wait: {FULL} (and 29 more like this in the 30 s before)",
        f"60 findings wait: {FULL} (and 29 more like this in the 30 s before)",
    ]


def test_equal_cause_of_many_workers_is_one_kind(lines: Lines) -> None:
    for agent in ("ant", "bee", "cicada"):
        lines.log(1.0, "acting on %r failed: %s", agent, "the disk is full")
    lines.log(1.0, "acting on %r failed: %s", "dragonfly", "nobody reaches it")

    assert lines.said == [
        "acting on 'ant' failed: the disk is full",
        "acting on 'dragonfly' failed: nobody reaches it",
    ]


def test_own_error_is_one_line_and_unexpected_one_has_its_stack(lines: Lines) -> None:
    lines.log(1.0, "a sweep failed", error=FULL)
    lines.log(1.0, "a sweep failed", error=ZeroDivisionError("by 0"))

    assert lines.said == [f"a sweep failed: {FULL}", "a sweep failed\nZeroDivisionError: by 0"]


def test_ordinary_records_are_always_logged(lines: Lines) -> None:
    lines.log(1.0, "read %d events", 3, level=logging.INFO)
    lines.log(1.0, "read %d events", 3, level=logging.INFO)

    assert len(lines.said) == 2


def test_clock_set_back_suppresses_nothing(lines: Lines) -> None:
    lines.log(1000.0, "it failed")
    lines.log(1.0, "it failed")

    assert len(lines.said) == 2


def test_kinds_without_end_are_forgotten_from_the_oldest(lines: Lines) -> None:
    for number in range(1_001):
        lines.log(number / 1000, "it failed for %s", "x" * number)
    lines.log(2.0, "it failed for %s", "x" * 1000)
    lines.log(2.0, "it failed for %s", "")

    assert len(lines.said) == 1_002


class Counting(logging.Handler):
    """Counts what a service wanted to say, and keeps what was let pass."""

    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self._once = RateLimiter()
        self.wanted: list[str] = []
        self.said: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.wanted.append(str(record.msg))
        if (result := self._once.filter_record(record)) is not None:
            self.said.append(logging.Formatter().format(result))


@pytest.fixture
def log() -> Iterator[Counting]:
    handler = Counting()
    logger = logging.getLogger("queenright")
    logger.addHandler(handler)
    yield handler
    logger.removeHandler(handler)


async def test_requests_that_are_not_http_are_logged_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Garbage sent to a port does not fill the log."""
    handler = Counting()
    monkeypatch.setattr(logging.getLogger(), "handlers", [handler])
    for name in ("uvicorn", "uvicorn.error"):  # another server of this process may have set them up
        monkeypatch.setattr(logging.getLogger(name), "handlers", [])
        monkeypatch.setattr(logging.getLogger(name), "propagate", True)
    async with serving(demo_settings(tmp_path)) as running:
        for url in [running.url, running.otlp_url] * 20:
            reader, writer = await asyncio.open_connection("127.0.0.1", urlsplit(url).port)
            writer.write(b"\x00\x01 garbage\r\n\r\n")
            await asyncio.wait_for(reader.read(), 60)
            writer.close()

    assert len([one for one in handler.wanted if "Invalid HTTP" in one]) == 40
    assert len([one for one in handler.said if "Invalid HTTP" in one]) == 1
    for name in ("uvicorn", "uvicorn.error"):
        assert not logging.getLogger(name).handlers, "a handler of uvicorn's own has no limit"


async def test_repeated_retry_is_logged_once(tmp_path: Path, log: Counting) -> None:
    async with serving(demo_settings(tmp_path)) as running:
        service = running.service
        await service.store.transact(lambda conn: conn.exec_driver_sql("PRAGMA busy_timeout = 10").close())
        with locked(f"sqlite:///{tmp_path / 'queenright.db'}"):
            service.bus.fan_out(*looping(service.clock()))
            await until(
                lambda: sum("findings and states, retrying" in one for one in log.wanted) >= 3,
                "it tries again",
            )

    [result] = [one for one in log.said if "findings and states, retrying" in one]
    assert "retrying: cannot write to" in result
    assert not any("Traceback" in one for one in log.said)


def first_words_of_serve(folder: Path) -> str:
    command = [str(PROGRAM), "serve", "--port", "0", "--otlp-port", "0"]
    pipe = subprocess.PIPE
    with subprocess.Popen(command, cwd=folder, stdout=pipe, stderr=pipe, text=True) as running:
        assert running.stdout is not None
        assert running.stdout.readline().startswith("Console ")
        running.terminate()
        _, output = running.communicate(timeout=30)
    return output


async def test_serve_without_standard_streams_stops_as_asked(tmp_path: Path, port: int) -> None:
    """As from a shell with ``<&-``: its files and sockets must not become its standard streams."""
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
    first, second = first_words_of_serve(tmp_path), first_words_of_serve(tmp_path)

    assert "revision " in first.splitlines()[0]
    assert "revision " not in second
    assert "alembic" not in first + second
