"""The real clients: how to configure each with the provider and the recorder, and how to start it."""

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
"""Not a real key; the provider on loopback accepts any key."""
FORWARD: Final = Path(__file__).with_name("forward.py")


@dataclass(frozen=True, slots=True)
class RunSetup:
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
    """The client's package on npm."""
    program: str
    """The name of the client's program in the package."""
    install_script: str | None = None
    """The package's install script, which npm would run."""
    variants: Mapping[str, tuple[str, ...] | None]
    """
    The variants of the client's settings, with the scenarios that record each; None means all scenarios.

    ``""`` has the settings of most users. ``details`` adds the arguments of tools to the telemetry, and
    ``traces`` adds spans. ``code`` has a model that calls tools from code that it writes. ``unguarded``
    disables the client's own loop detection.
    """
    excluded_scenarios: tuple[str, ...] = ()
    """Scenarios that the client does not support with these settings."""
    prepare: Callable[[RunSetup, Scenario, str], dict[str, str]]
    """Writes the client's settings for a variant, and returns its environment."""
    arguments: Callable[[Scenario], list[str]]
    """Returns the client's command-line arguments for a scenario."""


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


def _write_json(path: Path, document: Any) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(document, indent=2), encoding="utf-8")


def _forward_command(url: str) -> str:
    """Return a command that sends its standard input to the recorder."""
    return shlex.join([sys.executable, str(FORWARD), url])


def _mcp_servers(scenario: Scenario) -> dict[str, dict[str, str]]:
    return {MCP_SERVER: {"command": "missing-mcp-server"}} if scenario.has_missing_mcp else {}


