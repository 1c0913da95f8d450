"""Evaluation of recorded runs from other tools, with missing and wrapped fields."""

from __future__ import annotations

import json
from typing import Any
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from queenright.health.findings import FindingKind, Severity
from queenright.health.settings import HealthSettings
from queenright.judge.evaluation import InvalidRunError, evaluate_run

SETTINGS = HealthSettings()


def tool(args: object = "ls", result: object = "a.txt", **more: Any) -> dict[str, Any]:
    """A tool call with its texts and no hashes, in a turn of its own."""
    return {"kind": "tool", "name": "bash", "args": args, "result_excerpt": result, **more}


def llm(**more: Any) -> dict[str, Any]:
    return {"kind": "llm", "name": "model", "is_error": False, **more}


def found(*steps: dict[str, Any]) -> dict[str, str]:
    """Return the kinds of finding in a run, each with its worst severity."""
    result = evaluate_run({"dataset": "d", "run_id": "r", "steps": list(steps)}, SETTINGS)
    return {finding["kind"]: finding["severity"] for finding in result["findings"]}


def failing(n: int, text: str, **more: Any) -> dict[str, Any]:
    return tool(f"attempt {n}", text, is_error=True, **more)


# -- repeats ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("is_error", [False, True, None])
def test_same_call_with_the_same_result_three_times_running_is_a_loop(is_error: bool | None) -> None:
    """B26: also when every call fails, and with texts alone, without hashes."""
    same = tool(is_error=is_error)

    assert found(same, same) == {}
    assert found(same, same, same)["doom_loop"] == "medium"


def test_arguments_written_down_otherwise_are_the_same_call() -> None:
    """B27: key order and white space, though the recorded hashes differ."""
    written = ('{"q": "bees", "n": 3}', '{"n":3,"q":"bees"}', '{ "n": 3,\n "q": "bees" }')

    assert "doom_loop" in found(*(tool(args, args_hash=str(n)) for n, args in enumerate(written)))
    assert "doom_loop" in found(*(tool(json.loads(args)) for args in written))


def test_poll_with_changing_results_is_not_a_loop() -> None:
    """B28: the same call, another answer each time."""
    assert found(*(tool("status", f"{n} of 40 done") for n in range(40))) == {}


def test_exempt_tool_is_ignored() -> None:
    """B28: tools on the exempt list are ignored."""
    exempt = HealthSettings.model_validate({"loops": {"exempt_tools": ["bash"]}})

    assert evaluate_run({"steps": [tool()] * 40}, exempt)["findings"] == []


def test_cycles_and_repeats_with_others_between_are_loops() -> None:
    """B29: A-B-A-B-A-B, and A-x-A-y-A-z where each other call is new."""
    a, b = tool("search bees"), tool("open hive.org", "a page")
    between = [step for n in range(5) for step in (a, tool(f"open {n}", f"page {n}"))]

    assert "doom_loop" not in found(a, b, a, b)
    assert "doom_loop" in found(a, b, a, b, a, b)
    assert "doom_loop" in found(*between)


def test_one_class_of_error_many_times_running_is_an_error_streak() -> None:
    """B30: other arguments each time; the class is recorded, or told by the error's words."""
    recorded = [failing(n, f"gone {n}", err_sig="404") for n in range(5)]
    named = [failing(n, f"Traceback\n  in f{n}\nurllib.HTTPError: page {n}") for n in range(5)]
    worded = [failing(n, f"cat: /srv/{n}/log.txt: No such file or directory") for n in range(5)]

    for steps in (recorded, named, worded):
        assert "error_streak" not in found(*steps[:4])
        assert found(*steps)["error_streak"] == "medium"


def test_errors_of_other_classes_are_not_a_streak() -> None:
    """B30: where no class is recorded, failing alone is none."""
    errors = ("KeyError: 'a'", "ValueError: b", "cat: x: No such file", "permission denied", "TypeError: c")

    assert "error_streak" not in found(*(failing(n, error) for n, error in enumerate(errors)))


