"""`queenright store`: copy the database of a stopped service."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Annotated, Any

import typer

from queenright.cli.options import Json
from queenright.cli.output.progress import progress_bar
from queenright.instrumentation.counts import format_count

if TYPE_CHECKING:
    from queenright.health.store.store_copy import StoreCopy

store = typer.Typer(no_args_is_help=True)


@store.command(
    "copy",
    epilog="Example: queenright store copy sqlite:///.queenright/queenright.db "
    "postgresql://queenright@db.example/queenright",
)
def store_copy(
    source: Annotated[
        str, typer.Argument(metavar="FROM", help="URL of the database to copy. No service may use it.")
    ],
    target: Annotated[
        str, typer.Argument(metavar="TO", help="URL of an empty database. Keep its password in PGPASSWORD.")
    ],
    as_json: Json = False,
) -> None:
    """
    Copy a database to another address, such as from SQLite to PostgreSQL, and verify its hash chains.

    Everything is copied in one transaction: after an error or a kill, TO is empty.
    """
    from queenright.health.store.store_copy import copy_database, count_rows

    with progress_bar("Copying rows", count_rows(source)) as step:
        result = copy_database(source, target, on_row=step)
    if as_json:
        typer.echo(json.dumps(_to_row(result)))
        return
    for table, rows in result.rows.items():
        if rows:
            typer.echo(f"  {table}: {format_count(rows, 'row')}")
    typer.echo(
        f"Copied {result.source} to {result.target}: {format_count(sum(result.rows.values()), 'row')}."
    )
    typer.echo(f"The hash chain of the event log is intact and ends in {result.log.head}.")


def _to_row(result: StoreCopy) -> dict[str, Any]:
    return {
        "from": result.source,
        "to": result.target,
        "rows": result.rows,
        "head": result.log.head,
        "archive_head": result.archive.head,
    }
