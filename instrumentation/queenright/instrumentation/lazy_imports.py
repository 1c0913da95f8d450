"""Lazy attributes of a package: each name is imported on first access."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from importlib import import_module
from typing import Any


def lazy_attributes(
    package: str, modules: Mapping[str, str]
) -> tuple[Callable[[str], Any], Callable[[], list[str]]]:
    """
    Return a ``__getattr__`` and a ``__dir__`` for a package.

    Args:
        package: The package's name.
        modules: The submodule that defines each name.

    >>> __getattr__, __dir__ = lazy_attributes(__name__, {"Worker": "worker"})
    """

    def get(name: str) -> Any:
        if name not in modules:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        return getattr(import_module(f"{package}.{modules[name]}"), name)

    def list_names() -> list[str]:
        return sorted({*vars(import_module(package)), *modules})

    return get, list_names
