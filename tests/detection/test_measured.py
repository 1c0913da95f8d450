"""The tables in the documentation are current, and every aim is met."""

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
from tests.detection.aims import AIMS, list_missed_aims
from tests.detection.measure import GROUPS, Measurement, measure_detectors, read_recorded_runs
from tests.detection.peers import (
    Detector,
    make_all_detectors,
    make_loop_guard_detector,
    make_naive_detector,
    make_patrol_detector,
    make_queenright_detector,
    make_vitals_detector,
)
from tests.detection.table import (
    BLOCKS,
    extract_block,
    format_comparison_row,
    format_label_row,
    format_rates_by_group,
    format_row,
    make_markers,
    replace_block,
    replace_our_rows,
)
from tests.detection.thresholds import THRESHOLDS, AimedRuns, format_threshold_row, get_default, measure_reach

ROOT = Path(__file__).resolve().parents[2]
DOCUMENT = ROOT / "tests" / "detection" / "README.md"


@pytest.fixture(scope="module")
def traces() -> Path:
    folder_name = os.environ.get("QUEENRIGHT_TRACES")
    if not folder_name:
        pytest.skip("the recorded runs are not part of the checkout; QUEENRIGHT_TRACES names their folder")
    folder = Path(folder_name)
    assert sorted(folder.glob("*.jsonl*")), f"QUEENRIGHT_TRACES={folder_name} has no runs (*.jsonl)"
    return folder


@pytest.fixture(scope="module")
def runs(traces: Path) -> list[dict[str, Any]]:
    return read_recorded_runs(traces)


@pytest.fixture(scope="module")
def quick_measurements(runs: list[dict[str, Any]]) -> list[Measurement]:
    """
    Return the measurements of Queenright and the naive rules. Others take minutes and change only with
    versions.
    """
    return measure_detectors(
        runs, [make_queenright_detector(), make_naive_detector(3), make_naive_detector(5)]
    )


@pytest.fixture(scope="module")
def document() -> str:
    return DOCUMENT.read_text("utf-8")


def test_every_aim_is_met(quick_measurements: list[Measurement]) -> None:
    assert quick_measurements[0].groups["RepairAgent, three equivalent actions in a row"].runs == 18
    assert quick_measurements[0].groups["RepairAgent, solved"].runs == 10
    assert list_missed_aims(quick_measurements[0]) == []
    assert median(quick_measurements[0].delays) <= 6


def test_naive_rule_misses_its_known_cases(quick_measurements: list[Measurement]) -> None:
    assert len(list_missed_aims(quick_measurements[1])) > 1


def test_measured_rates_equal_the_documentation(quick_measurements: list[Measurement], document: str) -> None:
    assert extract_block(document, "rates") == format_rates_by_group(quick_measurements[0])


def test_summary_on_the_page_equals_the_measured_tables(document: str) -> None:
    page = (ROOT / "docs" / "detection.md").read_text("utf-8")
    lines = [line.strip("| ").split(" | ") for line in extract_block(document, "rates").splitlines()]
    rates = {
        cells[0]: [cells[1], *(cell.split()[0] for cell in cells[2:4])] for cells in lines if len(cells) > 3
    }

    rows = re.findall(r"^\| ([^|]+) \| (\d+) \| (\S+%) \((\S+)\) \|$", page, re.MULTILINE)

    assert len(rows) == 7
    assert {group: cells for group, *cells in rows} == {group: rates[group] for group, *_ in rows}


def test_comparison_rows_equal_the_documentation(
    quick_measurements: list[Measurement], document: str
) -> None:
    for measurement in quick_measurements:
        assert format_row(format_comparison_row(measurement)) in extract_block(document, "peers")
        assert format_row(format_label_row(measurement)) in extract_block(document, "labels")


def test_every_detector_and_its_version_is_in_the_documentation(document: str) -> None:
    for detector in make_all_detectors():
        assert f"| {detector.name} |" in extract_block(document, "peers")
        assert f"| {detector.name} |" in extract_block(document, "labels")


def test_every_threshold_is_in_the_documentation_with_its_default_and_reason(document: str) -> None:
    block = extract_block(document, "thresholds")
    for threshold in THRESHOLDS:
        assert format_row(format_threshold_row(threshold, None)[:3]).rstrip("\n") in block, threshold.path


@pytest.mark.parametrize("block", ["loops", "bands", "stall"])
def test_every_threshold_is_listed(block: str) -> None:
    threshold_paths = {threshold.path for threshold in THRESHOLDS}

    for name, field in type(getattr(HealthSettings(), block)).model_fields.items():
        if isinstance(field.default, int | float):
            assert f"{block}.{name}" in threshold_paths


