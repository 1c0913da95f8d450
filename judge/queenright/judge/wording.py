"""
What judge and queen say by rule, for a person who reads it on a phone.

Three sentences: what is seen, by whom and since when; why it matters now; what to do. Every kind of
finding has its own.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime
from shlex import quote
from typing import Final

from queenright.health.findings import FindingKind
from queenright.instrumentation.durations import format_duration

_CLIP: Final = 240


@dataclass(frozen=True, slots=True)
class _Words:
    seen: str
    """Completes "{agent} ...", before the evidence."""
    matters: str
    advice: str


_WORDS: Final[dict[FindingKind, _Words]] = {
    FindingKind.PROVIDER_FAILURE: _Words(
        "has had no answer from its model provider",
        "The agent is not at fault and what it has done so far stands, but it gets no further until the "
        "provider answers.",
        "Check the provider's status, quota and key; the agent can go on where it is once calls succeed.",
    ),
    FindingKind.CIRCUIT_BREAKER_OPEN: _Words(
        "has been kept from something that failed too often",
        "What is behind that circuit breaker is in trouble, and the agent gets no further without it.",
        "See what fails behind the breaker; it closes by itself once a probe succeeds, or reset it.",
    ),
    FindingKind.RESOURCE_LIMIT: _Words(
        "has used up a resource",
        "Its process may be killed, or its next write or call refused; what it has not saved is lost then.",
        "Free or raise what is used up; have it save its state first if it can.",
    ),
    FindingKind.SPENDING: _Words(
        "has reached a spending limit, or nearly so",
        "It works on and spends more; what it does may be worth it, or it may be lost in something.",
        "See what it does. Raise the limit (health_monitoring.spending) if it is worth it, or stop it: "
        "queenright terminate {agent} --session {session} --reason spending.",
    ),
    FindingKind.RECOVERY_FAILED: _Words(
        "could not be brought back",
        "No further attempt is made by itself, so its task stands still until somebody takes it on.",
        "Read why it could not be, and mend that. Then start it where it ran, or let it go on from its last "
        "checkpoint: queenright recover {session} --reviewed (without one, --from-start). Resolve "
        "this ticket if it was settled another way.",
    ),
    FindingKind.RUNS_FAILED: _Words(
        "has had one run after another fail",
        "Not one has completed in between, so the next one may well fail, too; none is repeated by itself.",
        "Mend the cause of the last run's error, which is in the evidence, and run it again; queenright "
        "events --agent {agent} --types execution_failed shows each further failure. A completed run "
        "closes this ticket; resolve it if it was settled another way.",
    ),
    FindingKind.DOOM_LOOP: _Words(
        "has been going in circles",
        "Nothing new comes of it, so waiting will not help, and every round costs tokens.",
        "Stop the run or give it another instruction, and see why the tool's answer does not move it on.",
    ),
    FindingKind.ERROR_STREAK: _Words(
        "has had one tool call after another fail",
        "Whatever it tries fails, so the cause lies in the tools or what is behind them "
        "rather than in the agent's next idea.",
        "Look at the error first (access, quota, a service that is down); restart the step once it works.",
    ),
    FindingKind.RETRY_STORM: _Words(
        "has had its steps rejected one after another",
        "Not one was accepted in between, so its own retries are not repairing it.",
        "Read the last feedback, then restart the step with a changed instruction or take the task over.",
    ),
    FindingKind.CONTEXT_EXHAUSTED: _Words(
        "has a conversation longer than its model takes",
        "Every further call fails in the same way: it can neither go on nor hand off by itself.",
        "Hand its task to a fresh agent with a summary, or compact the conversation, and bound it.",
    ),
    FindingKind.STALL: _Words(
        "has stood still",
        "It is not waiting for a user, for its children or for a rate limit, so something hangs.",
        "See whether the call it is in still runs; if not, end the run and recover it from a checkpoint.",
    ),
    FindingKind.ZERO_PROGRESS: _Words(
        "has been busy without getting any further",
        "Its calls succeed and bring nothing that it had not seen before.",
        "Look at what it is after: if the task cannot be done this way, narrow it or end it.",
    ),
    FindingKind.NO_TOOL_CALLS: _Words(
        "has been running without calling a tool",
        "An agent that only talks is usually lost in its own conversation.",
        "Read its last messages; remind it of the task, or restart the step.",
    ),
    FindingKind.CHECKPOINT_STALE: _Words(
        "has not saved its state",
        "All work since the last checkpoint would be lost if the process died now.",
        "Check the checkpoint storage, and let it save or pause it at a good point.",
    ),
    FindingKind.HEARTBEAT_MISSING: _Words(
        "has not been heard from",
        "Its process may have died, or may be cut off from here.",
        "Look whether the process runs; if not, restart it from its last checkpoint.",
    ),
    FindingKind.TOOL_TIMEOUT: _Words(
        "has waited too long for a tool",
        "The agent gets no result to work with until the tool answers.",
        "Check what the tool is waiting for, and raise its timeout only if the work is really that long.",
    ),
    FindingKind.MCP_SERVER_MISSING: _Words(
        "has worked without one of its MCP servers",
        "It goes on without that server's tools, so part of its task may be left undone.",
        "Start the server, or correct its command or address in the client's settings, and reconnect it.",
    ),
    FindingKind.NO_TOKENS: _Words(
        "has used no tokens although it is active",
        "An agent that runs and never asks its model is waiting for something that does not come.",
        "See which call it is in; if that hangs, end the run and recover it from a checkpoint.",
    ),
    FindingKind.ERROR_RATE: _Words(
        "has had a large share of its calls and steps fail",
        "It still gets somewhere, at a price that rises and with a result that may be worse.",
        "See which tool fails most, and whether that tool or the way it is called is at fault.",
    ),
    FindingKind.OUTPUT_UNCHANGED: _Words(
        "has reported the same output again and again",
        "Neither files nor test results change, so what it does has no effect on its task.",
        "Compare its last steps with the task; narrow the task, or give it what it lacks.",
    ),
    FindingKind.TOKEN_SPIKE: _Words(
        "has used far more tokens than usual",
        "Its cost rises with every step, and a context this large often comes before a failure.",
        "Look for a tool that returns too much or a conversation that is never compacted.",
    ),
    FindingKind.GRINDING: _Words(
        "has called one tool after another and changed nothing",
        "It may be looking for something that is not there.",
        "Read its last calls; narrow the task, or tell it where to look.",
    ),
    FindingKind.TOKEN_BURN: _Words(
        "has used far more tokens than usual without changing anything",
        "Its cost rises and there is nothing to show for it.",
        "Read its last steps; tell it what to do next, or stop it.",
    ),
}


def cause(
    kind: FindingKind, *, agent: str, node: str = "", evidence: str = "", since: float | None = None
) -> str:
    """Say in one sentence what is seen: who, where, since when, and the detector's evidence."""
    where = f" (node {node})" if node else ""
    when = f" since {clock_time(since)}" if since is not None else ""
    what = one_line(evidence).rstrip(".")
    return f"{agent}{where} {_WORDS[kind].seen}{when}" + (f": {what}." if what else ".")


