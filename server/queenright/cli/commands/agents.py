"""Agents that run inside a service: which can be loaded, loading them, talking with them, their sessions."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from queenright.cli.service import (
    LOCAL,
    WHO,
    By,
    Json,
    Many,
    TokenFile,
    Url,
    clock,
    connect,
    cut,
    named,
    on_one_line,
    short,
    tell,
    tell_all,
    values,
)

if TYPE_CHECKING:
    from queenright.api.loaded import Started

Name = Annotated[str, typer.Argument(help="The agent, as `queenright agents list` shows it.")]
Graph = Annotated[str | None, typer.Option("--graph", metavar="ID", help="Which of its graphs.")]
SessionId = Annotated[str | None, typer.Option("--session", metavar="ID", help="In this session.")]

agents = typer.Typer(
    help="Agents that run inside the service: load them, talk with them.", no_args_is_help=True
)


@agents.command("list", epilog="Example: queenright agents list --json")
def list_agents(as_json: Json = False, url: Url = LOCAL, token_file: TokenFile = None) -> None:
    """List the agents that are loaded."""
    with connect(url, token_file) as service:
        found = service.agents.loaded()
    lines = (f"{cut(a.agent_id, 24)} {a.path}  {short(a.description)}" for a in found)
    tell_all(found, lines, "No agents are loaded.", as_json=as_json)


@agents.command("discover", epilog="Example: queenright agents discover")
def discover(as_json: Json = False, url: Url = LOCAL, token_file: TokenFile = None) -> None:
    """List the agents that can be loaded: folders below the service's agents.roots."""
    with connect(url, token_file) as service:
        found = list(service.agents.discover())
    lines = (
        f"{cut(a.name, 24)} {a.path}  {'loaded' if a.loaded else short(a.problem or a.description)}"
        for a in found
    )
    tell_all(found, lines, "No agents below the roots.", as_json=as_json)


@agents.command("load", epilog="Example: queenright agents load docs_checker")
def load(
    folder: Annotated[
        str, typer.Argument(help="Its folder, as the service sees it, or as discover shows it.")
    ],
    model: Annotated[
        str | None, typer.Option(help="litellm model, or scripted:FILE, in place of the agent's own.")
    ] = None,
    by: By = WHO,
    as_json: Json = False,
    url: Url = LOCAL,
    token_file: TokenFile = None,
) -> None:
    """Load an agent: its code runs inside the service. Exit code 1 if it cannot work."""
    with connect(url, token_file) as service:
        done = service.agents.load(named(folder, "folder"), model=model, by=by)
    for warning in done.warnings:
        typer.echo(f"queenright: {warning}", err=True)
    tell(done, f"{done.agent_id} is loaded; it begins at {done.default_entry_point}.", as_json=as_json)


@agents.command("unload", epilog="Example: queenright agents unload docs_checker")
def unload(agent: Name, by: By = WHO, url: Url = LOCAL, token_file: TokenFile = None) -> None:
    """Unload an agent: its runs are paused, its sessions stay."""
    with connect(url, token_file) as service:
        service.agents.unload(named(agent), by=by)
    typer.echo(f"{agent} is unloaded.")


@agents.command(
    "trigger", epilog='Example: queenright agents trigger docs_checker --input \'{"folder": "docs"}\''
)
def trigger(
    agent: Name,
    input_text: Annotated[
        str | None, typer.Option("--input", metavar="JSON|@FILE", help="What the run is given: an object.")
    ] = None,
    entry_point: Annotated[
        str | None, typer.Option(metavar="ID", help="Where to begin; its first manual entry point.")
    ] = None,
    graph: Graph = None,
    session: SessionId = None,
    as_json: Json = False,
    url: Url = LOCAL,
    token_file: TokenFile = None,
) -> None:
    """Start a run of a loaded agent, and return at once."""
    given = _object(input_text)
    with connect(url, token_file) as service:
        done = service.agents.trigger(
            named(agent), given, entry_point_id=entry_point, graph_id=graph, session_id=session
        )
    tell(done, _begun(done), as_json=as_json)


