"""The health judge: a graph that checks the workers with findings and writes tickets."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from opentelemetry.trace import Span, get_current_span

from queenright.health.findings import Finding, WorkerKey
from queenright.health.monitoring.monitor import WorkerHealth
from queenright.health.monitoring.worker_summary import summarise
from queenright.health.tickets.ticket import EscalationTicket, TicketDraft, TicketRejectedError, parse_draft
from queenright.health.tickets.ticket_reports import Report
from queenright.instrumentation import names
from queenright.judge import ticket_policy
from queenright.judge.check_record import CheckRecord
from queenright.judge.decision_context import DecisionContext, decision_node
from queenright.judge.messages import check_message
from queenright.judge.metrics import CheckOutcome
from queenright.judge.models import AssignedModel
from queenright.judge.monitoring_tools import EmitArguments, emit_tool, show_report_result
from queenright.judge.prompting import judge_prompt
from queenright.judge.recent_answers import Answers
from queenright.judge.rules_model import EMIT, SUMMARY
from queenright.judge.settings import RULES
from queenright.judge.ticket_coverage import Coverage, reason_for_ticket
from queenright.judge.tracing import build_links, get_span_ids
from queenright.judge.trend import Trends
from queenright.runtime.events import AgentEvent
from queenright.runtime.execution import Trigger
from queenright.runtime.graphs.graph import EntryPointSpec, GraphSpec
from queenright.runtime.nodes.event_loop import NodeResult
from queenright.runtime.storage.files import Disk, UnusableFileError
from queenright.runtime.stream import RunNode
from queenright.runtime.tooling.tools import Tool, ToolError

_log = logging.getLogger(__name__)

JUDGE_GRAPH: Final = "worker_health_judge"
HEALTH_CHECK: Final = "health_check"
JUDGE_NODE: Final = "judge"

_EVALUATION: Final = "worker_health"

BYPASS_SECONDS: Final = 60.0
"""If a high or critical finding waits longer for a slow model, the rules write its ticket."""

_CHECKS_PER_BYPASS: Final = 4
"""How often, within the bypass time, the judge looks for workers that wait for a slow model."""

_CROWD_SIZE: Final = 20
"""
If more workers than this are due at the same time, the rules write their tickets, because a model is too
slow.
"""

_BATCH_SIZE: Final = 50
"""The number of tickets per transaction. Other tasks run in between."""

_MAX_REPAIRS: Final = 1
"""How often a model may correct a rejected ticket before the rules' decision applies."""


