"""`queenright audit`: whether anyone has changed the event log, and the trail to take along."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from queenright.cli.options import Config, Json, Storage, path, settings_arguments

audit = typer.Typer(help="The event log, and whether anyone has changed it.", no_args_is_help=True)

PublicKey = Annotated[
    list[Path] | None,
    typer.Option(
        "--public-key",
        parser=path,
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
        typer.Option(parser=path, metavar="FILE", help="Check this exported file, and not the database."),
    ] = None,
    as_json: Json = False,
) -> None:
    """Check hash chains and signatures; exit code 1 if anything was changed or is not signed."""
    from queenright.cli.jobs.audit import verify, verify_export
    from queenright.server.settings import load_settings

    settings = load_settings(config, **settings_arguments(storage))
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
        typer.Option(parser=path, metavar="FILE", help="Write to this file; standard output by default."),
    ] = None,
) -> None:
    """Write the audit trail as JSON lines, signed, to be checked with `audit verify --export`."""
    from queenright.cli.jobs.audit import export
    from queenright.server.settings import load_settings

    raise typer.Exit(export(load_settings(config, **settings_arguments(storage)), since, until, out))
