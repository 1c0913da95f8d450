"""The real clients: how each is configured with provider and recorder, and how it is started."""

from __future__ import annotations

import json
import shlex
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from tests.clients.scenarios import MCP_SERVER, PROMPT, Scenario

API_KEY: Final = "sk-ant-scripted-provider"
"""Not a real key: the provider on loopback accepts any."""
FORWARD: Final = Path(__file__).with_name("forward.py")


@dataclass(frozen=True, slots=True)
class RunPlace:
    """The folders and URLs of one run."""

    home: Path
    project: Path
    provider: str
    """The URL of the model provider, without a path."""
    otlp: str
    """The URL for telemetry, without a path; empty if `queenright connect` writes it."""
    hooks: str
    """The URL for hook calls; empty if `queenright connect` writes it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Client:
    """One real client."""

    name: str
    package: str
    """Its package on npm."""
    program: str
    """The name of its program in the package."""
    install_script: str | None = None
    """The package's install script, which npm would run."""
    variants: Mapping[str, tuple[str, ...] | None]
    """
    How it is set up ("" for what most people have), and in which scenarios; None: in all.

    ``details``: with the arguments of tools in its telemetry. ``traces``: with spans, too. ``code``: with a
    model that calls tools from code it writes. ``unguarded``: without the client's own loop detection.
    """
    without: tuple[str, ...] = ()
    """Scenarios that it does not support in this setup."""
    prepare: Callable[[RunPlace, Scenario, str], dict[str, str]]
    """Writes its settings, and returns its environment."""
    arguments: Callable[[Scenario], list[str]]
    """Returns its arguments for a scenario."""


_CLAUDE_HOOKS: Final = (
    "UserPromptSubmit",
    "PreToolUse",
    "PostToolUse",
    "PostToolUseFailure",
    "PermissionRequest",
    "Notification",
    "SubagentStart",
    "SubagentStop",
    "Stop",
    "StopFailure",
    "SessionEnd",
)


def _write(path: Path, document: Any) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(document, indent=2), encoding="utf-8")


def _forward(url: str) -> str:
    """Return a command that sends its standard input to the recorder."""
    return shlex.join([sys.executable, str(FORWARD), url])


def _mcp_servers(scenario: Scenario) -> dict[str, dict[str, str]]:
    return {MCP_SERVER: {"command": "missing-mcp-server"}} if scenario.has_missing_mcp else {}


def _prepare_claude_code(place: RunPlace, scenario: Scenario, variant: str) -> dict[str, str]:
    settings: dict[str, Any] = {"permissions": {"allow": [] if scenario.is_asked else ["Bash"]}}
    if place.hooks:
        hooks = {name: {"type": "http", "url": place.hooks, "timeout": 1} for name in _CLAUDE_HOOKS}
        # Claude Code refuses hooks of type http for this event.
        hooks["SessionStart"] = {"type": "command", "command": _forward(place.hooks), "timeout": 5}
        settings["hooks"] = {name: [{"hooks": [hook]}] for name, hook in hooks.items()}
    _write(place.home / ".claude/settings.json", settings)
    # Answers to the questions at the first start in a terminal: the theme, the key, whether the folder is
    # trusted.
    _write(
        place.home / ".claude.json",
        {
            "hasCompletedOnboarding": True,
            "theme": "dark",
            "customApiKeyResponses": {"approved": [API_KEY[-20:]], "rejected": []},
            "projects": {str(place.project): {"hasTrustDialogAccepted": True}},
            "mcpServers": _mcp_servers(scenario),
        },
    )
    environment = {
        "ANTHROPIC_API_KEY": API_KEY,
        "ANTHROPIC_BASE_URL": place.provider,
        "CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC": "1",
        "DISABLE_AUTOUPDATER": "1",
    }
    if place.otlp:
        environment |= {
            "CLAUDE_CODE_ENABLE_TELEMETRY": "1",
            "OTEL_EXPORTER_OTLP_ENDPOINT": place.otlp,
            "OTEL_EXPORTER_OTLP_PROTOCOL": "http/json",
            "OTEL_LOGS_EXPORTER": "otlp",
        }
    if variant == "details":
        environment["OTEL_LOG_TOOL_DETAILS"] = "1"
    if variant == "traces":
        environment["CLAUDE_CODE_ENHANCED_TELEMETRY_BETA"] = "1"
        environment["OTEL_TRACES_EXPORTER"] = "otlp"
    return environment


def _claude_code_arguments(scenario: Scenario) -> list[str]:
    if scenario.is_asked:
        return ["--permission-mode", "default", PROMPT]
    return ["-p", PROMPT, "--output-format", "json"]


_CODEX_HOOKS: Final = (
    "SessionStart",
    "UserPromptSubmit",
    "PreToolUse",
    "PostToolUse",
    "PermissionRequest",
    "SubagentStart",
    "SubagentStop",
    "Stop",
    "SessionEnd",
    "Interrupt",
)

