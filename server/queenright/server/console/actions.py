"""What a person does to workers and breakers on the console: nudge, ask, stop, bring back, reset."""

from __future__ import annotations

from queenright.health.interventions.permit import ActionRefusedError, permit
from queenright.health.interventions.record import Outcome
from queenright.health.interventions.target import ActionKind, Target
from queenright.health.monitor import WorkerHealth
from queenright.health.recovery.attempt import RecoveryStatus
from queenright.health.recovery.plan import is_lost
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
from queenright.server.routes.interventions import Ask, Nudge
from queenright.server.routes.recoveries import Recover
from queenright.server.service import Service
from queenright.server.views.words import ago

WHY = Field(
    name="reason",
    label="Why",
    kind="area",
    hint="Kept in the audit trail, under your name.",
    required=True,
)


def worker_acts(service: Service) -> list[Act]:
    """Return what can be done to a worker, each with its page."""
    acts = _Workers(service)
    return [
        Act(path="/act/nudge", ask=acts.ask_nudge, do=acts.nudge),
        Act(path="/act/escalate", ask=acts.ask_escalate, do=acts.escalate),
        Act(path="/act/terminate", ask=acts.ask_terminate, do=acts.terminate, grave=True),
        Act(path="/act/recover", ask=acts.ask_recover, do=acts.recover),
        Act(path="/breakers/reset", ask=acts.ask_reset, do=acts.reset),
    ]


def objection(service: Service, kind: ActionKind, worker: WorkerHealth) -> str:
    """Return why something may not be done to a worker now, in words; empty if it may."""
    stopped = service.remediation.stop_switch.reason
    if kind is ActionKind.RECOVER and is_lost(worker):
        return stopped or ""
    try:
        permit(kind, Target.of(worker.vitals), worker, stopped=stopped)
    except ActionRefusedError as refused:
        return refused.reason
    return ""


