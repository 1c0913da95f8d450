"""Commands that act on workers through a running service, and show what was done."""

from __future__ import annotations

import shlex
import time
from enum import StrEnum
from typing import TYPE_CHECKING, Annotated

import typer

from queenright.cli.service import (
    LOCAL,
    WHO,
    Agent,
    By,
    Json,
    Many,
    Reason,
    Session,
    TokenFile,
    Url,
    clock,
    connect,
    cut,
    named,
    short,
    tell,
    tell_all,
)

if TYPE_CHECKING:
    from queenright.api.acting import EmergencyStop, NudgeResult, TerminationResult
    from queenright.api.recoveries import Recovery
    from queenright.client.synchronous.client import Queenright


class Switch(StrEnum):
    """How the emergency stop is set, or whether it is."""

    ON = "on"
    OFF = "off"
    STATUS = "status"


def nudge(
    agent: Agent,
    message: Annotated[str | None, typer.Option(help="What it is told; the usual reminder, without.")] = None,
    session: Session = None,
    by: By = WHO,
    as_json: Json = False,
    url: Url = LOCAL,
    token_file: TokenFile = None,
) -> None:
    """Put a message into a worker's context. Exit code 1 if it does not get there."""
    named(agent)
    if message is not None and not message.strip():
        raise typer.BadParameter("the message is blank; say something, or leave --message out")
    with connect(url, token_file) as service:
        done = service.agents.nudge(agent, message, session_id=session, by=by)
    words = {"done": "It is in its context.", "queued": "It waits for the worker to fetch it."}
    tell(done, words.get(done.outcome) or _became(done), as_json=as_json)
    raise typer.Exit(0 if done.delivered else 1)


def terminate(
    agent: Agent,
    reason: Reason,
    session: Session = None,
    by: By = WHO,
    as_json: Json = False,
    url: Url = LOCAL,
    token_file: TokenFile = None,
) -> None:
    """Stop a worker: its state is saved, and it is not brought back by itself. Exit code 1 if it goes on."""
    named(agent)
    with connect(url, token_file) as service:
        done = service.agents.terminate(agent, reason, session_id=session, by=by)
        saved = f" Its state is in {done.checkpoint_id}." if done.checkpoint_id else ""
        words = f"It has stopped.{saved}" if done.terminated else _became(done)
        if done.outcome == "unconfirmed" and not as_json:
            task = shlex.quote(_task(service, agent, done.session_id))
            words += f"\nEnd its process yourself, then: queenright recover {task} (it says from when on)"
    tell(done, words, as_json=as_json)
    raise typer.Exit(0 if done.terminated else 1)


def _task(service: Queenright, agent: str, session: str) -> str:
    """Return what a worker is about, by its name."""
    return service.agents.health(agent, session_id=session).task_id


def recover(
    task: Annotated[str, typer.Argument(help="The task; a session's id where it has no name of its own.")],
    reviewed: Annotated[
        bool,
        typer.Option(
            "--reviewed",
            help="You have looked at why it fails: one try beyond its limit. It is kept in the audit trail.",
        ),
    ] = False,
    from_start: Annotated[
        bool,
        typer.Option(
            "--from-start",
            help="Without a valid checkpoint begin again, and repeat what it did. Kept in the audit trail.",
        ),
    ] = False,
    by: By = WHO,
    as_json: Json = False,
    url: Url = LOCAL,
    token_file: TokenFile = None,
) -> None:
    """Bring a task back from its last valid checkpoint, within the limits. Exit code 1 if it is refused."""
    with connect(url, token_file) as service:
        done = service.recoveries.recover(task, by=by, reviewed=reviewed, from_start=from_start)
    wait = max(0.0, (done.not_before or 0.0) - time.time())
    when = f" in {wait:.0f} s" if wait >= 1 else ""
    words = f"Attempt {done.attempt} begins{when}." if done.accepted else f"No: {done.reason}"
    tell(done, words, as_json=as_json)
    raise typer.Exit(0 if done.accepted else 1)


def recoveries(
    as_json: Json = False, limit: Many = 20, url: Url = LOCAL, token_file: TokenFile = None
) -> None:
    """List recoveries, newest first."""
    with connect(url, token_file) as service:
        found = list(service.recoveries.list(limit=limit))
    lines = (
        f"{clock(r.created_at)}  {r.state:<10} {cut(r.agent_id, 24)} {_attempt(r)}  "
        f"{r.task_id}  {short(r.outcome or r.reason)}"
        for r in found
    )
    tell_all(found, lines, "No recoveries.", as_json=as_json)


def _attempt(recovery: Recovery) -> str:
    """Return which attempt it was, and whether from the start of its task; "no attempt" if none was made."""
    attempt = f"attempt {recovery.attempt}" if recovery.attempt else "no attempt"
    return f"{attempt} from the start" if recovery.from_start else attempt


def interventions(
    agent: Annotated[str | None, typer.Option(help="Of this worker only.")] = None,
    as_json: Json = False,
    limit: Many = 20,
    url: Url = LOCAL,
    token_file: TokenFile = None,
) -> None:
    """List what was done to workers, refused, or would have been done; newest first."""
    if agent is not None:
        named(agent)
    with connect(url, token_file) as service:
        found = list(service.interventions.list(agent_id=agent, limit=limit))
    lines = (
        f"{clock(i.created_at)}  {i.kind:<9} {i.outcome:<12} {cut(i.agent_id, 24)} "
        f"by {i.by}: {short(i.detail or i.reason)}"
        for i in found
    )
    tell_all(found, lines, "No interventions.", as_json=as_json)


def stop_acting(
    switch: Annotated[
        Switch, typer.Argument(help="on: freeze all acting; off: let it go on; status: how it is.")
    ],
    reason: Annotated[str, typer.Option(help="Why; it is kept in the audit trail. Needed for on.")] = "",
    by: By = WHO,
    as_json: Json = False,
    url: Url = LOCAL,
    token_file: TokenFile = None,
) -> None:
    """The emergency stop: nothing is done to any worker. Detecting, judging and paging go on."""
    if switch is Switch.ON and not reason.strip():
        raise typer.BadParameter("say with --reason why nothing may be done to any worker")
    with connect(url, token_file) as service:
        if switch is Switch.STATUS:
            state = service.service.emergency_stop()
            tell(state, _stop_in_words(state), as_json=as_json)
            return
        why = reason.strip() or "released"
        state = service.service.set_emergency_stop(switch is Switch.ON, why, by=by)
    words = "Acting is frozen." if state.on else "Acting goes on; every wait goes on where it was."
    tell(state, words, as_json=as_json)


def _stop_in_words(state: EmergencyStop) -> str:
    if not state.on:
        return "The emergency stop is off."
    since = f" since {clock(state.changed_at)}" if state.changed_at is not None else ""
    return f"Acting is frozen{since} by {state.by}: {state.reason}."


def _became(done: NudgeResult | TerminationResult) -> str:
    if done.outcome == "dry_run":
        return "Dry run: it is written down, and nothing was done."
    return f"{done.outcome.capitalize()}: {done.detail}"