def test_thresholds_are_tried_on_both_sides_of_their_default() -> None:
    for threshold in THRESHOLDS:
        if threshold.tried_values:
            assert min(threshold.tried_values) <= get_default(threshold) <= max(threshold.tried_values), (
                threshold.path
            )


def test_documented_threshold_reach_is_measured(runs: list[dict[str, Any]], document: str) -> None:
    [threshold] = [item for item in THRESHOLDS if item.path == "loops.consecutive"]

    assert format_row(
        format_threshold_row(threshold, measure_reach(threshold, AimedRuns(runs)))
    ) in extract_block(document, "thresholds")


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


@pytest.mark.parametrize("detector", make_all_detectors(), ids=lambda detector: detector.name)
def test_every_detector_finds_a_plain_loop(detector: Detector) -> None:
    assert detector.watch(LOOP).alarms


@pytest.mark.parametrize(
    "detector",
    [
        make_queenright_detector(),
        make_loop_guard_detector(),
        make_patrol_detector(),
        make_naive_detector(3),
        make_vitals_detector("build"),
    ],
    ids=lambda detector: detector.name,
)
def test_no_detector_alarms_on_six_different_calls(detector: Detector) -> None:
    assert detector.watch(WORK).alarms == []


def test_naive_rule_counts_consecutive_calls_regardless_of_results() -> None:
    changing_run = run(*(f"{n} %" for n in range(6)))

    assert make_naive_detector(3).watch(changing_run).alarms == [2, 3, 4, 5]
    assert make_naive_detector(5).watch(changing_run).alarms == [4, 5]
    assert make_queenright_detector().watch(changing_run).alarms == []


def test_run_counts_in_each_of_its_groups() -> None:
    [measurement] = measure_detectors([LOOP, WORK], [make_queenright_detector(HealthSettings())])

    counts = measurement.groups["RepairAgent, solved"]
    assert (counts.runs, counts.any, counts.loops, counts.severe) == (2, 1, 1, 1)
    assert measurement.delays == [1]


def test_human_labels_are_compared_with_alarms_step_by_step() -> None:
    labelled_run: Mapping[str, Any] = {**LOOP, "labels": ["human_pairs"]}
    for step in LOOP["steps"][2:]:
        step["rel"] = "repetition"
    [measurement] = measure_detectors([labelled_run], [make_naive_detector(3)])

    assert [(run.flagged, run.repetitions, run.both) for run in measurement.labelled_runs] == [(18, 18, 18)]


def test_block_is_replaced_only_between_its_markers() -> None:
    original = "before\n<!-- measured x: begin -->\nold\n<!-- measured x: end -->\nafter\n"

    new_document = replace_block(original, "x", "new\n")

    assert extract_block(new_document, "x") == "new\n"
    assert new_document == original.replace("old", "new")
    with pytest.raises(ValueError, match="measured y"):
        extract_block(original, "y")


def test_check_names_the_stale_table(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "runs.jsonl").write_text('{"steps": []}\n')
    page = tmp_path / "page.md"
    page.write_text("".join("".join(make_markers(block)) for block in BLOCKS))

    def call(*words: str) -> int:
        monkeypatch.setattr(sys, "argv", ["detection", "--traces", str(tmp_path), "--ours", *words])
        return main()

    assert call("--check", str(page)) == 1
    assert "page.md" in capsys.readouterr().err
    assert call("--write", str(page)) == 0
    assert call("--check", str(page)) == 0


def test_queenright_rows_are_replaced_and_others_kept() -> None:
    page = "".join(
        f"<!-- measured {name}: begin -->\n{text}<!-- measured {name}: end -->\n"
        for name, text in {
            "rates": "old\n",
            "peers": "| Queenright | old |\n| other | kept |\n",
            "labels": "| Queenright | old |\n| other | kept |\n",
        }.items()
    )
    [measurement] = measure_detectors([LOOP], [make_queenright_detector()])

    new_document = replace_our_rows(page, measurement)

    assert "old" not in new_document
    assert new_document.count("| other | kept |") == 2
    assert new_document.count("| Queenright | ") == 2
    assert replace_our_rows(new_document, measurement) == new_document


def test_folder_without_runs_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "argv", ["detection", "--traces", str(tmp_path)])

    with pytest.raises(SystemExit) as error:
        main()
    assert error.value.code == 2
