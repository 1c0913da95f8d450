"""Discover the agents below the roots by their files, without running any of their code."""

from __future__ import annotations

import ast
import os
from collections.abc import Collection, Iterable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any, Final

from queenright.api.loaded_agents import DiscoveredAgent
from queenright.instrumentation.redaction import redact
from queenright.runtime.agents.agent_parts import SPEC_FILES
from queenright.runtime.agents.agent_spec import AgentLoadError, AgentSpec, read_agent_spec
from queenright.runtime.agents.credentials import find_missing_credentials
from queenright.server.agents.roots import PathNotAllowedError, Roots

MAX_DEPTH: Final = 3
"""Maximum depth of the search below a root."""
_MAX_FOLDERS: Final = 10_000
"""Maximum number of folders to search."""
_MAX_SCRIPT_BYTES: Final = 1 << 20
"""Maximum number of bytes to read of an ``agent.py``."""
_SKIPPED_FOLDERS: Final = frozenset({"__pycache__", "node_modules", "sessions"})


def find_agents(roots: Roots, loaded_folders: Collection[Path]) -> list[DiscoveredAgent]:
    """
    Return the agents below the roots, sorted by path. Blocks.

    Args:
        roots: The folders to search. Links that lead out of them are not followed.
        loaded_folders: The folders of agents that are loaded.
    """
    agents = {}
    for folder in _walk_folders(roots):
        spec_files = [name for name in SPEC_FILES if (folder / name).is_file()]
        if spec_files:
            agents[folder] = _describe_agent(roots, folder, spec_files, folder in loaded_folders)
    return [agents[folder] for folder in sorted(agents, key=str)]


def _walk_folders(roots: Roots) -> Iterator[Path]:
    visited: set[Path] = set()
    level: Iterable[Path] = roots.folders
    for _ in range(MAX_DEPTH + 1):
        next_level: list[Path] = []
        for folder in level:
            if folder in visited or len(visited) >= _MAX_FOLDERS or not roots.contains(folder):
                continue
            visited.add(folder)
            yield folder
            next_level += _list_subfolders(folder)
        level = next_level


def _list_subfolders(folder: Path) -> list[Path]:
    try:
        with os.scandir(folder) as entries:
            names = sorted(entry.name for entry in entries if _is_searched(entry))
    except OSError:
        return []
    folders = []
    for name in names:
        with suppress(OSError, RuntimeError):  # removed in the meantime, or a circular link
            folders.append((folder / name).resolve())
    return folders


def _is_searched(entry: os.DirEntry[str]) -> bool:
    try:
        return entry.name not in _SKIPPED_FOLDERS and not entry.name.startswith(".") and entry.is_dir()
    except OSError:  # a circular link
        return False


def _describe_agent(roots: Roots, folder: Path, spec_files: list[str], is_loaded: bool) -> DiscoveredAgent:
    problem = None
    spec: dict[str, Any] = {}
    needs: dict[str, list[str]] = {"inputs": [], "credentials": [], "missing": []}
    try:
        if len(spec_files) > 1:
            problem = "it has both agent.json and agent.py; keep one"
        elif spec_files == ["agent.json"]:
            agent_spec = read_agent_spec(folder / "agent.json")
            spec = agent_spec.model_dump(include={"name", "version", "description"})
            needs = _list_needs(agent_spec)
        else:
            spec = _read_spec_call(folder / "agent.py")
        if problem is None:
            roots.check_files(folder)
    except PathNotAllowedError as error:
        problem = redact(str(error), 1000)
    except AgentLoadError as error:
        problem = redact(error.reason, 1000)
    except (OSError, ValueError, RecursionError) as error:
        problem = f"agent.py cannot be read: {redact(str(error), 200)}"
    return DiscoveredAgent(
        path=str(folder),
        name=str(spec.get("name") or folder.name),
        version=str(spec.get("version") or "0"),
        description=redact(str(spec.get("description") or ""), 1000),
        loaded=is_loaded,
        problem=problem,
        **needs,
    )


def _list_needs(spec: AgentSpec) -> dict[str, list[str]]:
    first_nodes = {entry.node_id for entry in spec.graph.entry_points}
    inputs = [key for node in spec.graph.nodes if node.id in first_nodes for key in node.input_keys]
    return {
        "inputs": list(dict.fromkeys(inputs)),
        "credentials": list(spec.credentials),
        "missing": find_missing_credentials(spec.credentials, [spec.model], os.environ),
    }


def _read_spec_call(path: Path) -> dict[str, Any]:
    """Return the literal texts that an ``agent.py`` passes to ``AgentSpec``."""
    with path.open("rb") as file:
        tree = ast.parse(file.read(_MAX_SCRIPT_BYTES))
    for node in ast.walk(tree):
        if (
            isinstance(node, ast.Call)
            and getattr(node.func, "id", getattr(node.func, "attr", "")) == "AgentSpec"
        ):
            return {
                keyword.arg: keyword.value.value
                for keyword in node.keywords
                if keyword.arg
                and isinstance(keyword.value, ast.Constant)
                and isinstance(keyword.value.value, str)
            }
    return {}
