"""Render a score as text."""

from __future__ import annotations

from collections.abc import Iterable

from queenright.instrumentation.counts import format_count
from queenright.judge.scenarios.agreement import Agreement
from queenright.judge.scenarios.score import Effort, KindRow, Miss, Row, Score


def report(result: Score, *, misses: bool = True) -> str:
    """
    Return the tables: decisions, the models' own answers, kinds, effort, and deviations from the labels.
    """
    parts = [
        [f"{result.scenarios} scenarios; judge {result.judge}, queen {result.queen}"],
        ["Decisions, including the rules' floor", *_format_rows(result.decisions)],
        ["The models' own answers", *_format_rows(result.model_decisions)],
        [f"{'kind':18}{'scenarios':>10}{'ticket':>8}{'severity':>10}{'triage':>12}{'calls':>7}"]
        + [_format_kind(row) for row in result.kinds],
        ["Effort, in real time and dollars", *_format_efforts(result)],
    ]
    if misses and result.misses:
        parts.append(["Deviations from the labels", *(_format_miss(miss) for miss in result.misses)])
    if result.faults:
        parts.append(["FAULTS: these must not happen with any model", *result.faults])
    return "\n\n".join("\n".join(part) for part in parts)


def _format_rows(rows: Iterable[Row]) -> list[str]:
    head = f"  {'':18}{'of':>5}{'agree':>7}{'share':>8}   {'kappa (95 %)':26}{'without the disputed':>20}"
    lines = [head]
    for row in rows:
        numbers = f"{row.all.of:5}{row.all.agreements:7}{row.all.share:8.1%}"
        lines.append(f"  {row.name:18}{numbers}   {_format_kappa(row.all):26}{_format_kappa(row.undisputed)}")
    return lines


def _format_kappa(agreement: Agreement) -> str:
    if agreement.kappa is None:
        return "-"
    return f"{agreement.kappa:z.2f}" + (
        f" ({agreement.low:z.2f} to {agreement.high:z.2f})" if agreement.low is not None else ""
    )


def _format_kind(row: KindRow) -> str:
    triage = f"{row.triage} of {row.expected_triages}" if row.expected_triages else "-"
    return f"{row.kind:18}{row.scenarios:10}{row.ticket:8}{row.severity:10}{triage:>12}{row.calls:7}"


def _format_efforts(result: Score) -> list[str]:
    calls = "-" if result.calls_per_ticket is None else f"{result.calls_per_ticket:.2f}"
    return [_format_effort(effort) for effort in result.effort] + [f"  calls a ticket: {calls}"]


def _format_effort(effort: Effort) -> str:
    latency = "-" if effort.p50 is None else f"p50 {effort.p50:.3f} s, p95 {effort.p95:.3f} s"
    cost_per_decision = effort.cost / effort.decisions if effort.decisions else 0.0
    tokens = (
        f"{format_count(effort.tokens, 'token')}, ${effort.cost:.4f} (${cost_per_decision:.5f} a decision)"
    )
    decisions, calls = format_count(effort.decisions, "decision"), format_count(effort.calls, "call")
    return f"  {effort.role}: {decisions}, {calls}, {tokens}, {latency}"


def _format_miss(miss: Miss) -> str:
    differ = " (people differ)" if miss.people_differ else ""
    return f"  {miss.id}: {'; '.join(miss.mismatches)}{differ}\n      {miss.why}"
