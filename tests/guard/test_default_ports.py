"""B126: a test run never connects to a service on the default ports."""

from __future__ import annotations

import asyncio
import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest
import uvloop

from tests import isolation, warm
from tests.guard.default_ports import DEFAULT_PORTS
from tests.isolation import environment, take_refusals

CONNECT = "import socket; socket.create_connection(('127.0.0.1', {port}))"


@pytest.mark.parametrize("port", DEFAULT_PORTS)
def test_connecting_to_a_default_port_is_refused_and_reported(port: int) -> None:
    with pytest.raises(ConnectionRefusedError, match=f"connects to 127.0.0.1:{port}, the default"):
        socket.create_connection(("127.0.0.1", port))

    assert "test_default_ports.py" in take_refusals()
    assert take_refusals() == ""


def test_listening_on_a_default_port_is_refused_and_reported() -> None:
    with socket.socket() as listener, pytest.raises(ConnectionRefusedError):
        listener.bind(("127.0.0.1", 8420))

    assert "127.0.0.1:8420" in take_refusals()


def test_uvloop_connections_are_guarded() -> None:
    async def connect() -> None:
        await asyncio.open_connection("127.0.0.1", 4318)

    with pytest.raises(ConnectionRefusedError):
        uvloop.run(connect())

    assert "127.0.0.1:4318" in take_refusals()


@pytest.mark.parametrize("env", [None, environment()], ids=["inherited", "short"])
def test_child_processes_are_guarded(env: dict[str, str] | None) -> None:
    result = subprocess.run(
        [sys.executable, "-c", CONNECT.format(port=8420)],
        env=env,
        capture_output=True,
        text=True,
        check=False,
    )

    assert "ConnectionRefusedError" in result.stderr
    assert "127.0.0.1:8420" in take_refusals()


def test_forked_commands_are_guarded() -> None:
    result = warm.queenright("list", "--url", "http://127.0.0.1:8420")

    assert result.returncode != 0
    assert "127.0.0.1:8420" in take_refusals()


def test_settings_and_endpoints_of_the_environment_are_removed() -> None:
    code = "import os; from tests import isolation; isolation.isolate(); print(sorted(os.environ))"
    user_variables = {"OTEL_EXPORTER_OTLP_ENDPOINT": "http://127.0.0.1:4318", "QUEENRIGHT_HTTP__PORT": "8420"}
    user_variables |= {"QUEENRIGHT_URL": "http://127.0.0.1:8420", "OTEL_SERVICE_NAME": "theirs"}
    result = subprocess.run(
        [sys.executable, "-c", code],
        env=os.environ | user_variables,
        cwd=isolation.ROOT,
        capture_output=True,
        text=True,
        check=True,
    )

    assert "PATH" in result.stdout
    assert [name for name in user_variables if name in result.stdout] == []


TESTS_WITH_A_DEFAULT_PORT = """
import contextlib, socket

def test_swallows():
    with contextlib.suppress(OSError):
        socket.create_connection(("127.0.0.1", 4318))

def test_other():
    pass
"""


def test_swallowed_default_port_error_still_fails_the_test(tmp_path: Path) -> None:
    """Agents continue without a receiver, so their tests would otherwise pass."""
    test = tmp_path / "test_telemetry.py"
    test.write_text(TESTS_WITH_A_DEFAULT_PORT, encoding="utf-8")
    command = [sys.executable, "-m", "pytest", "-p", "tests.conftest", "-p", "no:cacheprovider", str(test)]
    result = subprocess.run(command, cwd=isolation.ROOT, capture_output=True, text=True, check=False)

    assert "2 passed, 1 error" in result.stdout
    assert "127.0.0.1:4318" in result.stdout
    assert "port 0" in result.stdout
