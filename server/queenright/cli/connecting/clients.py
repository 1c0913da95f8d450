"""What each coding agent needs in its settings to be watched."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final
from urllib.parse import quote, urlencode

from queenright.cli.connecting.changes import Item, Member


@dataclass(frozen=True, slots=True)
class Service:
    """Where a client sends what it has to tell, and as whom."""

    url: str
    """Of the telemetry port, without a path."""
    command: tuple[str, ...]
    """What starts `queenright` on this machine."""
    owner: Mapping[str, str]
    """``user`` and ``host``; empty in settings that others share."""
    token: str = ""
    token_file: Path | None = None
    permission_seconds: int = 0
    """How long a client may wait for the service's answer to a permission request; 0: as for other hooks."""

    def permission_hook(self, client: str) -> dict[str, Any]:
        """
        Return the hook of permission requests.

        It runs a command, which gives up within a second if the service is away, and waits if it is there.
        """
        seconds = self.permission_seconds
        command = self.hook_command(client, *(["--wait", str(seconds)] if seconds else []))
        return {"type": "command", "command": command, "timeout": seconds + 1}

    def hook_command(self, client: str, *more: str) -> str:
        """Return the command that passes hook calls on."""
        words = [*self.command, "hook", client, "--otlp-url", self.url, *more]
        return shlex.join([*words, "--token-file", str(self.token_file)] if self.token_file else words)

    def resource_attributes(self) -> str:
        """Return the owner as OpenTelemetry's attributes of a process."""
        return ",".join(f"{key}.name={quote(value)}" for key, value in self.owner.items())

    def hook_url(self, client: str) -> str:
        """Return where hook calls are posted."""
        query = f"?{urlencode(self.owner)}" if self.owner else ""
        return f"{self.url}/hooks/{client}{query}"


Wanted = Mapping[str, Sequence[Member | Item]]
"""What a client's settings are to have, by the name of the file."""


@dataclass(frozen=True, slots=True)
class Client:
    """One coding agent."""

    name: str
    title: str
    framework: str
    """What its sessions are known by in the list of agents."""
    program: str
    """What starts it."""
    folder: str
    """Of its settings, below the home folder or the project."""
    has_project_scope: bool
    wanted: Callable[[Service], Wanted]
    takes_permission: bool = True
    """Whether a hook can answer its permission requests."""
    notes: tuple[str, ...] = ()
    token_notes: tuple[str, ...] = ()
    """What a person has to do by hand where the service wants a token."""


_PERMISSION: Final = "PermissionRequest"
_CLAUDE_HOOKS: Final = (
    *("UserPromptSubmit", "PreToolUse", "PostToolUse", "PostToolUseFailure", "PermissionRequest"),
    *("Elicitation", "Notification", "SubagentStart", "SubagentStop", "Stop", "StopFailure", "SessionEnd"),
)
_CODEX_HOOKS: Final = (
    *("SessionStart", "UserPromptSubmit", "PreToolUse", "PostToolUse", "PermissionRequest"),
    *("SubagentStart", "SubagentStop", "Stop", "SessionEnd"),
)
_GEMINI_HOOKS: Final = (
    *("SessionStart", "BeforeAgent", "BeforeModel", "BeforeTool", "AfterTool", "AfterAgent"),
    *("Notification", "SessionEnd"),
)
"""Without AfterModel: it is called for each piece of an answer, and the log says when a model call ends."""


def _claude_code(service: Service) -> Wanted:
    environment = {
        "CLAUDE_CODE_ENABLE_TELEMETRY": "1",
        "OTEL_LOGS_EXPORTER": "otlp",
        "OTEL_EXPORTER_OTLP_PROTOCOL": "http/protobuf",
        "OTEL_EXPORTER_OTLP_ENDPOINT": service.url,
        "OTEL_LOG_TOOL_DETAILS": "1",
    }
    if service.token:
        environment["OTEL_EXPORTER_OTLP_HEADERS"] = f"Authorization=Bearer {service.token}"
    hook: dict[str, Any] = {"type": "http", "url": service.hook_url("claude-code"), "timeout": 1}
    if service.token:
        hook["headers"] = {"Authorization": f"Bearer {service.token}"}
    # Claude Code refuses hooks of type http for the start of a session.
    start = {"type": "command", "command": service.hook_command("claude-code"), "timeout": 1}
    asks = service.permission_hook("claude-code") if service.permission_seconds else hook
    attributes = service.resource_attributes()
    return {
        "settings.json": [
            *(Member(("env", key), value) for key, value in environment.items()),
            *([Member(("env", "OTEL_RESOURCE_ATTRIBUTES"), attributes, is_list=True)] if attributes else []),
            Item(("hooks", "SessionStart"), {"hooks": [start]}),
            *(
                Item(("hooks", name), {"hooks": [asks if name == _PERMISSION else hook]})
                for name in _CLAUDE_HOOKS
            ),
        ]
    }


def _codex(service: Service) -> Wanted:
    exporter: dict[str, Any] = {"endpoint": f"{service.url}/v1/logs", "protocol": "json"}
    if service.token:
        exporter["headers"] = {"Authorization": f"Bearer {service.token}"}
    hook = {"type": "command", "command": service.hook_command("codex"), "timeout": 1}
    asks = service.permission_hook("codex")
    return {
        "config.toml": [Member(("otel", "exporter"), {"otlp-http": exporter})],
        "hooks.json": [
            Item(("hooks", name), {"hooks": [asks if name == _PERMISSION else hook]}) for name in _CODEX_HOOKS
        ],
    }


def _gemini(service: Service) -> Wanted:
    telemetry = {"enabled": True, "target": "local", "otlpEndpoint": service.url, "otlpProtocol": "http"}
    # Milliseconds, as its other times.
    hook = {
        "type": "command",
        "name": "queenright",
        "command": service.hook_command("gemini"),
        "timeout": 1000,
    }
    return {
        "settings.json": [
            *(Member(("telemetry", key), value) for key, value in telemetry.items()),
            *(Item(("hooks", name), {"hooks": [hook]}) for name in _GEMINI_HOOKS),
        ]
    }


CLIENTS: Final = {
    client.name: client
    for client in (
        Client(
            name="claude-code",
            title="Claude Code",
            framework="claude-code",
            program="claude",
            folder=".claude",
            has_project_scope=True,
            wanted=_claude_code,
        ),
        Client(
            name="codex",
            title="Codex",
            framework="codex",
            program="codex",
            folder=".codex",
            # It takes no telemetry settings from a project.
            has_project_scope=False,
            wanted=_codex,
            notes=("Codex runs new hooks once you trust them: type /hooks in it.",),
        ),
        Client(
            name="gemini",
            title="Gemini CLI",
            framework="gemini-cli",
            program="gemini",
            folder=".gemini",
            has_project_scope=True,
            wanted=_gemini,
            takes_permission=False,
            token_notes=(
                "Gemini CLI has no setting for telemetry's token; put this into ~/.gemini/.env:",
                "OTEL_EXPORTER_OTLP_HEADERS=Authorization=Bearer%20TOKEN",
            ),
        ),
    )
}
