"""The format of recorded runs: the example in docs/detection.md gives the documented result."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from typer.testing import CliRunner

from queenright.cli.app import app
from queenright.judge.evaluation import InvalidRunError

PAGE = (Path(__file__).parents[2] / "docs" / "detection.md").read_text("utf-8")
RUNS_SECTION = PAGE[PAGE.index("## Recorded runs\n") :]
RUN_TEXT = re.findall(r"^```json\n(.*?)^```", RUNS_SECTION, re.MULTILINE | re.DOTALL)[0]
OUTPUT_TEXTS = re.findall(r"^```text\n(.*?)^```", RUNS_SECTION, re.MULTILINE | re.DOTALL)


def test_documented_example_is_evaluated_as_documented(tmp_path: Path) -> None:
    run = json.loads(RUN_TEXT)
    longer_run = {**run, "steps": run["steps"] * 3}
    results = []
    for content in (RUN_TEXT, json.dumps(longer_run)):
        file = tmp_path / "runs.jsonl"
        file.write_text(content)
        results.append(CliRunner().invoke(app, ["evaluate", str(file)]).output)

    assert len(run["steps"]) == 2
    assert results == OUTPUT_TEXTS[:2]


@pytest.mark.parametrize("line", ["{bad", "[1, 2]", '{"events": []}', '{"steps": [1]}'])
def test_invalid_run_is_rejected_with_a_link_to_the_format(tmp_path: Path, line: str) -> None:
    file = tmp_path / "runs.jsonl"
    file.write_text(line)

    result = CliRunner().invoke(app, ["evaluate", str(file)])

    assert isinstance(result.exception, InvalidRunError)
    assert "docs/detection.md" in str(result.exception)