def test_parallel_equal_calls_count_once() -> None:
    """B31: a turn that is recorded, or what follows one call of the model."""
    one_turn = [tool(turn=1)] * 12
    one_model_call = [llm(), *[tool()] * 3]

    assert found(*one_turn) == {}
    assert found(*one_model_call) == {}
    assert "doom_loop" in found(*(tool(turn=n) for n in range(3)))
    assert "doom_loop" in found(*(step for _ in range(3) for step in one_model_call))


def test_model_call_between_parts_a_turn() -> None:
    """B31: they cannot have run side by side, whatever number was written down."""
    assert "doom_loop" in found(*[llm(turn=0), tool(turn=0)] * 3)


def test_calls_after_the_only_model_call_on_record_are_not_one_turn() -> None:
    """B31: a record that left most model calls out tells no turns."""
    assert "doom_loop" in found(llm(), *[tool()] * 10)


def test_edit_test_cycle_is_not_a_loop() -> None:
    """B32: the same test command with changing output, failing each time."""
    cycle = [
        step
        for n in range(30)
        for step in (
            tool(f"edit line {n}", "ok", is_error=False),
            tool("pytest -q", f"{60 - n} failed, {n} passed", is_error=True),
        )
    ]

    assert found(*cycle) == {}


# -- ids and time stamps ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "wrapped",
    [
        '{{"request_id": "{uuid}", "hits": []}}',
        "[2026-01-01 10:00:{n:02d}] no hits",
        "no hits (took 0.{n}31 s)",
        "call_a8Bc{n}dEf7Gh901: no hits",
        "<Result at 0x7f3a5c0{n}d2e0> no hits",
    ],
)
def test_ids_and_times_around_a_result_do_not_hide_a_repeat(wrapped: str) -> None:
    """B83: each text is another, so is each recorded hash, and the answer is the same."""
    results = [wrapped.format(n=n, uuid=UUID(int=n + (7 << 100))) for n in range(3)]
    assert len(set(results)) == 3

    steps = [tool(result=result, result_hash=f"hash {n}", args_hash="a") for n, result in enumerate(results)]

    assert "doom_loop" in found(*steps)


def test_ids_inside_arguments_do_not_hide_a_repeat() -> None:
    """B83: an id that is made anew for each call is not what is asked for."""
    calls = [
        tool(f'{{"call_id": "call_Ab{n}", "q": "bees"}}', args_hash=str(n), result_hash="r") for n in range(3)
    ]

    assert "doom_loop" in found(*calls)


@pytest.mark.parametrize("moving", ["{n} %", '{{"page": {n}}}', "row {n}", "Elapsed tests: {n} of 9"])
def test_meaningful_result_change_is_a_different_result(moving: str) -> None:
    """B83: a number or text that changes for a reason is a different result."""
    assert found(*(tool("poll", moving.format(n=n)) for n in range(8))) == {}


@pytest.mark.parametrize(("sleep", "kinds"), [("sleep 30", set()), ("sleep 5", {"zero_progress"})])
def test_run_without_times_uses_the_waits_of_its_commands(sleep: str, kinds: set[str]) -> None:
    polls = [tool(json.dumps({"command": f"{sleep}; cat f"}), "the same", name="bash") for _ in range(30)]

    assert set(found(*polls)) == kinds


def test_recorded_hash_decides_for_truncated_text() -> None:
    """B83: the part that is left says nothing of the rest; the same where somebody else cut it shorter."""
    long, short = "x" * 280 + " … " + "y" * 120, "x" * 80

    for excerpt in (long, short):
        differ = [tool(result=excerpt, args_hash="a", result_hash=str(n)) for n in range(8)]
        assert found(*differ) == {}
        assert "doom_loop" in found(*[tool(result=excerpt, args_hash="a", result_hash="r")] * 3)


# -- the provider --------------------------------------------------------------------------------------


def test_consecutive_llm_errors_are_a_provider_failure() -> None:
    """B34: neither a loop nor an error of the agent's, and over with the first answer."""
    failed = llm(is_error=True, result_excerpt="litellm.RateLimitError: 429")

    assert found(llm(), failed, failed, llm()) == {}
    assert found(llm(), failed, failed, failed, llm()) == {"provider_failure": "medium"}


