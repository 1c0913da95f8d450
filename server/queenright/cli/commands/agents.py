"""Agents that run inside the service: loading, runs, chat, sessions."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Annotated

import typer

from queenright.cli.options import CURRENT_USER, By, EntryPoint, InputText, Json, Limit, Model
from queenright.cli.output.printing import print_list, print_result, to_json_values
from queenright.cli.output.text import fit, format_local_time, to_single_line, truncate
from queenright.cli.service import require_text, with_service
from queenright.cli.terminal.run_options import read_input

if TYPE_CHECKING:
    from queenright.api.loaded_agents import Started
    from queenright.client.synchronous import Queenright

Name = Annotated[str, typer.Argument(help="Agent, as `queenright agents list` shows it.")]
Graph = Annotated[str | None, typer.Option("--graph", metavar="ID", help="Graph of the agent.")]
SessionId = Annotated[str | None, typer.Option("--session", metavar="ID", help="Session of the agent.")]

agents = typer.Typer(no_args_is_help=True)


@agents.command("list", epilog="Example: queenright agents list --json")
@with_service
def list_agents(service: Queenright, as_json: Json = False) -> None:
    """List the loaded agents."""
    rows = service.agents.loaded()
    lines = (f"{fit(a.agent_id, 24)} {a.path}  {truncate(a.description)}" for a in rows)
    print_list(rows, lines, "No agents are loaded.", as_json=as_json)


@agents.command("discover", epilog="Example: queenright agents discover")
@with_service
def discover(service: Queenright, as_json: Json = False) -> None:
    """List the agents that can be loaded: folders below the service's agents.roots."""
    rows = list(service.agents.discover())
    lines = (
        f"{fit(a.name, 24)} {a.path}  {'loaded' if a.loaded else truncate(a.problem or a.description)}"
        for a in rows
    )
    print_list(rows, lines, "No agents below agents.roots.", as_json=as_json)


@agents.command("load", epilog="Example: queenright agents load docs_checker")
@with_service
def load(
    service: Queenright,
    folder: Annotated[
        str, typer.Argument(help="Folder of the agent on the service's machine, or a name from discover.")
    ],
    model: Model = None,
    by: By = CURRENT_USER,
    as_json: Json = False,
) -> None:
    """Load an agent; its code runs inside the service. Exit code 1 if it is not valid."""
    agent = service.agents.load(require_text(folder, "folder"), model=model, by=by)
    for warning in agent.warnings:
        typer.echo(f"queenright: {warning}", err=True)
    text = f"{agent.agent_id} is loaded; its entry point is {agent.default_entry_point}."
    print_result(agent, text, as_json=as_json)


@agents.command("unload", epilog="Example: queenright agents unload docs_checker")
@with_service
def unload(service: Queenright, agent: Name, by: By = CURRENT_USER) -> None:
    """Unload an agent. Its runs are paused and its sessions are kept."""
    service.agents.unload(require_text(agent), by=by)
    typer.echo(f"{agent} is unloaded.")


@agents.command(
    "trigger", epilog='Example: queenright agents trigger docs_checker --input \'{"folder": "docs"}\''
)
@with_service
def trigger(
    service: Queenright,
    agent: Name,
    input_text: InputText = None,
    entry_point: EntryPoint = None,
    graph: Graph = None,
    session: SessionId = None,
    as_json: Json = False,
) -> None:
    """Start a run of a loaded agent without waiting for it."""
    run = service.agents.trigger(
        require_text(agent),
        read_input(input_text) or None,
        entry_point_id=entry_point,
        graph_id=graph,
        session_id=session,
    )
    print_result(run, _describe_run(run), as_json=as_json)


@agents.command("chat", epilog='Example: queenright agents chat secretary "What is left to do?"')
@with_service
def chat(
    service: Queenright,
    agent: Name,
    message: Annotated[str, typer.Argument(help="Message to the agent.")],
    graph: Graph = None,
    session: SessionId = None,
    wait: Annotated[bool, typer.Option(help="Wait for the reply and print it.")] = True,
    timeout: Annotated[
        float | None, typer.Option(min=1, metavar="SECONDS", help="Maximum wait. Default: no limit.")
    ] = None,
    as_json: Json = False,
) -> None:
    """
    Send a message to a loaded agent: to the node that waits for input, otherwise as the input of a new run.

    The reply is everything the agent says until it waits for input again or the run ends. Exit code 1 if the
    run failed or the timeout passed. For a conversation, use `queenright tui`.
    """
    from queenright.api.loaded_agents import Started
    from queenright.cli.agent_reply import get_newest_event_id, time_limit, wait_for_reply

    before = get_newest_event_id(service) if wait else None
    run = service.agents.chat(
        require_text(agent), require_text(message, "message"), graph_id=graph, session_id=session
    )
    text = _describe_run(run) if isinstance(run, Started) else f"Delivered to {run.node_id}."
    if not wait:
        print_result(run, text, as_json=as_json)
        return
    typer.echo(text, err=True)
    with time_limit(timeout):
        reply = wait_for_reply(service, agent, run, before)
    if as_json:
        typer.echo(json.dumps({**to_json_values(run), "reply": reply.text, "ended": reply.end_type}))
    else:
        typer.echo("\n".join(map(to_single_line, reply.text.split("\n"))))
    if reply.has_failed:
        raise typer.Exit(1)


@agents.command("stop", epilog="Example: queenright agents stop docs_checker")
@with_service
def stop(service: Queenright, agent: Name, session: SessionId = None, as_json: Json = False) -> None:
    """Pause the runs of a loaded agent; they can be resumed."""
    run = service.agents.stop(require_text(agent), session_id=session)
    print_result(run, f"Paused: {', '.join(run.executions) or 'no runs'}.", as_json=as_json)


@agents.command(
    "resume", epilog="Example: queenright agents resume docs_checker session_20260124_100000_a30df858"
)
@with_service
def resume(
    service: Queenright,
    agent: Name,
    session: Annotated[str, typer.Argument(help="Session, as `queenright agents sessions` shows it.")],
    as_json: Json = False,
) -> None:
    """Resume the unfinished run of a session."""
    run = service.agents.resume(require_text(agent), require_text(session, "session"))
    print_result(run, _describe_run(run), as_json=as_json)


@agents.command("sessions", epilog="Example: queenright agents sessions docs_checker --json")
@with_service
def sessions(
    service: Queenright, agent: Name, graph: Graph = None, as_json: Json = False, limit: Limit = 20
) -> None:
    """List the sessions of a loaded agent, newest first."""
    rows = list(service.agents.sessions(require_text(agent), graph_id=graph, limit=limit))
    lines = (
        f"{format_local_time(s.created_at)}  {s.status:<10} {s.session_id}  {truncate(s.error)}" for s in rows
    )
    print_list(rows, lines, "No sessions.", as_json=as_json)


def _describe_run(run: Started) -> str:
    session_text = f" in session {run.session_id}" if run.session_id else ""
    return f"Run {run.execution_id} is {run.status}{session_text}."
