"""MCP servers as data: the ``mcp_servers.json`` of an agent. Values may be secrets and are never shown."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated
from urllib.parse import urlsplit, urlunsplit

from pydantic import BaseModel, ConfigDict, Field, StringConstraints, ValidationError, model_validator

from queenright.runtime.agents.agent_spec import AgentLoadError, describe_validation_errors, read_json_file
from queenright.runtime.agents.credentials import find_references

# Becomes part of tool names and of a log file's name.
ServerName = Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9_][A-Za-z0-9_-]{0,39}$")]


class McpServerSpec(BaseModel):
    """
    One MCP server: a ``command`` to start and talk to over stdin and stdout, or a ``url`` to talk to over
    streamable HTTP.

    ``${NAME}`` in ``env``, ``headers`` and ``url`` is replaced by that environment variable.
    """

    model_config = ConfigDict(extra="forbid", frozen=True, hide_input_in_errors=True)

    command: str = ""
    """``python`` is the interpreter that runs the agent."""
    args: tuple[str, ...] = Field(default=(), repr=False)
    env: Mapping[str, str] = Field(default_factory=dict, repr=False)
    """Added to PATH, HOME and the like; the rest of the environment is not passed on."""
    cwd: str = ""
    """The working folder, relative to the agent's folder."""
    url: str = Field(default="", repr=False)
    headers: Mapping[str, str] = Field(default_factory=dict, repr=False)
    timeout_seconds: float = Field(default=60, gt=0)
    """Time limit of one tool call."""
    connect_timeout_seconds: float = Field(default=30, gt=0)

    @model_validator(mode="after")
    def _require_one_transport(self) -> McpServerSpec:
        if bool(self.command) == bool(self.url):
            raise ValueError("set either command (a program) or url (streamable HTTP), not both")
        if self.url and (self.args or self.env or self.cwd):
            raise ValueError("args, env and cwd apply to a server with a command; use headers with a url")
        if self.command and self.headers:
            raise ValueError("headers apply to a server with a url; use env with a command")
        if self.url and not self.url.startswith(("http://", "https://", "${")):
            raise ValueError("url must start with http:// or https://")
        return self

    @property
    def where(self) -> str:
        """The program, or the address without credentials and query, for messages."""
        if self.command:
            return self.command
        parts = urlsplit(self.url)
        return urlunsplit((parts.scheme, parts.netloc.rpartition("@")[2], parts.path, "", ""))

    @property
    def variables(self) -> list[str]:
        """The environment variables that the server references."""
        texts = (self.url, *self.env.values(), *self.headers.values())
        return list(dict.fromkeys(name for text in texts for name in find_references(text)))


class _ServersFile(BaseModel):
    model_config = ConfigDict(extra="forbid", hide_input_in_errors=True)

    servers: dict[ServerName, McpServerSpec]


def read_mcp_servers(path: Path) -> dict[str, McpServerSpec]:
    """
    Read MCP servers by name from a JSON file: ``{"servers": {name: {...}}}``.

    Raises:
        AgentLoadError: The file is invalid; lists every problem without repeating values.
    """
    data = read_json_file(path)
    try:
        return dict(_ServersFile.model_validate(data).servers)
    except ValidationError as error:
        raise AgentLoadError(path, describe_validation_errors(error)) from None