@pytest.mark.parametrize(
    "last",
    [
        llm(is_error=True, err_sig="5c1f"),
        llm(is_error=True, result_excerpt="Connection error."),
        llm(is_error=None, result_excerpt="litellm.RateLimitError: slow down"),
        llm(is_error=None, result_excerpt="Error code: 529 - {'type': 'overloaded_error'}"),
    ],
)
def test_run_that_ends_in_a_failed_llm_call_died_of_its_provider(last: dict[str, Any]) -> None:
    """B34: its client had retried for minutes, in silence."""
    assert found(llm(), tool(), last) == {"provider_failure": "medium"}
    assert found(llm(), tool(), last, llm(), tool("next", "b")) == {}


def test_context_overflow_is_not_a_provider_failure() -> None:
    """B34: a run that ends so is the agent's own affair."""
    full = llm(is_error=True, result_excerpt="BadRequestError: prompt is too long: 210000 tokens")

    assert found(llm(), tool(), full) == {"context_exhausted": "medium"}


def test_answer_mentioning_errors_is_not_an_error() -> None:
    assert found(llm(result_excerpt="litellm.RateLimitError is raised at 429")) == {}


# -- what is missing or odd ------------------------------------------------------------------------------


def test_silence_counts_only_where_times_are_recorded() -> None:
    assert found(tool(t=0), tool("b", "b", t=None), tool("c", "c", t=1000)) == {"stall": "medium"}
    assert found(*(tool(f"{n}", f"{n}") for n in range(2000))) == {}


@pytest.mark.parametrize("t", [float("nan"), float("inf"), True, "12", [], 10**400])
def test_invalid_time_is_ignored(t: object) -> None:
    assert found(tool(t=0), tool("b", "b", t=t), tool("c", "c", t=60)) == {}


def test_times_that_go_back_are_not_silence() -> None:
    assert found(tool(t=1e9), tool("b", "b", t=0), tool("c", "c", t=1e9 + 60)) == {}


def test_step_of_unknown_kind_is_activity_but_not_a_call() -> None:
    thought = {"kind": "thought", "name": "bash", "args": "ls", "result_excerpt": "a.txt", "is_error": True}

    assert found(*[thought] * 50) == {}
    assert found(*({**thought, "t": 500 * n} for n in range(5))) == {}


def test_calls_without_recorded_results_are_a_loop_only_after_many() -> None:
    blind = {"kind": "tool", "name": "bash", "args": "pytest", "result_excerpt": None}

    assert found(*[blind] * 9) == {}
    assert found(*[blind] * 10)["doom_loop"] == "high"


_JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=12),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=5,
)
_WORDS = st.sampled_from(["llm", "tool", "", "bash", "x", "429", "\udc80", "ValueError: a/b", "y" * 500])
_VALUE = _WORDS | _JSON
_KEYS = ("t", "kind", "name", "turn", "args_hash", "args", "result_hash", "result_excerpt")
_STEP = st.fixed_dictionaries(
    {"kind": st.sampled_from(["llm", "tool"]) | _VALUE},
    optional={
        key: _VALUE for key in (*_KEYS, "is_error", "err_sig", "tokens", "reward", "rel") if key != "kind"
    },
)


@given(
    steps=st.lists(_STEP, max_size=4),
    times=st.integers(1, 6),
    more=st.dictionaries(st.text(max_size=8), _JSON),
)
def test_any_record_is_evaluated(steps: list[dict[str, Any]], times: int, more: dict[str, Any]) -> None:
    result = evaluate_run({**more, "steps": steps * times}, SETTINGS)

    ranks: dict[str, int] = {}
    for finding in result["findings"]:
        kind, rank = FindingKind(finding["kind"]).value, Severity(finding["severity"]).rank
        assert 0 <= finding["step"] < len(steps) * times
        assert rank > ranks.get(kind, -1)
        ranks[kind] = rank
    json.dumps(result)


@given(steps=_JSON)
def test_input_that_is_not_a_list_of_steps_is_refused(steps: object) -> None:
    try:
        result = evaluate_run({"steps": steps}, SETTINGS)
    except InvalidRunError:
        return

    assert result["findings"] == []
    assert steps == [] or all(isinstance(step, dict) for step in steps)  # type: ignore[attr-defined]
