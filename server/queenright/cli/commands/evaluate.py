"""`queenright evaluate`: run the detectors over recorded runs."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from queenright.cli.options import Config, Json
from queenright.cli.output.text import strip_control
from queenright.cli.service import example
from queenright.instrumentation.counts import format_count

if TYPE_CHECKING:
    from queenright.health.settings import HealthSettings


@example("evaluate runs.jsonl.gz --json")
def evaluate(
    files: Annotated[list[Path], typer.Argument(help="Recorded runs, .jsonl or .jsonl.gz.")],
    as_json: Json = False,
    config: Config = None,
) -> None:
    """Run the deterministic detectors over recorded runs."""
    from queenright.server.settings import load_settings

    if folder := next((file for file in files if file.is_dir()), None):
        typer.echo(f"queenright: {folder} is a folder; pass files, such as {folder}/*.jsonl", err=True)
        raise typer.Exit(2)
    missing = [str(file) for file in files if not file.exists()]
    if missing:
        typer.echo(f"queenright: no such file: {', '.join(missing)}", err=True)
        raise typer.Exit(2)
    for line in _format_evaluation(files, load_settings(config).health_monitoring, as_json=as_json):
        typer.echo(line)


def _format_evaluation(files: list[Path], settings: HealthSettings, *, as_json: bool) -> Iterator[str]:
    """
    Yield one JSON object per run, or the runs with findings as text.

    Raises:
        InvalidRunError: A line is not a recorded run.
        OSError: A file cannot be read.
    """
    from queenright.cli.output.progress import track
    from queenright.judge.evaluation import evaluate_files

    runs = alarms = 0
    for result in track(evaluate_files(files, settings), "Evaluating runs", uses_stdout=True):
        runs += 1
        alarms += any(not finding.get("shadow") for finding in result["findings"])
        if as_json:
            yield _dump_result(result)
        elif result["findings"]:
            yield _to_plain_line(f"{result['dataset']} {result['run_id']}")
            for finding in result["findings"]:
                shadow = " (shadow)" if finding.get("shadow") else ""
                text = _to_plain_line(f"{finding['kind']}: {finding['evidence']}")
                yield f"  step {finding['step']:>4}  {finding['severity']:<8} {text}{shadow}"
    if not as_json:
        yield f"{format_count(runs, 'run')}, {alarms:,} with findings"


def _dump_result(result: Mapping[str, Any]) -> str:
    text = json.dumps(result, ensure_ascii=False)
    try:
        text.encode()
    except UnicodeEncodeError:
        # A record may hold a lone surrogate, which cannot be printed.
        return json.dumps(result)
    return text


def _to_plain_line(text: str) -> str:
    """Return a record's text on one line, without control characters and lone surrogates."""
    return " ".join(strip_control(text.encode("utf-8", "replace").decode()).split())
