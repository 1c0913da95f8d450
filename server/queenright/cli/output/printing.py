"""Print responses of a service, as text or as JSON."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

import typer

from queenright.cli.output.text import to_single_line

if TYPE_CHECKING:
    from pydantic import BaseModel


def to_json_values(model: BaseModel) -> dict[str, Any]:
    """Return a model as JSON values, with the fields that the service sent."""
    return model.model_dump(mode="json", exclude_unset=True)


def print_result(model: BaseModel, text: str, *, as_json: bool) -> None:
    """Print the result of an action."""
    if as_json:
        typer.echo(json.dumps(to_json_values(model), indent=2))
    else:
        typer.echo("\n".join(map(to_single_line, text.split("\n"))))


def print_list(
    models: Sequence[BaseModel], lines: Iterable[str], empty: str, *, as_json: bool, heading: str = ""
) -> None:
    """Print a list, one line each, below ``heading``; ``empty`` is the text for an empty list."""
    if as_json:
        typer.echo(json.dumps([to_json_values(model) for model in models], indent=2))
        return
    for line in [heading, *lines] if models and heading else list(lines) or [empty]:
        typer.echo(to_single_line(line))
