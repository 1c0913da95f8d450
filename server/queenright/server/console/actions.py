"""Actions of the pages on workers and breakers: nudge, escalate, terminate, recover, reset."""

from __future__ import annotations

from typing import Final

from queenright.health.interventions.record import Outcome
from queenright.health.interventions.target import ActionKind
from queenright.health.monitor import WorkerHealth
from queenright.health.recovery.attempt import RecoveryStatus
from queenright.health.service import AgentNotFoundError
from queenright.server.console.forms import (
    Act,
    Button,
    Done,
    Field,
    Given,
    Question,
    agent_of,
    agent_page,
    checked,
    part,
)
from queenright.server.routes.breakers import Reset
from queenright.server.routes.interventions import Nudge, WorkerRequest
from queenright.server.routes.recoveries import Recover
from queenright.server.service import Service
from queenright.server.views.formatting import ago
from queenright.server.views.possible_actions import objection

WHY = Field(
    name="reason",
    label="Why",
    kind="area",
    hint="Recorded in the audit trail with your name.",
    required=True,
)


# -- the worker -----------------------------------------------------------------------


def _worker(service: Service, given: Given) -> WorkerHealth:
    agent, session = agent_of(given), given.get("session") or None
    worker = service.monitor.get(agent, session)
    if worker is None:
        raise AgentNotFoundError(agent, session)
    return worker


def _facts(service: Service, worker: WorkerHealth) -> tuple[tuple[str, str], ...]:
    now, v = service.clock(), worker.vitals
    state = f"{worker.state.value} for {ago(now - worker.state_since)}"
    return (
        ("Worker", v.agent_id),
        ("State", f"{state}: {worker.reason}" if worker.reason else state),
        ("Session", v.session_id),
        ("Steps", f"{v.steps_total}, {v.steps_since_last_accept} bad since the last ACCEPT"),
    )


def _question(
    service: Service,
    kind: ActionKind,
    given: Given,
    *,
    title: str,
    lead: str,
    button: Button,
    fields: tuple[Field, ...],
) -> Question:
    worker = _worker(service, given)
    v = worker.vitals
    refused = objection(service, kind, worker)
    return Question(
        title=title.format(agent=v.agent_id),
        lead=f"Not possible now: {refused}." if refused else lead,
        back=agent_page(v.agent_id, given.get("session", "")),
        facts=_facts(service, worker),
        fields=fields,
        # The incarnation on the page: a later one is not meant.
        hidden={"agent": v.agent_id, "session": v.session_id, "incarnation": v.incarnation_id},
        buttons=() if refused else (button,),
    )


# -- nudge ----------------------------------------------------------------------------------------


async def _ask_nudge(service: Service, given: Given) -> Question:
    return _question(
        service,
        ActionKind.NUDGE,
        given,
        title="Nudge {agent}",
        lead="Sends a message into the worker's context.",
        button=Button(label="Send nudge"),
        fields=(
            Field(
                name="message",
                label="Message",
                kind="area",
                longest=4000,
                hint="Leave empty to send the default reminder.",
            ),
        ),
    )


async def _nudge(service: Service, form: Given, by: str) -> Done:
    given = checked(Nudge, message=form.get("message", "").strip() or None, session_id=_session(form), by=by)
    done = await service.health.send_nudge(
        agent_of(form), given.message, session_id=given.session_id, by=given.by
    )
    words = {
        Outcome.DONE: "The nudge was delivered.",
        Outcome.QUEUED: "The nudge is queued until the worker fetches it.",
    }
    return Done(
        place=agent_page(done.agent_id, done.session_id),
        words=words.get(done.outcome) or _describe_outcome(done.outcome, done.detail),
        well=done.delivered,
    )


# -- escalate -------------------------------------------------------------------------


async def _ask_escalate(service: Service, given: Given) -> Question:
    return _question(
        service,
        ActionKind.ESCALATE,
        given,
        title="Escalate {agent}",
        lead="The orchestrator decides: more time, a hand-off, or termination.",
        button=Button(label="Ask the orchestrator"),
        fields=(WHY,),
    )


async def _escalate(service: Service, form: Given, by: str) -> Done:
    given = checked(WorkerRequest, reason=form.get("reason", ""), session_id=_session(form), by=by)
    done = await service.health.escalate_to_orchestrator(
        agent_of(form), given.reason, session_id=given.session_id, by=given.by
    )
    asked = bool(done.escalation_id)
    return Done(
        place=agent_page(done.agent_id, done.session_id),
        words="The orchestrator was asked." if asked else _describe_outcome(done.outcome, ""),
        well=asked,
    )


# -- terminate ------------------------------------------------------------------------------------


async def _ask_terminate(service: Service, given: Given) -> Question:
    return _question(
        service,
        ActionKind.TERMINATE,
        given,
        title="Terminate {agent}?",
        lead="The worker is asked to stop. Its state is saved if possible; it is not recovered "
        "automatically. This page responds when the worker has stopped, or its time is over.",
        button=Button(label="Terminate", danger=True),
        fields=(WHY,),
    )