@agents.command("chat", epilog='Example: queenright agents chat secretary "What is left to do?"')
def chat(
    agent: Name,
    message: Annotated[str, typer.Argument(help="What is said.")],
    graph: Graph = None,
    session: SessionId = None,
    wait: Annotated[bool, typer.Option(help="Wait for what it answers, and print that.")] = True,
    timeout: Annotated[
        float | None,
        typer.Option(min=1, metavar="SECONDS", help="How long to wait; else until it answers."),
    ] = None,
    as_json: Json = False,
    url: Url = LOCAL,
    token_file: TokenFile = None,
) -> None:
    """
    Say something to a loaded agent: a node that waits for it gets it, else a run begins with it.

    It prints the answer: all that the agent says until it waits for you again, or its run is over. Exit code
    1 if the run failed, or nothing came before the timeout. To talk at length: `queenright tui`.
    """
    from queenright.api.loaded import Started
    from queenright.cli.agent_reply import newest_event, time_limit, wait_for_reply

    with connect(url, token_file) as service:
        before = newest_event(service) if wait else None
        done = service.agents.chat(
            named(agent), named(message, "message"), graph_id=graph, session_id=session
        )
        words = _begun(done) if isinstance(done, Started) else f"{done.node_id} has it."
        if not wait:
            tell(done, words, as_json=as_json)
            return
        typer.echo(words, err=True)
        with time_limit(timeout):
            reply = wait_for_reply(service, agent, done, before)
    if as_json:
        typer.echo(json.dumps({**values(done), "reply": reply.text, "ended": reply.ended}))
    else:
        typer.echo("\n".join(map(on_one_line, reply.text.split("\n"))))
    if reply.failed:
        raise typer.Exit(1)


@agents.command("stop", epilog="Example: queenright agents stop docs_checker")
def stop(
    agent: Name,
    session: SessionId = None,
    as_json: Json = False,
    url: Url = LOCAL,
    token_file: TokenFile = None,
) -> None:
    """Pause the runs of a loaded agent; they can be resumed."""
    with connect(url, token_file) as service:
        done = service.agents.stop(named(agent), session_id=session)
    tell(done, f"Paused: {', '.join(done.executions) or 'nothing ran'}.", as_json=as_json)


@agents.command(
    "resume", epilog="Example: queenright agents resume docs_checker session_20260124_100000_a30df858"
)
def resume(
    agent: Name,
    session: Annotated[str, typer.Argument(help="Which session, as `queenright agents sessions` shows it.")],
    as_json: Json = False,
    url: Url = LOCAL,
    token_file: TokenFile = None,
) -> None:
    """Go on with what a session left unfinished."""
    with connect(url, token_file) as service:
        done = service.agents.resume(named(agent), named(session, "session"))
    tell(done, _begun(done), as_json=as_json)


@agents.command("sessions", epilog="Example: queenright agents sessions docs_checker --json")
def sessions(
    agent: Name,
    graph: Graph = None,
    as_json: Json = False,
    limit: Many = 20,
    url: Url = LOCAL,
    token_file: TokenFile = None,
) -> None:
    """List the sessions of a loaded agent, newest first."""
    with connect(url, token_file) as service:
        found = list(service.agents.sessions(named(agent), graph_id=graph, limit=limit))
    lines = (f"{clock(s.created_at)}  {s.status:<10} {s.session_id}  {short(s.error)}" for s in found)
    tell_all(found, lines, "No sessions.", as_json=as_json)


def _begun(done: Started) -> str:
    where = f" in {done.session_id}" if done.session_id else ""
    if done.status == "queued":
        return f"Run {done.execution_id} waits for its turn{where}."
    return f"Run {done.execution_id} has {done.status}{where}."


def _object(text: str | None) -> dict[str, Any] | None:
    """Return what a run is given; None for nothing."""
    if text is None:
        return None
    try:
        found = json.loads(Path(text[1:]).read_text("utf-8") if text.startswith("@") else text)
    except OSError as error:
        raise typer.BadParameter(f"--input: {text[1:]} cannot be read ({error.strerror})") from None
    except ValueError as error:
        raise typer.BadParameter(f"--input is no JSON: {error}") from None
    if not isinstance(found, dict):
        raise typer.BadParameter('--input is no object; say it like {"folder": "docs"}')
    return found
