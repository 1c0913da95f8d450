"""An agent as data: a graph, its goal, its model and what it needs from the environment."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, StringConstraints, ValidationError, model_validator

from queenright.instrumentation.errors import QueenrightError
from queenright.instrumentation.faults import fault_message
from queenright.instrumentation.redaction import redact
from queenright.runtime.graphs.goal import Goal
from queenright.runtime.graphs.graph import GraphSpec
from queenright.runtime.graphs.specs import Identifier

EnvironmentVariable = Annotated[str, StringConstraints(pattern=r"^[A-Za-z_][A-Za-z0-9_]{0,99}$")]


class AgentLoadError(QueenrightError):
    """
    Raised when an agent cannot be loaded.

    Args:
        path: The file (or folder) that the fault is in.
        reason: What is wrong, and what to do. Its secrets must be masked already.
        line: Where in the file, counted from 1; None if nobody knows.
    """

    def __init__(self, path: Path, reason: str, *, line: int | None = None) -> None:
        where = f"{path}, line {line}" if line else f"{path}"
        super().__init__(f"{where}: {reason}")
        self.path = path
        self.reason = reason
        self.line = line


class AgentSpec(BaseModel):
    """What an agent is. Its tools, functions and judges are found beside it, by the names in the graph."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    name: Identifier
    """Its ``agent_id``: what it is called in telemetry, on the status page and on disk."""
    version: str = "0"
    description: str = ""
    graph: GraphSpec
    """Its ``id`` is the agent's name if none is given."""
    goal: Goal | None = None
    model: str = ""
    """The model's name, as litellm writes it, or ``scripted:FILE``; empty if none of its nodes needs one."""
    credentials: tuple[EnvironmentVariable, ...] = ()
    """Environment variables that must be set."""

    @model_validator(mode="before")
    @classmethod
    def _named_graph(cls, given: Any) -> Any:
        if isinstance(given, Mapping) and isinstance(given.get("graph"), Mapping):
            graph = {"id": given.get("name"), **given["graph"]}
            return {**given, "graph": graph}
        return given


def read_agent_spec(path: Path) -> AgentSpec:
    """
    Return the agent described in ``path``, a JSON file.

    Raises:
        AgentLoadError: The file cannot be read, is no JSON, or is no agent; every fault is named.
    """
    given = read_json_file(path)
    try:
        return AgentSpec.model_validate(given)
    except ValidationError as error:
        raise AgentLoadError(path, faults(error)) from None


def read_json_file(path: Path) -> Any:
    """
    Return the JSON in ``path``.

    Raises:
        AgentLoadError: The file cannot be read, or is no JSON in UTF-8.
    """
    try:
        return json.loads(path.read_bytes().decode("utf-8-sig"))
    except OSError as error:
        raise AgentLoadError(path, f"cannot be read: {error.strerror or type(error).__name__}") from error
    except UnicodeDecodeError as error:
        raise AgentLoadError(path, f"is not UTF-8 (byte {error.start}); save it as UTF-8") from error
    except json.JSONDecodeError as error:
        reason = f"is not JSON: {error.msg} (column {error.colno})"
        # The error itself holds the whole document, which may hold a secret.
        raise AgentLoadError(path, reason, line=error.lineno) from None
    except RecursionError as error:
        raise AgentLoadError(path, "is nested too deeply") from error


def faults(error: ValidationError) -> str:
    """Say in one line each what is wrong with which field, without the values, which may be secret."""
    found = []
    for fault in error.errors(include_url=False, include_input=False, include_context=False):
        where = ".".join(str(part) for part in fault["loc"])
        said = redact(fault_message(fault), limit=4_000)
        found.append(f"{where}: {said}" if where else said)
    return "\n  ".join(found)
