"""Options and arguments that several commands share."""

from __future__ import annotations

import contextlib
import os
import pwd
import re
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any, Final

import typer

from queenright.cli.completion_names import complete_agents

_UNIT_SECONDS: Final = {"m": 60, "h": 3600, "d": 86_400, "w": 7 * 86_400, "y": 365 * 86_400}
_DURATION: Final = re.compile(r"(\d{1,6}(?:\.\d+)?)([mhdwy])")

PORT: Final[dict[str, Any]] = {"min": 0, "max": 65_535, "metavar": "PORT"}
"""Arguments of an option for a port; port 0 selects a free one."""


class Scope(StrEnum):
    """Which settings files of a coding agent are changed."""

    USER = "user"
    PROJECT = "project"


def parse_path(text: str) -> Path:
    """Return a path; reject an empty text, which is usually an unset variable in a script."""
    if not text.strip():
        raise typer.BadParameter("the path is empty; pass a path or leave the option out")
    return Path(text)


def require_author(by: str) -> str:
    """Return the name of the actor; reject a blank name, which would be invisible in the audit trail."""
    if not by.strip():
        raise typer.BadParameter("the name is blank; write yours, or leave the option out")
    return by


def parse_duration(text: str, examples: str) -> float:
    """Return a duration such as 30m, 2h, 1d, 1w or 1y in seconds; ``examples`` are for the error."""
    match = _DURATION.fullmatch(text.strip())
    if match is None or float(match[1]) == 0:
        raise typer.BadParameter(
            f"{text!r} is not a duration: a positive number below a million and a unit; write {examples}"
        )
    return float(match[1]) * _UNIT_SECONDS[match[2]]


def get_current_user() -> str:
    """Return the user who runs the command: $USER or $LOGNAME, otherwise the name that the system reports."""
    with contextlib.suppress(KeyError):
        return os.environ.get("USER") or os.environ.get("LOGNAME") or pwd.getpwuid(os.getuid()).pw_name
    return "operator"


CURRENT_USER = get_current_user()

Config = Annotated[
    Path | None,
    typer.Option(
        "--config",
        "-c",
        parser=parse_path,
        metavar="PATH",
        help="Settings file. Default: queenright.yaml, if it exists.",
    ),
]
Storage = Annotated[
    Path | None,
    typer.Option(
        parser=parse_path, metavar="PATH", help="Folder of the database and logs. Default: .queenright."
    ),
]
SessionStorage = Annotated[
    Path | None,
    typer.Option(
        "--storage",
        parser=parse_path,
        metavar="PATH",
        help="Folder of the agent's sessions. Default: ~/.queenright/agents/NAME.",
    ),
]
PortOption = Annotated[
    int | None,
    typer.Option("--port", **PORT, help="Port of the API and the console. Default: 8420."),
]
OtlpPort = Annotated[int | None, typer.Option(**PORT, help="Port that receives telemetry. Default: 4318.")]
Forward = Annotated[
    str | None,
    typer.Option("--otlp-forward", metavar="URL", help="Forward all telemetry to this OTLP/HTTP URL."),
]
Json = Annotated[bool, typer.Option("--json", help="Print JSON.")]
Model = Annotated[
    str | None, typer.Option(help="litellm model or scripted:FILE. Default: the agent's own model.")
]
InputText = Annotated[
    str | None,
    typer.Option("--input", metavar="JSON|@FILE", help="Input of the run, a JSON object."),
]
EntryPoint = Annotated[
    str | None, typer.Option(metavar="ID", help="Entry point. Default: the first manual one.")
]
SendTelemetry = Annotated[bool, typer.Option(help="Send telemetry to OTEL_EXPORTER_OTLP_ENDPOINT.")]

