"""Commands that act on workers through a running service, and show what was done."""

from __future__ import annotations

import contextlib
import json
import os
import pwd
import shlex
import time
from collections.abc import Mapping, Sequence
from enum import StrEnum
from typing import Annotated, Any

import typer

Json = Annotated[bool, typer.Option("--json", help="Print JSON.")]
Url = Annotated[str, typer.Option(help="Where the service is.")]
By = Annotated[str, typer.Option(help="Who asks; it is kept in the audit trail. You, without.")]
Session = Annotated[
    str | None, typer.Option("--session", metavar="ID", help="Which session; the one at work, without.")
]
Agent = Annotated[str, typer.Argument(help="The worker, as `queenright list` shows it.")]
Reason = Annotated[str, typer.Option(help="Why; it is kept in the audit trail.")]
Many = Annotated[int, typer.Option("--limit", min=1, max=1000, help="So many at most, the newest.")]
All = Annotated[bool, typer.Option("--all", help="Those with an answer too.")]
OnlyOpen = Annotated[bool, typer.Option("--open", help="Only those that are not closed.")]

LOCAL = "http://127.0.0.1:8420"


def login() -> str:
    """Return who runs this: what the environment says, else the system."""
    with contextlib.suppress(KeyError):
        return os.environ.get("USER") or os.environ.get("LOGNAME") or pwd.getpwuid(os.getuid()).pw_name
    return "operator"


WHO = login()

escalations = typer.Typer(help="Questions to the orchestrator, and their answers.")
breakers = typer.Typer(help="Circuit breakers of workers' calls.")


def cut(text: str, width: int) -> str:
    """Return a text as a column of a list: filled up, or cut with an ellipsis, to ``width`` characters."""
    return (text if len(text) <= width else f"{text[: width - 1]}…").ljust(width)


class Decision(StrEnum):
    """What can be decided about a worker."""

    MORE_TIME = "more_time"
    HAND_OFF = "hand_off"
    TERMINATE = "terminate"


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
) -> None:
    """Put a message into a worker's context. Exit code 1 if it does not get there."""
    if message is not None and not message.strip():
        raise typer.BadParameter("the message is blank; say something, or leave --message out")
    body = {"message": message, "session_id": session, "by": by}
    done = _do(url, f"/api/agents/{_segment(agent)}/nudge", body)
    words = {"done": "It is in its context.", "queued": "It waits for the worker to fetch it."}
    _tell(done, as_json, words.get(done["outcome"]) or _became(done))
    raise typer.Exit(0 if done["delivered"] else 1)


def terminate(
    agent: Agent,
    reason: Reason,
    session: Session = None,
    by: By = WHO,
    as_json: Json = False,
    url: Url = LOCAL,
) -> None:
    """Stop a worker: its state is saved, and it is not brought back by itself. Exit code 1 if it goes on."""
    body = {"reason": reason, "session_id": session, "by": by}
    done = _do(url, f"/api/agents/{_segment(agent)}/terminate", body)
    saved = f" Its state is in {done['checkpoint_id']}." if done["checkpoint_id"] else ""
    words = f"It has stopped.{saved}" if done["terminated"] else _became(done)
    if done["outcome"] == "unconfirmed" and not as_json:
        task = shlex.quote(_task(url, agent, done["session_id"]))
        words += f"\nEnd its process yourself, then: queenright recover {task} (it says from when on)"
    _tell(done, as_json, words)
    raise typer.Exit(0 if done["terminated"] else 1)


def _task(url: str, agent: str, session: str) -> str:
    """Return what a worker is about, by its name."""
    health = _ask(url, f"/api/agents/{_segment(agent)}/health?session_id={_segment(session)}")
    return str(health["task_id"])


def recover(
    task: Annotated[str, typer.Argument(help="The task; a session's id where it has no name of its own.")],
    reviewed: Annotated[
        bool,
        typer.Option(
            "--reviewed",
            help="You have looked at why it fails: one try beyond its limit. It is kept in the audit trail.",
        ),
    ] = False,
    by: By = WHO,
    as_json: Json = False,
    url: Url = LOCAL,
) -> None:
    """Bring a task back from its last valid checkpoint, within the limits. Exit code 1 if it is refused."""
    done = _do(url, "/api/recoveries", {"task_id": task, "by": by, "reviewed": reviewed})
    wait = max(0.0, (done.get("not_before") or 0.0) - time.time())
    when = f" in {wait:.0f} s" if wait >= 1 else ""
    words = f"Attempt {done.get('attempt')} begins{when}." if done["accepted"] else f"No: {done['reason']}"
    _tell(done, as_json, words)
    raise typer.Exit(0 if done["accepted"] else 1)


