"""Evaluation of runs that other tools recorded, with missing fields and with ids or times in results."""

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


def make_tool_call(args: object = "ls", result: object = "a.txt", **fields: Any) -> dict[str, Any]:
    """Return a tool call with its texts and without hashes, in a separate turn."""
    return {"kind": "tool", "name": "bash", "args": args, "result_excerpt": result, **fields}


def make_llm_call(**fields: Any) -> dict[str, Any]:
    return {"kind": "llm", "name": "model", "is_error": False, **fields}


def find_kinds(*steps: dict[str, Any]) -> dict[str, str]:
    """Return the kinds of finding in a run, each with its worst severity."""
    result = evaluate_run({"dataset": "d", "run_id": "r", "steps": list(steps)}, SETTINGS)
    return {finding["kind"]: finding["severity"] for finding in result["findings"]}


def make_failed_tool_call(n: int, text: str, **fields: Any) -> dict[str, Any]:
    return make_tool_call(f"attempt {n}", text, is_error=True, **fields)


# -- repeats ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("is_error", [False, True, None])
def test_same_call_with_the_same_result_three_times_is_a_loop(is_error: bool | None) -> None:
    """B26: this also holds if every call fails, and for texts without hashes."""
    same_call = make_tool_call(is_error=is_error)

    assert find_kinds(same_call, same_call) == {}
    assert find_kinds(same_call, same_call, same_call)["doom_loop"] == "medium"


def test_arguments_with_different_formatting_are_the_same_call() -> None:
    """B27: key order and white space do not matter, even if the recorded hashes differ."""
    formats = ('{"q": "bees", "n": 3}', '{"n":3,"q":"bees"}', '{ "n": 3,\n "q": "bees" }')

    assert "doom_loop" in find_kinds(
        *(make_tool_call(args, args_hash=str(n)) for n, args in enumerate(formats))
    )
    assert "doom_loop" in find_kinds(*(make_tool_call(json.loads(args)) for args in formats))


def test_poll_with_changing_results_is_not_a_loop() -> None:
    """B28: the same call returns a different result each time."""
    assert find_kinds(*(make_tool_call("status", f"{n} of 40 done") for n in range(40))) == {}


def test_exempt_tool_is_ignored() -> None:
    """B28: tools on the exempt list are ignored."""
    exempt_call = HealthSettings.model_validate({"loops": {"exempt_tools": ["bash"]}})

    assert evaluate_run({"steps": [make_tool_call()] * 40}, exempt_call)["findings"] == []


def test_cycles_and_repeats_with_other_calls_between_are_loops() -> None:
    """B29: this holds for A-B-A-B-A-B, and for A-x-A-y-A-z, where x, y and z are new calls."""
    first_call, second_call = make_tool_call("search bees"), make_tool_call("open hive.org", "a page")
    with_new_calls_between = [
        step for n in range(5) for step in (first_call, make_tool_call(f"open {n}", f"page {n}"))
    ]

    assert "doom_loop" not in find_kinds(first_call, second_call, first_call, second_call)
    assert "doom_loop" in find_kinds(
        first_call, second_call, first_call, second_call, first_call, second_call
    )
    assert "doom_loop" in find_kinds(*with_new_calls_between)


def test_repeated_errors_of_one_class_are_an_error_streak() -> None:
    """B30: the arguments differ each time; the class is recorded, or derived from the error text."""
    with_recorded_class = [make_failed_tool_call(n, f"gone {n}", err_sig="404") for n in range(5)]
    with_exception_name = [
        make_failed_tool_call(n, f"Traceback\n  in f{n}\nurllib.HTTPError: page {n}") for n in range(5)
    ]
    with_text_only = [
        make_failed_tool_call(n, f"cat: /srv/{n}/log.txt: No such file or directory") for n in range(5)
    ]

    for steps in (with_recorded_class, with_exception_name, with_text_only):
        assert "error_streak" not in find_kinds(*steps[:4])
        assert find_kinds(*steps)["error_streak"] == "medium"


def test_errors_of_different_classes_are_not_a_streak() -> None:
    """B30: without a recorded class, failures alone are not a streak."""
    errors = ("KeyError: 'a'", "ValueError: b", "cat: x: No such file", "permission denied", "TypeError: c")

    assert "error_streak" not in find_kinds(
        *(make_failed_tool_call(n, error) for n, error in enumerate(errors))
    )


