"""MCP servers as data: ``mcp_servers.json`` of an agent. Values may be secret and are never shown."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated
from urllib.parse import urlsplit, urlunsplit

from pydantic import BaseModel, ConfigDict, Field, StringConstraints, ValidationError, model_validator

from queenright.runtime.agents.agent_spec import AgentLoadError, faults, read_json_file
from queenright.runtime.agents.credentials import references

# Becomes part of tools' names and of a log file's.
ServerName = Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9_][A-Za-z0-9_-]{0,39}$")]


class McpServerSpec(BaseModel):
    """
    One server: a ``command`` that is started and talked to over stdin and stdout, or a ``url``, talked to
    over streamable HTTP.

    ``${NAME}`` in ``env``, ``headers`` and ``url`` is that variable of the environment.
    """

    model_config = ConfigDict(extra="forbid", frozen=True, hide_input_in_errors=True)

    command: str = ""
    """``python`` is the Python that the agent itself runs on."""
    args: tuple[str, ...] = Field(default=(), repr=False)
    env: Mapping[str, str] = Field(default_factory=dict, repr=False)
    """Beside these it is given PATH, HOME and the like, and nothing else of the environment."""
    cwd: str = ""
    """Its working folder, from the agent's folder; that folder itself if empty."""
    url: str = Field(default="", repr=False)
    headers: Mapping[str, str] = Field(default_factory=dict, repr=False)
    timeout_seconds: float = Field(default=60, gt=0)
    """How long one call of a tool may take."""
    connect_timeout_seconds: float = Field(default=30, gt=0)

    @model_validator(mode="after")
    def _one_transport(self) -> McpServerSpec:
        if bool(self.command) == bool(self.url):
            raise ValueError("needs either command (a program) or url (streamable HTTP), not both")
        if self.url and (self.args or self.env or self.cwd):
            raise ValueError("args, env and cwd are for a server with a command; one with a url has headers")
        if self.command and self.headers:
            raise ValueError("headers are for a server with a url; one with a command has env")
        if self.url and not self.url.startswith(("http://", "https://", "${")):
            raise ValueError("url must begin with http:// or https://")
        return self

    @property
    def where(self) -> str:
        """Where the server is, for messages: the program, or the address without what may be secret in it."""
        if self.command:
            return self.command
        parts = urlsplit(self.url)
        return urlunsplit((parts.scheme, parts.netloc.rpartition("@")[2], parts.path, "", ""))

    @property
    def variables(self) -> list[str]:
        """The environment variables that it refers to."""
        texts = (self.url, *self.env.values(), *self.headers.values())
        return list(dict.fromkeys(name for text in texts for name in references(text)))


class _File(BaseModel):
    model_config = ConfigDict(extra="forbid", hide_input_in_errors=True)

    servers: dict[ServerName, McpServerSpec]


def read_mcp_servers(path: Path) -> dict[str, McpServerSpec]:
    """
    Return the servers in ``path``, by name: ``{"servers": {name: {...}}}``.

    Raises:
        AgentLoadError: The file is not that; every fault is named, and no value is repeated.
    """
    given = read_json_file(path)
    try:
        return dict(_File.model_validate(given).servers)
    except ValidationError as error:
        raise AgentLoadError(path, faults(error)) from None
