"""``queenright evaluate``: what is found in recorded runs, in lines for people or for programs."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from queenright.cli.terminal.progress import plain
from queenright.cli.output.progress import counted
from queenright.health.settings import HealthSettings
from queenright.judge.evaluation import evaluate_files


def evaluated(files: list[Path], settings: HealthSettings, *, as_json: bool) -> Iterator[str]:
    """
    Yield what to print of the runs in the files: as JSON one object a run, else the runs with findings.

    Raises:
        InvalidRunError: at a line that is no recorded run.
        OSError: for a file that cannot be read.
    """
    runs = alarms = 0
    for result in counted(evaluate_files(files, settings), "Looking at runs", prints=True):
        runs += 1
        alarms += any(not found.get("shadow") for found in result["findings"])
        if as_json:
            yield _json(result)
        elif result["findings"]:
            yield _readable(f"{result['dataset']} {result['run_id']}")
            for found in result["findings"]:
                trial = " (in shadow)" if found.get("shadow") else ""
                words = _readable(f"{found['kind']}: {found['evidence']}")
                yield f"  step {found['step']:>4}  {found['severity']:<8} {words}{trial}"
    if not as_json:
        yield f"{runs} runs, {alarms} with findings"


def _json(result: Mapping[str, Any]) -> str:
    text = json.dumps(result, ensure_ascii=False)
    # A half of a surrogate pair, which a record may hold, cannot be printed as it is.
    return text if text.isascii() or _whole(text) else json.dumps(result)


def _whole(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def _readable(text: str) -> str:
    """Return words of a record on one line, as a terminal may be given them."""
    return " ".join(plain(text).split()).encode("utf-8", "replace").decode()
