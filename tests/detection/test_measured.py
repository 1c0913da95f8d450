"""The tables in the documentation are what is measured, and what must be reached is reached."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import median
from typing import Any

import pytest

from queenright.health.settings import HealthSettings
from tests.detection.__main__ import main
from tests.detection.aims import AIMS, missed
from tests.detection.measure import GROUPS, Measured, measure, recorded
from tests.detection.peers import Detector, detectors, loop_guard, naive, ours, patrol, vitals
from tests.detection.table import (
    BLOCKS,
    block_of,
    by_label_row,
    marks,
    ours_by_group,
    row,
    side_by_side_row,
    with_block,
    with_our_rows,
)
from tests.detection.thresholds import THRESHOLDS, Aimed, default, reach, threshold_row

ROOT = Path(__file__).resolve().parents[2]
DOCUMENT = ROOT / "tests" / "detection" / "README.md"


@pytest.fixture(scope="module")
def traces() -> Path:
    named = os.environ.get("QUEENRIGHT_TRACES")
    if not named:
        pytest.skip("the recorded runs are not part of the checkout; QUEENRIGHT_TRACES names their folder")
    folder = Path(named)
    assert sorted(folder.glob("*.jsonl*")), f"QUEENRIGHT_TRACES={named} holds no recorded runs (*.jsonl)"
    return folder


@pytest.fixture(scope="module")
def runs(traces: Path) -> list[dict[str, Any]]:
    return recorded(traces)


@pytest.fixture(scope="module")
def quick(runs: list[dict[str, Any]]) -> list[Measured]:
    """Ours and the naive rules; the others take minutes, and change with their versions only."""
    return measure(runs, [ours(), naive(3), naive(5)])


@pytest.fixture(scope="module")
def document() -> str:
    return DOCUMENT.read_text("utf-8")


def test_every_aim_is_met(quick: list[Measured]) -> None:
    assert quick[0].groups["RepairAgent, three equivalent actions in a row"].runs == 18
    assert quick[0].groups["RepairAgent, solved"].runs == 10
    assert missed(quick[0]) == []
    assert median(quick[0].delays) <= 6


def test_naive_rule_misses_its_known_cases(quick: list[Measured]) -> None:
    assert len(missed(quick[1])) > 1


def test_our_rates_equal_the_documentation(quick: list[Measured], document: str) -> None:
    assert block_of(document, "rates") == ours_by_group(quick[0])


def test_summary_on_the_page_equals_the_measured_tables(document: str) -> None:
    page = (ROOT / "docs" / "detection.md").read_text("utf-8")
    lines = [line.strip("| ").split(" | ") for line in block_of(document, "rates").splitlines()]
    rates = {
        cells[0]: [cells[1], *(cell.split()[0] for cell in cells[2:4])] for cells in lines if len(cells) > 3
    }

    rows = re.findall(r"^\| ([^|]+) \| (\d+) \| (\S+%) \((\S+)\) \|$", page, re.MULTILINE)

    assert len(rows) == 7
    assert {group: found for group, *found in rows} == {group: rates[group] for group, *_ in rows}


def test_side_by_side_rows_equal_the_documentation(quick: list[Measured], document: str) -> None:
    for measured in quick:
        assert row(side_by_side_row(measured)) in block_of(document, "peers")
        assert row(by_label_row(measured)) in block_of(document, "labels")


def test_every_detector_and_its_version_is_in_the_documentation(document: str) -> None:
    for detector in detectors():
        assert f"| {detector.name} |" in block_of(document, "peers")
        assert f"| {detector.name} |" in block_of(document, "labels")


def test_every_threshold_is_in_the_documentation_with_its_default_and_reason(document: str) -> None:
    block = block_of(document, "thresholds")
    for threshold in THRESHOLDS:
        assert row(threshold_row(threshold, None)[:3]).rstrip("\n") in block, threshold.path


@pytest.mark.parametrize("block", ["loops", "bands", "stall"])
def test_every_threshold_is_listed(block: str) -> None:
    known = {threshold.path for threshold in THRESHOLDS}

    for name, field in type(getattr(HealthSettings(), block)).model_fields.items():
        if isinstance(field.default, int | float):
            assert f"{block}.{name}" in known


def test_thresholds_are_tried_on_both_sides_of_their_default() -> None:
    for threshold in THRESHOLDS:
        if threshold.tried:
            assert min(threshold.tried) <= default(threshold) <= max(threshold.tried), threshold.path


def test_documented_threshold_reach_is_measured(runs: list[dict[str, Any]], document: str) -> None:
    [threshold] = [one for one in THRESHOLDS if one.path == "loops.consecutive"]

    assert row(threshold_row(threshold, reach(threshold, Aimed(runs)))) in block_of(document, "thresholds")


def test_aims_are_about_groups_that_are_shown() -> None:
    assert {aim.group for aim in AIMS} <= set(GROUPS)


# -- the parts ------------------------------------------------------------------------------------------


def run(*results: str, args: Sequence[str] | None = None) -> dict[str, Any]:
    texts = args or ["look"] * len(results)
    steps = [
        {
            "t": None,
            "kind": "tool",
            "name": "bash",
            "turn": n,
            "args": text,
            "args_hash": f"a{text}",
            "result_excerpt": result,
            "result_hash": f"r{result}",
            "is_error": False,
            "tokens": None,
        }
        for n, (text, result) in enumerate(zip(texts, results, strict=True))
    ]
    return {"dataset": "tar_study", "agent": "repairagent", "run_id": "r", "success": True, "steps": steps}


LOOP = run(*["nothing was found in any of the files"] * 20)
WORDS = ["alpha", "bravo", "charlie", "delta", "echo", "foxtrot"]
WORK = run(*(f"{word} {n} holds {word[::-1]}" for n, word in enumerate(WORDS)), args=WORDS)


@pytest.mark.parametrize("detector", detectors(), ids=lambda detector: detector.name)
def test_every_detector_sees_a_plain_loop(detector: Detector) -> None:
    assert detector.watch(LOOP).alarms


@pytest.mark.parametrize(
    "detector",
    [ours(), loop_guard(), patrol(), naive(3), vitals("build")],
    ids=lambda detector: detector.name,
)
def test_no_detector_alarms_on_six_different_calls(detector: Detector) -> None:
    assert detector.watch(WORK).alarms == []


def test_naive_counts_consecutive_calls_whatever_their_results() -> None:
    changing = run(*(f"{n} %" for n in range(6)))

    assert naive(3).watch(changing).alarms == [2, 3, 4, 5]
    assert naive(5).watch(changing).alarms == [4, 5]
    assert ours().watch(changing).alarms == []


def test_runs_count_in_every_group_they_belong_to() -> None:
    [measured] = measure([LOOP, WORK], [ours(HealthSettings())])

    counts = measured.groups["RepairAgent, solved"]
    assert (counts.runs, counts.any, counts.loops, counts.severe) == (2, 1, 1, 1)
    assert measured.delays == [1]


def test_human_labels_are_compared_with_alarms_step_by_step() -> None:
    labelled: Mapping[str, Any] = {**LOOP, "labels": ["human_pairs"]}
    for step in LOOP["steps"][2:]:
        step["rel"] = "repetition"
    [measured] = measure([labelled], [naive(3)])

    assert [(one.flagged, one.repetitions, one.both) for one in measured.labelled] == [(18, 18, 18)]


def test_block_is_written_only_in_its_place() -> None:
    empty = "before\n<!-- measured x: begin -->\nold\n<!-- measured x: end -->\nafter\n"

    written = with_block(empty, "x", "new\n")

    assert block_of(written, "x") == "new\n"
    assert written == empty.replace("old", "new")
    with pytest.raises(ValueError, match="measured y"):
        block_of(empty, "y")


def test_check_names_the_stale_table(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "runs.jsonl").write_text('{"steps": []}\n')
    page = tmp_path / "page.md"
    page.write_text("".join("".join(marks(block)) for block in BLOCKS))

    def call(*words: str) -> int:
        monkeypatch.setattr(sys, "argv", ["detection", "--traces", str(tmp_path), "--ours", *words])
        return main()

    assert call("--check", str(page)) == 1
    assert "page.md" in capsys.readouterr().err
    assert call("--write", str(page)) == 0
    assert call("--check", str(page)) == 0


def test_our_rows_are_replaced_and_others_kept() -> None:
    page = "".join(
        f"<!-- measured {name}: begin -->\n{text}<!-- measured {name}: end -->\n"
        for name, text in {
            "rates": "old\n",
            "peers": "| Queenright | old |\n| other | kept |\n",
            "labels": "| Queenright | old |\n| other | kept |\n",
        }.items()
    )
    [measured] = measure([LOOP], [ours()])

    written = with_our_rows(page, measured)

    assert "old" not in written
    assert written.count("| other | kept |") == 2
    assert written.count("| Queenright | ") == 2
    assert with_our_rows(written, measured) == written


def test_folder_without_runs_is_misuse(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "argv", ["detection", "--traces", str(tmp_path)])

    with pytest.raises(SystemExit) as refused:
        main()
    assert refused.value.code == 2
