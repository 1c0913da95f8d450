"""`queenright connect` and `queenright disconnect`: change the settings of a coding agent."""

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
from queenright.cli.connecting.changes import FORMATS, Item, RequiredKey, SettingsConflictError, add
from queenright.cli.connecting.clients import CLIENTS, CodingAgent, TelemetryTarget
from queenright.cli.connecting.errors import AgentSettingsError
from queenright.cli.connecting.files import FileUpdate, RecordStore, plan_connect, plan_disconnect, write
from queenright.cli.errors import UsageError
from queenright.cli.hook import OTLP_URL
from queenright.cli.options import Scope, get_current_user
from queenright.cli.output.text import to_single_line
from queenright.cli.service import connect as connect_service
from queenright.instrumentation.counts import format_count
from queenright.instrumentation.durations import format_duration
from queenright.instrumentation.http_url import http_url
from queenright.instrumentation.redaction import redact
from queenright.server.ops.secret_files import read_secret

_TOKEN_PLACEHOLDER = "<token>"
_MASK_LENGTH = 1000
"""Maximum number of characters that masking of secrets adds to a line."""
_LOOPBACK = ("localhost", "127.0.0.1", "::1")


def find_otlp_url(url: str, token_file: Path | None) -> str:
    """
    Return the address of the telemetry port of the service at ``url``.

    The port is read from the service. If the service is unreachable or refuses the token, it is the default
    port.

    Raises:
        UsageError: ``url`` is https. The service knows only its own port, which serves plain HTTP.
    """
    from queenright.client.errors import RequestRejectedError, UnreachableError

    host, port = urlsplit(url).hostname or "127.0.0.1", urlsplit(OTLP_URL).port
    assert port is not None  # the default address has one
    if urlsplit(url).scheme == "https":
        raise UsageError(
            f"--url {to_single_line(url)!r} is behind a TLS proxy, which can have another telemetry address; "
            f"pass --otlp-url, such as {http_url(host, port).replace('http:', 'https:', 1)}"
        )
    try:
        with connect_service(url, token_file) as service:
            otlp = service.service.settings().settings["otlp"]
    except (RequestRejectedError, UnreachableError):
        pass
    else:
        port = otlp["port"] or port
        if otlp["host"] not in ("0.0.0.0", "::", *_LOOPBACK):
            host = otlp["host"]
    return http_url(host, port)


def resolve_target(
    scope: Scope, otlp_url: str, token_file: Path | None, permission_seconds: int = 0
) -> TelemetryTarget:
    """
    Return where a coding agent sends its telemetry, and with which identity.

    Raises:
        UsageError: The URL is invalid, or the token would be shared with everyone who has the project.
        InvalidSecretError: The token file cannot be read.
    """
    parts = urlsplit(otlp_url)
    try:
        is_url = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError:
        is_url = False
    if not is_url or parts.query or parts.fragment or parts.username is not None:
        raise UsageError(
            f"--otlp-url {to_single_line(otlp_url)!r} is not a URL; use one such as http://127.0.0.1:4318"
        )
    url = otlp_url.rstrip("/")
    if scope is Scope.PROJECT:
        if token_file is not None:
            raise UsageError(
                "--scope project writes settings that are shared with the project, which must not contain a "
                "token; use --scope user"
            )
        return TelemetryTarget(url, ("queenright",), {}, permission_seconds=permission_seconds)
    sibling = Path(sys.executable).with_name("queenright")
    command = str(sibling) if sibling.is_file() else shutil.which("queenright") or "queenright"
    token = ""
    if token_file is not None:
        token_file = token_file.absolute()
        token = read_secret(token_file, setting="--token-file").get_secret_value()
    owner = {"user": get_current_user(), "host": socket.gethostname()}
    return TelemetryTarget(url, (command,), owner, token, token_file, permission_seconds)


def print_settings(name: str, scope: Scope, target: TelemetryTarget) -> None:
    """Print the settings that a client needs, one document per file, with the file names on stderr."""
    for path, requirements in _list_files(CLIENTS[name], scope, target):
        text, _ = add(FORMATS[path.suffix].EMPTY, requirements, path.suffix)
        typer.echo(f"# {path}", err=True)
        typer.echo(_mask_token(text, target.token).strip())
    _print_notes(CLIENTS[name], target)


def connect(name: str, scope: Scope, target: TelemetryTarget, *, yes: bool, replace: bool) -> int:
    """Write the settings of a client; return 1 if they were not written."""
    client, records = CLIENTS[name], _open_records()
    updates, conflicts = [], []
    for path, requirements in _list_files(client, scope, target):
        try:
            updates.append(plan_connect(path, requirements, records, replace=replace))
        except SettingsConflictError as conflict:
            conflicts += [f"{path}: {key} is {_mask_value(key, old)}" for key, old in conflict.values.items()]
            # The difference as --replace would write it.
            updates.append(plan_connect(path, requirements, records, replace=True))
    if not any(update.is_needed for update in updates):
        typer.echo(f"{client.title} is already connected.")
        return 0
    _print_diff(updates, target.token)
    if conflicts:
        for line in conflicts:
            typer.echo(to_single_line(line), err=True)
        typer.echo(
            "Nothing was written. --replace replaces these values, and disconnect restores them.", err=True
        )
        return 1
    if not _confirm_write(yes):
        return 1
    _write_updates(updates, records)
    typer.echo(
        f"{client.title} is connected. Restart `{client.program}`, then run "
        f"`queenright connect {name} --check` to see what arrives."
    )
    _print_notes(client, target)
    return 0