class _Workers:
    def __init__(self, service: Service) -> None:
        self._service = service

    # -- the worker in question -------------------------------------------------------------------

    def _worker(self, given: Given) -> WorkerHealth:
        agent, session = agent_of(given), given.get("session") or None
        worker = self._service.monitor.get(agent, session)
        if worker is None:
            raise AgentNotFoundError(agent, session)
        return worker

    def _facts(self, worker: WorkerHealth) -> tuple[tuple[str, str], ...]:
        now, v = self._service.clock(), worker.vitals
        state = f"{worker.state.value} for {ago(now - worker.state_since)}"
        return (
            ("Worker", v.agent_id),
            ("State", f"{state}: {worker.reason}" if worker.reason else state),
            ("Session", v.session_id),
            ("Steps", f"{v.steps_total}, {v.steps_since_last_accept} bad since the last ACCEPT"),
        )

    def _question(
        self,
        kind: ActionKind,
        given: Given,
        *,
        title: str,
        lead: str,
        button: Button,
        fields: tuple[Field, ...],
    ) -> Question:
        worker = self._worker(given)
        v = worker.vitals
        refused = objection(self._service, kind, worker)
        return Question(
            title=title.format(agent=v.agent_id),
            lead=f"It cannot be done now: {refused}." if refused else lead,
            back=agent_page(v.agent_id, given.get("session", "")),
            facts=self._facts(worker),
            fields=fields,
            # The life that was looked at: a later one is not meant.
            hidden={"agent": v.agent_id, "session": v.session_id, "incarnation": v.incarnation_id},
            buttons=() if refused else (button,),
        )

    # -- nudge ------------------------------------------------------------------------------------

    async def ask_nudge(self, given: Given) -> Question:
        return self._question(
            ActionKind.NUDGE,
            given,
            title="Nudge {agent}",
            lead="Your message gets into its context, and it goes on with it.",
            button=Button(label="Send the nudge"),
            fields=(
                Field(
                    name="message",
                    label="Message",
                    kind="area",
                    longest=4000,
                    hint="Left empty, it gets the usual reminder.",
                ),
            ),
        )

    async def nudge(self, form: Given, by: str) -> Done:
        given = checked(
            Nudge, message=form.get("message", "").strip() or None, session_id=_session(form), by=by
        )
        done = await self._service.health.send_nudge(
            agent_of(form), given.message, session_id=given.session_id, by=given.by
        )
        words = {
            Outcome.DONE: "The nudge is in its context.",
            Outcome.QUEUED: "The nudge waits for it to be fetched.",
        }
        return Done(
            place=agent_page(done.agent_id, done.session_id),
            words=words.get(done.outcome) or _became(done.outcome, done.detail),
            well=done.delivered,
        )

    # -- ask the orchestrator -----------------------------------------------------------------------

    async def ask_escalate(self, given: Given) -> Question:
        return self._question(
            ActionKind.ESCALATE,
            given,
            title="Ask what is to become of {agent}",
            lead="The orchestrator decides: more time, a hand-off, or the end.",
            button=Button(label="Ask the orchestrator"),
            fields=(WHY,),
        )

    async def escalate(self, form: Given, by: str) -> Done:
        given = checked(Ask, reason=form.get("reason", ""), session_id=_session(form), by=by)
        done = await self._service.health.escalate_to_orchestrator(
            agent_of(form), given.reason, session_id=given.session_id, by=given.by
        )
        asked = bool(done.escalation_id)
        return Done(
            place=agent_page(done.agent_id, done.session_id),
            words="The orchestrator is asked." if asked else _became(done.outcome, ""),
            well=asked,
        )

    # -- terminate ----------------------------------------------------------------------------------

    async def ask_terminate(self, given: Given) -> Question:
        return self._question(
            ActionKind.TERMINATE,
            given,
            title="Stop {agent}?",
            lead="It is told to stop; its state is saved if it can say it, and it is not brought back by "
            "itself. This page answers when it has stopped, or has not in its time.",
            button=Button(label="Stop it", danger=True),
            fields=(WHY,),
        )

    async def terminate(self, form: Given, by: str) -> Done:
        given = checked(
            Ask,
            reason=form.get("reason", ""),
            session_id=_session(form),
            incarnation_id=form.get("incarnation"),
            by=by,
        )
        done = await self._service.health.terminate_agent(
            agent_of(form),
            given.reason,
            session_id=given.session_id,
            incarnation_id=given.incarnation_id,
            by=given.by,
        )
        words = "It has stopped."
        if done.checkpoint_id:
            words += f" Its state is in {done.checkpoint_id}."
        if not done.terminated:
            words = _became(done.outcome, done.detail)
            if done.outcome is Outcome.UNCONFIRMED:
                words += " End its process yourself; then it can be brought back here."
        return Done(place=agent_page(done.agent_id, done.session_id), words=words, well=done.terminated)

    # -- recover ------------------------------------------------------------------------------------

    async def ask_recover(self, given: Given) -> Question:
        status = await self._service.health.get_recovery_status(self._task(given))
        worker = self._service.monitor.get(agent_of(given), given.get("session") or None)
        if worker is None and status.history:
            last = status.history[0].successor
            worker = self._service.monitor.get(last.agent_id, last.session_id)
        refused = self._service.remediation.stop_switch.reason or ""
        if worker is not None:
            refused = objection(self._service, ActionKind.RECOVER, worker)
        whose = f"{worker.vitals.agent_id}'s task" if worker is not None else "this task"
        limit = Field(
            name="reviewed",
            label="I have looked at why it fails",
            kind="check",
            hint="Allows one attempt beyond the task's limit. Kept in the audit trail.",
        )
        over = Field(
            name="from_start",
            label="Without a checkpoint, begin again from the start",
            kind="check",
            hint="What the task did outside is repeated. Kept in the audit trail.",
        )
        return Question(
            title=f"Bring {whose} back?",
            lead=f"It cannot be done now: {refused}."
            if refused
            else "A worker is started that goes on from the task's last valid checkpoint.",
            back="/recoveries",
            facts=_stands(status, self._service.clock()),
            fields=(over,) if status.attempts_left else (limit, over),
            hidden={"task": status.task_id},
            buttons=() if refused else (Button(label="Bring it back"),),
        )

    def _task(self, given: Given) -> str:
        """Return the task that is meant: as it is said, or the one of a worker."""
        if task := given.get("task"):
            return task
        v = self._worker(given).vitals
        return v.task_id or v.session_id

    async def recover(self, form: Given, by: str) -> Done:
        reviewed = form.get("reviewed") == "yes"
        from_start = form.get("from_start") == "yes"
        given = checked(
            Recover, task_id=form.get("task", ""), by=by, reviewed=reviewed, from_start=from_start
        )
        done = await self._service.health.initiate_recovery(
            given.task_id, by=given.by, reviewed=given.reviewed, from_start=given.from_start
        )
        wait = max(0.0, (done.not_before or 0.0) - self._service.clock())
        when = f" in {ago(wait)}" if wait >= 1 else ""
        words = f"Attempt {done.attempt} begins{when}." if done.accepted else f"Not done: {done.reason}"
        return Done(place="/recoveries", words=words, well=done.accepted)

    # -- breakers -----------------------------------------------------------------------------------

    async def ask_reset(self, given: Given) -> Question:
        status = await self._service.health.get_circuit_breaker_status(given.get("name", ""))
        return Question(
            title="Close this circuit breaker?",
            lead="The next calls pass at once. If what it stands before still fails, it opens again.",
            back=f"/breakers?name={part(status.name)}",
            facts=(
                ("Breaker", status.name),
                ("State", status.state.value.replace("_", " ")),
                ("Failures", f"{status.failures} in a row; {status.threshold} open it"),
                ("Why", status.reason or "-"),
            ),
            hidden={"name": status.name},
            buttons=(Button(label="Close it", danger=True),),
        )

    async def reset(self, form: Given, by: str) -> Done:
        name = form.get("name", "")
        await self._service.health.reset_circuit_breaker(name, by=checked(Reset, by=by).by)
        status = await self._service.health.get_circuit_breaker_status(name)
        state = status.state.value.replace("_", " ")
        return Done(
            place=f"/breakers?name={part(status.name)}",
            words=f"{status.name} is {state}.",
            well=state == "closed",
        )


def _session(form: Given) -> str | None:
    return form.get("session") or None


def _became(outcome: Outcome, detail: str) -> str:
    """Return what became of something that was not simply done."""
    if outcome is Outcome.DRY_RUN:
        return "Dry run: it is written down, and nothing was done."
    words = f"Not done ({outcome.value.replace('_', ' ')})"
    return f"{words}: {detail}" if detail else f"{words}."


def _stands(status: RecoveryStatus, now: float) -> tuple[tuple[str, str], ...]:
    """Return how bringing a task back stands, in words."""
    last = status.history[0] if status.history else None
    facts = [
        ("Task", status.task_id),
        ("Attempts", f"{status.attempts} begun, {status.attempts_left} left"),
        ("This hour", f"{status.left_this_hour} left, of all tasks of its agent"),
    ]
    if status.active is not None:
        facts.append(("Under way", f"attempt {status.active.attempt}, {status.active.state.value}"))
    if last is not None:
        facts.append(
            ("Last", f"{last.state.value} {ago(now - last.created_at)} ago: {last.outcome or last.reason}")
        )
    return tuple(facts)
