"""`queenright token`: who may ask a service, and what for. A running service sees what is changed."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Annotated, Any

import typer

from queenright.cli.options import Config, Json, Storage, path
from queenright.server.access.roles import Role

_UNITS = {"m": 60, "h": 3600, "d": 86_400, "w": 7 * 86_400, "y": 365 * 86_400}
_SPAN = re.compile(r"(\d{1,6})([mhdwy])")
_NEVER = 0.0

token = typer.Typer(help="Tokens: who may ask a service, and what for.", no_args_is_help=True)


def _span(text: str) -> float:
    """Return a time such as 90d in seconds; ``_NEVER`` for never."""
    if text.strip() == "never":
        return _NEVER
    found = _SPAN.fullmatch(text.strip())
    if found is None or int(found[1]) == 0:
        raise typer.BadParameter(f"{text!r} is no time; say it like 12h, 90d, 1y, or never")
    return float(int(found[1]) * _UNITS[found[2]])


Name = Annotated[str, typer.Argument(help="Whose it is: a person's or a machine's name.")]
TokensFile = Annotated[
    Path | None,
    typer.Option(
        "--tokens-file",
        parser=path,
        metavar="PATH",
        help="File of the tokens; auth.tokens_file of the settings, or tokens.json in the storage folder.",
    ),
]


@token.command("create", epilog="Example: queenright token create ada --role operator --expires 90d")
def create(
    name: Name,
    role: Annotated[Role, typer.Option(help="What it is for.")],
    expires: Annotated[
        float, typer.Option(parser=_span, metavar="TIME", help="When: like 12h, 90d or 1y; or never.")
    ] = "90d",  # type: ignore[assignment]  # parsed
    tokens_file: TokensFile = None,
    as_json: Json = False,
    config: Config = None,
    storage: Storage = None,
) -> None:
    """
    Make a token and print it, this once: what is kept is its hash.

    viewer looks; operator acts, too; admin loads agents and changes settings, too. reporter is for machines:
    telemetry, heartbeats, instructions, Alertmanager's webhooks, and /metrics.
    """
    import secrets
    import time

    from queenright.server.access.token_file import edit_tokens
    from queenright.server.access.tokens import new_token

    now = time.time()
    made, words = new_token(
        name,
        role,
        id_=secrets.token_hex(4),
        secret=secrets.token_urlsafe(32),
        now=now,
        expires_at=None if expires == _NEVER else now + expires,
    )
    file = _file(tokens_file, config, storage)
    edit_tokens(file, lambda tokens: tokens.with_token(made, now))
    if as_json:
        typer.echo(json.dumps({"token": words, **_row(made, now)}, indent=2))
        return
    typer.echo(words)
    typer.echo(f"{name}: {role.value}, {_until(made.expires_at)}. {file} keeps a hash of it.", err=True)


@token.command("list", epilog="Example: queenright token list --json")
def list_(
    tokens_file: TokensFile = None, as_json: Json = False, config: Config = None, storage: Storage = None
) -> None:
    """List the tokens: names, roles, until when. Exit code 1 if none is live."""
    import time

    from queenright.server.access.token_file import read_tokens

    now = time.time()
    file = _file(tokens_file, config, storage)
    found = read_tokens(file)
    if as_json:
        typer.echo(json.dumps([_row(one, now) for one in found.all], indent=2))
    else:
        for one in found.all:
            line = f"{one.name:<24} {one.role.value:<9} {one.state(now):<8} {_until(one.expires_at)}"
            typer.echo(f"{line}  id {one.id}")
        if not found.all:
            typer.echo(f"No tokens in {file}. Make one with `queenright token create NAME --role admin`.")
    raise typer.Exit(0 if found.live(now) else 1)


@token.command("revoke", epilog="Example: queenright token revoke ada")
def revoke(
    name: Name, tokens_file: TokensFile = None, config: Config = None, storage: Storage = None
) -> None:
    """Let a token be good for nothing from now on; a running service needs no restart."""
    import time

    from queenright.server.access.token_file import edit_tokens

    now = time.time()
    edit_tokens(_file(tokens_file, config, storage), lambda tokens: tokens.without(name, now))
    typer.echo(f"The token {name!r} is revoked.")


def _file(tokens_file: Path | None, config: Path | None, storage: Path | None) -> Path:
    if tokens_file is not None:
        return tokens_file
    from queenright.cli.options import settings_arguments
    from queenright.server.access.access import tokens_file as file_of
    from queenright.server.settings import load_settings

    return file_of(load_settings(config, **settings_arguments(storage)))


def _row(one: Any, now: float) -> dict[str, Any]:
    """Return what may be shown of a token: not its hash."""
    return {**one.model_dump(mode="json", exclude={"sha256"}), "state": one.state(now)}


def _until(at: float | None) -> str:
    from datetime import UTC, datetime

    return (
        "without end" if at is None else datetime.fromtimestamp(at, UTC).strftime("until %Y-%m-%d %H:%M UTC")
    )
