"""What must be made anew in a forked child: locks, threads, sockets, and what the parent will send anyway."""

from __future__ import annotations

import os
from collections.abc import Callable
from importlib import import_module
from typing import Any, Final
from weakref import WeakMethod

_in_child: Final[list[WeakMethod[Callable[[], Any]]]] = []


class _Epoch:
    """Counts the forks between the first process and this one."""

    __slots__ = ("number",)

    def __init__(self) -> None:
        self.number = 0


epoch: Final = _Epoch()


def after_fork_in_child(method: Callable[[], Any]) -> None:
    """Have a bound method called in every forked child for as long as its object lives."""
    _in_child[:] = [reference for reference in _in_child if reference() is not None]
    _in_child.append(WeakMethod(method))


def import_for_requests() -> None:
    """
    Import ``requests``, and what it would import at the first request only.

    A fork while a thread is in the middle of an import leaves the child with that import locked for ever.
    """
    for module in ("requests", "netrc", "encodings.idna"):
        import_module(module)


def _after_in_child() -> None:
    epoch.number += 1
    for reference in _in_child:
        method = reference()
        if method is not None:
            method()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_in_child)