_CODEX_SETTINGS: Final = """\
model = "{model}"
model_provider = "scripted"
approval_policy = "{approval}"
sandbox_mode = "{sandbox}"
check_for_update_on_startup = false

[model_providers.scripted]
name = "Scripted"
base_url = "{provider}/v1"
env_key = "SCRIPTED_API_KEY"
wire_api = "responses"
supports_websockets = false

[projects."{project}"]
trust_level = "trusted"

[notice.model_migrations]
"gpt-5.5" = "gpt-6-sol"

[otel]
metrics_exporter = "none"
"""
_CODEX_LOGS: Final = """\
exporter = {{ otlp-http = {{ endpoint = "{otlp}/v1/logs", protocol = "json" }} }}
"""
_CODEX_MCP: Final = f"""
[mcp_servers.{MCP_SERVER}]
command = "missing-mcp-server"
"""
_CODEX_TRACES: Final = """\
trace_exporter = {{ otlp-http = {{ endpoint = "{otlp}/v1/traces", protocol = "json" }} }}
"""


def _prepare_codex(place: RunPlace, scenario: Scenario, variant: str) -> dict[str, str]:
    settings = _CODEX_SETTINGS + (_CODEX_LOGS if place.otlp else "")
    settings += _CODEX_TRACES if variant == "traces" else ""
    settings = settings.format(
        model="gpt-6.1-sol" if variant == "code" else "gpt-5.5",
        provider=place.provider,
        otlp=place.otlp,
        project=place.project,
        approval="on-request" if scenario.is_asked else "never",
        sandbox="read-only" if scenario.is_asked else "danger-full-access",
    )
    if scenario.has_missing_mcp:
        settings += _CODEX_MCP
    folder = place.home / ".codex"
    folder.mkdir()
    if place.hooks:
        hook = {"type": "command", "command": _forward(place.hooks), "timeout": 3}
        _write(folder / "hooks.json", {"hooks": {name: [{"hooks": [hook]}] for name in _CODEX_HOOKS}})
    (folder / "config.toml").write_text(settings, encoding="utf-8")
    return {"SCRIPTED_API_KEY": API_KEY}


def _codex_arguments(scenario: Scenario) -> list[str]:
    if scenario.is_asked:
        return ["--dangerously-bypass-hook-trust", PROMPT]
    return ["exec", "--json", "--skip-git-repo-check", "--dangerously-bypass-hook-trust", PROMPT]


_GEMINI_HOOKS: Final = (
    "SessionStart",
    "BeforeAgent",
    "BeforeModel",
    "AfterModel",
    "BeforeTool",
    "AfterTool",
    "AfterAgent",
    "Notification",
    "SessionEnd",
)


def _prepare_gemini_cli(place: RunPlace, scenario: Scenario, variant: str) -> dict[str, str]:
    settings: dict[str, Any] = {
        "security": {"auth": {"selectedType": "gemini-api-key"}},
        "mcpServers": _mcp_servers(scenario),
        "general": {"enableAutoUpdate": False},
        "privacy": {"usageStatisticsEnabled": False},
        "ide": {"hasSeenNudge": True},
        "model": {"disableLoopDetection": variant == "unguarded"},
    }
    if place.hooks:
        telemetry = {"enabled": True, "target": "local", "otlpEndpoint": place.otlp, "otlpProtocol": "http"}
        hook = {"type": "command", "name": "recorder", "command": _forward(place.hooks), "timeout": 5000}
        settings |= {
            "telemetry": telemetry,
            "hooks": {name: [{"hooks": [hook]}] for name in _GEMINI_HOOKS},
        }
    _write(place.home / ".gemini/settings.json", settings)
    _write(place.home / ".gemini/trustedFolders.json", {str(place.project): "TRUST_FOLDER"})
    return {
        "GEMINI_API_KEY": API_KEY,
        "GEMINI_CLI_NO_RELAUNCH": "true",
        "GOOGLE_GEMINI_BASE_URL": place.provider,
    }


def _gemini_cli_arguments(scenario: Scenario) -> list[str]:
    if scenario.is_asked:
        return ["--prompt-interactive", PROMPT]
    return ["--approval-mode", "yolo", "--skip-trust", "-p", PROMPT]


_MAIN: Final = ("healthy", "loop", "hang_first")

CLIENTS: Final = {
    client.name: client
    for client in (
        Client(
            name="claude-code",
            package="@anthropic-ai/claude-code",
            program="claude",
            install_script="install.cjs",
            variants={"": None, "details": _MAIN, "traces": (*_MAIN, "provider_529")},
            prepare=_prepare_claude_code,
            arguments=_claude_code_arguments,
        ),
        Client(
            name="codex",
            package="@openai/codex",
            program="codex",
            variants={"": None, "code": _MAIN, "traces": ("healthy", "hang_first")},
            without=("subagent",),
            prepare=_prepare_codex,
            arguments=_codex_arguments,
        ),
        Client(
            name="gemini-cli",
            package="@google/gemini-cli",
            program="gemini",
            variants={"": None, "unguarded": ("loop",)},
            without=("subagent",),
            prepare=_prepare_gemini_cli,
            arguments=_gemini_cli_arguments,
        ),
    )
}


def list_runs(names: Iterable[str], scenarios: Iterable[str]) -> Iterator[tuple[str, str, str]]:
    """Yield client, scenario and variant of each recording of these clients in these scenarios."""
    scenarios = list(scenarios)
    for client in (CLIENTS[name] for name in names):
        for scenario in scenarios:
            for variant, among in client.variants.items():
                if scenario not in client.without and (among is None or scenario in among):
                    yield client.name, scenario, variant