def recoveries(as_json: Json = False, limit: Many = 20, url: Url = LOCAL) -> None:
    """List recoveries, newest first."""
    found = _ask(url, f"/api/recoveries?limit={limit}")["recoveries"]
    lines = [
        f"{_clock(r['created_at'])}  {r['state']:<10} {cut(r['agent_id'], 24)} {_attempt(r)}  "
        f"{r['task_id']}  {_short(r['outcome'] or r['reason'])}"
        for r in found
    ]
    _list(found, as_json, lines, "No recoveries.")


def _attempt(recovery: Mapping[str, Any]) -> str:
    """Return which attempt it was, and whether from the start of its task; "no attempt" if none was made."""
    attempt = f"attempt {recovery['attempt']}" if recovery["attempt"] else "no attempt"
    return f"{attempt} from the start" if recovery.get("from_start") else attempt


def interventions(
    agent: Annotated[str | None, typer.Option(help="Of this worker only.")] = None,
    as_json: Json = False,
    limit: Many = 20,
    url: Url = LOCAL,
) -> None:
    """List what was done to workers, refused, or would have been done; newest first."""
    of = f"&agent_id={_segment(agent)}" if agent else ""
    found = _ask(url, f"/api/interventions?limit={limit}{of}")["interventions"]
    lines = [
        f"{_clock(i['created_at'])}  {i['kind']:<9} {i['outcome']:<12} {cut(i['agent_id'], 24)} "
        f"by {i['by']}: {_short(i['detail'] or i['reason'])}"
        for i in found
    ]
    _list(found, as_json, lines, "No interventions.")


def stop_acting(
    switch: Annotated[
        Switch, typer.Argument(help="on: freeze all acting; off: let it go on; status: how it is.")
    ],
    reason: Annotated[str, typer.Option(help="Why; it is kept in the audit trail. Needed for on.")] = "",
    by: By = WHO,
    as_json: Json = False,
    url: Url = LOCAL,
) -> None:
    """The emergency stop: nothing is done to any worker. Detecting, judging and paging go on."""
    if switch is Switch.STATUS:
        state = _ask(url, "/api/emergency-stop")
        _tell(state, as_json, _stop_in_words(state))
        return
    if switch is Switch.ON and not reason.strip():
        raise typer.BadParameter("say with --reason why nothing may be done to any worker")
    body = {"on": switch is Switch.ON, "reason": reason.strip() or "released", "by": by}
    state = _do(url, "/api/emergency-stop", body, method="PUT")
    _tell(
        state,
        as_json,
        "Acting is frozen." if state["on"] else "Acting goes on; every wait goes on where it was.",
    )


def _stop_in_words(state: Mapping[str, Any]) -> str:
    if not state["on"]:
        return "The emergency stop is off."
    since = f" since {_clock(state['changed_at'])}" if state["changed_at"] is not None else ""
    return f"Acting is frozen{since} by {state['by']}: {state['reason']}."


@escalations.callback(invoke_without_command=True, epilog="Example: queenright escalations --json")
def escalations_(
    context: typer.Context, all_: All = False, as_json: Json = False, limit: Many = 20, url: Url = LOCAL
) -> None:
    """Questions to the orchestrator, and their answers."""
    if context.invoked_subcommand is None:
        list_escalations(all_, as_json, limit, url)
    else:
        refuse_options(context.invoked_subcommand, all_ or as_json or limit != 20 or url != LOCAL)


@escalations.command("list", epilog="Example: queenright escalations list --all")
def list_escalations(all_: All = False, as_json: Json = False, limit: Many = 20, url: Url = LOCAL) -> None:
    """List escalations that wait for a decision."""
    only = "" if all_ else "&open=true"
    found = _ask(url, f"/api/escalations?limit={limit}{only}")["escalations"]
    acting = {} if as_json else say_brakes(url)
    frozen = acting.get("emergency_stop", {}).get("on", False)
    lines = []
    for e in found:
        pending = _left(e["deadline"] - time.time(), frozen=frozen)
        state = pending if e["status"] == "pending" else e["decision"] or e["status"]
        lines.append(f"{e['escalation_id']}  {state:<14} {cut(e['agent_id'], 24)} {_short(e['reason'])}")
    _list(found, as_json, lines, "No escalations." if all_ else "Nothing waits for a decision.")


