"""Run scenarios with given models of the judge and the queen."""

from __future__ import annotations

import asyncio
import tempfile
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from queenright.health.findings import FindingKind
from queenright.health.settings import HealthSettings
from queenright.health.tickets.ticket import EscalationTicket, TicketStatus
from queenright.judge import ticket_policy
from queenright.judge.rules_model import RulesModel
from queenright.judge.scenarios.recording_model import RecordedCall, answered_severity, answered_triage
from queenright.judge.scenarios.scenario import Scenario
from queenright.judge.scenarios.script import Actor, Happening, Passes, start, turn
from queenright.judge.scenarios.stage import Stage
from queenright.judge.settings import RULES, JudgeSettings
from queenright.runtime.llm.litellm_provider import load_provider
from queenright.runtime.llm.model import LLMProvider

WORKER: Final = "research_agent"
NEVER_TRIAGED: Final = "none"
_NEIGHBOUR_START_SECONDS: Final = 600.0
"""The seconds over which the starts of the neighbours are spread."""

MakeModel = Callable[[], LLMProvider]


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """
    The outcome of a scenario.

    ``level`` is the severity of the worst ticket, or ``none``. ``judge_answer`` and ``queen_answer`` are the
    models' own answers before the rules apply, or None for a model that was not called.
    """

    scenario: Scenario
    level: str
    cause: FindingKind | None
    triage: str
    """
    ``intervene`` or ``dismiss``; ``none`` without a ticket or decision. A ticket that closed before anyone
    was notified counts as dismissed.
    """
    is_notified: bool
    """Whether the operator was notified."""
    tickets: int
    judge_answer: str | None
    queen_answer: str | None
    judge_answers: tuple[RecordedCall, ...]
    queen_answers: tuple[RecordedCall, ...]
    faults: tuple[str, ...] = ()
    """
    Violations that no model may cause: a ticket about a healthy neighbour, or a result below the floor of the
    rules.
    """


def model_maker(name: str, *, timeout_seconds: float = 60.0) -> MakeModel:
    """
    Return a factory for the model called ``name``. Each scenario gets its own model, because scripted models
    have state.

    Raises:
        ProviderUnavailableError: Raised by the factory if the model cannot be used.
    """
    if name == RULES:
        return RulesModel
    return lambda: load_provider(name, timeout_seconds=timeout_seconds)


async def play_all(
    scenarios: Iterable[Scenario],
    judge: MakeModel,
    queen: MakeModel,
    *,
    settings: HealthSettings | None = None,
    judging: JudgeSettings | None = None,
    at_once: int = 1,
    on_played: Callable[[Outcome], None] | None = None,
) -> list[Outcome]:
    """
    Run scenarios, each with its own components, and return the outcomes in order.

    Args:
        at_once: How many scenarios run concurrently, which is useful with slow models.
    """
    limit = asyncio.Semaphore(at_once)

    async def play_one(scenario: Scenario) -> Outcome:
        async with limit:
            outcome = await play(scenario, judge(), queen(), settings=settings, judging=judging)
        if on_played is not None:
            on_played(outcome)
        return outcome

    async with asyncio.TaskGroup() as group:
        tasks = [group.create_task(play_one(scenario)) for scenario in scenarios]
    return [task.result() for task in tasks]


async def play(
    scenario: Scenario,
    judge: LLMProvider,
    queen: LLMProvider,
    *,
    settings: HealthSettings | None = None,
    judging: JudgeSettings | None = None,
) -> Outcome:
    """Run a scenario in a temporary folder, and return the outcome."""
    with tempfile.TemporaryDirectory(prefix="queenright-scenario-", ignore_cleanup_errors=True) as folder:
        stage = Stage(
            Path(folder),
            judge=judge,
            queen=queen,
            settings=settings,
            judging=judging,
            meanwhile=scenario.actions_meanwhile,
        )
        async with stage:
            for number in range(scenario.neighbours):
                neighbour = Actor(f"neighbour-{number:03d}")
                stage.enter(
                    neighbour,
                    _play_neighbour(neighbour, number * _NEIGHBOUR_START_SECONDS / scenario.neighbours),
                )
            worker = Actor(WORKER)
            part = stage.enter(worker, (h for act in scenario.actions for h in act(worker)))
            await stage.play(part)
            await stage.settle()
            if any(ticket.status is TicketStatus.OPEN for ticket in stage.tickets.open_tickets()):
                # The queen gave no answer, so let the bypass time pass.
                await stage.pass_time(stage.settings.judge.triage_timeout_seconds + 1)
            return _make_outcome(scenario, stage, await stage.all_tickets())


def _play_neighbour(actor: Actor, after: float) -> Iterator[Happening]:
    yield Passes(after)
    yield from start(actor, beats=60.0)
    while True:
        yield from turn(actor, every=45.0, tool="search", verdict="CONTINUE", times=4)
        yield from turn(actor, every=45.0, verdict="ACCEPT")


def _make_outcome(scenario: Scenario, stage: Stage, tickets: list[EscalationTicket]) -> Outcome:
    worker_tickets = [ticket for ticket in tickets if ticket.agent_id == WORKER]
    worst = max(worker_tickets, key=lambda ticket: ticket.severity.rank, default=None)
    judge, queen = tuple(stage.judge.answers), tuple(stage.queen.answers)
    decisions = [t.triage_decision or "dismiss" for t in worker_tickets if t.triage_decision or not t.is_live]
    is_notified = any(decision != "dismiss" for decision in decisions)
    return Outcome(
        scenario=scenario,
        level=worst.severity.value if worst is not None else "none",
        cause=worst.kind if worst is not None else None,
        triage="intervene" if is_notified else "dismiss" if decisions else NEVER_TRIAGED,
        is_notified=is_notified,
        tickets=len(tickets),
        judge_answer=answered_severity(judge),
        queen_answer=answered_triage(queen),
        judge_answers=judge,
        queen_answers=queen,
        faults=tuple(_find_faults(scenario, stage, tickets)),
    )


def _find_faults(scenario: Scenario, stage: Stage, tickets: list[EscalationTicket]) -> Iterator[str]:
    """Yield the faults that no model may cause."""
    worker_tickets = [ticket for ticket in tickets if ticket.agent_id == WORKER]
    for ticket in tickets:
        if ticket.agent_id != WORKER:
            yield f"a ticket about {ticket.agent_id}, which is healthy"
    if any(ticket_policy.is_binding(finding.severity) for finding in stage.findings):
        floor = max((finding.severity for finding in stage.findings), key=lambda severity: severity.rank)
        if not any(ticket.severity.rank >= floor.rank for ticket in worker_tickets):
            yield f"the rules say {floor.value}, and no ticket does"
    for ticket in worker_tickets:
        if ticket_policy.is_binding(ticket.severity) and not scenario.meanwhile:
            if ticket.triage_decision == "dismiss":
                yield f"a {ticket.severity.value} ticket whose condition held was dismissed"
            elif ticket.triage_decision is None:
                yield f"nobody was notified of a {ticket.severity.value} ticket"
