from __future__ import annotations

import gzip
import json
import os
from pathlib import Path
from statistics import median
from typing import Any

import pytest

from queenright.health.settings import HealthSettings
from queenright.judge.evaluation import RunRefused, Score, delays, evaluate_files, evaluate_run, main, score

SETTINGS = HealthSettings()


def step(args: str = "a", result: str = "r", *, turn: int = 0, **more: Any) -> dict[str, Any]:
    return {
        "t": None,
        "kind": "tool",
        "name": "bash",
        "turn": turn,
        "args_hash": args,
        "result_hash": result,
        "is_error": False,
        **more,
    }


def run(*steps: dict[str, Any], **more: Any) -> dict[str, Any]:
    return {"dataset": "d", "run_id": "r1", "agent": "x", "steps": list(steps), **more}


def test_a_finding_comes_at_the_step_after_which_it_was_known_and_again_when_worse() -> None:
    result = evaluate_run(run(step("first", "x"), *[step(turn=n) for n in range(1, 12)]), SETTINGS)

    loops = [(f["severity"], f["step"]) for f in result["findings"] if f["kind"] == "doom_loop"]
    assert (result["dataset"], result["run_id"]) == ("d", "r1")
    assert loops == [("medium", 3), ("high", 10)]


def test_a_silence_is_known_before_the_step_that_ends_it() -> None:
    result = evaluate_run(run(step(t=0), step("b", "b", t=700)), SETTINGS)

    assert [(f["kind"], f["step"]) for f in result["findings"]] == [("stall", 0)]


def test_llm_errors_are_the_providers() -> None:
    """B34: a run of LLM API errors is provider_failure."""
    llm = {"kind": "llm", "name": "m", "is_error": True, "turn": 1}
    result = evaluate_run(run(*[dict(llm) for _ in range(3)]), SETTINGS)

    assert [f["kind"] for f in result["findings"]] == ["provider_failure"]


def test_the_oracle_is_not_shown_to_the_detectors() -> None:
    steps = [step(str(n), str(n % 3), turn=n) for n in range(20)]
    known = [{**s, "reward": n % 2, "rel": "repetition"} for n, s in enumerate(steps)]

    assert evaluate_run(run(*steps), SETTINGS) == evaluate_run(run(*known, success=True), SETTINGS)


def test_plain_and_gzipped_files_are_read_in_order(tmp_path: Path) -> None:
    plain, packed = tmp_path / "a.jsonl", tmp_path / "b.jsonl.gz"
    plain.write_text(json.dumps(run()) + "\n\n")
    packed.write_bytes(gzip.compress(json.dumps(run(run_id="r2")).encode()))

    assert [r["run_id"] for r in evaluate_files([plain, packed], SETTINGS)] == ["r1", "r2"]


@pytest.mark.parametrize("line", ["{", "[]", '{"steps": 3}', '{"run_id": "r", "steps": [7]}'])
def test_a_line_that_is_no_run_is_refused(tmp_path: Path, line: str) -> None:
    path = tmp_path / "bad.jsonl"
    path.write_text(line)

    with pytest.raises(RunRefused):
        list(evaluate_files([path], SETTINGS))


def test_a_broken_archive_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "bad.jsonl.gz"
    path.write_bytes(gzip.compress(b"{}" * 1000)[:20])

    with pytest.raises(RunRefused, match=r"bad\.jsonl\.gz"):
        list(evaluate_files([path], SETTINGS))


def test_scoring_wants_a_folder_with_runs(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([]) == 2
    assert main(["--score", str(tmp_path)]) == 1
    (tmp_path / "a.jsonl").write_text(json.dumps(run(*[step(turn=n) for n in range(5)], success=False)))
    assert main(["--score", str(tmp_path)]) == 0
    assert "d x, unsolved" in capsys.readouterr().out


def _recorded() -> list[Path]:
    here = Path(__file__).resolve().parents[2]
    folder = Path(os.environ.get("QUEENRIGHT_TRACES") or here.parent / "shared" / "data" / "traces")
    return sorted(folder.glob("*.jsonl.gz"))


@pytest.fixture(scope="module")
def recorded() -> list[Path]:
    paths = _recorded()
    if not paths:
        pytest.skip("no recorded runs here; QUEENRIGHT_TRACES names their folder")
    return paths


def test_the_measured_rates_hold(recorded: list[Path]) -> None:
    scores = {line.group: line for line in score(recorded, SETTINGS)}

    def both(what: str) -> tuple[int, int]:
        lines: list[Score] = [scores[f"{d}, {what}"] for d in ("intercode_bash", "intercode_ctf")]
        return sum(line.loops for line in lines), sum(line.runs for line in lines)

    repair = scores["tar_study repairagent, three equivalent actions in a row"]
    assert (repair.runs, scores["tar_study repairagent, solved"].runs) == (18, 10)
    assert repair.any >= 0.75 * repair.runs
    assert scores["tar_study repairagent, solved"].any == 0

    coding = scores["mini_gemini3 mini-swe-agent, solved"]
    assert coding.any <= 0.015 * coding.runs
    assert coding.severe <= 0.005 * coding.runs

    found, stuck = both("zero progress")
    false, solved = both("solved")
    assert found >= 0.75 * stuck
    assert false <= 0.02 * solved
    assert median(delays(recorded, SETTINGS)) <= 6
