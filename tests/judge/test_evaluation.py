from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

import pytest

from queenright.health.settings import HealthSettings
from queenright.judge.evaluation import InvalidRunError, evaluate_files, evaluate_run

SETTINGS = HealthSettings()


def make_step(args: str = "a", result: str = "r", *, turn: int = 0, **fields: Any) -> dict[str, Any]:
    return {
        "t": None,
        "kind": "tool",
        "name": "bash",
        "turn": turn,
        "args_hash": args,
        "result_hash": result,
        "is_error": False,
        **fields,
    }


def make_run(*steps: dict[str, Any], **fields: Any) -> dict[str, Any]:
    return {"dataset": "d", "run_id": "r1", "agent": "x", "steps": list(steps), **fields}


def test_finding_is_reported_at_its_step_and_again_when_it_gets_worse() -> None:
    result = evaluate_run(
        make_run(make_step("first", "x"), *[make_step(turn=n) for n in range(1, 12)]), SETTINGS
    )

    loops = [
        (finding["severity"], finding["step"])
        for finding in result["findings"]
        if finding["kind"] == "doom_loop"
    ]
    assert (result["dataset"], result["run_id"]) == ("d", "r1")
    assert loops == [("medium", 3), ("high", 5)]


def test_stall_is_reported_before_the_step_that_ends_it() -> None:
    result = evaluate_run(make_run(make_step(t=0), make_step("b", "b", t=1000)), SETTINGS)

    assert [(finding["kind"], finding["step"]) for finding in result["findings"]] == [("stall", 0)]


def test_consecutive_llm_errors_are_a_provider_failure() -> None:
    """B34: consecutive LLM API errors are a provider_failure."""
    llm = {"kind": "llm", "name": "m", "is_error": True, "turn": 1}
    result = evaluate_run(make_run(*[dict(llm) for _ in range(3)]), SETTINGS)

    assert [finding["kind"] for finding in result["findings"]] == ["provider_failure"]


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
    work = [make_step(f"a{n}", f"r{n}", turn=n, t=10.0 * n) for n in range(9)]
    failed_run = make_run(*work, {"kind": "llm", "name": "m", "t": 300.0, **failure})

    [finding] = evaluate_run(failed_run, HealthSettings())["findings"]
    assert (finding["kind"], finding["severity"], finding["step"]) == ("provider_failure", "medium", 9)


def test_retried_llm_call_is_not_a_finding() -> None:
    failed_call = {"kind": "llm", "name": "m", "is_error": True, "result_excerpt": "529 overloaded"}
    answered_call = {"kind": "llm", "name": "m", "is_error": False}

    assert evaluate_run(make_run(failed_call, answered_call, make_step()), HealthSettings())["findings"] == []


def test_errors_that_contain_their_arguments_share_a_class() -> None:
    """B30: a search that finds nothing is repeated with slightly different words."""
    template = "Could not find [bees {0}]. Similar: ['{0}', 'honey']"
    searches = [
        {
            **make_step(f"hash {words}", f"hash {words}", turn=n),
            "args": f"bees {words}",
            "result_excerpt": template.format(words),
            "is_error": True,
        }
        for n, words in enumerate(("of Rome", "in Rome", "ancient Rome", "Rome history", "Rome and honey"))
    ]

    kinds = {finding["kind"] for finding in evaluate_run(make_run(*searches), HealthSettings())["findings"]}
    assert kinds == {"error_streak"}


def test_detectors_do_not_read_the_labels() -> None:
    steps = [make_step(str(n), str(n % 3), turn=n) for n in range(20)]
    labelled_steps = [
        {**original_step, "reward": n % 2, "rel": "repetition"} for n, original_step in enumerate(steps)
    ]

    assert evaluate_run(make_run(*steps), SETTINGS) == evaluate_run(
        make_run(*labelled_steps, success=True), SETTINGS
    )


def test_plain_and_gzipped_files_are_read_in_order(tmp_path: Path) -> None:
    plain_file, gzipped_file = tmp_path / "a.jsonl", tmp_path / "b.jsonl.gz"
    plain_file.write_text(json.dumps(make_run()) + "\n\n")
    gzipped_file.write_bytes(gzip.compress(json.dumps(make_run(run_id="r2")).encode()))

    assert [result["run_id"] for result in evaluate_files([plain_file, gzipped_file], SETTINGS)] == [
        "r1",
        "r2",
    ]


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
    path.write_text(json.dumps(make_run()) + "\r\n", encoding="utf-8-sig")

    assert [result["run_id"] for result in evaluate_files([path], SETTINGS)] == ["r1"]
