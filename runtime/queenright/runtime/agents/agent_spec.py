"""An agent as data: a graph, its goal, its model and the environment variables it needs."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, StringConstraints, ValidationError, model_validator

from queenright.instrumentation.errors import InvalidValueError
from queenright.instrumentation.redaction import redact
from queenright.instrumentation.validation_messages import read_faults
from queenright.runtime.graphs.goal import Goal
from queenright.runtime.graphs.graph import GraphSpec
from queenright.runtime.graphs.specs import Identifier

EnvironmentVariable = Annotated[str, StringConstraints(pattern=r"^[A-Za-z_][A-Za-z0-9_]{0,99}$")]


class AgentLoadError(InvalidValueError):
    """
    Raised when an agent cannot be loaded.

    Args:
        reason: The problem and how to fix it. Secrets must be masked already.
        line: The line in the file, counted from 1; None if unknown.
    """

    def __init__(self, path: Path, reason: str, *, line: int | None = None) -> None:
        location = f"{path}, line {line}" if line else f"{path}"
        super().__init__(f"{location}: {reason}")
        self.path = path
        self.reason = reason
        self.line = line


class AgentSpec(BaseModel):
    """Specification of an agent. The graph refers by name to tools, functions and judges in the folder."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    name: Identifier
    """The agent's ``agent_id`` in telemetry, in the console and on disk."""
    version: str = "0"
    description: str = ""
    graph: GraphSpec
    """Its ``id`` defaults to the agent's name."""
    goal: Goal | None = None
    model: str = ""
    """A litellm model name or ``scripted:FILE``; empty if no node needs a model."""
    credentials: tuple[EnvironmentVariable, ...] = ()
    """Environment variables that must be set."""

    @model_validator(mode="before")
    @classmethod
    def _default_graph_id(cls, value: Any) -> Any:
        if isinstance(value, Mapping) and isinstance(value.get("graph"), Mapping):
            graph = {"id": value.get("name"), **value["graph"]}
            return {**value, "graph": graph}
        return value


def read_agent_spec(path: Path) -> AgentSpec:
    """
    Read an agent's specification from a JSON file.

    Raises:
        AgentLoadError: The file cannot be read, is not JSON, or is not an agent; lists every problem.
    """
    data = read_json_file(path)
    try:
        return AgentSpec.model_validate(data)
    except ValidationError as error:
        raise AgentLoadError(path, describe_validation_errors(error)) from None


def read_json_file(path: Path) -> Any:
    """
    Read a JSON file.

    Raises:
        AgentLoadError: The file cannot be read, or is not UTF-8 JSON.
    """
    try:
        return json.loads(path.read_bytes().decode("utf-8-sig"))
    except OSError as error:
        raise AgentLoadError(path, f"cannot be read: {error.strerror or type(error).__name__}") from error
    except UnicodeDecodeError as error:
        raise AgentLoadError(path, f"is not UTF-8 (byte {error.start}); save it as UTF-8") from error
    except json.JSONDecodeError as error:
        reason = f"is not JSON: {error.msg} (column {error.colno})"
        # The exception holds the whole document, which may contain a secret.
        raise AgentLoadError(path, reason, line=error.lineno) from None
    except RecursionError as error:
        raise AgentLoadError(path, "is nested too deeply") from error


def describe_validation_errors(error: ValidationError) -> str:
    """Format validation errors, one line per field, without the values: they may be secrets."""
    faults = read_faults(error.errors(include_url=False, include_input=False))
    lines = (fault.describe() if fault.path else fault.message for fault in faults)
    return "\n  ".join(redact(line, limit=4_000) for line in lines)
