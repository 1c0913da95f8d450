"""Options that several commands have."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer


def path(text: str) -> Path:
    """Return a path; an empty one is a script's unset variable, and not the current folder."""
    if not text.strip():
        raise typer.BadParameter("it is empty; name a path, or leave the option out")
    return Path(text)


Config = Annotated[
    Path | None,
    typer.Option(
        "--config",
        "-c",
        parser=path,
        metavar="PATH",
        help="Settings file; queenright.yaml if there is one.",
    ),
]
Storage = Annotated[
    Path | None,
    typer.Option(
        parser=path, metavar="PATH", help="Folder of the database and logs; .queenright by default."
    ),
]
SessionStorage = Annotated[
    Path | None,
    typer.Option(
        "--storage",
        parser=path,
        metavar="PATH",
        help="Folder of its sessions; ~/.queenright/agents/NAME by default.",
    ),
]
PortOption = Annotated[int | None, typer.Option("--port", help="Port of the API and status page (8420).")]
OtlpPort = Annotated[int | None, typer.Option(help="Port that agents send telemetry to (4318).")]
Forward = Annotated[
    str | None,
    typer.Option("--otlp-forward", metavar="URL", help="Pass all telemetry on to this OTLP/HTTP URL."),
]
Json = Annotated[bool, typer.Option("--json", help="Print JSON.")]


def settings_arguments(
    storage: Path | None = None,
    port: int | None = None,
    otlp_port: int | None = None,
    forward: str | None = None,
    host: str | None = None,
) -> dict[str, Any]:
    """Nest what was said on the command line like the settings."""
    http = {key: value for key, value in (("port", port), ("host", host)) if value is not None}
    otlp = {
        key: value
        for key, value in (("port", otlp_port), ("forward", forward), ("host", host))
        if value is not None
    }
    found = {"storage": storage, "http": http or None, "otlp": otlp or None}
    return {key: value for key, value in found.items() if value is not None}
