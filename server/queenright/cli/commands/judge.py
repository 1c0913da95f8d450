"""The judge by itself: as a job on the user's own Prometheus and Tempo."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from queenright.cli.commands import judge_score

judge = typer.Typer(help="The judge by itself, beside or without the service.", no_args_is_help=True)
judge_score.register(judge)

Config = Annotated[
    Path | None,
    typer.Option("--config", "-c", metavar="PATH", help="Settings file; queenright.yaml if there is one."),
]
PrometheusUrl = Annotated[
    str | None,
    typer.Option("--prometheus", metavar="URL", help="Its base URL; judging.prometheus_url without."),
]
TempoUrl = Annotated[
    str | None, typer.Option("--tempo", metavar="URL", help="Its base URL; judging.tempo_url without.")
]
Model = Annotated[
    str | None, typer.Option(help="Who thinks: queenright/rules or a litellm model; as set, without.")
]
Selector = Annotated[
    str, typer.Option(metavar="MATCHERS", help="""Only workers with these labels: '{cluster="x"}'.""")
]
Gone = Annotated[
    list[str] | None,
    typer.Option(
        "--gone", metavar="TARGET", help="A target, job/instance, that is no more: ends its tickets."
    ),
]
Alertmanager = Annotated[
    list[str] | None,
    typer.Option("--alertmanager", metavar="URL", help="Tell this Alertmanager, too; each of several peers."),
]
State = Annotated[
    Path | None,
    typer.Option("--state", metavar="PATH", help="Folder that keeps tickets and trends from look to look."),
]
Json = Annotated[bool, typer.Option("--json", help="Print tickets as JSON, one a line.")]
AllowEmpty = Annotated[bool, typer.Option("--allow-empty", help="That there is no worker at all is fine.")]


@judge.command("once", epilog="Example: queenright judge once --prometheus http://prometheus:9090 --state s")
def once(
    prometheus: PrometheusUrl = None,
    tempo: TempoUrl = None,
    model: Model = None,
    selector: Selector = "",
    gone: Gone = None,
    alertmanager: Alertmanager = None,
    state: State = None,
    as_json: Json = False,
    allow_empty: AllowEmpty = False,
    config: Config = None,
) -> None:
    """
    Look at all workers once, by their metrics alone, and print the tickets that this comes to.

    Exit code 0: no ticket; 1: tickets; 2: misuse; 3: it could not look, or not at all of them, or found none.
    """
    from queenright.cli.jobs.judge import JobOptions, run_once

    options = JobOptions(
        prometheus=prometheus,
        tempo=tempo,
        model=model,
        selector=selector,
        gone=tuple(gone or ()),
        alertmanagers=tuple(alertmanager or ()),
        state=state,
        as_json=as_json,
        allow_empty=allow_empty,
        config=config,
    )
    raise typer.Exit(run_once(options))


@judge.command("run", epilog="Example: queenright judge run --prometheus http://prometheus:9090")
def run(
    prometheus: PrometheusUrl = None,
    tempo: TempoUrl = None,
    model: Model = None,
    selector: Selector = "",
    gone: Gone = None,
    alertmanager: Alertmanager = None,
    state: State = None,
    interval: Annotated[
        float, typer.Option(min=1, max=86_400, help="Seconds from one look to the next.")
    ] = 120,
    as_json: Json = False,
    config: Config = None,
) -> None:
    """Look again and again until it is told to stop, and print each ticket when it opens, changes or ends."""
    from queenright.cli.jobs.judge import JobOptions, run_always

    options = JobOptions(
        prometheus=prometheus,
        tempo=tempo,
        model=model,
        selector=selector,
        gone=tuple(gone or ()),
        alertmanagers=tuple(alertmanager or ()),
        state=state,
        as_json=as_json,
        allow_empty=True,
        config=config,
    )
    raise typer.Exit(run_always(options, interval))
