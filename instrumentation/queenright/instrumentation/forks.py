"""Fork handling: recreate locks, threads and connections, and drop queues that the parent will send."""

from __future__ import annotations

import os
from collections.abc import Callable
from importlib import import_module
from typing import Any, Final
from weakref import WeakMethod

_child_callbacks: Final[list[WeakMethod[Callable[[], Any]]]] = []


class _ForkCount:
    """The number of forks between the first process and this one."""

    __slots__ = ("number",)

    def __init__(self) -> None:
        self.number = 0


fork_count: Final = _ForkCount()


def after_fork_in_child(method: Callable[[], Any]) -> None:
    """Call a bound method in every forked child while its object is alive."""
    _child_callbacks[:] = [reference for reference in _child_callbacks if reference() is not None]
    _child_callbacks.append(WeakMethod(method))


def import_for_requests() -> None:
    """
    Import ``requests`` and the modules that it would import on the first request.

    A fork during an import in another thread leaves the import lock held in the child forever.
    """
    for module in ("requests", "netrc", "encodings.idna"):
        import_module(module)


def _run_child_callbacks() -> None:
    fork_count.number += 1
    for reference in _child_callbacks:
        method = reference()
        if method is not None:
            method()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_run_child_callbacks)
