"""What `queenright connect` and `queenright disconnect` do."""

from __future__ import annotations

import shutil
import socket
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from urllib.parse import urlsplit

import typer

from queenright.api import Telemetry
from queenright.cli.commands.connect import Scope
from queenright.cli.connecting.changes import FORMATS, Item, Member, SettingsConflictError, add
from queenright.cli.connecting.clients import CLIENTS, Client, Service
from queenright.cli.connecting.errors import SettingsError
from queenright.cli.connecting.files import Records, Update, plan_connect, plan_disconnect, write
from queenright.cli.service import connect as ask
from queenright.cli.service import login, on_one_line
from queenright.cli.errors import UsageError
from queenright.instrumentation.redaction import redact
from queenright.server.ops.secret_files import read_secret

_HIDDEN = "<token>"
_MASKED = 1000
"""Characters by which a line may grow when secrets in it are masked."""
_LOOPBACK = ("localhost", "127.0.0.1", "::1")


def service_of(scope: Scope, otlp_url: str, token_file: Path | None, permission_seconds: int = 0) -> Service:
    """
    Return where a client is to send, and as whom.

    Raises:
        UsageError: The address is none, or a token would be shared with everybody who has the project.
        InvalidSecretError: The token's file cannot be read.
    """
    parts = urlsplit(otlp_url)
    try:
        is_url = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError:
        is_url = False
    if not is_url or parts.query or parts.fragment or parts.username is not None:
        raise UsageError(
            f"--otlp-url {on_one_line(otlp_url)!r} is no URL; name one like http://127.0.0.1:4318"
        )
    url = otlp_url.rstrip("/")
    if scope is Scope.PROJECT:
        if token_file is not None:
            raise UsageError(
                "--scope project is shared with everybody who has the project, and a token is not; "
                "use --scope user"
            )
        return Service(url, ("queenright",), {}, permission_seconds=permission_seconds)
    beside = Path(sys.executable).with_name("queenright")
    command = str(beside) if beside.is_file() else shutil.which("queenright") or "queenright"
    token = ""
    if token_file is not None:
        token_file = token_file.absolute()
        token = read_secret(token_file, setting="--token-file").get_secret_value()
    owner = {"user": login(), "host": socket.gethostname()}
    return Service(url, (command,), owner, token, token_file, permission_seconds)


def print_settings(name: str, scope: Scope, service: Service) -> None:
    """Print what a client's settings need, a document a file; its name goes to stderr."""
    for path, wanted in _files(CLIENTS[name], scope, service):
        text, _ = add(FORMATS[path.suffix].EMPTY, wanted, path.suffix)
        typer.echo(f"# {path}", err=True)
        typer.echo(_without_token(text, service.token).strip())
    _say_notes(CLIENTS[name], service)


def connect(name: str, scope: Scope, service: Service, *, yes: bool, replace: bool) -> int:
    """Write a client's settings; 1 if they were not written."""
    client, records = CLIENTS[name], _records()
    updates, conflicts = [], []
    for path, wanted in _files(client, scope, service):
        try:
            updates.append(plan_connect(path, wanted, records, replace=replace))
        except SettingsConflictError as conflict:
            conflicts += [f"{path}: {key} is {_shown(key, old)}" for key, old in conflict.values.items()]
            # The difference as it would be.
            updates.append(plan_connect(path, wanted, records, replace=True))
    if not any(update.is_needed for update in updates):
        typer.echo(f"{client.title} is connected already.")
        return 0
    _show(updates, service.token)
    if conflicts:
        for line in conflicts:
            typer.echo(on_one_line(line), err=True)
        typer.echo("Nothing was written: --replace replaces these, and disconnect puts them back.", err=True)
        return 1
    if not _may_write(yes):
        return 1
    _write(updates, records)
    typer.echo(
        f"{client.title} is connected. Start `{client.program}` anew; then "
        f"`queenright connect {name} --check` says what arrives."
    )
    _say_notes(client, service)
    return 0


def disconnect(name: str, scope: Scope, *, yes: bool) -> int:
    """Remove what `connect` added; 1 if it was not removed."""
    client, records = CLIENTS[name], _records()
    paths = [path for path, _ in _files(client, scope, Service(url="", command=(), owner={}))]
    updates = [update for path in paths if (update := plan_disconnect(path, records)) is not None]
    if not updates:
        typer.echo(f"{client.title} is not connected by {', '.join(map(str, paths))}.")
        return 0
    _show(updates, "")
    if not _may_write(yes):
        return 1
    _write(updates, records)
    typer.echo(f"{client.title} is disconnected. Sessions that run keep their settings until they end.")
    return 0


