"""
``python -m tests.judge.scores``: score of the rules on the labelled scenarios, as in docs/judge.md.

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


async def rules_score() -> Score:
    """Play every scenario with the rules as judge and queen."""
    outcomes = await play_all(load_scenarios(), model_maker(RULES), model_maker(RULES), at_once=4)
    return score(outcomes, judge=RULES, queen=RULES)


def stated(text: str) -> str:
    """Return what a document states between its marks."""
    return text.partition(_BEGIN)[2].partition(_END)[0].strip()


def written(text: str, found: Score) -> str:
    """Return a document with other numbers between its marks."""
    before, _, rest = text.partition(_BEGIN)
    return f"{before}{_BEGIN}\n\n{markdown(found)}\n\n{_END}{rest.partition(_END)[2]}"


def markdown(found: Score) -> str:
    """Return the decisions as a table, and the number of deviations."""
    calls = "-" if found.calls_per_ticket is None else f"{found.calls_per_ticket:.2f}"
    return "\n".join(
        [
            f"{found.scenarios} scenarios, {calls} calls of the models a ticket.",
            "",
            "| decision | of | agree | kappa (95%) |",
            "| --- | ---: | ---: | --- |",
            *_rows(found),
            "",
            f"{len(found.misses)} differ from their label; the command lists them.",
        ]
    )


def _rows(found: Score) -> Iterator[str]:
    for row in (*found.decisions, *found.model_decisions):
        agree = f"{row.all.agreements} ({row.all.share:.0%})"
        yield f"| {row.name} | {row.all.of} | {agree} | {_kappa(row.all)} |"


def _kappa(of: Agreement) -> str:
    return "-" if of.kappa is None else f"{of.kappa:z.2f} ({of.low:z.2f} to {of.high:z.2f})"


def main() -> None:
    """Print the score of the rules, or write it to the document."""
    parser = argparse.ArgumentParser(prog="python -m tests.judge.scores", description=__doc__)
    parser.add_argument("--write", action="store_true", help=f"into {DOCUMENT.name}")
    args = parser.parse_args()
    found = asyncio.run(rules_score())
    if args.write:
        DOCUMENT.write_text(written(DOCUMENT.read_text(encoding="utf-8"), found), encoding="utf-8")
    else:
        print(markdown(found))


if __name__ == "__main__":
    main()