def matters(kind: FindingKind) -> str:
    """Say why it cannot wait."""
    return _WORDS[kind].matters


def advice(kind: FindingKind, agent: str, session: str) -> str:
    """Say what a person should do; commands name the worker's agent and session."""
    said = _WORDS[kind].advice
    return said.replace("{agent}", quote(agent)).replace("{session}", quote(session))


def numbers(*, bad_steps: int, stall_minutes: float | None, occurrences: int = 1) -> str:
    """Say how bad it is in numbers; empty if there are none worth saying."""
    parts = []
    if bad_steps:
        parts.append(f"{bad_steps} bad {'step' if bad_steps == 1 else 'steps'} since the last accepted one")
    if stall_minutes is not None and stall_minutes >= 1:
        parts.append(f"no activity for {format_duration(stall_minutes * 60)}")
    if occurrences > 1:
        parts.append(f"seen {occurrences} times")
    return ", ".join(parts)


def one_line(text: str, limit: int = _CLIP) -> str:
    """Return ``text`` on one line, clipped at its end."""
    line = " ".join(text.split())
    return line if len(line) <= limit else line[: limit - 1].rstrip() + "…"


def clock_time(at: float) -> str:
    """Return a time of day, UTC."""
    return f"{datetime.fromtimestamp(at, UTC):%H:%M} UTC"
