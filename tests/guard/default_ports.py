"""
Keep the processes of a test run away from the default ports, where a user's own service may listen.

This module imports only the standard library, because every Python process that a test starts loads it first.
"""

from __future__ import annotations

import contextlib
import errno
import os
import sys
import traceback
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from importlib.util import find_spec
from types import ModuleType
from typing import Any, Final

DEFAULT_PORTS: Final = {
    4317: "OTLP over gRPC",
    4318: "OTLP over HTTP",
    8420: "the service",
    9090: "Prometheus",
    9093: "Alertmanager",
    9094: "Alertmanager's cluster",
}
REFUSALS_ENV: Final = "TESTS_REFUSED_CONNECTIONS"
"""The variable with the file to which refusals are appended, so that the test fails."""

_VERBS: Final = {"socket.connect": "connects to", "socket.bind": "listens on", "socket.sendto": "sends to"}
_MAX_FRAMES: Final = 12


def install() -> None:
    """Refuse every connection to a default port from now on, in this process and its forks."""
    refusals_file = os.environ[REFUSALS_ENV]

    def watch(event: str, arguments: tuple[Any, ...]) -> None:
        if (verb := _VERBS.get(event)) is not None:
            refuse(verb, arguments[1], refusals_file)

    sys.addaudithook(watch)
    sys.meta_path.insert(0, _UvloopFinder(refusals_file))


def refuse(verb: str, address: object, refusals_file: str) -> None:
    """
    Record the use of a default port, and raise the error of an unused port.

    Args:
        verb: What the process does with the port.
        address: The socket's address.
        refusals_file: The file to write to if the environment of this process no longer has it.

    Raises:
        ConnectionRefusedError: The port of ``address`` is in ``DEFAULT_PORTS``.
    """
    if not isinstance(address, tuple) or address[1] not in DEFAULT_PORTS:
        return
    text = f"a test {verb} {address[0]}:{address[1]}, the default port of {DEFAULT_PORTS[address[1]]}"
    frames = "".join(traceback.format_list(traceback.extract_stack()[-_MAX_FRAMES:-2]))
    with (
        contextlib.suppress(OSError),
        open(os.environ.get(REFUSALS_ENV, refusals_file), "a", encoding="utf-8") as refusals,
    ):
        refusals.write(f"{text}; process {os.getpid()}: {str(sys.orig_argv)[:300]}\n{frames}\n")
    raise ConnectionRefusedError(errno.ECONNREFUSED, text)


class _UvloopFinder(MetaPathFinder):
    """
    Guards uvloop's connections when uvloop is imported. They do not use Python's sockets, so they raise no
    audit events.
    """

    def __init__(self, refusals_file: str) -> None:
        self._inherited = refusals_file

    def find_spec(self, fullname: str, path: object = None, target: object = None) -> ModuleSpec | None:
        if fullname != "uvloop":
            return None
        sys.meta_path.remove(self)
        spec = find_spec(fullname)
        if spec is not None and spec.loader is not None:
            spec.loader = _UvloopLoader(spec.loader, self._inherited)
        return spec


class _UvloopLoader(Loader):
    def __init__(self, loader: Loader, refusals_file: str) -> None:
        self._loader = loader
        self._inherited = refusals_file

    def create_module(self, spec: ModuleSpec) -> ModuleType | None:
        return self._loader.create_module(spec)

    def exec_module(self, module: ModuleType) -> None:
        self._loader.exec_module(module)
        refusals_file, base = self._inherited, module.Loop

        class Loop(base):  # type: ignore[misc, valid-type]
            """uvloop's loop, with guarded connections."""

            async def create_connection(
                self, factory: Any, host: Any = None, port: Any = None, **options: Any
            ) -> Any:
                refuse("connects to", (host, port), refusals_file)
                return await super().create_connection(factory, host, port, **options)

        module.Loop = Loop  # type: ignore[attr-defined]
