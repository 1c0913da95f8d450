"""
`queenright`: commands and their options.

Exit codes: 0 it went well, 1 the answer is no (or it failed, or was paused), 2 the command was misused.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Any

import typer

from queenright.cli import acting
from queenright.cli.approvals import approvals
from queenright.cli.chat import chat
from queenright.cli.dashboards import dashboards
from queenright.cli.judge import judge
from queenright.cli.rules import rules
from queenright.cli.silences import silences
from queenright.cli.tickets import tickets

app = typer.Typer(
    name="queenright",
    help="Health monitoring for fleets of AI agents.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)
audit = typer.Typer(help="The event log, and whether anyone has changed it.", no_args_is_help=True)
config = typer.Typer(help="The settings.", no_args_is_help=True)
app.add_typer(approvals, name="approvals")
app.add_typer(audit, name="audit")
app.add_typer(config, name="config")
app.add_typer(silences, name="silences")
app.add_typer(tickets, name="tickets")
app.add_typer(judge, name="judge")
app.add_typer(rules, name="rules")
app.add_typer(dashboards, name="dashboards")
acting.register(app)
app.command(epilog='Example: queenright chat 01J... --say "what was tried?"')(chat)


def _path(text: str) -> Path:
    """Return a path; an empty one is a script's unset variable, and not the current folder."""
    if not text.strip():
        raise typer.BadParameter("it is empty; name a path, or leave the option out")
    return Path(text)


Config = Annotated[
    Path | None,
    typer.Option(
        "--config",
        "-c",
        parser=_path,
        metavar="PATH",
        help="Settings file; queenright.yaml if there is one.",
    ),
]
Storage = Annotated[
    Path | None,
    typer.Option(
        parser=_path, metavar="PATH", help="Folder of the database and logs; .queenright by default."
    ),
]
PortOption = Annotated[int | None, typer.Option("--port", help="Port of the API and status page (8420).")]
OtlpPort = Annotated[int | None, typer.Option(help="Port that agents send telemetry to (4318).")]
Forward = Annotated[
    str | None,
    typer.Option("--otlp-forward", metavar="URL", help="Pass all telemetry on to this OTLP/HTTP URL."),
]
Json = Annotated[bool, typer.Option("--json", help="Print JSON.")]


def main() -> None:
    """Run the command line; errors of ours are one message on stderr and exit code 1."""
    try:
        app()
    except Exception as error:
        from queenright.instrumentation.errors import QueenrightError

        if not isinstance(error, QueenrightError):
            raise
        typer.echo(f"queenright: {error}", err=True)
        raise SystemExit(1) from None


def _arguments(
    storage: Path | None = None,
    port: int | None = None,
    otlp_port: int | None = None,
    forward: str | None = None,
    host: str | None = None,
) -> dict[str, Any]:
    """Nest what was said on the command line like the settings."""
    http = {key: value for key, value in (("port", port), ("host", host)) if value is not None}
    otlp = {
        key: value
        for key, value in (("port", otlp_port), ("forward", forward), ("host", host))
        if value is not None
    }
    found = {"storage": storage, "http": http or None, "otlp": otlp or None}
    return {key: value for key, value in found.items() if value is not None}


@app.command(epilog="Example: queenright up --otlp-forward http://collector:4318")
def up(
    config: Config = None,
    storage: Storage = None,
    port: PortOption = None,
    otlp_port: OtlpPort = None,
    otlp_forward: Forward = None,
    demo: Annotated[bool, typer.Option(help="Run a small fleet of agents to watch.")] = True,
    model: Annotated[
        str | None, typer.Option(help="litellm model for the demo agents; scripted without.")
    ] = None,
    files: Annotated[Path, typer.Option(help="Folder whose text files the demo agents read.")] = Path(),
    prometheus_port: Annotated[int, typer.Option(help="Port for Prometheus.")] = 9090,
    alertmanager_port: Annotated[int, typer.Option(help="Port for Alertmanager.")] = 9093,
    receiver_port: Annotated[int, typer.Option(help="Port for the stand-in for Slack and PagerDuty.")] = 8421,
    slack_url_file: Annotated[Path | None, typer.Option(help="File with a real Slack webhook URL.")] = None,
    pagerduty_key_file: Annotated[
        Path | None, typer.Option(help="File with a real PagerDuty routing key.")
    ] = None,
    check: Annotated[
        bool, typer.Option("--check", help="Only say whether everything needed is here.")
    ] = False,
) -> None:
    """Run everything on this machine: service, Prometheus, Alertmanager and a demo fleet."""
    from queenright.cli.run import check_up, run_up
    from queenright.server.settings import load_settings
    from queenright.server.up import DEMO_DEFAULTS, UpOptions

    settings = load_settings(
        config, defaults=DEMO_DEFAULTS if demo else None, **_arguments(storage, port, otlp_port, otlp_forward)
    )
    if check:
        raise typer.Exit(check_up())
    options = UpOptions(
        demo=demo,
        model=model,
        fast=demo,
        files=files,
        prometheus_port=prometheus_port,
        alertmanager_port=alertmanager_port,
        receiver_port=receiver_port,
        slack_url_file=slack_url_file,
        pagerduty_key_file=pagerduty_key_file,
    )
    raise typer.Exit(run_up(settings, options))


