"""
``python -m tests.judge.scores``: score the rules on the labelled scenarios, as in docs/judge.md.

``--write`` updates the document.
"""

from __future__ import annotations

import argparse
import asyncio
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from queenright.judge.scenarios import Score, load_scenarios, model_maker, play_all, score
from queenright.judge.scenarios.agreement import Agreement
from queenright.judge.settings import RULES

DOCUMENT: Final = Path(__file__).parents[2] / "docs" / "judge.md"
_BEGIN: Final = "<!-- begin: python -m tests.judge.scores --write -->"
_END: Final = "<!-- end -->"


async def score_rules() -> Score:
    """Run every scenario with the rules as judge and queen."""
    outcomes = await play_all(load_scenarios(), model_maker(RULES), model_maker(RULES), at_once=4)
    return score(outcomes, judge=RULES, queen=RULES)


def extract_scores(text: str) -> str:
    """Return the scores that a document contains between its markers."""
    return text.partition(_BEGIN)[2].partition(_END)[0].strip()


def replace_scores(text: str, new_score: Score) -> str:
    """Return a document with its scores replaced."""
    before, _, after = text.partition(_BEGIN)
    return f"{before}{_BEGIN}\n\n{format_scores(new_score)}\n\n{_END}{after.partition(_END)[2]}"


def format_scores(result: Score) -> str:
    """Format a score as a table of decisions and the number of deviations."""
    calls = "-" if result.calls_per_ticket is None else f"{result.calls_per_ticket:.2f}"
    return "\n".join(
        [
            f"{result.scenarios} scenarios, {calls} model calls per ticket.",
            "",
            "| decision | of | agree | kappa (95%) |",
            "| --- | ---: | ---: | --- |",
            *_format_rows(result),
            "",
            f"{len(result.misses)} differ from their label; the command lists them.",
        ]
    )


def _format_rows(result: Score) -> Iterator[str]:
    for row in (*result.decisions, *result.model_decisions):
        agree = f"{row.all.agreements} ({row.all.share:.0%})"
        yield f"| {row.name} | {row.all.of} | {agree} | {_format_kappa(row.all)} |"


def _format_kappa(agreement: Agreement) -> str:
    return (
        "-"
        if agreement.kappa is None
        else f"{agreement.kappa:z.2f} ({agreement.low:z.2f} to {agreement.high:z.2f})"
    )


def main() -> None:
    """Print the score of the rules, or write it to the document."""
    parser = argparse.ArgumentParser(prog="python -m tests.judge.scores", description=__doc__)
    parser.add_argument("--write", action="store_true", help=f"update {DOCUMENT.name}")
    args = parser.parse_args()
    rules_score = asyncio.run(score_rules())
    if args.write:
        DOCUMENT.write_text(
            replace_scores(DOCUMENT.read_text(encoding="utf-8"), rules_score), encoding="utf-8"
        )
    else:
        print(format_scores(rules_score))


if __name__ == "__main__":
    main()
