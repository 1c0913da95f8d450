"""The real clients: how each is told about the provider and the recorder, and how it is started."""

from __future__ import annotations

import json
import shlex
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from tests.clients.scenarios import PROMPT, Scenario

API_KEY: Final = "sk-ant-scripted-provider"
"""No real key: the provider on loopback takes any."""
FORWARD: Final = Path(__file__).with_name("forward.py")


@dataclass(frozen=True, slots=True)
class Place:
    """Where one run happens."""

    home: Path
    project: Path
    url: str
    """Of the provider and the recorder."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Client:
    """One real client."""

    name: str
    package: str
    """Its package on npm."""
    program: str
    """What the package calls its program."""
    install_script: str | None = None
    """The script of the package that npm would run after the installation."""
    variants: Mapping[str, tuple[str, ...] | None]
    """How it is set up ("" for what most people have), and in which scenarios; None: in all."""
    unable: Mapping[str, str] = field(default_factory=dict)
    """Scenarios that it cannot be brought into without a person, and why."""
    prepare: Callable[[Place, Scenario, str], dict[str, str]]
    """Write its settings; return its environment."""
    arguments: Callable[[Scenario], list[str]]
    """Its command line for a scenario."""
    needs_terminal: Callable[[Scenario], bool] = lambda scenario: False
    """Whether it is started in a terminal, as by a person."""


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


def _prepare_claude_code(place: Place, scenario: Scenario, variant: str) -> dict[str, str]:
    url = f"{place.url}/hooks/claude-code"
    hooks = {name: {"type": "http", "url": url, "timeout": 1} for name in _CLAUDE_HOOKS}
    # Claude Code refuses hooks of type http for this one.
    hooks["SessionStart"] = {"type": "command", "command": _forward(url), "timeout": 5}
    _write(
        place.home / ".claude/settings.json",
        {
            "permissions": {"allow": [] if scenario.is_asked else ["Bash"]},
            "hooks": {name: [{"hooks": [hook]}] for name, hook in hooks.items()},
        },
    )
    # What the first start in a terminal asks a person: the theme, the key, whether the folder is trusted.
    _write(
        place.home / ".claude.json",
        {
            "hasCompletedOnboarding": True,
            "theme": "dark",
            "customApiKeyResponses": {"approved": [API_KEY[-20:]], "rejected": []},
            "projects": {str(place.project): {"hasTrustDialogAccepted": True}},
        },
    )
    environment = {
        "ANTHROPIC_API_KEY": API_KEY,
        "ANTHROPIC_BASE_URL": place.url,
        "CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC": "1",
        "CLAUDE_CODE_ENABLE_TELEMETRY": "1",
        "DISABLE_AUTOUPDATER": "1",
        "OTEL_EXPORTER_OTLP_ENDPOINT": place.url,
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
    return (
        ["--permission-mode", "default", PROMPT]
        if scenario.is_asked
        else ["-p", PROMPT, "--output-format", "json"]
    )


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
model = "gpt-5.5"
model_provider = "scripted"
approval_policy = "{approval}"
sandbox_mode = "{sandbox}"
check_for_update_on_startup = false

[model_providers.scripted]
name = "Scripted"
base_url = "{url}/v1"
env_key = "SCRIPTED_API_KEY"
wire_api = "responses"
supports_websockets = false

[projects."{project}"]
trust_level = "trusted"

[otel]
log_user_prompt = false
exporter = {{ otlp-http = {{ endpoint = "{url}/v1/logs", protocol = "json" }} }}
trace_exporter = {{ otlp-http = {{ endpoint = "{url}/v1/traces", protocol = "json" }} }}
metrics_exporter = "none"
"""


def _prepare_codex(place: Place, scenario: Scenario, variant: str) -> dict[str, str]:
    settings = _CODEX_SETTINGS.format(
        url=place.url,
        project=place.project,
        approval="untrusted" if scenario.is_asked else "never",
        sandbox="read-only" if scenario.is_asked else "danger-full-access",
    )
    hook = {"type": "command", "command": _forward(f"{place.url}/hooks/codex"), "timeout": 5}
    folder = place.home / ".codex"
    _write(folder / "hooks.json", {"hooks": {name: [{"hooks": [hook]}] for name in _CODEX_HOOKS}})
    (folder / "config.toml").write_text(settings, encoding="utf-8")
    return {"SCRIPTED_API_KEY": API_KEY}


def _codex_arguments(scenario: Scenario) -> list[str]:
    if scenario.is_asked:
        return ["--dangerously-bypass-hook-trust", PROMPT]
    return ["exec", "--json", "--skip-git-repo-check", "--dangerously-bypass-hook-trust", PROMPT]


_WITH_DETAILS: Final = ("healthy", "loop", "hang_first")
"""With OTEL_LOG_TOOL_DETAILS=1."""
_WITH_TRACES: Final = ("healthy", "loop", "hang_first", "provider_529")
"""With the traces beta, beside the logs."""

CLIENTS: Final = {
    client.name: client
    for client in (
        Client(
            name="claude-code",
            package="@anthropic-ai/claude-code",
            program="claude",
            install_script="install.cjs",
            variants={"": None, "details": _WITH_DETAILS, "traces": _WITH_TRACES},
            prepare=_prepare_claude_code,
            arguments=_claude_code_arguments,
            needs_terminal=lambda scenario: scenario.is_asked,
        ),
        Client(
            name="codex",
            package="@openai/codex",
            program="codex",
            variants={"": None},
            prepare=_prepare_codex,
            arguments=_codex_arguments,
            needs_terminal=lambda scenario: scenario.is_asked,
        ),
    )
}
