"""`queenright token`: access tokens of a service. A running service picks up changes."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from queenright.cli.options import Config, Json, Storage, parse_duration, parse_path
from queenright.server.access.roles import Role

if TYPE_CHECKING:
    from queenright.server.access.tokens import Token

_NEVER: Final = 0.0

token = typer.Typer(no_args_is_help=True)


def _parse_lifetime(text: str) -> float:
    """Return a duration such as 90d in seconds; ``_NEVER`` for `never`."""
    if text.strip() == "never":
        return _NEVER
    return parse_duration(text, "12h, 90d, 1y, or never")


Name = Annotated[str, typer.Argument(help="Name of the person or machine that uses the token.")]
TokensFile = Annotated[
    Path | None,
    typer.Option(
        "--tokens-file",
        parser=parse_path,
        metavar="PATH",
        help="Tokens file. Default: auth.tokens_file of the settings, or tokens.json in the storage folder.",
    ),
]


@token.command("create", epilog="Example: queenright token create ada --role operator --expires 90d")
def create(
    name: Name,
    role: Annotated[Role, typer.Option(help="Role of the token.")],
    expires: Annotated[
        float,
        typer.Option(parser=_parse_lifetime, metavar="TIME", help="Lifetime: 12h, 90d, 1y, or never."),
    ] = "90d",  # type: ignore[assignment]  # parsed
    tokens_file: TokensFile = None,
    as_json: Json = False,
    config: Config = None,
    storage: Storage = None,
) -> None:
    """
    Create a token and print it once; only its hash is stored.

    Roles: viewer reads; operator also acts; admin also loads agents and changes settings. reporter is for
    machines: telemetry, heartbeats, instructions, Alertmanager's webhooks, and /metrics.
    """
    import secrets

    from queenright.server.access.token_file import edit_tokens
    from queenright.server.access.tokens import build_token

    now = time.time()
    token_entry, text = build_token(
        name,
        role,
        id_=secrets.token_hex(4),
        secret=secrets.token_urlsafe(32),
        now=now,
        expires_at=None if expires == _NEVER else now + expires,
    )
    file = _resolve_file(tokens_file, config, storage)
    edit_tokens(file, lambda tokens: tokens.with_token(token_entry, now))
    if as_json:
        typer.echo(json.dumps({"token": text, **_to_row(token_entry, now)}, indent=2))
        return
    typer.echo(text)
    typer.echo(
        f"{name}: {role.value}, {_format_expiry(token_entry.expires_at)}. Its hash is in {file}.", err=True
    )


@token.command("list", epilog="Example: queenright token list --json")
def list_(
    tokens_file: TokensFile = None, as_json: Json = False, config: Config = None, storage: Storage = None
) -> None:
    """List the tokens with name, role, state and expiry."""
    from queenright.server.access.token_file import read_tokens

    now = time.time()
    file = _resolve_file(tokens_file, config, storage)
    tokens = read_tokens(file)
    if as_json:
        typer.echo(json.dumps([_to_row(token, now) for token in tokens.all], indent=2))
    else:
        for token in tokens.all:
            expiry = _format_expiry(token.expires_at)
            line = f"{token.name:<24} {token.role.value:<9} {token.state(now):<8} {expiry}"
            typer.echo(f"{line}  id {token.id}")
        if not tokens.all:
            typer.echo(f"No tokens in {file}. Create one: `queenright token create NAME --role admin`.")


@token.command("revoke", epilog="Example: queenright token revoke ada")
def revoke(
    name: Name, tokens_file: TokensFile = None, config: Config = None, storage: Storage = None
) -> None:
    """Revoke a token at once; a running service needs no restart."""
    from queenright.server.access.token_file import edit_tokens

    now = time.time()
    edit_tokens(_resolve_file(tokens_file, config, storage), lambda tokens: tokens.with_revoked(name, now))
    typer.echo(f"The token {name!r} is revoked.")


def _resolve_file(tokens_file: Path | None, config: Path | None, storage: Path | None) -> Path:
    if tokens_file is not None:
        return tokens_file
    from queenright.cli.options import collect_settings_overrides
    from queenright.server.access.access import get_tokens_path
    from queenright.server.settings import load_settings

    return get_tokens_path(load_settings(config, **collect_settings_overrides(storage)))


def _to_row(token: Token, now: float) -> dict[str, Any]:
    return {**token.model_dump(mode="json", exclude={"sha256"}), "state": token.state(now)}


def _format_expiry(at: float | None) -> str:
    from datetime import UTC, datetime

    if at is None:
        return "never expires"
    return datetime.fromtimestamp(at, UTC).strftime("until %Y-%m-%d %H:%M UTC")
