"""Install each pair from PyPI or npm at pinned versions, in its own folder under ``.tools/frameworks/``."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Final

from tests.clients.install import NODE, InstallError, install_packages, resolve_packages
from tests.frameworks.pairs import OPENTELEMETRY, PROGRAMS, Pair
from tests.isolation import ROOT

PINS: Final = Path(__file__).with_name("pins")
TOOLS: Final = ROOT / ".tools" / "frameworks"
_COMPILE_OPTIONS: Final = ("--quiet", "--no-header", "--no-annotate", "--no-emit-index-url")
_PYTHON_VERSION: Final = "3.11"


def pins_file(pair: Pair) -> Path:
    """Return the file with the package versions of a pair's environment."""
    return PINS / f"{pair.name}.{'json' if pair.is_npm else 'txt'}"


def pinned_versions(pair: Pair) -> dict[str, str]:
    """Return the pinned version of each package in ``pair.packages``."""
    if pair.is_npm:
        packages = json.loads(pins_file(pair).read_text(encoding="utf-8"))["packages"]
        return {package: packages[f"node_modules/{package}"]["version"] for package in pair.packages}
    versions = dict(line.split("==") for line in pins_file(pair).read_text(encoding="utf-8").split() if line)
    return {(name := re.sub(r"\[.*", "", package)): versions[name] for package in pair.packages}


def format_versions(pair: Pair) -> str:
    """Return the names and versions of ``pair.packages``, as one text."""
    return ", ".join(f"{name} {version}" for name, version in pinned_versions(pair).items())


def pin(pair: Pair) -> None:
    """Resolve the newest versions of a pair's packages, and write them to its file."""
    if pair.is_npm:
        lock = resolve_packages(dict.fromkeys((*pair.packages, *pair.extra_packages), "*"))
        pins_file(pair).write_text(json.dumps(lock, indent=1) + "\n", encoding="utf-8")
        return
    requirements = "\n".join((*pair.packages, *pair.extra_packages, *OPENTELEMETRY))
    resolved_requirements = _run_uv(
        ["pip", "compile", *_COMPILE_OPTIONS, "--python-version", _PYTHON_VERSION, "-"], requirements
    )
    pins_file(pair).write_text(resolved_requirements, encoding="utf-8")


def install(pair: Pair) -> list[str]:
    """
    Install a pair at its pinned versions if it is missing, and return the command of its program.

    Raises:
        InstallError: uv or npm failed.
    """
    folder = TOOLS / pair.name
    program = PROGRAMS / pair.program
    if pair.is_npm:
        install_packages(folder, pins_file(pair).read_text(encoding="utf-8"))
        # Node looks for packages next to the program.
        return [NODE, str(shutil.copy(program, folder))]
    python = folder / "bin" / "python"
    marker = folder / ".installed"
    pins = pins_file(pair).read_text(encoding="utf-8")
    if not marker.is_file() or marker.read_text(encoding="utf-8") != pins:
        shutil.rmtree(folder, ignore_errors=True)
        _run_uv(["venv", "--quiet", "--python", _PYTHON_VERSION, str(folder)])
        _run_uv(
            ["pip", "install", "--quiet", "--no-deps", "--python", str(python), "-r", str(pins_file(pair))]
        )
        marker.write_text(pins, encoding="utf-8")
    return [str(python), str(program)]


def _run_uv(arguments: list[str], stdin_text: str = "") -> str:
    command = [str(Path(sys.executable).with_name("uv")), *arguments]
    result = subprocess.run(command, text=True, capture_output=True, input=stdin_text)
    if result.returncode != 0:
        raise InstallError(f"{' '.join(command)} exited with {result.returncode}:\n{result.stderr}")
    return result.stdout
