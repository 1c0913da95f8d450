"""`queenright connect`, `disconnect` and `hook`: coding agents that are watched."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from queenright.cli.hook import CLIENTS, LONGEST_WAIT, OTLP_URL, pass_on
from queenright.cli.options import path
from queenright.cli.service import LOCAL, TokenFile, Url

Client = StrEnum("Client", {name: name for name in CLIENTS})  # type: ignore[misc]  # made of the names


class Scope(StrEnum):
    """Whose settings are written."""

    USER = "user"
    PROJECT = "project"


Name = Annotated[Client, typer.Argument(help="The coding agent.")]
ScopeOption = Annotated[
    Scope, typer.Option(help="The settings of your home folder, or of the project in this folder.")
]
Yes = Annotated[bool, typer.Option("--yes", "-y", help="Do not ask before writing.")]
OtlpUrl = Annotated[str, typer.Option("--otlp-url", metavar="URL", help="The telemetry port of the service.")]


def connect(
    client: Name,
    scope: ScopeOption = Scope.USER,
    yes: Yes = False,
    replace: Annotated[
        bool, typer.Option("--replace", help="Replace settings that have another value; see the difference.")
    ] = False,
    print_: Annotated[bool, typer.Option("--print", help="Print the settings, and write nothing.")] = False,
    check: Annotated[
        bool, typer.Option("--check", help="Ask the service what has arrived, and write nothing.")
    ] = False,
    otlp_url: OtlpUrl = OTLP_URL,
    token_file: Annotated[
        Path | None,
        typer.Option(
            "--token-file",
            parser=path,
            metavar="FILE",
            help="File with the token that the agent sends (role reporter), or --check asks with (viewer).",
        ),
    ] = None,
    permission_seconds: Annotated[
        int,
        typer.Option(
            "--permission-seconds",
            min=0,
            max=int(LONGEST_WAIT),
            help="Let the agent wait so long for an answer of the service to a permission request.",
        ),
    ] = 0,
    url: Url = LOCAL,
) -> None:
    """
    Connect a coding agent: its settings get the telemetry and hooks that Queenright needs.

    The difference is shown before anything is written, what is there stays, and `queenright disconnect`
    puts the files back as they were. Exit code 1: nothing was written, or --check found something missing.
    """
    if print_ and check:
        raise typer.BadParameter("--print and --check exclude each other; choose one")
    from queenright.cli.connecting import connect as connect_job

    if check:
        raise typer.Exit(connect_job.check(client.value, scope, url, token_file))
    service = connect_job.service_of(scope, otlp_url, token_file, permission_seconds)
    if print_:
        connect_job.print_settings(client.value, scope, service)
        return
    raise typer.Exit(connect_job.connect(client.value, scope, service, yes=yes, replace=replace))


def disconnect(client: Name, scope: ScopeOption = Scope.USER, yes: Yes = False) -> None:
    """
    Disconnect a coding agent: its settings are as they were before `queenright connect`.

    If you changed them since, only what was added is removed.
    """
    from queenright.cli.connecting import connect as connect_job

    raise typer.Exit(connect_job.disconnect(client.value, scope, yes=yes))


def hook(
    client: Name,
    otlp_url: OtlpUrl = OTLP_URL,
    token_file: TokenFile = None,
    wait: Annotated[
        float,
        typer.Option(
            min=0, max=LONGEST_WAIT, help="Seconds to wait for a person's answer to a permission request."
        ),
    ] = 0,
) -> None:
    """
    Pass a hook call of a coding agent to the service, and print the answer.

    Coding agents run it, with the call as JSON on standard input. It ends within a second with exit code 0,
    whatever happens: a service that is away never holds up an agent. With --wait, a service that is there
    may hold back the answer to a permission request for so long.
    """
    # The program itself does not come here, but `python -m queenright.cli.main hook` does.
    file = ["--token-file", str(token_file)] if token_file else []
    pass_on([client.value, "--otlp-url", otlp_url, "--wait", str(wait), *file])