async def _terminate(service: Service, form: Given, by: str) -> Done:
    given = checked(
        WorkerRequest,
        reason=form.get("reason", ""),
        session_id=_session(form),
        incarnation_id=form.get("incarnation"),
        by=by,
    )
    done = await service.health.terminate_agent(
        agent_of(form),
        given.reason,
        session_id=given.session_id,
        incarnation_id=given.incarnation_id,
        by=given.by,
    )
    words = "The worker was terminated."
    if done.checkpoint_id:
        words += f" Its state is in checkpoint {done.checkpoint_id}."
    if not done.terminated:
        words = _describe_outcome(done.outcome, done.detail)
        if done.outcome is Outcome.UNCONFIRMED:
            words += " End its process yourself; then it can be recovered here."
    return Done(place=agent_page(done.agent_id, done.session_id), words=words, well=done.terminated)


# -- recover --------------------------------------------------------------------------------------


async def _ask_recover(service: Service, given: Given) -> Question:
    status = await service.health.get_recovery_status(_task(service, given))
    worker = service.monitor.get(agent_of(given), given.get("session") or None)
    if worker is None and status.history:
        last = status.history[0].successor
        worker = service.monitor.get(last.agent_id, last.session_id)
    refused = service.remediation.stop_switch.reason or ""
    if worker is not None:
        refused = objection(service, ActionKind.RECOVER, worker)
    whose = f"{worker.vitals.agent_id}'s task" if worker is not None else "this task"
    limit = Field(
        name="reviewed",
        label="I have reviewed why it fails",
        kind="check",
        hint="Allows one attempt beyond the task's limit. Recorded in the audit trail.",
    )
    over = Field(
        name="from_start",
        label="Without a checkpoint, start over",
        kind="check",
        hint="Repeats the task's external effects. Recorded in the audit trail.",
    )
    return Question(
        title=f"Recover {whose}?",
        lead=f"Not possible now: {refused}."
        if refused
        else "Starts a worker from the task's last valid checkpoint.",
        back="/recoveries",
        facts=_recovery_facts(status, service.clock()),
        fields=(over,) if status.attempts_left else (limit, over),
        hidden={"task": status.task_id},
        buttons=() if refused else (Button(label="Recover"),),
    )


def _task(service: Service, given: Given) -> str:
    """Return the task of the form, or of its worker."""
    if task := given.get("task"):
        return task
    v = _worker(service, given).vitals
    return v.task_id or v.session_id


async def _recover(service: Service, form: Given, by: str) -> Done:
    reviewed = form.get("reviewed") == "yes"
    from_start = form.get("from_start") == "yes"
    given = checked(Recover, task_id=form.get("task", ""), by=by, reviewed=reviewed, from_start=from_start)
    done = await service.health.initiate_recovery(
        given.task_id, by=given.by, reviewed=given.reviewed, from_start=given.from_start
    )
    wait = max(0.0, (done.not_before or 0.0) - service.clock())
    when = f" in {ago(wait)}" if wait >= 1 else ""
    words = f"Attempt {done.attempt} starts{when}." if done.accepted else f"Not done: {done.reason}"
    return Done(place="/recoveries", words=words, well=done.accepted)


# -- breakers -------------------------------------------------------------------------------------


async def _ask_reset(service: Service, given: Given) -> Question:
    status = await service.health.get_circuit_breaker_status(given.get("name", ""))
    return Question(
        title="Reset this circuit breaker?",
        lead="The next calls pass at once. The breaker opens again if they fail.",
        back=f"/breakers?name={part(status.name)}",
        facts=(
            ("Breaker", status.name),
            ("State", status.state.value.replace("_", " ")),
            ("Failures", f"{status.failures} in a row; it opens at {status.threshold}"),
            ("Why", status.reason or "-"),
        ),
        hidden={"name": status.name},
        buttons=(Button(label="Reset", danger=True),),
    )


async def _reset(service: Service, form: Given, by: str) -> Done:
    name = form.get("name", "")
    await service.health.reset_circuit_breaker(name, by=checked(Reset, by=by).by)
    status = await service.health.get_circuit_breaker_status(name)
    state = status.state.value.replace("_", " ")
    return Done(
        place=f"/breakers?name={part(status.name)}",
        words=f"{status.name} is {state}.",
        well=state == "closed",
    )


def _session(form: Given) -> str | None:
    return form.get("session") or None


def _describe_outcome(outcome: Outcome, detail: str) -> str:
    """Describe an outcome other than done."""
    if outcome is Outcome.DRY_RUN:
        return "Dry run: recorded, not carried out."
    words = f"Not done ({outcome.value.replace('_', ' ')})"
    return f"{words}: {detail}" if detail else f"{words}."


def _recovery_facts(status: RecoveryStatus, now: float) -> tuple[tuple[str, str], ...]:
    """Return the recovery status of a task as labels and texts."""
    last = status.history[0] if status.history else None
    facts = [
        ("Task", status.task_id),
        ("Attempts", f"{status.attempts} started, {status.attempts_left} left"),
        ("This hour", f"{status.left_this_hour} left for all tasks of its agent"),
    ]
    if status.active is not None:
        facts.append(("In progress", f"attempt {status.active.attempt}, {status.active.state.value}"))
    if last is not None:
        facts.append(
            ("Last", f"{last.state.value} {ago(now - last.created_at)} ago: {last.outcome or last.reason}")
        )
    return tuple(facts)


WORKER_ACTS: Final = (
    Act(path="/act/nudge", ask=_ask_nudge, do=_nudge),
    Act(path="/act/escalate", ask=_ask_escalate, do=_escalate),
    Act(path="/act/terminate", ask=_ask_terminate, do=_terminate, grave=True),
    Act(path="/act/recover", ask=_ask_recover, do=_recover),
    Act(path="/breakers/reset", ask=_ask_reset, do=_reset),
)