def test_parallel_identical_calls_count_once() -> None:
    """B31: calls are parallel if they have the same recorded turn, or follow the same model call."""
    one_turn = [make_tool_call(turn=1)] * 12
    one_model_call = [make_llm_call(), *[make_tool_call()] * 3]

    assert find_kinds(*one_turn) == {}
    assert find_kinds(*one_model_call) == {}
    assert "doom_loop" in find_kinds(*(make_tool_call(turn=n) for n in range(3)))
    assert "doom_loop" in find_kinds(*(step for _ in range(3) for step in one_model_call))


def test_model_call_between_calls_separates_their_turns() -> None:
    """B31: calls with a model call between them were not parallel, whatever turn was recorded."""
    assert "doom_loop" in find_kinds(*[make_llm_call(turn=0), make_tool_call(turn=0)] * 3)


def test_calls_after_the_only_recorded_model_call_are_not_one_turn() -> None:
    """B31: turns are unknown if the record omits most model calls."""
    assert "doom_loop" in find_kinds(make_llm_call(), *[make_tool_call()] * 10)


def test_edit_test_cycle_is_not_a_loop() -> None:
    """B32: the same test command fails each time with different output."""
    cycle = [
        step
        for n in range(30)
        for step in (
            make_tool_call(f"edit line {n}", "ok", is_error=False),
            make_tool_call("pytest -q", f"{60 - n} failed, {n} passed", is_error=True),
        )
    ]

    assert find_kinds(*cycle) == {}


# -- ids and timestamps -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "template",
    [
        '{{"request_id": "{uuid}", "hits": []}}',
        "[2026-01-01 10:00:{n:02d}] no hits",
        "no hits (took 0.{n}31 s)",
        "call_a8Bc{n}dEf7Gh901: no hits",
        "<Result at 0x7f3a5c0{n}d2e0> no hits",
    ],
)
def test_ids_and_times_around_a_result_do_not_hide_a_repeat(template: str) -> None:
    """B83: the text and the recorded hash differ each time, but the result is the same."""
    results = [template.format(n=n, uuid=UUID(int=n + (7 << 100))) for n in range(3)]
    assert len(set(results)) == 3

    steps = [
        make_tool_call(result=result, result_hash=f"hash {n}", args_hash="a")
        for n, result in enumerate(results)
    ]

    assert "doom_loop" in find_kinds(*steps)


def test_ids_inside_arguments_do_not_hide_a_repeat() -> None:
    """B83: an id that is new in each call does not change what the call requests."""
    calls = [
        make_tool_call(f'{{"call_id": "call_Ab{n}", "q": "bees"}}', args_hash=str(n), result_hash="r")
        for n in range(3)
    ]

    assert "doom_loop" in find_kinds(*calls)


@pytest.mark.parametrize("template", ["{n} %", '{{"page": {n}}}', "row {n}", "Elapsed tests: {n} of 9"])
def test_meaningful_change_makes_a_different_result(template: str) -> None:
    """B83: a meaningful change of a number or text makes a different result."""
    assert find_kinds(*(make_tool_call("poll", template.format(n=n)) for n in range(8))) == {}


@pytest.mark.parametrize(("sleep", "kinds"), [("sleep 30", set()), ("sleep 5", {"zero_progress"})])
def test_run_without_times_counts_the_sleep_commands(sleep: str, kinds: set[str]) -> None:
    polls = [
        make_tool_call(json.dumps({"command": f"{sleep}; cat f"}), "the same", name="bash") for _ in range(30)
    ]

    assert set(find_kinds(*polls)) == kinds


def test_recorded_hash_decides_for_truncated_text() -> None:
    """B83: the truncated text says nothing about the part that was cut, wherever the cut is."""
    long_excerpt, short_excerpt = "x" * 280 + " … " + "y" * 120, "x" * 80

    for excerpt in (long_excerpt, short_excerpt):
        calls = [make_tool_call(result=excerpt, args_hash="a", result_hash=str(n)) for n in range(8)]
        assert find_kinds(*calls) == {}
        assert "doom_loop" in find_kinds(
            *[make_tool_call(result=excerpt, args_hash="a", result_hash="r")] * 3
        )


# -- provider errors -----------------------------------------------------------------------------------


