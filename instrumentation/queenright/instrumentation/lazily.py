"""Names of a package that are imported when they are asked for: whoever needs one does not pay for all."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from importlib import import_module
from typing import Any


def lazily(package: str, where: Mapping[str, str]) -> tuple[Callable[[str], Any], Callable[[], list[str]]]:
    """
    Return the ``__getattr__`` and the ``__dir__`` of a package.

    Args:
        package: Its name.
        where: The module below it that each name is in.

    >>> __getattr__, __dir__ = lazily(__name__, {"Worker": "worker"})
    """

    def get(name: str) -> Any:
        if name not in where:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        found = getattr(import_module(f"{package}.{where[name]}"), name)
        # From now on it is there like any other name.
        setattr(sys.modules[package], name, found)
        return found

    def names() -> list[str]:
        return sorted({*vars(sys.modules[package]), *where})

    return get, names
