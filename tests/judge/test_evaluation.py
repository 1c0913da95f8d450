from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

import pytest

from queenright.health.settings import HealthSettings
from queenright.judge.evaluation import InvalidRunError, evaluate_files, evaluate_run

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


def test_finding_is_reported_at_its_step_and_again_when_it_gets_worse() -> None:
    result = evaluate_run(run(step("first", "x"), *[step(turn=n) for n in range(1, 12)]), SETTINGS)

    loops = [(f["severity"], f["step"]) for f in result["findings"] if f["kind"] == "doom_loop"]
    assert (result["dataset"], result["run_id"]) == ("d", "r1")
    assert loops == [("medium", 3), ("high", 5)]


def test_stall_is_reported_before_the_step_that_ends_it() -> None:
    result = evaluate_run(run(step(t=0), step("b", "b", t=1000)), SETTINGS)

    assert [(f["kind"], f["step"]) for f in result["findings"]] == [("stall", 0)]


def test_consecutive_llm_errors_are_a_provider_failure() -> None:
    """B34: consecutive LLM API errors are a provider_failure."""
    llm = {"kind": "llm", "name": "m", "is_error": True, "turn": 1}
    result = evaluate_run(run(*[dict(llm) for _ in range(3)]), SETTINGS)

    assert [f["kind"] for f in result["findings"]] == ["provider_failure"]


@pytest.mark.parametrize(
    "failure",
    [
        {"is_error": True},
        {"is_error": True, "err_sig": "c0ffee"},
        {"is_error": True, "result_excerpt": "Connection error."},
        {"result_excerpt": "litellm.RateLimitError: AnthropicException - 429"},
        {"result_excerpt": "Error code: 529 - {'type': 'error', 'error': {'type': 'overloaded_error'}}"},
        {"result_excerpt": "Request timed out."},
        {"result_excerpt": "", "args": "openai.APIError: The server had an error"},
    ],
)
def test_run_that_ends_with_a_failed_llm_call_has_a_provider_failure(failure: dict[str, Any]) -> None:
    """B34: the client had already retried for minutes before it gave up."""
    work = [step(f"a{n}", f"r{n}", turn=n, t=10.0 * n) for n in range(9)]
    failed_run = run(*work, {"kind": "llm", "name": "m", "t": 300.0, **failure})

    [finding] = evaluate_run(failed_run, HealthSettings())["findings"]
    assert (finding["kind"], finding["severity"], finding["step"]) == ("provider_failure", "medium", 9)


def test_retried_llm_call_is_not_a_finding() -> None:
    failed = {"kind": "llm", "name": "m", "is_error": True, "result_excerpt": "529 overloaded"}
    answered = {"kind": "llm", "name": "m", "is_error": False}

    assert evaluate_run(run(failed, answered, step()), HealthSettings())["findings"] == []


def test_errors_that_contain_their_arguments_share_a_class() -> None:
    """B30: a search that finds nothing is repeated with slightly different words."""
    template = "Could not find [bees {0}]. Similar: ['{0}', 'honey']"
    searches = [
        {
            **step(f"hash {words}", f"hash {words}", turn=n),
            "args": f"bees {words}",
            "result_excerpt": template.format(words),
            "is_error": True,
        }
        for n, words in enumerate(("of Rome", "in Rome", "ancient Rome", "Rome history", "Rome and honey"))
    ]

    kinds = {finding["kind"] for finding in evaluate_run(run(*searches), HealthSettings())["findings"]}
    assert kinds == {"error_streak"}


def test_detectors_do_not_read_the_labels() -> None:
    steps = [step(str(n), str(n % 3), turn=n) for n in range(20)]
    labelled_steps = [{**s, "reward": n % 2, "rel": "repetition"} for n, s in enumerate(steps)]

    assert evaluate_run(run(*steps), SETTINGS) == evaluate_run(run(*labelled_steps, success=True), SETTINGS)


def test_plain_and_gzipped_files_are_read_in_order(tmp_path: Path) -> None:
    plain, gzipped = tmp_path / "a.jsonl", tmp_path / "b.jsonl.gz"
    plain.write_text(json.dumps(run()) + "\n\n")
    gzipped.write_bytes(gzip.compress(json.dumps(run(run_id="r2")).encode()))

    assert [r["run_id"] for r in evaluate_files([plain, gzipped], SETTINGS)] == ["r1", "r2"]


@pytest.mark.parametrize("line", ["{", "[]", '{"steps": 3}', '{"run_id": "r", "steps": [7]}'])
def test_line_that_is_not_a_run_is_rejected(tmp_path: Path, line: str) -> None:
    path = tmp_path / "bad.jsonl"
    path.write_text(line)

    with pytest.raises(InvalidRunError):
        list(evaluate_files([path], SETTINGS))


def test_empty_file_is_rejected(tmp_path: Path) -> None:
    file = tmp_path / "empty.jsonl"
    file.touch()

    with pytest.raises(InvalidRunError, match=r"empty\.jsonl is empty; "):
        list(evaluate_files([file], HealthSettings()))


def test_corrupt_archive_is_rejected(tmp_path: Path) -> None:
    path = tmp_path / "bad.jsonl.gz"
    path.write_bytes(gzip.compress(b"{}" * 1000)[:20])

    with pytest.raises(InvalidRunError, match=r"bad\.jsonl\.gz"):
        list(evaluate_files([path], SETTINGS))


def test_byte_order_mark_is_ignored(tmp_path: Path) -> None:
    path = tmp_path / "marked.jsonl"
    path.write_text(json.dumps(run()) + "\r\n", encoding="utf-8-sig")

    assert [r["run_id"] for r in evaluate_files([path], SETTINGS)] == ["r1"]
