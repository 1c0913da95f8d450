"""
The sentences of judge and queen by the rules, short enough for a phone.

Each kind of finding has three: the cause (which worker, since when), why it matters now, and what to do.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime
from shlex import quote
from typing import Final

from queenright.health.findings import FindingKind
from queenright.instrumentation.counts import format_count
from queenright.instrumentation.durations import format_duration

_CLIP: Final = 240


@dataclass(frozen=True, slots=True)
class _Sentences:
    cause: str
    """Completes "{agent} ...", before the evidence."""
    impact: str
    advice: str


_SENTENCES: Final[dict[FindingKind, _Sentences]] = {
    FindingKind.PROVIDER_FAILURE: _Sentences(
        "has had no answer from its model provider",
        "The agent is not at fault and keeps its results, but it cannot continue until the provider answers.",
        "Check the provider's status, quota and key; the agent continues once calls succeed.",
    ),
    FindingKind.CIRCUIT_BREAKER_OPEN: _Sentences(
        "has been blocked by an open circuit breaker",
        "The dependency behind the breaker fails, and the agent cannot continue without it.",
        "Find out what fails behind the breaker. It closes once a probe succeeds, or reset it by hand.",
    ),
    FindingKind.RESOURCE_LIMIT: _Sentences(
        "has used up a resource",
        "Its process may be killed, or its next write or call may fail; unsaved work is lost then.",
        "Free or raise the resource; let the agent save its state first if it can.",
    ),
    FindingKind.SPENDING: _Sentences(
        "has been near or over its spending limit",
        "Every further model call costs more, whether its work is worth it or not.",
        "Look at its work. Raise the limit (health_monitoring.spending) if it is worth it, or stop it: "
        "queenright terminate {agent} --session {session} --reason spending.",
    ),
    FindingKind.RECOVERY_FAILED: _Sentences(
        "has stood still",
        "No further attempt is automatic: its task waits for a person.",
        "Fix the reason of the failure. Then start it where it ran, or recover it from its last checkpoint: "
        "queenright recover {session} --reviewed (without one, --from-start). Resolve "
        "this ticket if it was settled another way.",
    ),
    FindingKind.RUNS_FAILED: _Sentences(
        "has had several runs fail in a row",
        "None has completed in between, so the next may fail too; none is repeated automatically.",
        "Fix the cause of the last error and run it again; queenright "
        "events --agent {agent} --types execution_failed shows each further failure. A completed run "
        "closes this ticket; resolve it if it was settled another way.",
    ),
    FindingKind.DOOM_LOOP: _Sentences(
        "has been going in circles",
        "It produces nothing new, so waiting does not help; every further round costs tokens.",
        "Stop the run or give it another instruction, and check why the tool's answer does not help.",
    ),
    FindingKind.ERROR_STREAK: _Sentences(
        "has had several tool calls fail",
        "It does not get past the error: a tool or a system behind it is broken, or its arguments are wrong.",
        "Look at the error first (access, quota, a service that is down); restart the step once it is fixed.",
    ),
    FindingKind.RETRY_STORM: _Sentences(
        "has had no step accepted",
        "Its steps are rejected or fail, and its own retries do not help.",
        "Read the last feedback, then restart the step with a changed instruction or take the task over.",
    ),
    FindingKind.CONTEXT_EXHAUSTED: _Sentences(
        "has had no room left in its model's context",
        "Further calls fail or are cut off in the same way: it can neither continue nor hand off.",
        "Hand its task to a new agent with a summary, or compact the conversation, and limit its length.",
    ),
    FindingKind.STALL: _Sentences(
        "has been stalled",
        "It reports no wait for a user, a child or a rate limit, so something probably hangs.",
        "Check whether its current call still runs; if not, end the run and recover it from a checkpoint.",
    ),
    FindingKind.ZERO_PROGRESS: _Sentences(
        "has been busy without progress",
        "Without anything new it does not get closer to its goal.",
        "Look at what it tries or waits for; if the task cannot be done this way, narrow it or end it.",
    ),
    FindingKind.NO_TOOL_CALLS: _Sentences(
        "has been running without calling a tool",
        "An agent that calls no tools is usually lost in its own conversation.",
        "Read its last messages; remind it of the task, or restart the step.",
    ),
    FindingKind.CHECKPOINT_STALE: _Sentences(
        "has not saved its state",
        "All work since the last checkpoint would be lost if the process died now.",
        "Check the checkpoint storage; let it save, or pause it at a safe point.",
    ),
    FindingKind.HEARTBEAT_MISSING: _Sentences(
        "has sent no heartbeat",
        "Its process may have died or lost its connection.",
        "Check whether the process runs; if not, restart it from its last checkpoint.",
    ),
    FindingKind.TOOL_TIMEOUT: _Sentences(
        "has waited too long for a tool",
        "The agent gets no result to work with until the tool answers.",
        "Check what the tool waits for; raise its timeout only if the work really takes that long.",
    ),
    FindingKind.MCP_SERVER_MISSING: _Sentences(
        "has worked without one of its MCP servers",
        "It continues without that server's tools, so part of its task may stay undone.",
        "Start the server, or correct its command or address in the client's settings, and reconnect it.",
    ),
    FindingKind.NO_TOKENS: _Sentences(
        "has used no tokens while active",
        "An agent that runs without calling its model probably waits for something that does not come.",
        "Check its current call; if it hangs, end the run and recover it from a checkpoint.",
    ),
    FindingKind.ERROR_RATE: _Sentences(
        "has had many of its calls and steps fail",
        "It still makes progress, at a rising cost and with a result that may be worse.",
        "Find the tool that fails most, and whether the tool or its arguments are at fault.",
    ),
    FindingKind.OUTPUT_UNCHANGED: _Sentences(
        "has reported the same output repeatedly",
        "Neither files nor test results change, so its work has no effect.",
        "Compare its last steps with the task; narrow the task, or provide what is missing.",
    ),
    FindingKind.TOKEN_SPIKE: _Sentences(
        "has used far more tokens than usual",
        "Its cost rises with every step, and a context this large often comes before a failure.",
        "Look for a tool that returns too much, or a conversation that is never compacted.",
    ),
    FindingKind.GRINDING: _Sentences(
        "has called many tools and changed nothing",
        "It may be looking for something that does not exist.",
        "Read its last calls; narrow the task, or tell it where to look.",
    ),
    FindingKind.TOKEN_BURN: _Sentences(
        "has used far more tokens than usual without changing anything",
        "Its cost rises without a result.",
        "Read its last steps; tell it what to do next, or stop it.",
    ),
}


def cause(
    kind: FindingKind,
    *,
    agent: str,
    node: str = "",
    evidence: str = "",
    since: float | None = None,
    now: float | None = None,
) -> str:
    """
    Return the cause in one sentence: worker, node, time and the detector's evidence.

    Args:
        since: When the condition began.
        now: The time of the text: a condition that began on another day is given with its date.
    """
    where = f" (node {node})" if node else ""
    when = f" since {clock_time(since, now)}" if since is not None else ""
    what = one_line(evidence).rstrip(".")
    return f"{agent}{where} {_SENTENCES[kind].cause}{when}" + (f": {what}." if what else ".")


def impact(kind: FindingKind) -> str:
    """Return why it matters now."""
    return _SENTENCES[kind].impact


def advice(kind: FindingKind, agent: str, session: str) -> str:
    """Return what a person should do; its commands name the worker's agent and session."""
    text = _SENTENCES[kind].advice
    return text.replace("{agent}", quote(agent)).replace("{session}", quote(session))


