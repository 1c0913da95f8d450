"""Isolation of a test run from the rest of the machine: its environment, and a guard."""

from __future__ import annotations

import atexit
import os
import tempfile
from pathlib import Path
from typing import Final

from tests.guard import default_ports

ROOT: Final = Path(__file__).parents[1]
_GUARD: Final = str(Path(default_ports.__file__).parent)
_USER_PREFIXES: Final = ("OTEL_", "QUEENRIGHT_")
_TEST_SETTINGS: Final = frozenset({"QUEENRIGHT_SOAK_SECONDS", "QUEENRIGHT_TRACES"})
"""Environment variables that configure the tests."""

CLOSED_URL: Final = "http://127.0.0.1:1"
"""An address without a listener."""


CLOSED_ENDPOINTS: Final = {"OTEL_EXPORTER_OTLP_ENDPOINT": CLOSED_URL, "QUEENRIGHT_ENDPOINT": CLOSED_URL}
"""Endpoints of agents whose telemetry a test does not use, so that it does not go to the default ports."""


def isolate() -> None:
    """Remove endpoints and settings from the environment; guard this process and its children."""
    for name in [
        name for name in os.environ if name.startswith(_USER_PREFIXES) and name not in _TEST_SETTINGS
    ]:
        del os.environ[name]
    number, file = tempfile.mkstemp(prefix="refused-")
    os.close(number)
    atexit.register(Path(file).unlink, missing_ok=True)
    os.environ[default_ports.REFUSALS_ENV] = file
    other_paths = [
        path for path in os.environ.get("PYTHONPATH", "").split(os.pathsep) if path and path != _GUARD
    ]
    os.environ["PYTHONPATH"] = os.pathsep.join([_GUARD, *other_paths])
    default_ports.install()


def environment(**extra_variables: str) -> dict[str, str]:
    """Return a child process's environment: the guard, closed endpoints, and ``extra_variables``."""
    variables = {name: os.environ[name] for name in ("PATH", "PYTHONPATH", default_ports.REFUSALS_ENV)}
    return variables | CLOSED_ENDPOINTS | extra_variables


def take_refusals() -> str:
    """Return the connections that the guard refused since the last call, in this process and its children."""
    file = Path(os.environ[default_ports.REFUSALS_ENV])
    text = file.read_text(encoding="utf-8")
    if text:
        file.write_text("", encoding="utf-8")
    return text