@app.command(epilog="Example: queenright serve --config /etc/queenright.yaml")
def serve(
    config: Config = None,
    storage: Storage = None,
    port: PortOption = None,
    otlp_port: OtlpPort = None,
    otlp_forward: Forward = None,
    host: Annotated[str | None, typer.Option(help="Address to listen on (127.0.0.1).")] = None,
) -> None:
    """Run the service alone, with Prometheus and Alertmanager somewhere else."""
    from queenright.cli.run import run_serve
    from queenright.server.settings import load_settings

    raise typer.Exit(
        run_serve(load_settings(config, **_arguments(storage, port, otlp_port, otlp_forward, host)))
    )


@app.command(epilog='Example: queenright run examples/docs_checker --input \'{"folder": "docs"}\'')
def run(
    path: Annotated[Path, typer.Argument(help="The agent's folder, with agent.json or agent.py.")],
    input_text: Annotated[
        str | None, typer.Option("--input", metavar="JSON|@FILE", help="What the run is given: an object.")
    ] = None,
    entry_point: Annotated[
        str | None, typer.Option(metavar="ID", help="Where to begin; its first manual entry point.")
    ] = None,
    model: Annotated[
        str | None, typer.Option(help="litellm model, or scripted:FILE, in place of the agent's own.")
    ] = None,
    storage: Annotated[
        Path | None,
        typer.Option(
            parser=_path, metavar="PATH", help="Folder of its sessions; ~/.queenright/agents/NAME by default."
        ),
    ] = None,
    session: Annotated[
        str | None, typer.Option(metavar="ID", help="Begin in this session, with what it knows.")
    ] = None,
    resume: Annotated[
        str | None, typer.Option(metavar="ID", help="Go on with what this session left unfinished.")
    ] = None,
    as_json: Json = False,
    config: Config = None,
    telemetry: Annotated[bool, typer.Option(help="Send telemetry to OTEL_EXPORTER_OTLP_ENDPOINT.")] = True,
) -> None:
    """Run one agent in the terminal. Ctrl-C pauses it and says how to go on."""
    from queenright.cli.run_agent import run_agent
    from queenright.cli.run_options import Misuse, RunOptions

    options = RunOptions(
        path=path,
        input_text=input_text,
        entry_point=entry_point,
        model=model,
        storage=storage,
        session=session,
        resume=resume,
        as_json=as_json,
        config=config,
        telemetry=telemetry,
    )
    try:
        raise typer.Exit(run_agent(options))
    except Misuse as misuse:
        typer.echo(f"queenright: {misuse}", err=True)
        raise typer.Exit(2) from None


@app.command(epilog="Example: queenright evaluate runs.jsonl.gz --json")
def evaluate(
    files: Annotated[list[Path], typer.Argument(help="Recorded runs, .jsonl or .jsonl.gz.")],
    as_json: Json = False,
    config: Config = None,
) -> None:
    """Run the deterministic detectors over recorded runs."""
    from queenright.cli.evaluate import evaluated
    from queenright.server.settings import load_settings

    missing = [str(file) for file in files if not file.is_file()]
    if missing:
        typer.echo(f"queenright: no such file: {', '.join(missing)}", err=True)
        raise typer.Exit(2)
    for line in evaluated(files, load_settings(config).health_monitoring, as_json=as_json):
        typer.echo(line)


