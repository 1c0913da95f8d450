"""The public names of the package, each imported on first access."""

from __future__ import annotations

import inspect
import subprocess
import sys

import pytest

import queenright.api
import queenright.instrumentation


@pytest.mark.parametrize("package", [queenright.instrumentation, queenright.api])
def test_public_names_equal_all_and_dir(package: object) -> None:
    names = package.__all__  # type: ignore[attr-defined]

    assert names == sorted(names)
    assert set(names) <= set(dir(package))
    for name in names:
        attribute = getattr(package, name)
        assert not inspect.ismodule(attribute), name
        # `Verdict` is an enumeration; `WaitingReason` is a union of literals and may have no name.
        assert getattr(attribute, "__name__", name) == name


def test_unknown_attribute_raises_attribute_error() -> None:
    with pytest.raises(AttributeError, match=r"'queenright\.instrumentation' has no attribute 'Wroker'"):
        queenright.instrumentation.Wroker  # type: ignore[attr-defined]  # noqa: B018


def test_light_modules_do_not_import_telemetry() -> None:
    process = (
        "import sys, queenright.instrumentation.errors, queenright.instrumentation.names\n"
        "before = [m for m in sys.modules if m.startswith(('opentelemetry', 'prometheus_client'))]\n"
        "from queenright.instrumentation import fingerprint, Worker\n"
        "import queenright.instrumentation.fingerprint\n"
        "from queenright.instrumentation import fingerprint as again\n"
        "sys.exit(bool(before) or not callable(fingerprint) or again is not fingerprint)"
    )
    assert subprocess.run([sys.executable, "-c", process], check=False).returncode == 0