def test_consecutive_llm_errors_are_a_provider_failure() -> None:
    """B34: such errors are not a loop or an error of the agent, and end with the first answer."""
    failed_call = make_llm_call(is_error=True, result_excerpt="litellm.RateLimitError: 429")

    assert find_kinds(make_llm_call(), failed_call, failed_call, make_llm_call()) == {}
    assert find_kinds(make_llm_call(), failed_call, failed_call, failed_call, make_llm_call()) == {
        "provider_failure": "medium"
    }


@pytest.mark.parametrize(
    "last",
    [
        make_llm_call(is_error=True, err_sig="5c1f"),
        make_llm_call(is_error=True, result_excerpt="Connection error."),
        make_llm_call(is_error=None, result_excerpt="litellm.RateLimitError: slow down"),
        make_llm_call(is_error=None, result_excerpt="Error code: 529 - {'type': 'overloaded_error'}"),
    ],
)
def test_run_that_ends_with_a_failed_llm_call_has_a_provider_failure(last: dict[str, Any]) -> None:
    """B34: the client had already retried for minutes before it gave up."""
    assert find_kinds(make_llm_call(), make_tool_call(), last) == {"provider_failure": "medium"}
    assert (
        find_kinds(make_llm_call(), make_tool_call(), last, make_llm_call(), make_tool_call("next", "b"))
        == {}
    )


def test_context_overflow_is_not_a_provider_failure() -> None:
    """B34: the agent itself causes an overflow."""
    overflow_call = make_llm_call(
        is_error=True, result_excerpt="BadRequestError: prompt is too long: 210000 tokens"
    )

    assert find_kinds(make_llm_call(), make_tool_call(), overflow_call) == {"context_exhausted": "medium"}


def test_answer_mentioning_errors_is_not_an_error() -> None:
    assert find_kinds(make_llm_call(result_excerpt="litellm.RateLimitError is raised at 429")) == {}


# -- missing and unusual fields --------------------------------------------------------------------------


def test_silence_is_measured_only_between_recorded_times() -> None:
    assert find_kinds(
        make_tool_call(t=0), make_tool_call("b", "b", t=None), make_tool_call("c", "c", t=1000)
    ) == {"stall": "medium"}
    assert find_kinds(*(make_tool_call(f"{n}", f"{n}") for n in range(2000))) == {}


@pytest.mark.parametrize("time", [float("nan"), float("inf"), True, "12", [], 10**400])
def test_invalid_time_is_ignored(time: object) -> None:
    assert (
        find_kinds(make_tool_call(t=0), make_tool_call("b", "b", t=time), make_tool_call("c", "c", t=60))
        == {}
    )


def test_times_that_go_back_are_not_silence() -> None:
    assert (
        find_kinds(make_tool_call(t=1e9), make_tool_call("b", "b", t=0), make_tool_call("c", "c", t=1e9 + 60))
        == {}
    )


def test_step_of_unknown_kind_is_activity_but_not_a_call() -> None:
    thought = {"kind": "thought", "name": "bash", "args": "ls", "result_excerpt": "a.txt", "is_error": True}

    assert find_kinds(*[thought] * 50) == {}
    assert find_kinds(*({**thought, "t": 500 * n} for n in range(5))) == {}


def test_calls_without_recorded_results_are_a_loop_after_ten() -> None:
    without_result = {"kind": "tool", "name": "bash", "args": "pytest", "result_excerpt": None}

    assert find_kinds(*[without_result] * 9) == {}
    assert find_kinds(*[without_result] * 10)["doom_loop"] == "high"


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
    fields=st.dictionaries(st.text(max_size=8), _JSON),
)
def test_any_record_is_evaluated(steps: list[dict[str, Any]], times: int, fields: dict[str, Any]) -> None:
    result = evaluate_run({**fields, "steps": steps * times}, SETTINGS)

    ranks: dict[str, int] = {}
    for finding in result["findings"]:
        kind, rank = FindingKind(finding["kind"]).value, Severity(finding["severity"]).rank
        assert 0 <= finding["step"] < len(steps) * times
        assert rank > ranks.get(kind, -1)
        ranks[kind] = rank
    json.dumps(result)


@given(steps=_JSON)
def test_input_that_is_not_a_list_of_steps_is_rejected(steps: object) -> None:
    try:
        result = evaluate_run({"steps": steps}, SETTINGS)
    except InvalidRunError:
        return

    assert result["findings"] == []
    assert steps == [] or all(isinstance(step, dict) for step in steps)  # type: ignore[attr-defined]