def disconnect(name: str, scope: Scope, *, yes: bool) -> int:
    """Remove what `connect` added; return 1 if it was not removed."""
    client, records = CLIENTS[name], _open_records()
    paths = [path for path, _ in _list_files(client, scope, TelemetryTarget(url="", command=(), owner={}))]
    updates = [update for path in paths if (update := plan_disconnect(path, records)) is not None]
    if not updates:
        typer.echo(f"{client.title} is not connected in {', '.join(map(str, paths))}.")
        return 0
    _print_diff(updates, "")
    if not _confirm_write(yes):
        return 1
    _write_updates(updates, records)
    typer.echo(f"{client.title} is disconnected. Running sessions keep their settings until they end.")
    return 0


def check(name: str, scope: Scope, url: str, token_file: Path | None) -> int:
    """Print what the service received from a client, and what is missing. Return 1 if anything is missing."""
    client, records = CLIENTS[name], _open_records()
    paths = [path for path, _ in _list_files(client, scope, TelemetryTarget(url="", command=(), owner={}))]
    missing = []
    if unwritten_paths := [str(path) for path in paths if records.get(path) is None]:
        missing.append(f"{', '.join(unwritten_paths)}: not written by `queenright connect {name}`")
    with connect_service(url, token_file) as service:
        sessions = [agent for agent in service.agents.list() if agent.framework == client.framework]
        telemetry = service.service.telemetry()
    sessions.sort(key=lambda session: session.last_activity, reverse=True)
    for session in sessions[:5]:
        age_seconds = max(0, int(time.time() - session.last_activity))
        end = session.outcome or session.state
        typer.echo(
            to_single_line(
                f"{session.agent_id} {session.session_id}: {end}, {format_count(session.steps, 'step')}, "
                f"{format_count(session.tool_calls, 'tool call')}, {format_count(session.tokens, 'token')}, "
                f"{format_duration(age_seconds)} ago"
            )
        )
    if len(sessions) > 5:
        typer.echo(f"and {format_count(len(sessions) - 5, 'more session')}")
    if not sessions:
        missing.append(
            f"nothing has arrived from {client.title}: restart `{client.program}` and send a prompt. "
            "If you did, check --otlp-url of `queenright connect` and the service's otlp.port"
        )
    elif not any(session.tool_calls for session in sessions):
        missing.append("no tool call has arrived: let the agent use a tool, then check again")
    missing += _list_missing_telemetry(client, telemetry)
    for line in missing:
        typer.echo(f"missing: {to_single_line(line)}")
    if not missing:
        typer.echo(f"{client.title} is connected, and its telemetry arrives.")
    return 1 if missing else 0


def _list_missing_telemetry(client: CodingAgent, telemetry: Telemetry) -> list[str]:
    """Return what is missing in a client's telemetry, and the hook calls refused since its last record."""
    sources = [source for source in telemetry.sources if source.dialect == client.framework]
    last_seen = max((source.last_seen for source in sources), default=0.0)
    gaps = [f"{part.missing}; {part.remedy}" for source in sources for part in source.missing]
    refusals = [
        f"refused: {format_count(refusal.count, 'request')} to {refusal.path} with {refusal.status}: "
        f"{refusal.reason}"
        for refusal in telemetry.refused
        if refusal.path == f"/hooks/{client.framework}" and refusal.last_seen > last_seen
    ]
    return list(dict.fromkeys(gaps + refusals))


def _list_files(
    client: CodingAgent, scope: Scope, target: TelemetryTarget
) -> list[tuple[Path, Sequence[RequiredKey | Item]]]:
    if scope is Scope.PROJECT and not client.has_project_scope:
        raise UsageError(f"{client.title} ignores telemetry settings of a project; use --scope user")
    if target.permission_seconds and not client.has_permission_hook:
        raise UsageError(
            f"{client.title} has no hook that can answer permission requests; leave out --permission-seconds"
        )
    base = Path.home() if scope is Scope.USER else Path.cwd()
    return [
        (base / client.folder / name, requirements) for name, requirements in client.settings(target).items()
    ]


def _open_records() -> RecordStore:
    return RecordStore(Path.home() / ".queenright" / "connect")


def _print_diff(updates: Sequence[FileUpdate], token: str) -> None:
    for update in updates:
        if update.is_needed:
            typer.echo(_mask_secrets(update.diff(), token), nl=False)


def _confirm_write(yes: bool) -> bool:
    if yes:
        return True
    if not sys.stdin.isatty():
        typer.echo("Nothing was written: without a terminal, pass --yes to write this.", err=True)
        return False
    if typer.confirm("Write this?"):
        return True
    typer.echo("Nothing was written.", err=True)
    return False


def _write_updates(updates: Sequence[FileUpdate], records: RecordStore) -> None:
    written_updates: list[FileUpdate] = []
    for update in updates:
        try:
            write(update, records)
        except AgentSettingsError as error:
            paths = ", ".join(str(change.path) for change in written_updates)
            raise AgentSettingsError(
                f"{error}. Already written: {paths}" if written_updates else str(error)
            ) from None
        written_updates.append(update)


def _print_notes(client: CodingAgent, target: TelemetryTarget) -> None:
    for note in (*client.notes, *(client.token_notes if target.token else ())):
        typer.echo(note, err=True)
    if not target.token and urlsplit(target.url).hostname not in _LOOPBACK:
        typer.echo(
            f"{target.url} is not this machine: its service requires a token, so pass --token-file.", err=True
        )


def _mask_value(key: str, value: object) -> str:
    return "set" if "HEADERS" in key.upper() else redact(repr(value))[:200]


def _mask_secrets(text: str, token: str) -> str:
    """Return text without the token and without secrets of existing settings."""
    lines = _mask_token(text, token).splitlines(keepends=True)
    return "".join(redact(line, limit=len(line) + _MASK_LENGTH) for line in lines)


def _mask_token(text: str, token: str) -> str:
    return text.replace(token, _TOKEN_PLACEHOLDER) if token else text