Url = Annotated[str, typer.Option(envvar="QUEENRIGHT_URL", help="URL of the service.")]
TokenFile = Annotated[
    Path | None,
    typer.Option(
        "--token-file",
        parser=parse_path,
        metavar="FILE",
        # Not an option with the token itself: every user of the machine can read a command line.
        help="File with the access token. Default: $QUEENRIGHT_TOKEN, then $QUEENRIGHT_TOKEN_FILE.",
    ),
]
By = Annotated[str, typer.Option(callback=require_author, help="Your name for the audit trail.")]
Reason = Annotated[str, typer.Option("--reason", help="Reason for the audit trail.")]
Agent = Annotated[
    str, typer.Argument(autocompletion=complete_agents, help="Worker, as `queenright list` shows it.")
]
AgentFilter = Annotated[str | None, typer.Option("--agent", help="Only this worker.")]
Session = Annotated[
    str | None,
    typer.Option(
        "--session",
        metavar="ID",
        help="Session, or its end as `queenright list` shows it. Default: the active one.",
    ),
]
Limit = Annotated[int, typer.Option("--limit", min=1, max=1000, help="Maximum number, newest first.")]


@dataclass(frozen=True, slots=True, kw_only=True)
class ShellOptions:
    """The options that `shell` and `code` share."""

    storage: SessionStorage = None
    resume: Annotated[
        str | None, typer.Option(metavar="ID", help="First resume the unfinished run of this session.")
    ] = None
    config: Config = None
    telemetry: SendTelemetry = True


@dataclass(frozen=True, slots=True, kw_only=True)
class RuleOptions:
    """The options that select the rules: settings file, label selectors, and link targets."""

    config: Config = None
    service_selector: Annotated[
        str, typer.Option(metavar="MATCHERS", help="""Labels of the service: 'job="x"'.""")
    ] = ""
    worker_selector: Annotated[
        str, typer.Option(metavar="MATCHERS", help="""Labels of the workers: 'namespace="x"'.""")
    ] = ""
    runbooks: Annotated[
        str | None,
        typer.Option(metavar="URL", help="Base URL of the runbooks. Default: alerting.runbook_url."),
    ] = None
    dashboards: Annotated[
        str | None,
        typer.Option(
            metavar="URL", help="URL before a dashboard's uid. Default: from alerting.dashboard_url."
        ),
    ] = None
    service_url: Annotated[
        str | None,
        typer.Option(
            metavar="URL",
            help="URL of Queenright for Alertmanager (default: http://queenright:8420), and for links "
            "unless alerting.console_url is set.",
        ),
    ] = None


def collect_settings_overrides(
    storage: Path | None = None,
    port: int | None = None,
    otlp_port: int | None = None,
    forward: str | None = None,
    host: str | None = None,
    nats: str | None = None,
) -> dict[str, Any]:
    """Return the given options as keyword arguments of ``load_settings``, nested like the settings."""
    http = {key: value for key, value in (("port", port), ("host", host)) if value is not None}
    otlp = {
        key: value
        for key, value in (("port", otlp_port), ("forward", forward), ("host", host))
        if value is not None
    }
    cluster = None if nats is None else {"nats": nats}
    overrides = {"storage": storage, "http": http or None, "otlp": otlp or None, "cluster": cluster}
    return {key: value for key, value in overrides.items() if value is not None}


@dataclass(frozen=True, slots=True, kw_only=True)
class JobOptions:
    """The options of `judge once` and `judge run`; None stands for the value in the settings."""

    prometheus: Annotated[
        str | None, typer.Option(metavar="URL", help="Prometheus. Default: judging.prometheus_url.")
    ] = field(default=None, repr=False)
    tempo: Annotated[str | None, typer.Option(metavar="URL", help="Tempo. Default: judging.tempo_url.")] = (
        field(default=None, repr=False)
    )
    model: Annotated[
        str | None, typer.Option(help="queenright/rules or a litellm model. Default: from the settings.")
    ] = None
    selector: Annotated[
        str, typer.Option(metavar="MATCHERS", help="""Only workers with these labels: '{cluster="x"}'.""")
    ] = ""
    gone: Annotated[
        list[str] | None,
        typer.Option(metavar="TARGET", help="Removed target, job/instance: its tickets close. Repeatable."),
    ] = None
    alertmanager: Annotated[
        list[str] | None, typer.Option(metavar="URL", help="Alertmanager to notify. Repeatable for peers.")
    ] = field(default=None, repr=False)
    state: Annotated[
        Path | None,
        typer.Option(metavar="PATH", help="Folder that keeps tickets and trends between checks."),
    ] = None
    as_json: Annotated[bool, typer.Option("--json", help="Print tickets as JSON, one per line.")] = False
    config: Config = None
