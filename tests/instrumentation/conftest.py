"""Fixtures for the tests of instrumentation."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from prometheus_client import CollectorRegistry

from queenright.instrumentation import Telemetry
from tests.instrumentation.parts import Clock, Memory, Otlp, Script
from tests.isolation import environment


@pytest.fixture
def run_script(tmp_path: Path) -> Script:
    """Return a function that runs Python source as a separate agent process."""

    def run(source: str, **env: str) -> subprocess.CompletedProcess[str]:
        path = tmp_path / "agent.py"
        path.write_text(source, encoding="utf-8")
        return subprocess.run(
            [sys.executable, str(path)],
            env=environment(**env),
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )

    return run


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def memory() -> Memory:
    return Memory()


@pytest.fixture
def telemetry(memory: Memory) -> Iterator[Telemetry]:
    telemetry = Telemetry(connect=lambda: memory)
    yield telemetry
    telemetry.close()


@pytest.fixture
def registry() -> CollectorRegistry:
    return CollectorRegistry()


@pytest.fixture
def otlp() -> Iterator[Otlp]:
    server = Otlp()
    yield server
    server.stop()
