"""`queenright judge`: the judge as a job on your own Prometheus and Tempo, and its score."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from queenright.cli.options import Config, JobOptions, Json
from queenright.cli.service import with_options

if TYPE_CHECKING:
    from queenright.judge.scenarios import Score
    from queenright.judge.scenarios.playing import MakeModel

judge = typer.Typer(no_args_is_help=True)

AllowEmpty = Annotated[bool, typer.Option("--allow-empty", help="Succeed even if there are no workers.")]


@judge.command("once", epilog="Example: queenright judge once --prometheus http://prometheus:9090 --state s")
@with_options(JobOptions)
def once(options: JobOptions, allow_empty: AllowEmpty = False) -> None:
    """
    Check all workers once, from their metrics alone, and print the tickets.

    Exit code 0: no tickets; 1: tickets; 2: misuse; 3: the check failed, was incomplete, or found no
    workers.
    """
    from queenright.cli.jobs.judge import run_once

    raise typer.Exit(run_once(options, allow_empty=allow_empty))


@judge.command("run", epilog="Example: queenright judge run --prometheus http://prometheus:9090")
@with_options(JobOptions)
def run(
    options: JobOptions,
    interval: Annotated[float, typer.Option(min=1, max=86_400, help="Seconds between checks.")] = 120,
) -> None:
    """Check all workers periodically, and print each ticket when it opens, changes or closes."""
    from queenright.cli.jobs.judge import run_forever

    raise typer.Exit(run_forever(options, interval))


@judge.command("score", epilog="Example: queenright judge score --model anthropic/claude-sonnet-4-5")
def score(
    model: Annotated[
        str | None,
        typer.Option(help="queenright/rules, scripted:PATH or a litellm model. Default: from the settings."),
    ] = None,
    queen_model: Annotated[
        str | None, typer.Option("--queen-model", help="Model of the queen. Default: the same.")
    ] = None,
    only: Annotated[
        list[str] | None,
        typer.Option(metavar="KIND", help="Only scenarios of this kind or with this id. Repeatable."),
    ] = None,
    scenarios: Annotated[
        Path | None, typer.Option("--scenarios", metavar="PATH", help="Folder of your own scenarios, *.yaml.")
    ] = None,
    at_least: Annotated[
        float | None,
        typer.Option(min=-1, max=1, help="Exit with code 1 if a decision's kappa is below this."),
    ] = None,
    at_once: Annotated[
        int, typer.Option("--at-once", min=1, max=64, help="Scenarios that run in parallel.")
    ] = 4,
    as_json: Json = False,
    config: Config = None,
) -> None:
    """
    Run labelled scenarios through judge and queen, and print how well they agree with the labels.

    Everything but the workers is real; time is virtual. A litellm model receives about 160 calls.

    Exit code 0: finished; 1: below --at-least, or a rule that must always hold was violated; 2: misuse.
    """
    import asyncio  # takes a tenth of the time of `queenright --help`

    from queenright.cli.output.progress import progress_bar
    from queenright.judge.scenarios import InvalidScenarioError, load_scenarios, play_all
    from queenright.judge.scenarios import score as score_outcomes
    from queenright.judge.scenarios.report import report
    from queenright.judge.scenarios.score import to_dict
    from queenright.judge.settings import JudgeSettings
    from queenright.server.settings import load_settings

    settings = load_settings(config)
    judging = settings.judging
    judge_name = model or judging.judge.model
    queen_name = queen_model or model or judging.queen.model
    make_judge = _make_model_factory(judge_name, judging.judge.timeout_seconds)
    make_queen = _make_model_factory(queen_name, judging.queen.timeout_seconds)
    try:
        selection = load_scenarios(scenarios, only=only or ())
    except InvalidScenarioError as error:
        raise typer.BadParameter(str(error)) from error
    # A real model takes minutes.
    with progress_bar("Running scenarios", len(selection)) as step:
        outcomes = asyncio.run(
            play_all(
                selection,
                make_judge,
                make_queen,
                settings=settings.health_monitoring,
                judging=JudgeSettings(judge=judging.judge, queen=judging.queen),
                at_once=at_once,
                on_played=lambda outcome: step(),
            )
        )
    result = score_outcomes(outcomes, judge=judge_name, queen=queen_name)
    if as_json:
        typer.echo(json.dumps(to_dict(result), indent=2, ensure_ascii=False))
    else:
        typer.echo(report(result))
    raise typer.Exit(_exit_code(result, at_least))


def _make_model_factory(name: str, timeout_seconds: float) -> MakeModel:
    """Return a factory of models. Makes one model first, so that an unavailable model is refused."""
    from queenright.judge.scenarios import model_maker
    from queenright.runtime.llm.litellm_provider import ProviderUnavailableError

    make = model_maker(name, timeout_seconds=timeout_seconds)
    try:
        make()
    except ProviderUnavailableError as error:
        raise typer.BadParameter(str(error)) from error
    return make


def _exit_code(result: Score, at_least: float | None) -> int:
    if result.faults:
        return 1
    if at_least is None:
        return 0
    if result.lowest is None:
        typer.echo("queenright: there are too few scenarios for a kappa; run more", err=True)
        return 1
    if result.lowest < at_least:
        typer.echo(f"queenright: the lowest kappa is {result.lowest:.2f}, below {at_least:g}", err=True)
        return 1
    return 0
