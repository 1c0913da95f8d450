"""Each benchmark can be imported, so that a rename does not break one that rarely runs."""

from __future__ import annotations

import importlib
import pkgutil

import pytest

from tools import benchmarks

_MODULES = sorted(
    module.name
    for module in pkgutil.walk_packages(benchmarks.__path__, "tools.benchmarks.")
    if not module.name.endswith("__main__")
)


@pytest.mark.parametrize("name", _MODULES)
def test_benchmark_can_be_imported(name: str) -> None:
    importlib.import_module(name)