@escalations.command("decide", epilog="Example: queenright escalations decide 01J... more_time --minutes 30")
def decide(
    escalation: Annotated[str, typer.Argument(help="Its id.")],
    decision: Annotated[Decision, typer.Argument(help="What is to become of the worker.")],
    reason: Annotated[str, typer.Option(help="Why; it is kept in the audit trail.")] = "",
    minutes: Annotated[
        float | None, typer.Option(min=0.1, max=10_080, help="How much more time; by settings, without.")
    ] = None,
    by: By = WHO,
    as_json: Json = False,
    url: Url = LOCAL,
) -> None:
    """Answer an escalation."""
    if minutes is not None and decision is not Decision.MORE_TIME:
        raise typer.BadParameter(f"--minutes is for more_time, not for {decision.value}")
    body = {
        "decision": decision.value,
        "reason": reason,
        "by": by,
        "more_time_seconds": minutes * 60 if minutes is not None else None,
    }
    done = _do(url, f"/api/escalations/{_segment(escalation)}/decision", body)
    _tell(done, as_json, f"{done['agent_id']}: {decision.value.replace('_', ' ')}.")


def _left(seconds: float, *, frozen: bool) -> str:
    if frozen:
        return "frozen"
    if seconds <= 0:
        return "waits its turn"
    return f"{seconds:.0f} s left" if seconds < 90 else f"{seconds / 60:.0f} min left"


@breakers.callback(invoke_without_command=True, epilog="Example: queenright breakers --json")
def breakers_(
    context: typer.Context, only_open: OnlyOpen = False, as_json: Json = False, url: Url = LOCAL
) -> None:
    """Circuit breakers of workers' calls."""
    if context.invoked_subcommand is None:
        list_breakers(only_open, as_json, url)
    else:
        refuse_options(context.invoked_subcommand, only_open or as_json or url != LOCAL)


@breakers.command("list", epilog="Example: queenright breakers list --open")
def list_breakers(only_open: OnlyOpen = False, as_json: Json = False, url: Url = LOCAL) -> None:
    """List circuit breakers, those that are not closed first."""
    from queenright.cli.ask import ask_all

    found = ask_all(url, "/api/breakers?open=true" if only_open else "/api/breakers", "breakers")
    found.sort(key=lambda b: b["state"] == "closed")
    lines = []
    for b in found:
        left = max(0.0, b["half_open_at"] - time.time()) if b["half_open_at"] else 0.0
        when = f"half open in {left:.0f} s  " if b["state"] == "open" else ""
        count = f"{b['failures']}/{b['threshold']}"
        lines.append(f"{b['state']:<10} {count:>6}  {b['name']:<40} {when}{_short(b['reason'])}")
    _list(found, as_json, lines, "No circuit breaker is open." if only_open else "No circuit breakers.")


@breakers.command("reset", epilog="Example: queenright breakers reset tool_execution:researcher:search")
def reset(
    name: Annotated[str, typer.Argument(help="Its name, as `queenright breakers list` shows it.")],
    by: By = WHO,
    as_json: Json = False,
    url: Url = LOCAL,
) -> None:
    """Close a circuit breaker by hand; the next calls pass."""
    done = _do(url, f"/api/breakers/{_segment(name)}/reset", {"by": by})
    _tell(done, as_json, f"{done['name']} is {done['state']}.")


def refuse_options(command: str, given: bool) -> None:
    """
    Refuse options before a subcommand.

    They would be lost: what is done might be done at another service than the one that is named.
    """
    if given:
        raise typer.BadParameter(f"options go behind `{command}`")


def say_brakes(url: str) -> dict[str, Any]:
    """Say on stderr why less is done than is due, if it is; return how acting stands."""
    acting: dict[str, Any] = _ask(url, "/api/status")["acting"]
    for brake in acting.get("brakes", ()):
        typer.echo(brake, err=True)
    return acting


def _ask(url: str, path: str) -> dict[str, Any]:
    from queenright.cli.ask import ask

    return ask(url, path)


def _do(url: str, path: str, body: Mapping[str, Any], *, method: str = "POST") -> dict[str, Any]:
    from queenright.cli.ask import ask

    return ask(url, path, method=method, body=body)


def _segment(name: str) -> str:
    from queenright.cli.ask import segment

    if not name.strip():
        # A script's unset variable; the path would be another one without it.
        raise typer.BadParameter("the name is empty")
    return segment(name)


def _tell(done: Mapping[str, Any], as_json: bool, words: str) -> None:
    typer.echo(json.dumps(done, indent=2) if as_json else words)


def _list(found: Sequence[Any], as_json: bool, lines: Sequence[str], none: str) -> None:
    if as_json:
        typer.echo(json.dumps(found, indent=2))
        return
    for line in lines or [none]:
        typer.echo(line.rstrip())


def _became(done: Mapping[str, Any]) -> str:
    if done["outcome"] == "dry_run":
        return "Dry run: it is written down, and nothing was done."
    return f"{done['outcome'].capitalize()}: {done['detail']}"


def _clock(moment: float) -> str:
    return time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(moment))


def _short(text: str) -> str:
    line = " ".join(text.split())
    return line if len(line) <= 100 else f"{line[:99]}…"