@app.command("list", epilog="Example: queenright list --json")
def list_(
    as_json: Json = False,
    wide: Annotated[bool, typer.Option("--wide", help="Nothing is cut.")] = False,
    url: Annotated[str, typer.Option(help="Where the service is.")] = "http://127.0.0.1:8420",
) -> None:
    """
    List the agents of a running service: state, session, task, steps, and the bad ones since the last good.

    A task is what the worker says it is about; a dash: it has none, and goes by its session's id. Names that
    are cut, to fit 80 columns, end in an ellipsis; see --wide.
    """
    from queenright.cli.acting import say_brakes
    from queenright.cli.ask import ask_all

    agents = [a for a in ask_all(url, "/api/agents", "agents") if not a["ended"]]
    if as_json:
        typer.echo(json.dumps(agents, indent=2))
        return
    say_brakes(url)
    _print_agents(agents, wide=wide)


def _print_agents(agents: list[dict[str, Any]], *, wide: bool) -> None:
    """Print a line an agent, and one below it with what is the matter."""
    if not agents:
        typer.echo("No agents.")
        return
    rows = [
        [a["agent_id"], a["session_id"], "-" if a["task_id"] == a["session_id"] else a["task_id"]]
        for a in agents
    ]
    names = ["agent", "session", "task"]
    widths = [max(len(row[n]) for row in [names, *rows]) for n in range(3)]
    if not wide:
        widths = [min(width, most) for width, most in zip(widths, (22, 16, 14), strict=True)]
    line = "{:<10} {} {} {} {:>5} {:>4}"
    typer.echo(line.format("state", *_cut(names, widths), "steps", "bad"))
    for a, row in zip(agents, rows, strict=True):
        typer.echo(line.format(a["state"], *_cut(row, widths), a["steps"], a["bad_steps"]))
        if why := f"waits: {a['waiting']}" if a["waiting"] else a["reason"] if a["findings"] else "":
            why = " ".join(why.split())
            typer.echo(f"  {why if wide else _cut([why], [76])[0]}".rstrip())


def _cut(texts: list[str], widths: list[int]) -> list[str]:
    from queenright.cli.acting import cut

    return [cut(text, width) for text, width in zip(texts, widths, strict=True)]


PublicKey = Annotated[
    list[Path] | None,
    typer.Option(
        "--public-key",
        parser=_path,
        metavar="FILE",
        help="Trust these keys only (PEM); audit-key.pub in the storage folder by default.",
    ),
]


@audit.command("verify", epilog="Example: queenright audit verify --storage .queenright")
def audit_verify(
    storage: Storage = None,
    config: Config = None,
    public_key: PublicKey = None,
    export: Annotated[
        Path | None,
        typer.Option(parser=_path, metavar="FILE", help="Check this exported file, and not the database."),
    ] = None,
    as_json: Json = False,
) -> None:
    """Check hash chains and signatures; exit code 1 if anything was changed or is not signed."""
    from queenright.cli.audit import verify, verify_export
    from queenright.server.settings import load_settings

    settings = load_settings(config, **_arguments(storage))
    if export is not None:
        raise typer.Exit(verify_export(settings, export, public_key or [], as_json=as_json))
    raise typer.Exit(verify(settings, public_key or [], as_json=as_json))


@audit.command("export", epilog="Example: queenright audit export --since 2026-03-01 --out audit.jsonl")
def audit_export(
    storage: Storage = None,
    config: Config = None,
    since: Annotated[
        str | None, typer.Option(metavar="TIME", help="From then on, ISO 8601; UTC if it says nothing.")
    ] = None,
    until: Annotated[str | None, typer.Option(metavar="TIME", help="Up to then, exclusively.")] = None,
    out: Annotated[
        Path | None,
        typer.Option(parser=_path, metavar="FILE", help="Write to this file; standard output by default."),
    ] = None,
) -> None:
    """Write the audit trail as JSON lines, signed, to be checked with `audit verify --export`."""
    from queenright.cli.audit import export
    from queenright.server.settings import load_settings

    raise typer.Exit(export(load_settings(config, **_arguments(storage)), since, until, out))


@config.command("check", epilog="Example: queenright config check --config queenright.yaml")
def config_check(config: Config = None) -> None:
    """Say whether `serve` would take the settings; every fault with its path and its value."""
    from queenright.server.settings import load_settings
    from queenright.server.settings_files import check_files

    check_files(load_settings(config))
    typer.echo("The settings are valid.")


@config.command("show", epilog="Example: queenright config show --config queenright.yaml")
def config_show(config: Config = None) -> None:
    """Print all settings as they are in force, secrets masked."""
    from queenright.cli.run import shown_settings
    from queenright.server.settings import load_settings

    typer.echo(shown_settings(load_settings(config)))


if __name__ == "__main__":
    main()
