"""Score outcomes of scenarios: the agreement with the labels, cost and latency."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Final

from queenright.judge.scenarios.agreement import Agreement, Pair, agreement
from queenright.judge.scenarios.playing import NEVER_TRIAGED, Outcome
from queenright.judge.scenarios.recording_model import SILENT, RecordedCall, questions
from queenright.judge.scenarios.scenario import LEVELS

YES: Final = "yes"
NO: Final = "no"


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """The agreement of one decision with the labels, with and without the disputed scenarios."""

    name: str
    all: Agreement
    undisputed: Agreement


@dataclass(frozen=True, slots=True, kw_only=True)
class KindRow:
    """The number of scenarios of a kind, and how many of them match their labels."""

    kind: str
    scenarios: int
    ticket: int
    severity: int
    expected_triages: int
    triage: int
    calls: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Effort:
    """
    The cost of a role's decisions. ``p50`` and ``p95`` are seconds of real time in the model per decision.
    """

    role: str
    decisions: int
    calls: int
    tokens: int
    cost: float
    p50: float | None
    p95: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Miss:
    """A scenario whose outcome deviates from its label."""

    id: str
    kind: str
    mismatches: tuple[str, ...]
    why: str
    people_differ: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Score:
    """The score of a set of outcomes."""

    judge: str
    queen: str
    scenarios: int
    decisions: tuple[Row, ...]
    model_decisions: tuple[Row, ...]
    kinds: tuple[KindRow, ...]
    effort: tuple[Effort, ...]
    calls_per_ticket: float | None
    misses: tuple[Miss, ...]
    faults: tuple[str, ...]

    @property
    def lowest(self) -> float | None:
        """The lowest kappa of the decisions, or None if no kappa is defined."""
        kappas = [row.all.kappa for row in self.decisions if row.all.kappa is not None]
        return min(kappas, default=None)


def score(outcomes: Sequence[Outcome], *, judge: str, queen: str) -> Score:
    """Compare outcomes with their labels."""
    tickets = sum(outcome.tickets for outcome in outcomes)
    calls = sum(len(o.judge_answers) + len(o.queen_answers) for o in outcomes)
    return Score(
        judge=judge,
        queen=queen,
        scenarios=len(outcomes),
        decisions=tuple(_score_rows(outcomes, _DECISIONS)),
        model_decisions=tuple(_score_rows(outcomes, _MODEL_DECISIONS)),
        kinds=tuple(_score_kinds(outcomes)),
        effort=(
            _measure_effort("judge", [o.judge_answers for o in outcomes]),
            _measure_effort("queen", [o.queen_answers for o in outcomes]),
        ),
        calls_per_ticket=calls / tickets if tickets else None,
        misses=tuple(miss for outcome in outcomes if (miss := _find_miss(outcome)) is not None),
        faults=tuple(f"{o.scenario.id}: {fault}" for o in outcomes for fault in o.faults),
    )


# -- decisions as (expected, answered); None without a decision ---------------------------------------


def _pair_ticket(outcome: Outcome) -> Pair | None:
    is_due, has_ticket = outcome.scenario.label.ticket_due, outcome.level != "none"
    return (YES if (has_ticket if is_due is None else is_due) else NO), (YES if has_ticket else NO)


def _pair_severity(outcome: Outcome) -> Pair | None:
    return outcome.scenario.label.level_due(outcome.level), outcome.level


def _pair_triage(outcome: Outcome) -> Pair | None:
    if outcome.level == "none":
        return None
    return outcome.scenario.label.triage, outcome.triage


def _pair_notification(outcome: Outcome) -> Pair | None:
    label = outcome.scenario.label
    is_due = label.triage == "intervene" and (label.ticket_due is not False)
    return (YES if is_due else NO), (YES if outcome.is_notified else NO)


def _pair_judge_ticket(outcome: Outcome) -> Pair | None:
    answer = outcome.judge_answer
    if answer is None:
        return None
    is_due = outcome.scenario.label.ticket_due
    if answer == SILENT:
        return (YES if is_due else NO), SILENT
    return (YES if (answer != "none" if is_due is None else is_due) else NO), (
        NO if answer == "none" else YES
    )


def _pair_judge_severity(outcome: Outcome) -> Pair | None:
    answer = outcome.judge_answer
    if answer is None or answer == SILENT:
        return None
    return outcome.scenario.label.level_due(answer), answer


def _pair_queen_triage(outcome: Outcome) -> Pair | None:
    return None if outcome.queen_answer is None else (outcome.scenario.label.triage, outcome.queen_answer)


Decision = tuple[str, Callable[[Outcome], Pair | None], tuple[str, ...]]

_DECISIONS: Final[tuple[Decision, ...]] = (
    ("ticket", _pair_ticket, ()),
    ("severity", _pair_severity, LEVELS),
    ("triage", _pair_triage, ()),
    ("operator notified", _pair_notification, ()),
)
_MODEL_DECISIONS: Final[tuple[Decision, ...]] = (
    ("judge: ticket", _pair_judge_ticket, ()),
    ("judge: severity", _pair_judge_severity, LEVELS),
    ("queen: triage", _pair_queen_triage, ()),
)


def _score_rows(outcomes: Sequence[Outcome], decisions: Iterable[Decision]) -> Iterable[Row]:
    clear_outcomes = [outcome for outcome in outcomes if not outcome.scenario.label.people_differ]
    for name, pair, order in decisions:
        yield Row(
            name=name,
            all=agreement([p for o in outcomes if (p := pair(o)) is not None], order),
            undisputed=agreement([p for o in clear_outcomes if (p := pair(o)) is not None], order),
        )


def _agrees(pair: Pair | None) -> bool:
    return pair is None or pair[0] == pair[1]


def _score_kinds(outcomes: Sequence[Outcome]) -> Iterable[KindRow]:
    for kind in sorted({outcome.scenario.kind for outcome in outcomes}):
        kind_outcomes = [outcome for outcome in outcomes if outcome.scenario.kind == kind]
        yield KindRow(
            kind=kind,
            scenarios=len(kind_outcomes),
            ticket=sum(_agrees(_pair_ticket(o)) for o in kind_outcomes),
            severity=sum(_agrees(_pair_severity(o)) for o in kind_outcomes),
            expected_triages=sum(o.level != "none" for o in kind_outcomes),
            triage=sum(o.level != "none" and _agrees(_pair_triage(o)) for o in kind_outcomes),
            calls=sum(len(o.judge_answers) + len(o.queen_answers) for o in kind_outcomes),
        )


def _find_miss(outcome: Outcome) -> Miss | None:
    label, mismatches = outcome.scenario.label, list[str]()
    if not _agrees(_pair_severity(outcome)):
        mismatches.append(f"ticket {outcome.level}, not {' or '.join(label.ticket)}")
    elif label.causes and outcome.cause is not None and outcome.cause not in label.causes:
        mismatches.append(f"cause {outcome.cause.value}, not {' or '.join(label.causes)}")
    if not _agrees(_pair_triage(outcome)):
        triage = "no triage" if outcome.triage == NEVER_TRIAGED else outcome.triage
        mismatches.append(f"{triage}, not {label.triage}")
    if not mismatches:
        return None
    return Miss(
        id=outcome.scenario.id,
        kind=outcome.scenario.kind,
        mismatches=tuple(mismatches),
        why=label.why,
        people_differ=label.people_differ,
    )


def _measure_effort(role: str, calls: Iterable[Sequence[RecordedCall]]) -> Effort:
    decisions = [part for answers in calls for part in questions(answers)]
    seconds = sorted(sum(answer.seconds for answer in part) for part in decisions)
    answers = [answer for part in decisions for answer in part]
    return Effort(
        role=role,
        decisions=len(decisions),
        calls=len(answers),
        tokens=sum(answer.tokens for answer in answers),
        cost=sum(answer.cost for answer in answers),
        p50=_find_quantile(seconds, 0.5),
        p95=_find_quantile(seconds, 0.95),
    )


def _find_quantile(values: Sequence[float], share: float) -> float | None:
    return values[min(len(values) - 1, int(share * len(values)))] if values else None


_JSON_KEYS: Final = {
    "decisions": "decided",
    "model_decisions": "said",
    "undisputed": "settled",
    "expected_triages": "triaged",
    "mismatches": "wrong",
    "agreements": "agreed",
}
"""The JSON keys in the command's output that differ from the names of the fields."""


def to_dict(result: Score) -> dict[str, Any]:
    """Return a score as JSON values."""
    values = asdict(result, dict_factory=lambda fields: {_JSON_KEYS.get(name, name): v for name, v in fields})
    return values | {"lowest_kappa": result.lowest}
