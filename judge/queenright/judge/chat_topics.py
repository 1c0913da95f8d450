"""What can be said by rule about a ticket: one function a topic, each of (ticket, case, worker now, now)."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

from queenright.health.findings import FindingKind
from queenright.instrumentation.durations import format_duration
from queenright.judge import policy
from queenright.judge.wording import advice, clock_time, matters, one_line

Values = Mapping[str, Any]
Topic = Callable[[Values, Values, Values | None, float], str]
"""Says what there is to say of a ticket, given its case, its worker (None: not known) and the time."""

_SHOWN: Final = 5
_DOES: Final = {
    "idle": "it is between two steps",
    "llm": "it asks its model",
    "tool": "it is in a call of",
}


def wrong(ticket: Values, case: Values, worker: Values | None, at: float) -> str:
    """Say what is wrong, or was."""
    said = _sentence(ticket.get("cause"))
    kind = _kind(ticket)
    if ticket.get("closed_at") is not None:
        return f"{said} {_closed(ticket)}"
    if worker is not None and policy.condition_gone(worker):
        return f"{said} That is gone now: nothing that would be worth a ticket is seen of it any more."
    return f"{said} {matters(kind)}" if kind is not None else said


def now(ticket: Values, case: Values, worker: Values | None, at: float) -> str:
    """Say how the worker is now."""
    agent = ticket.get("worker_agent_id")
    if worker is None:
        return f"{agent}: nothing is known of that session any more. {_closed(ticket)}".strip()
    parts = [f"{agent} is {worker.get('state')}", f"its session is {worker.get('status')}"]
    if worker.get("waiting_reason"):
        parts.append(f"it waits ({worker['waiting_reason']})")
    elif worker.get("status") == "active" and (does := _DOES.get(str(worker.get("phase")))):
        parts.append(f"{does} {worker['tool']}" if worker.get("tool") else does)
    parts.append(f"{int(worker.get('steps_since_last_accept') or 0)} bad steps since the last accepted one")
    if worker.get("stall_minutes") is not None:
        parts.append(f"last activity {format_duration(float(worker['stall_minutes']) * 60)} ago")
    if worker.get("last_progress") is not None:
        parts.append(f"last progress {_ago(worker['last_progress'], at)}")
    found = [_plain(one.kind.value) for one in policy.findings_of(worker)]
    parts.append(f"seen of it: {', '.join(found)}" if found else "nothing is seen of it that is wrong")
    return "; ".join(parts) + "."


def since(ticket: Values, case: Values, worker: Values | None, at: float) -> str:
    """Say since when, how often, and until when."""
    said = f"First seen {_moment(ticket.get('first_seen'), at)}"
    if int(ticket.get("occurrences") or 1) > 1:
        said += f", {ticket['occurrences']} times by now, last {_moment(ticket.get('last_seen'), at)}"
    said += "."
    if worker is not None and worker.get("state_since") is not None:
        said += f" It has been {worker.get('state')} since {clock_time(float(worker['state_since']))}."
    if ticket.get("condition_cleared_at") is not None:
        said += f" The condition has been gone since {clock_time(float(ticket['condition_cleared_at']))}."
    return f"{said} {_closed(ticket)}".strip()


def evidence(ticket: Values, case: Values, worker: Values | None, at: float) -> str:
    """Show what the ticket rests on."""
    lines = []
    if snippet := str(ticket.get("evidence_snippet") or "").strip():
        lines.append(f"From its last output: {one_line(snippet, 500)!r}.")
    verdicts = [str(one) for one in (worker or ticket).get("recent_verdicts") or ()]
    if verdicts:
        lines.append(f"Its last verdicts: {' '.join(verdicts[-10:])}.")
    if worker is not None:
        lines += [
            f"{_plain(one.kind.value).capitalize()} ({one.severity.value}): {_sentence(one.evidence)}"
            for one in policy.findings_of(worker)[:_SHOWN]
        ]
        if worker.get("error_count"):
            lines.append(
                f"{worker['error_count']} errors in {worker.get('tool_calls_total') or 0} tool calls so far."
            )
    return "\n".join(lines) or "The ticket holds no evidence beside its cause."


def decided(ticket: Values, case: Values, worker: Values | None, at: float) -> str:
    """Say who decided what, and why."""
    said = f"The judge wrote a {ticket.get('severity')} ticket: {_sentence(ticket.get('judge_reasoning'))}"
    match ticket.get("triage_decision"):
        case "dismiss":
            said += f" I dismissed it: {_sentence(ticket.get('triage_reason'))}"
        case "bypass":
            said += " It went to you untriaged, because I had not answered in time."
        case "intervene":
            who = "I" if ticket.get("triaged_by") == "queen" else f"The {ticket.get('triaged_by') or 'rules'}"
            urgency = f" with urgency {ticket['urgency']}" if ticket.get("urgency") else ""
            said += f" {who} passed it on to you {_moment(ticket.get('triaged_at'), at)}{urgency}."
        case _:
            said += " It is not triaged yet."
    if ticket.get("acknowledged_by"):
        said += f" {ticket['acknowledged_by']} has it in hand."
    return f"{said} {_closed(ticket)}".strip()


def tried(ticket: Values, case: Values, worker: Values | None, at: float) -> str:
    """List what was done to the worker."""
    done = _rows(case, "done_to_the_worker")
    if not done:
        return "Nothing has been done to it so far."
    lines = []
    for one in done[:_SHOWN]:
        why = one.get("message") or one.get("reason") or one.get("detail") or ""
        outcome = _plain(str(one.get("outcome")))
        lines.append(
            f"{_moment(one.get('at'), at)}: {one.get('kind')} by {one.get('by')}, {outcome}"
            + (f": {one_line(str(why), 160)}" if why else "")
        )
    if len(done) > _SHOWN:
        lines.append(f"and {len(done) - _SHOWN} or more before that")
    return "What was done to it, newest first:\n" + "\n".join(f"- {line}" for line in lines)


def what_next(ticket: Values, case: Values, worker: Values | None, at: float) -> str:
    """Say what to do."""
    if ticket.get("closed_at") is not None:
        return f"Nothing about this ticket. {_closed(ticket)}"
    if worker is not None and policy.condition_gone(worker):
        return "Nothing for now: the condition is gone, and the ticket closes by itself once that has held."
    kind = _kind(ticket)
    said = _sentence(ticket.get("suggested_action"))
    if not said and kind is not None:
        agent, session = (str(ticket.get(f"worker_{key}") or "") for key in ("agent_id", "session_id"))
        said = advice(kind, agent, session)
    if worker is not None and worker.get("waiting_reason"):
        return f"{said} It waits now ({worker['waiting_reason']}), so nothing will be done to it meanwhile."
    return f"{said} You can say `nudge it: TEXT`, or `stop it: REASON`."


def cost(ticket: Values, case: Values, worker: Values | None, at: float) -> str:
    """Say what the worker has used."""
    if worker is None:
        return "Nothing is known of that session any more, so neither is what it used."
    ran = max(at - float(worker.get("started_at") or at), 0.0)
    steps = int(worker.get("total_steps") or 0)
    bad = int(worker.get("steps_since_last_accept") or 0)
    tokens = int(worker.get("tokens") or 0)
    worked = (
        f"in {format_duration(ran)}, {steps} steps and {int(worker.get('tool_calls_total') or 0)} tool calls"
    )
    if not tokens:
        return (
            f"It reports no tokens, so what it costs is not known; it has run {worked.removeprefix('in ')}."
        )
    said = f"It has used {tokens:,} tokens {worked}"
    if ran >= 60:
        said += f": {tokens / ran * 3600:,.0f} tokens an hour"
    share = f" The last {bad} steps brought nothing that was accepted." if bad else ""
    return f"{said}.{share} What a token costs is its provider's to say."


def history(ticket: Values, case: Values, worker: Values | None, at: float) -> str:
    """Say what else there is: earlier tickets of the worker, the same trouble elsewhere."""
    agent = ticket.get("worker_agent_id")
    related = _rows(case, "related_tickets")
    own = [one for one in related if one.get("agent_id") == agent]
    others = [one for one in related if one.get("agent_id") != agent]
    lines = [f"Other tickets about {agent}:" if own else f"No other ticket about {agent} is known."]
    lines += [f"- {_line(one, at)}" for one in own[:_SHOWN]]
    if others:
        lines.append("Other workers with trouble of this kind now:")
        lines += [f"- {one.get('agent_id')}: {_line(one, at)}" for one in others[:_SHOWN]]
    if ":" in (group := ticket.get("storm_id") or ""):
        lines.append(f"It shares its cause with others: {group}.")
    elif group:
        lines.append("It was opened in a storm: many workers got into trouble at once.")
    return "\n".join(lines)


def _line(one: Values, at: float) -> str:
    return (
        f"{_plain(str(one.get('kind')))}, {one.get('severity')}, "
        f"{_plain(str(one.get('status')))}, first seen {_moment(one.get('first_seen'), at)}"
    )


def _closed(ticket: Values) -> str:
    if ticket.get("closed_at") is None:
        return ""
    reason = one_line(str(ticket.get("closed_reason") or ""), 200)
    status = _plain(str(ticket.get("status")))
    return f"The ticket was closed at {clock_time(float(ticket['closed_at']))} ({status})" + (
        f": {reason.rstrip('.')}." if reason else "."
    )


def _kind(ticket: Values) -> FindingKind | None:
    try:
        return FindingKind(str(ticket.get("kind")))
    except ValueError:
        return None


def _rows(case: Values, key: str) -> Sequence[Values]:
    return [one for one in case.get(key) or () if isinstance(one, Mapping)]


def _moment(moment: Any, at: float) -> str:
    return "at an unknown time" if moment is None else f"at {clock_time(float(moment))}, {_ago(moment, at)}"


def _ago(moment: Any, at: float) -> str:
    return f"{format_duration(max(at - float(moment), 0.0))} ago"


def _plain(word: str) -> str:
    return word.replace("_", " ")


def _sentence(text: object) -> str:
    line = one_line(str(text or ""), 600)
    return line if not line or line.endswith((".", "!", "?", "…")) else f"{line}."
