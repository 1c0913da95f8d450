"""The settings that each coding agent needs to be monitored."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final
from urllib.parse import quote, urlencode

from queenright.cli.connecting.changes import Item, RequiredKey


@dataclass(frozen=True, slots=True)
class TelemetryTarget:
    """Where a coding agent sends its telemetry, and with which identity."""

    url: str
    """URL of the telemetry port, without a path."""
    command: tuple[str, ...]
    """Command that starts `queenright` on this machine."""
    owner: Mapping[str, str]
    """``user`` and ``host``; empty in shared settings."""
    token: str = ""
    token_file: Path | None = None
    permission_seconds: int = 0
    """Seconds that the agent waits for an answer to a permission request; 0 is the time of other hooks."""

    def permission_hook(self, client: str) -> dict[str, Any]:
        """
        Return the hook for permission requests.

        It is a command, because a command can give up within a second if the service does not respond.
        """
        seconds = self.permission_seconds
        command = self.hook_command(client, *(["--wait", str(seconds)] if seconds else []))
        return {"type": "command", "command": command, "timeout": seconds + 1}

    def hook_command(self, client: str, *extra_arguments: str) -> str:
        """Return the command that forwards hook calls."""
        words = [*self.command, "hook", client, "--otlp-url", self.url, *extra_arguments]
        return shlex.join([*words, "--token-file", str(self.token_file)] if self.token_file else words)

    def resource_attributes(self) -> str:
        """Return the owner as OpenTelemetry resource attributes."""
        return ",".join(f"{key}.name={quote(value)}" for key, value in self.owner.items())

    def hook_url(self, client: str) -> str:
        """Return the URL for hook calls."""
        query = f"?{urlencode(self.owner)}" if self.owner else ""
        return f"{self.url}/hooks/{client}{query}"


RequiredSettings = Mapping[str, Sequence[RequiredKey | Item]]
"""The settings of a client, by file name."""


@dataclass(frozen=True, slots=True)
class CodingAgent:
    """A coding agent, and the settings that connect it."""

    name: str
    title: str
    framework: str
    """``framework`` of its sessions in the list of agents."""
    program: str
    """Command that starts it."""
    folder: str
    """Settings folder, below the home folder or the project."""
    has_project_scope: bool
    settings: Callable[[TelemetryTarget], RequiredSettings]
    has_permission_hook: bool = True
    """Whether a hook can answer its permission requests."""
    notes: tuple[str, ...] = ()
    token_notes: tuple[str, ...] = ()
    """Manual steps for a service that requires a token."""


_PERMISSION_HOOK: Final = "PermissionRequest"
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
"""AfterModel is left out: it is called for each piece of an answer, and the log contains each call's end."""


def _make_claude_code_settings(target: TelemetryTarget) -> RequiredSettings:
    environment = {
        "CLAUDE_CODE_ENABLE_TELEMETRY": "1",
        "OTEL_LOGS_EXPORTER": "otlp",
        "OTEL_EXPORTER_OTLP_PROTOCOL": "http/protobuf",
        "OTEL_EXPORTER_OTLP_ENDPOINT": target.url,
        "OTEL_LOG_TOOL_DETAILS": "1",
    }
    if target.token:
        environment["OTEL_EXPORTER_OTLP_HEADERS"] = f"Authorization=Bearer {target.token}"
    hook: dict[str, Any] = {"type": "http", "url": target.hook_url("claude-code"), "timeout": 1}
    if target.token:
        hook["headers"] = {"Authorization": f"Bearer {target.token}"}
    # Claude Code rejects http hooks for the start of a session.
    start = {"type": "command", "command": target.hook_command("claude-code"), "timeout": 1}
    permission_hook = target.permission_hook("claude-code") if target.permission_seconds else hook
    attributes = target.resource_attributes()
    return {
        "settings.json": [
            *(RequiredKey(("env", key), value) for key, value in environment.items()),
            *(
                [RequiredKey(("env", "OTEL_RESOURCE_ATTRIBUTES"), attributes, is_list=True)]
                if attributes
                else []
            ),
            Item(("hooks", "SessionStart"), {"hooks": [start]}),
            *(
                Item(("hooks", name), {"hooks": [permission_hook if name == _PERMISSION_HOOK else hook]})
                for name in _CLAUDE_HOOKS
            ),
        ]
    }


def _make_codex_settings(target: TelemetryTarget) -> RequiredSettings:
    exporter: dict[str, Any] = {"endpoint": f"{target.url}/v1/logs", "protocol": "json"}
    if target.token:
        exporter["headers"] = {"Authorization": f"Bearer {target.token}"}
    hook = {"type": "command", "command": target.hook_command("codex"), "timeout": 1}
    permission_hook = target.permission_hook("codex")
    return {
        "config.toml": [RequiredKey(("otel", "exporter"), {"otlp-http": exporter})],
        "hooks.json": [
            Item(("hooks", name), {"hooks": [permission_hook if name == _PERMISSION_HOOK else hook]})
            for name in _CODEX_HOOKS
        ],
    }


def _make_gemini_settings(target: TelemetryTarget) -> RequiredSettings:
    telemetry = {"enabled": True, "target": "local", "otlpEndpoint": target.url, "otlpProtocol": "http"}
    # The timeout is in milliseconds.
    hook = {
        "type": "command",
        "name": "queenright",
        "command": target.hook_command("gemini"),
        "timeout": 1000,
    }
    return {
        "settings.json": [
            *(RequiredKey(("telemetry", key), value) for key, value in telemetry.items()),
            *(Item(("hooks", name), {"hooks": [hook]}) for name in _GEMINI_HOOKS),
        ]
    }


CLIENTS: Final = {
    client.name: client
    for client in (
        CodingAgent(
            name="claude-code",
            title="Claude Code",
            framework="claude-code",
            program="claude",
            folder=".claude",
            has_project_scope=True,
            settings=_make_claude_code_settings,
        ),
        CodingAgent(
            name="codex",
            title="Codex",
            framework="codex",
            program="codex",
            folder=".codex",
            # Codex ignores telemetry settings of a project.
            has_project_scope=False,
            settings=_make_codex_settings,
            notes=("Codex runs new hooks only after you trust them: type /hooks in Codex.",),
        ),
        CodingAgent(
            name="gemini",
            title="Gemini CLI",
            framework="gemini-cli",
            program="gemini",
            folder=".gemini",
            has_project_scope=True,
            settings=_make_gemini_settings,
            has_permission_hook=False,
            token_notes=(
                "Gemini CLI has no setting for the telemetry token; add this to ~/.gemini/.env:",
                "OTEL_EXPORTER_OTLP_HEADERS=Authorization=Bearer%20TOKEN",
            ),
        ),
    )
}
