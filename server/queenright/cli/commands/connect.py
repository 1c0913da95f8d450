"""`queenright connect`, `disconnect` and `hook`: monitoring of coding agents."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from queenright.cli.hook import CLIENTS, MAX_WAIT_SECONDS, OTLP_URL, forward_call
from queenright.cli.options import Scope, TokenFile, Url, parse_path
from queenright.cli.service import example
from queenright.client.address import LOCAL_URL

Client = StrEnum("Client", {name: name for name in CLIENTS})  # type: ignore[misc]  # built from the names


ClientName = Annotated[Client, typer.Argument(help="Coding agent.")]
ScopeOption = Annotated[
    Scope, typer.Option(help="Settings in your home folder, or of the project in the current folder.")
]
Yes = Annotated[bool, typer.Option("--yes", "-y", help="Write without asking.")]
OtlpUrl = Annotated[
    str, typer.Option("--otlp-url", metavar="URL", help="URL of the service's telemetry port.")
]


@example("connect claude-code")
def connect(
    client: ClientName,
    scope: ScopeOption = Scope.USER,
    yes: Yes = False,
    replace: Annotated[
        bool, typer.Option("--replace", help="Replace settings that have another value.")
    ] = False,
    print_: Annotated[bool, typer.Option("--print", help="Print the settings without writing them.")] = False,
    check: Annotated[
        bool, typer.Option("--check", help="Show what the service has received; write nothing.")
    ] = False,
    otlp_url: Annotated[
        str | None,
        typer.Option(
            "--otlp-url",
            metavar="URL",
            help="URL of the telemetry port. Required if --url is https. Default: as the service reports.",
        ),
    ] = None,
    token_file: Annotated[
        Path | None,
        typer.Option(
            "--token-file",
            parser=parse_path,
            metavar="FILE",
            help="File with the token that the agent sends (reporter), or that --check uses (viewer).",
        ),
    ] = None,
    permission_seconds: Annotated[
        int,
        typer.Option(
            "--permission-seconds",
            min=0,
            max=int(MAX_WAIT_SECONDS),
            help="How long the agent waits for the service to answer a permission request.",
        ),
    ] = 0,
    url: Url = LOCAL_URL,
) -> None:
    """
    Connect a coding agent: add Queenright's telemetry and hooks to its settings.

    Shows the difference before writing and keeps existing settings; `queenright disconnect` restores the
    files. Exit code 1: nothing was written, or --check found something missing.
    """
    if print_ and check:
        raise typer.BadParameter("--print and --check exclude each other; choose one")
    from queenright.cli.connecting import connect as job

    if check:
        raise typer.Exit(job.check(client.value, scope, url, token_file))
    otlp_url = otlp_url or job.find_otlp_url(url, token_file)
    target = job.resolve_target(scope, otlp_url, token_file, permission_seconds)
    if print_:
        job.print_settings(client.value, scope, target)
        return
    raise typer.Exit(job.connect(client.value, scope, target, yes=yes, replace=replace))


@example("disconnect claude-code")
def disconnect(client: ClientName, scope: ScopeOption = Scope.USER, yes: Yes = False) -> None:
    """
    Disconnect a coding agent: restore its settings as they were before `connect`.

    If you changed them since, only what `connect` added is removed.
    """
    from queenright.cli.connecting import connect as job

    raise typer.Exit(job.disconnect(client.value, scope, yes=yes))


@example("hook codex --otlp-url http://127.0.0.1:4318")
def hook(
    client: ClientName,
    otlp_url: OtlpUrl = OTLP_URL,
    token_file: TokenFile = None,
    wait: Annotated[
        float,
        typer.Option(
            min=0,
            max=MAX_WAIT_SECONDS,
            help="Seconds to wait for an operator to answer a permission request.",
        ),
    ] = 0,
) -> None:
    """
    Pass a hook call of a coding agent to the service, and print the answer.

    Coding agents run it with the call as JSON on stdin. It always exits with code 0 within a second, so an
    unavailable service never blocks an agent. With --wait, a service that responds may delay its answer to a
    permission request.
    """
    # `queenright hook` skips the parser and does not get here; `python -m queenright.cli.app hook` does.
    file = ["--token-file", str(token_file)] if token_file else []
    forward_call([client.value, "--otlp-url", otlp_url, "--wait", str(wait), *file])
