"""`queenright judge score`: how well judge and queen decide, on scenarios whose right answer is known."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from queenright.judge.scenarios import Score
    from queenright.judge.scenarios.playing import MakeModel

Model = Annotated[
    str | None,
    typer.Option(help="Who thinks: queenright/rules, scripted:PATH or a litellm model; as set, without."),
]
QueenModel = Annotated[
    str | None, typer.Option("--queen-model", help="Who thinks in the queen; the same, without.")
]
Only = Annotated[
    list[str] | None, typer.Option(metavar="KIND", help="Only this kind of scenarios, or the one of this id.")
]
Folder = Annotated[
    Path | None, typer.Option("--scenarios", metavar="PATH", help="Folder of scenarios of your own, *.yaml.")
]
AtLeast = Annotated[
    float | None, typer.Option(min=-1, max=1, help="Exit code 1 if a decision's kappa is below this.")
]
AtOnce = Annotated[int, typer.Option("--at-once", min=1, max=64, help="So many scenarios side by side.")]
Json = Annotated[bool, typer.Option("--json", help="Print JSON.")]
Config = Annotated[
    Path | None,
    typer.Option("--config", "-c", metavar="PATH", help="Settings file; queenright.yaml if there is one."),
]


def register(judge: typer.Typer) -> None:
    """Add the command to those of the judge."""
    judge.command("score", epilog="Example: queenright judge score --model anthropic/claude-sonnet-4-5")(
        score
    )


def score(
    model: Model = None,
    queen_model: QueenModel = None,
    only: Only = None,
    scenarios: Folder = None,
    at_least: AtLeast = None,
    at_once: AtOnce = 4,
    as_json: Json = False,
    config: Config = None,
) -> None:
    """
    Play labelled scenarios through judge and queen, and print how far they agree with the labels.

    Everything but the workers is real, and time is virtual. A litellm model costs what some 160 calls cost.

    Exit code 0: played; 1: below --at-least, or a floor of the rules gave way; 2: misuse.
    """
    import asyncio  # a tenth of the time that `queenright --help` takes

    from queenright.cli.output.progress import bar
    from queenright.judge.scenarios import InvalidScenarioError, load_scenarios, play_all
    from queenright.judge.scenarios import score as score_of
    from queenright.judge.scenarios.report import report
    from queenright.judge.scenarios.score import as_dict
    from queenright.judge.settings import JudgeSettings
    from queenright.server.settings import load_settings

    settings = load_settings(config)
    judging = settings.judging
    judge_name = model or judging.judge.model
    queen_name = queen_model or model or judging.queen.model
    judge = _maker(judge_name, judging.judge.timeout_seconds)
    queen = _maker(queen_name, judging.queen.timeout_seconds)
    try:
        chosen = load_scenarios(scenarios, only=only or ())
    except InvalidScenarioError as error:
        raise typer.BadParameter(str(error)) from error
    # A real model takes minutes.
    with bar("Playing scenarios", len(chosen)) as step:
        outcomes = asyncio.run(
            play_all(
                chosen,
                judge,
                queen,
                settings=settings.health_monitoring,
                judging=JudgeSettings(judge=judging.judge, queen=judging.queen),
                at_once=at_once,
                on_played=lambda outcome: step(),
            )
        )
    found = score_of(outcomes, judge=judge_name, queen=queen_name)
    if as_json:
        typer.echo(json.dumps(as_dict(found), indent=2, ensure_ascii=False))
    else:
        typer.echo(report(found))
    raise typer.Exit(_exit_code(found, at_least))


def _maker(name: str, timeout_seconds: float) -> MakeModel:
    """Return what makes a model, once it is certain that it can."""
    from queenright.judge.scenarios import model_maker
    from queenright.runtime.llm.litellm_provider import ProviderUnavailable

    make = model_maker(name, timeout_seconds=timeout_seconds)
    try:
        make()
    except ProviderUnavailable as error:
        raise typer.BadParameter(str(error)) from error
    return make


def _exit_code(found: Score, at_least: float | None) -> int:
    if found.faults:
        return 1
    if at_least is None:
        return 0
    if found.lowest is None:
        typer.echo("queenright: no kappa can be told from so few scenarios", err=True)
        return 1
    if found.lowest < at_least:
        typer.echo(f"queenright: the lowest kappa is {found.lowest:.2f}, below {at_least:g}", err=True)
        return 1
    return 0