def _prepare_claude_code(setup: RunSetup, scenario: Scenario, variant: str) -> dict[str, str]:
    settings: dict[str, Any] = {"permissions": {"allow": [] if scenario.asks_permission else ["Bash"]}}
    if setup.hooks:
        hooks = {name: {"type": "http", "url": setup.hooks, "timeout": 1} for name in _CLAUDE_HOOKS}
        # Claude Code refuses hooks of type http for this event.
        hooks["SessionStart"] = {"type": "command", "command": _forward_command(setup.hooks), "timeout": 5}
        settings["hooks"] = {name: [{"hooks": [hook]}] for name, hook in hooks.items()}
    _write_json(setup.home / ".claude/settings.json", settings)
    # These settings answer the questions at the first start in a terminal: the theme, the key, and trust in
    # the folder.
    _write_json(
        setup.home / ".claude.json",
        {
            "hasCompletedOnboarding": True,
            "theme": "dark",
            "customApiKeyResponses": {"approved": [API_KEY[-20:]], "rejected": []},
            "projects": {str(setup.project): {"hasTrustDialogAccepted": True}},
            "mcpServers": _mcp_servers(scenario),
        },
    )
    environment = {
        "ANTHROPIC_API_KEY": API_KEY,
        "ANTHROPIC_BASE_URL": setup.provider,
        "CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC": "1",
        "DISABLE_AUTOUPDATER": "1",
    }
    if setup.otlp:
        environment |= {
            "CLAUDE_CODE_ENABLE_TELEMETRY": "1",
            "OTEL_EXPORTER_OTLP_ENDPOINT": setup.otlp,
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
    if scenario.asks_permission:
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


def _prepare_codex(setup: RunSetup, scenario: Scenario, variant: str) -> dict[str, str]:
    settings = _CODEX_SETTINGS + (_CODEX_LOGS if setup.otlp else "")
    settings += _CODEX_TRACES if variant == "traces" else ""
    settings = settings.format(
        model="gpt-6.1-sol" if variant == "code" else "gpt-5.5",
        provider=setup.provider,
        otlp=setup.otlp,
        project=setup.project,
        approval="on-request" if scenario.asks_permission else "never",
        sandbox="read-only" if scenario.asks_permission else "danger-full-access",
    )
    if scenario.has_missing_mcp:
        settings += _CODEX_MCP
    folder = setup.home / ".codex"
    folder.mkdir()
    if setup.hooks:
        hook = {"type": "command", "command": _forward_command(setup.hooks), "timeout": 3}
        _write_json(folder / "hooks.json", {"hooks": {name: [{"hooks": [hook]}] for name in _CODEX_HOOKS}})
    (folder / "config.toml").write_text(settings, encoding="utf-8")
    return {"SCRIPTED_API_KEY": API_KEY}


def _codex_arguments(scenario: Scenario) -> list[str]:
    if scenario.asks_permission:
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


def _prepare_gemini_cli(setup: RunSetup, scenario: Scenario, variant: str) -> dict[str, str]:
    settings: dict[str, Any] = {
        "security": {"auth": {"selectedType": "gemini-api-key"}},
        "mcpServers": _mcp_servers(scenario),
        "general": {"enableAutoUpdate": False},
        "privacy": {"usageStatisticsEnabled": False},
        "ide": {"hasSeenNudge": True},
        "model": {"disableLoopDetection": variant == "unguarded"},
    }
    if setup.hooks:
        telemetry = {"enabled": True, "target": "local", "otlpEndpoint": setup.otlp, "otlpProtocol": "http"}
        hook = {
            "type": "command",
            "name": "recorder",
            "command": _forward_command(setup.hooks),
            "timeout": 5000,
        }
        settings |= {
            "telemetry": telemetry,
            "hooks": {name: [{"hooks": [hook]}] for name in _GEMINI_HOOKS},
        }
    _write_json(setup.home / ".gemini/settings.json", settings)
    _write_json(setup.home / ".gemini/trustedFolders.json", {str(setup.project): "TRUST_FOLDER"})
    return {
        "GEMINI_API_KEY": API_KEY,
        "GEMINI_CLI_NO_RELAUNCH": "true",
        "GOOGLE_GEMINI_BASE_URL": setup.provider,
    }


def _gemini_cli_arguments(scenario: Scenario) -> list[str]:
    if scenario.asks_permission:
        return ["--prompt-interactive", PROMPT]
    return ["--approval-mode", "yolo", "--skip-trust", "-p", PROMPT]


_MAIN_SCENARIOS: Final = ("healthy", "loop", "hang_first")

CLIENTS: Final = {
    client.name: client
    for client in (
        Client(
            name="claude-code",
            package="@anthropic-ai/claude-code",
            program="claude",
            install_script="install.cjs",
            variants={"": None, "details": _MAIN_SCENARIOS, "traces": (*_MAIN_SCENARIOS, "provider_529")},
            prepare=_prepare_claude_code,
            arguments=_claude_code_arguments,
        ),
        Client(
            name="codex",
            package="@openai/codex",
            program="codex",
            variants={"": None, "code": _MAIN_SCENARIOS, "traces": ("healthy", "hang_first")},
            excluded_scenarios=("subagent",),
            prepare=_prepare_codex,
            arguments=_codex_arguments,
        ),
        Client(
            name="gemini-cli",
            package="@google/gemini-cli",
            program="gemini",
            variants={"": None, "unguarded": ("loop",)},
            excluded_scenarios=("subagent",),
            prepare=_prepare_gemini_cli,
            arguments=_gemini_cli_arguments,
        ),
    )
}


def list_runs(names: Iterable[str], scenarios: Iterable[str]) -> Iterator[tuple[str, str, str]]:
    """Yield the client, scenario and variant of each recording of these clients in these scenarios."""
    scenarios = list(scenarios)
    for client in (CLIENTS[name] for name in names):
        for scenario in scenarios:
            for variant, variant_scenarios in client.variants.items():
                if scenario not in client.excluded_scenarios and (
                    variant_scenarios is None or scenario in variant_scenarios
                ):
                    yield client.name, scenario, variant