def numbers(*, bad_steps: int, stall_minutes: float | None, occurrences: int = 1) -> str:
    """Return the numbers of a ticket as text, or an empty string if there are none."""
    parts = []
    if bad_steps:
        parts.append(f"{format_count(bad_steps, 'bad step')} since the last accepted one")
    if stall_minutes is not None and stall_minutes >= 1:
        parts.append(f"last activity {format_duration(stall_minutes * 60)} ago")
    if occurrences > 1:
        parts.append(f"seen {occurrences:,} times")
    return ", ".join(parts)


def one_line(text: str, limit: int = _CLIP) -> str:
    """Return ``text`` on one line, clipped at its end."""
    line = " ".join(text.split())
    return line if len(line) <= limit else line[: limit - 1].rstrip() + "…"


def sentence(text: str) -> str:
    """Return ``text`` with a full stop, unless it ends as a sentence does."""
    return text if text.endswith((".", "!", "?", "…")) else f"{text}."


def clock_time(at: float, now: float | None = None, *, seconds: bool = False) -> str:
    """Return a time of day, UTC; with the date if it is not the day of ``now``."""
    time = datetime.fromtimestamp(at, UTC)
    text = f"{time:%H:%M:%S} UTC" if seconds else f"{time:%H:%M} UTC"
    is_other_day = now is not None and datetime.fromtimestamp(now, UTC).date() != time.date()
    return f"{time:%Y-%m-%d} {text}" if is_other_day else text