def check(name: str, scope: Scope, url: str, token_file: Path | None) -> int:
    """Say what has arrived from a client, and what is missing; 1 if anything is."""
    client, records = CLIENTS[name], _records()
    paths = [path for path, _ in _files(client, scope, Service(url="", command=(), owner={}))]
    missing = []
    if unwritten := [str(path) for path in paths if records.get(path) is None]:
        missing.append(f"{', '.join(unwritten)}: not written by `queenright connect {name}`")
    with ask(url, token_file) as service:
        sessions = [one for one in service.agents.list() if one.framework == client.framework]
        telemetry = service.service.telemetry()
    sessions.sort(key=lambda one: one.last_activity, reverse=True)
    for one in sessions[:5]:
        ago = max(0, int(time.time() - one.last_activity))
        end = one.outcome or one.state
        typer.echo(
            on_one_line(
                f"{one.agent_id} {one.session_id}: {end}, {one.steps} steps, "
                f"{one.tool_calls} tool calls, {one.tokens} tokens, {ago} s ago"
            )
        )
    if len(sessions) > 5:
        typer.echo(f"and {len(sessions) - 5} sessions more")
    if not sessions:
        missing.append(
            f"nothing has arrived from {client.title}: start `{client.program}` anew and type something. "
            "If that is done, look at --otlp-url of `queenright connect` and at the service's otlp.port"
        )
    elif not any(one.tool_calls for one in sessions):
        missing.append("no tool call has arrived: let the agent run a tool, then check again")
    missing += _missing_of(client, telemetry)
    for line in missing:
        typer.echo(f"missing: {on_one_line(line)}")
    if not missing:
        typer.echo(f"{client.title} is connected, and what it sends arrives.")
    return 1 if missing else 0


def _missing_of(client: Client, telemetry: Telemetry) -> list[str]:
    """Return what is missing of what a client sends, and why its calls were refused since."""
    sources = [one for one in telemetry.sources if one.dialect == client.framework]
    last_seen = max((one.last_seen for one in sources), default=0.0)
    lacking = [f"{part.missing}; {part.remedy}" for one in sources for part in one.missing]
    refused = [
        f"{one.count} requests to {one.path} were refused with {one.status}: {one.reason}"
        for one in telemetry.refused
        if one.path == f"/hooks/{client.framework}" and one.last_seen > last_seen
    ]
    return list(dict.fromkeys(lacking + refused))


def _files(client: Client, scope: Scope, service: Service) -> list[tuple[Path, Sequence[Member | Item]]]:
    if scope is Scope.PROJECT and not client.has_project_scope:
        raise UsageError(f"{client.title} takes no telemetry settings from a project; use --scope user")
    if service.permission_seconds and not client.takes_permission:
        raise UsageError(
            f"{client.title} takes no answer to a permission request; leave out --permission-seconds"
        )
    base = Path.home() if scope is Scope.USER else Path.cwd()
    return [(base / client.folder / name, wanted) for name, wanted in client.wanted(service).items()]


def _records() -> Records:
    return Records(Path.home() / ".queenright" / "connect")


def _show(updates: Sequence[Update], token: str) -> None:
    for update in updates:
        if update.is_needed:
            typer.echo(_hide(update.diff(), token), nl=False)


def _may_write(yes: bool) -> bool:
    if yes:
        return True
    if not sys.stdin.isatty():
        typer.echo("Nothing was written: without a terminal, --yes writes this.", err=True)
        return False
    if typer.confirm("Write this?"):
        return True
    typer.echo("Nothing was written.", err=True)
    return False


def _write(updates: Sequence[Update], records: Records) -> None:
    done: list[Update] = []
    for update in updates:
        try:
            write(update, records)
        except SettingsError as error:
            written = ", ".join(str(one.path) for one in done)
            raise SettingsError(f"{error}. Written before: {written}" if done else str(error)) from None
        done.append(update)


def _say_notes(client: Client, service: Service) -> None:
    for note in (*client.notes, *(client.token_notes if service.token else ())):
        typer.echo(note, err=True)
    if not service.token and urlsplit(service.url).hostname not in _LOOPBACK:
        typer.echo(
            f"{service.url} is not this machine: its service wants a token, so name --token-file.", err=True
        )


def _shown(key: str, value: object) -> str:
    return "set" if "HEADERS" in key.upper() else redact(repr(value))[:200]


def _hide(text: str, token: str) -> str:
    """Return text without secrets: not the token, and none that the settings have in them already."""
    lines = _without_token(text, token).splitlines(keepends=True)
    return "".join(redact(line, limit=len(line) + _MASKED) for line in lines)


def _without_token(text: str, token: str) -> str:
    return text.replace(token, _HIDDEN) if token else text