class HealthJudge:
    """
    Judges the workers that have a finding which needs a ticket and has none.

    A healthy fleet costs no model call. If the severity is high or critical by the rules and the model wrote
    no ticket, the judge writes the rules' ticket. Every check is recorded as an event.

    Args:
        disk: Reads and writes ``trend_file`` in threads.
        trend_file: The file that stores the numbers of each worker's last check.
    """

    def __init__(
        self,
        context: DecisionContext,
        model: AssignedModel,
        *,
        publish: Callable[[AgentEvent], Awaitable[None]],
        disk: Disk,
        trend_file: Path,
    ) -> None:
        self._context = context
        self._monitor = context.monitor
        self._tickets = context.tickets
        self._settings = context.settings
        self._clock = context.clock
        self._metrics = context.metrics
        self._model = model
        self._prompt = judge_prompt(context.settings, model.settings.prompt)
        self._publish = publish
        self._disk = disk
        self._trend_file = trend_file
        self._trends = Trends()
        self._case = context.open_case()
        self._has_raised = False
        self._rejections: list[str] = []
        # Wake-ups during a check are noted here, so that together they cause only one more check.
        self._wake_reasons: dict[WorkerKey, str] = {}
        self._should_check_all = False
        self._checked_all_at = context.clock()
        self._coverage = Coverage(context.tickets)
        self._answers = Answers(context.settings.judge.interval_seconds)
        self._waiting_since: dict[WorkerKey, float] = {}
        """The workers that wait in the current check, and since when."""

    def graph(self) -> GraphSpec:
        """Return the judge's graph, which has one node that a timer wakes."""
        node = decision_node(
            JUDGE_NODE,
            system_prompt=self._prompt.text,
            output_key="health_verdict",
            reads=(SUMMARY, *(tool.name for tool in self._context.read_tools)),
            decides=(EMIT,),
            model=self._model,
        )
        entry = EntryPointSpec(
            id=HEALTH_CHECK,
            node_id=JUDGE_NODE,
            trigger_type="timer",
            interval_seconds=self._settings.judge.interval_seconds,
        )
        return GraphSpec(id=JUDGE_GRAPH, nodes=(node,), entry_points=(entry,))

    def tools(self) -> list[Tool]:
        """Return the judge's tools."""
        return [self._case.tool(), emit_tool(self._write_ticket), *self._context.read_tools]

    async def load_trends(self) -> None:
        """
        Load the trends of the last checks. If they cannot be read, each next check counts as the worker's
        first.
        """
        try:
            self._trends = await self._disk.run(lambda: Trends.load(self._trend_file))
        except UnusableFileError as error:
            _log.warning("cannot load the judge's trends, starting without: %s", error)

    def adopt(self, tickets: Iterable[EscalationTicket]) -> None:
        """Take over the tickets from before a restart. Findings that they cover are not judged again."""
        self._coverage.adopt(tickets)

    def needs_judging(self, health: WorkerHealth) -> bool:
        """Return whether a worker has a finding that needs a ticket and has none."""
        finding = reason_for_ticket(health)
        return finding is not None and not self._coverage.covers(health, finding)

    def is_news(self, health: WorkerHealth) -> bool:
        """Return whether a worker's findings have changed since it was last judged."""
        return self.needs_judging(health) and self._answers.is_news(health)

    def note(self, agent_id: str | None, session_id: str | None, reason: str) -> bool:
        """
        Note one worker, one agent's workers, or all for the next check. Return whether to request a check.
        """
        is_idle = not self._wake_reasons and not self._should_check_all
        if agent_id is None:
            self._should_check_all = True
        elif session_id is not None:
            self._wake_reasons[agent_id, session_id] = reason
        else:
            keys = [h.key for h in self._monitor.workers() if h.vitals.agent_id == agent_id]
            self._wake_reasons.update(dict.fromkeys(keys, reason))
        return is_idle and (bool(self._wake_reasons) or self._should_check_all)

    async def check(self, trigger: Trigger, run: RunNode) -> dict[WorkerKey, CheckOutcome]:
        """
        Judge the workers that need it, and return their outcomes. This is the entry point ``health_check``.
        """
        now = self._clock()
        record = CheckRecord(started_at=now)
        is_overdue = now - self._checked_all_at >= self._settings.judge.interval_seconds
        is_full = trigger.tick is not None or self._should_check_all or is_overdue
        wake_reasons, self._wake_reasons, self._should_check_all = self._wake_reasons, {}, False
        standing: list[WorkerKey] = []
        if is_full:
            self._checked_all_at = now
            standing = self._coverage.workers()
            healths = list(self._monitor.workers())
            self._answers.keep({health.key for health in healths if self.needs_judging(health)})
        else:
            healths = [health for key in wake_reasons if (health := self._monitor.get(*key)) is not None]
        due_workers = [
            health for health in healths if self.needs_judging(health) and self._answers.is_due(health, now)
        ]
        # New problems come first. The others, perhaps thousands, only need to be counted on their tickets.
        outcomes = await self._judge_all(due_workers, wake_reasons, run, record)
        await self._count_standing([key for key in standing if key not in outcomes], record)
        if not outcomes:
            self._metrics.count_check("ticket" if record.counted else "healthy", self._clock())
        record.note_workers(len(healths), is_full=is_full, wakes=wake_reasons.values())
        await self._record_check(record, outcomes)
        return outcomes

    async def _judge_all(
        self,
        workers: Sequence[WorkerHealth],
        wake_reasons: Mapping[WorkerKey, str],
        run: RunNode,
        record: CheckRecord,
    ) -> dict[WorkerKey, CheckOutcome]:
        """Judge the workers one by one, the worst first. The rules judge workers that wait too long."""
        workers_by_severity = sorted(workers, key=lambda health: -_rank_severity(health))
        # A ticket whose condition has changed is updated immediately, without a model call.
        outdated_keys = [health.key for health in workers_by_severity if self._coverage.is_outdated(health)]
        outcomes = await self._write_in_batches(outdated_keys, "its condition has changed")
        workers_by_severity = [health for health in workers_by_severity if health.key not in outcomes]
        if len(workers_by_severity) > _CROWD_SIZE:
            outcomes |= await self._judge_crowd(workers_by_severity)
            workers_by_severity = [health for health in workers_by_severity if health.key not in outcomes]
        now = self._clock()
        self._waiting_since = {health.key: now for health in workers_by_severity}
        bypass_task = asyncio.create_task(self._bypass(), name="judge-bypass")
        try:
            for key in [health.key for health in workers_by_severity]:
                outcomes[key] = await self._judge(key, wake_reasons.get(key, HEALTH_CHECK), run, record)
                self._waiting_since.pop(key, None)
                self._metrics.count_check(outcomes[key], self._clock())
        finally:
            bypass_task.cancel()
            self._waiting_since = {}
        return outcomes

    async def _judge_crowd(self, workers: Sequence[WorkerHealth]) -> dict[WorkerKey, CheckOutcome]:
        """Write tickets by the rules for many workers, in few transactions."""
        judging = self._model.answering
        keys = [
            h.key
            for h in workers
            if judging == RULES or ticket_policy.is_binding(_require_reason(h).severity)
        ]
        return await self._write_in_batches(keys, "too many at once for the model")

    async def _write_in_batches(
        self, keys: Sequence[WorkerKey], reason: str
    ) -> dict[WorkerKey, CheckOutcome]:
        """Write the rules' tickets of these workers in batches, and return their outcomes."""
        note = "" if self._model.answering == RULES else f" Written by the rules: {reason}."
        outcomes: dict[WorkerKey, CheckOutcome] = {}
        for start in range(0, len(keys), _BATCH_SIZE):
            try:
                outcomes |= await self._write_rules_tickets(keys[start : start + _BATCH_SIZE], note)
            except Exception:
                _log.exception("cannot write the rules' tickets at once, judging the workers one by one")
                break
            await asyncio.sleep(0)
        return outcomes

    async def _write_rules_tickets(
        self, keys: Sequence[WorkerKey], note: str
    ) -> dict[WorkerKey, CheckOutcome]:
        """Write the rules' tickets of these workers in one transaction, and return their outcomes."""
        now = self._clock()
        trace_id, span_id = get_span_ids(get_current_span())
        workers = [
            health for key in keys if (health := self._monitor.get(*key)) and self.needs_judging(health)
        ]
        has_ticket_by_key = await self._report_by_rules(
            workers, "ticket", note, trace_id=trace_id, span_id=span_id, model=RULES
        )
        outcomes: dict[WorkerKey, CheckOutcome] = {}
        for key in keys:
            has_ticket = has_ticket_by_key.get(key, self._coverage.find_ticket(key) is not None)
            outcomes[key] = "ticket" if has_ticket else "healthy"
        for health in workers:
            self._answers.note_request(health, now)
            self._answers.note_outcome(health.key, outcomes[health.key], now)
        for outcome in outcomes.values():
            self._metrics.count_check(outcome, now)
        return outcomes

    async def _report_by_rules(
        self, workers: Iterable[WorkerHealth], verdict: str, note: str = "", **origin: str
    ) -> dict[WorkerKey, bool]:
        """Report workers by the rules in one transaction, and return whether each has a ticket."""
        now = self._clock()
        reports: list[tuple[Report, dict[str, Any]]] = []
        for health in workers:
            summary = summarise(health, now)
            if (draft := ticket_policy.draft_ticket(summary)) is not None:
                reports.append((Report(health, _add_note(draft, note), **origin), summary))
        results = await self._tickets.raise_tickets([report for report, _ in reports]) if reports else []
        has_ticket_by_key = {}
        for (report, summary), ticket in zip(reports, results, strict=True):
            if ticket is not None:
                self._coverage.note_ticket(report.health, ticket.ticket)
            self._trends.note(summary, now, "healthy" if ticket is None else verdict)
            has_ticket_by_key[report.health.key] = ticket is not None
        return has_ticket_by_key

    async def _bypass(self) -> None:
        """Write the rules' ticket for workers that wait too long for the model."""
        while True:
            await self._context.sleep(BYPASS_SECONDS / _CHECKS_PER_BYPASS)
            now = self._clock()
            for key in self._wake_reasons:
                self._waiting_since.setdefault(key, now)
            overdue_keys = [
                key for key, since in self._waiting_since.items() if now - since >= BYPASS_SECONDS
            ]
            for key in overdue_keys:
                self._waiting_since[key] = now
                health = self._monitor.get(*key)
                if health is None or not self.needs_judging(health):
                    continue
                try:
                    await self._hold_floor(health, f"did not judge it within {BYPASS_SECONDS:g} s")
                except Exception:
                    _log.exception("cannot write a ticket about %s, retrying", key[0])

    async def _record_check(self, record: CheckRecord, outcomes: dict[WorkerKey, CheckOutcome]) -> None:
        """Publish the record and save the trends. If either fails, the judge continues."""
        event = record.event(
            outcomes, self._clock(), graph_id=JUDGE_GRAPH, model=self._model.answering, prompt=self._prompt.id
        )
        try:
            await self._publish(event)
        except Exception:
            _log.exception("cannot record a check; its decisions stand")
        if not self._trends.has_changed:
            return
        rows = self._trends.dump()
        try:
            await self._disk.run(lambda: Trends.save(self._trend_file, rows))
        except OSError as error:
            self._trends.has_changed = True
            _log.error("cannot save the judge's trends: %s", error)

    async def _count_standing(self, standing: Sequence[WorkerKey], record: CheckRecord) -> None:
        """Count another occurrence of each condition that has a ticket, without a model call."""
        for start in range(0, len(standing), _BATCH_SIZE):
            healths = (self._monitor.get(*key) for key in standing[start : start + _BATCH_SIZE])
            workers = [
                health
                for health in healths
                if health is not None
                and reason_for_ticket(health) is not None
                and not self.needs_judging(health)
            ]
            try:
                record.counted += sum((await self._report_by_rules(workers, "counted")).values())
            except Exception:
                _log.exception("cannot count %d tickets", len(workers))
            await asyncio.sleep(0)

    async def _judge(self, key: WorkerKey, reason: str, run: RunNode, record: CheckRecord) -> CheckOutcome:
        self._case.select(key)
        self._has_raised, self._rejections = False, []
        health, summary = self._case.health, self._case.summary()
        if health is None or summary is None or not self.needs_judging(health):
            # The worker recovered while others were judged, or the rules have written its ticket.
            return "healthy" if self._coverage.find_ticket(key) is None else "ticket"
        self._answers.note_request(health, self._clock())
        vitals = health.vitals
        with self._context.tracer.start_as_current_span(
            f"{names.SPAN_JUDGE_CHECK} {vitals.agent_id}",
            links=build_links(vitals.last_trace_id, vitals.last_span_id),
            attributes={
                names.GEN_AI_AGENT_NAME: vitals.agent_id,
                names.GEN_AI_CONVERSATION_ID: vitals.session_id,
                names.INCARNATION_ID: vitals.incarnation_id,
                names.HEALTH_STATE: health.state.value,
                names.PROMPT_ID: self._prompt.id,
            },
        ) as span:
            try:
                result = await run(self._build_message(health, summary, reason))
                record.add_cost(result)
                outcome, explanation = await self._conclude(result)
            except Exception as error:
                _log.exception("the check of %s failed, retrying at the next tick", vitals.agent_id)
                outcome, explanation = "unknown", f"{type(error).__name__}: {error}"
                await self._handle_failure(explanation)
            _record_evaluation(span, outcome, explanation)
        self._answers.note_outcome(key, outcome, self._clock())
        self._trends.note(summary, self._clock(), outcome)
        return outcome

    async def _handle_failure(self, fault: str) -> None:
        """Write the rules' ticket if the model call failed and the rules bind."""
        health = self._case.health
        if self._has_raised or health is None:
            return
        try:
            await self._hold_floor(health, f"failed ({fault})")
        except Exception:
            _log.exception("cannot write a ticket about %s, retrying", health.vitals.agent_id)

    async def _conclude(self, result: NodeResult) -> tuple[CheckOutcome, str]:
        """Apply the rules' floor to a model's run. Return the outcome and its explanation."""
        verdict = str(result.outputs.get("health_verdict", ""))
        if self._has_raised:
            return "ticket", verdict or "ticket written"
        is_healthy = result.outcome == "done" and verdict.strip().lower().startswith("healthy")
        reply = f"answered {verdict!r}" if result.outcome == "done" else f"gave no verdict: {result.error}"
        if self._rejections:
            reply = f"wrote an invalid ticket: {self._rejections[-1]}"
        if result.outcome != "no_answer" and not is_healthy:
            self._model.count_invalid(reply)
        health = self._case.health
        if health is not None and await self._hold_floor(health, reply):
            return ("ticket" if is_healthy else "unknown"), f"ticket written by the rules; the model {reply}"
        return ("healthy", verdict) if is_healthy else ("unknown", f"the model {reply}")

    async def _hold_floor(self, health: WorkerHealth, reply: str) -> bool:
        """Write the rules' ticket if the rules bind and there is no ticket. Return whether it was written."""
        finding = reason_for_ticket(health)
        if (
            finding is None
            or not ticket_policy.is_binding(finding.severity)
            or self._coverage.covers(health, finding)
        ):
            return False
        draft = ticket_policy.draft_ticket(summarise(health, self._clock()))
        if draft is None:
            return False
        await self._raise_ticket(
            health, _add_note(draft, f" Written by the rules: the model {reply}."[:300]), RULES
        )
        return True

    async def _write_ticket(self, arguments: EmitArguments) -> str:
        health = self._case.health
        if health is None:
            raise ToolError("the worker is gone; end with health_verdict healthy")
        if self._has_raised:
            raise ToolError("this check has written a ticket already; end with health_verdict ticket")
        try:
            result = await self._raise_ticket(
                health, parse_draft(arguments.ticket_json), self._model.answering
            )
            self._has_raised = True
            return result
        except TicketRejectedError as error:
            self._rejections.append(str(error))
            if len(self._rejections) > _MAX_REPAIRS:
                return f"{error}. That was the last try; the rules' answer stands."
            raise ToolError(f"{error}. Correct this, and send the whole ticket again.") from error

    async def _raise_ticket(self, health: WorkerHealth, draft: TicketDraft, model: str) -> str:
        trace_id, span_id = get_span_ids(get_current_span())
        result = await self._tickets.raise_ticket(
            health, draft, trace_id=trace_id, span_id=span_id, model=model
        )
        self._coverage.note_ticket(health, result.ticket)
        return show_report_result(result)

    def _build_message(self, health: WorkerHealth, summary: dict[str, Any], reason: str) -> str:
        now = self._clock()
        findings = [{"kind": f.kind, "severity": f.severity} for f in health.findings if f.ticket]
        check = {
            "agent_id": health.vitals.agent_id,
            "session_id": health.vitals.session_id,
            "findings": findings,
            "woken_by": reason,
        }
        return check_message(now, check, summary, self._trends.compare(summary, now))


def _add_note(draft: TicketDraft, note: str) -> TicketDraft:
    return draft.model_copy(update={"judge_reasoning": draft.judge_reasoning + note})


def _require_reason(health: WorkerHealth) -> Finding:
    """Return the finding that needs a ticket."""
    finding = reason_for_ticket(health)
    assert finding is not None, "only workers with a reason are due"
    return finding


def _rank_severity(health: WorkerHealth) -> int:
    finding = reason_for_ticket(health)
    return -1 if finding is None else finding.severity.rank


def _record_evaluation(span: Span, outcome: CheckOutcome, explanation: str) -> None:
    span.add_event(
        names.GEN_AI_EVALUATION_RESULT,
        {
            names.GEN_AI_EVALUATION_NAME: _EVALUATION,
            names.GEN_AI_EVALUATION_SCORE_LABEL: outcome,
            names.GEN_AI_EVALUATION_EXPLANATION: explanation[:500],
        },
    )
