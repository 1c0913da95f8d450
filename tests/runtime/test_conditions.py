import ast
import json
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from queenright.runtime.graphs.conditions import FUNCTIONS, ConditionError, NotInMemoryError, check, evaluate

MEMORY: dict[str, Any] = {
    "score": 9,
    "approved": True,
    "empty": "",
    "report": {"title": "The Hive", "tags": ["bees", "wax"], "len": 3},
    "my-key": 1,
    "secret": "sk-not-for-eyes",
    "min": 2,
}


@pytest.mark.parametrize(
    ("expression", "answer"),
    [
        ("score >= 8", True),
        ("score >= 8 and not approved", False),
        ("7 < score < 10", True),
        ("report.title == 'The Hive'", True),
        ("report['title'].lower().startswith('the')", True),
        ("'bees' in report.tags", True),
        ("report.tags[-1] == 'wax'", True),
        ("report.tags[:1] == ['bees']", True),
        ("report.len == 3", True),
        ("len(report.tags) == 2 and max(score, 3) == 9", True),
        ("lower('WAX') in report.tags", True),
        ("score in (1, 9)", True),
        ("score * 2 + 1 == 19 and score % 2 == 1", True),
        ("memory['my-key'] == 1", True),
        ("'draft' in memory", False),
        ("'draft' in memory and draft > 3", False),
        ("memory.get('draft') is None", True),
        ("(1 if approved else 0) == 1", True),
        ("empty", False),
        ("report", True),
        ("min == 2 and min(3, 1) == 1", True),
        ("'score' in memory.keys() and 9 in memory.values()", True),
        ("  score == 9  ", True),
    ],
)
def test_condition_is_evaluated_over_memory(expression: str, answer: bool) -> None:
    check(expression)

    assert evaluate(expression, MEMORY) is answer


@pytest.mark.parametrize(
    ("expression", "missing"),
    [
        ("draft > 3", "'draft'"),
        ("report.author == 'x'", "'author'"),
        ("memory['draft']", "'draft'"),
        ("report.tags[9]", "no such key or index"),
        ("memory[secret]", "no such key or index"),
        ("max", "'max'"),
    ],
)
def test_missing_memory_key_is_named(expression: str, missing: str) -> None:
    check(expression)

    with pytest.raises(NotInMemoryError, match=missing):
        evaluate(expression, MEMORY)


@pytest.mark.parametrize(
    ("expression", "problem"),
    [
        ("", "is empty"),
        ("   ", "is empty"),
        ("score >", "invalid syntax"),
        ("score = 1", "invalid syntax"),
        ("1; 2", "invalid syntax"),
        ("import os", "invalid syntax"),
        ("x" * 1001, "1001 characters long; the maximum is 1000"),
        ("not " * 60 + "score", "nested more than 40 deep"),
        ("(" * 300 + "1" + ")" * 300, "condition"),
        ("\x00", "condition"),
        ("'\ud800'", "cannot be parsed"),
        ("score ** 9", "a power is not allowed"),
        ("1 << 9999", "<< is not allowed"),
        ("f'{score:>999999999}'", "an f-string is not allowed"),
        ("[x for x in memory]", "a comprehension is not allowed"),
        ("(lambda: 1)()", "only functions can be called"),
        ("max(*report)", r"\* is not allowed"),
        ("(y := 3)", ":= is not allowed"),
        ("b'x'", "bytes is not allowed"),
        ("max(1, key=len)", "named arguments are not allowed"),
        ("report.__class__", "'__class__' is not allowed"),
        ("memory.clear()", "method 'clear' is not allowed"),
        ("''.format(score)", "method 'format' is not allowed"),
        ("open('/etc/passwd')", "unknown function 'open'; available: len, min"),
        ("__import__('os').system('x')", "method 'system' is not allowed"),
    ],
)
def test_invalid_condition_is_rejected_early(expression: str, problem: str) -> None:
    with pytest.raises(ConditionError, match=problem) as error:
        check(expression)
    assert not isinstance(error.value, NotInMemoryError)
    with pytest.raises(ConditionError):
        evaluate(expression, MEMORY)


@pytest.mark.parametrize(
    ("expression", "problem"),
    [
        ("score > report.title", "'>' not supported between instances of 'int' and 'str'"),
        ("score / 0", "division by zero"),
        ("'a' * 3", r"\* needs numbers, not str"),
        ("'%999999999d' % 3", "% needs numbers, not str"),
        ("big + big", "more than a million"),
        ("int(secret)", r"cannot be evaluated \(ValueError\)"),
        ("secret.get('x')", "cannot be evaluated"),
    ],
)
def test_condition_error_contains_no_memory_values(expression: str, problem: str) -> None:
    check(expression)

    with pytest.raises(ConditionError, match=problem) as error:
        evaluate(expression, {**MEMORY, "big": "x" * 600_000})
    assert "sk-not-for-eyes" not in str(error.value)


def test_evaluation_does_not_change_memory() -> None:
    memory = {"tags": ["wax"], "report": {"n": 1}}

    evaluate("len(tags) == 1 and report.get('n') == 1 and tags + ['x'] == ['wax', 'x']", memory)

    assert memory == {"tags": ["wax"], "report": {"n": 1}}


@given(st.text(max_size=60))
@example("memory.memory")
@example("len(len)")
def test_any_expression_gives_bool_or_condition_error(expression: str) -> None:
    try:
        answer = evaluate(expression, MEMORY)
    except ConditionError:
        return
    assert isinstance(answer, bool)


JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-9, 9) | st.text("abc", max_size=3),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.text("abc", max_size=2), inner, max_size=3)
    ),
    max_leaves=6,
)


@given(memory=st.dictionaries(st.sampled_from(["a", "b", "len"]), JSON, max_size=3), other=JSON)
def test_equality_follows_python(memory: dict[str, Any], other: Any) -> None:
    """Values are compared as in Python, without conversion or deep search."""
    literal = json.dumps(other) if isinstance(other, str) else repr(other)
    for key, value in memory.items():
        if not any(isinstance(node, ast.Dict) for node in ast.walk(ast.parse(literal))):
            assert evaluate(f"{key} == {literal}", memory) == (value == other)


def test_error_quotes_only_the_start_of_a_long_condition() -> None:
    with pytest.raises(ConditionError) as error:
        check("x" * 5000)
    assert len(str(error.value)) < 300


def test_allowed_calls_match_the_docs() -> None:
    assert set(FUNCTIONS) == {"len", "min", "max", "abs", "int", "float", "str", "lower"}
