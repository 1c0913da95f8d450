from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from queenright.runtime.agents.credentials import (
    MissingCredentialError,
    find_missing_credentials,
    find_references,
    get_model_variables,
    substitute_variables,
)

NAMES = st.from_regex(r"[A-Za-z_][A-Za-z0-9_]{0,8}", fullmatch=True)


@pytest.mark.parametrize(
    ("model", "variables"),
    [
        ("anthropic/claude-sonnet-4-5", ("ANTHROPIC_API_KEY",)),
        ("claude-sonnet-4-5", ("ANTHROPIC_API_KEY",)),
        ("openai/gpt-5", ("OPENAI_API_KEY",)),
        ("gpt-4o", ("OPENAI_API_KEY",)),
        ("o3", ("OPENAI_API_KEY",)),
        ("o3-mini", ("OPENAI_API_KEY",)),
        ("gemini/gemini-2.5-pro", ("GEMINI_API_KEY", "GOOGLE_API_KEY")),
        ("ollama/llama3", ()),
        ("scripted:replies.json", ()),
        ("ollama3", ()),
        ("", ()),
    ],
)
def test_model_name_determines_required_key(model: str, variables: tuple[str, ...]) -> None:
    assert get_model_variables(model) == variables


def test_missing_variables_are_named_once() -> None:
    environment = {"SET": "x", "EMPTY": "", "OPENAI_API_KEY": "k"}
    models = ["gemini/flash", "gpt-4o", "gemini/pro"]

    missing = find_missing_credentials(["SET", "EMPTY", "ABSENT"], models, environment)

    assert missing == ["EMPTY", "ABSENT", "GEMINI_API_KEY or GOOGLE_API_KEY"]


def test_either_of_two_variables_is_enough() -> None:
    assert find_missing_credentials([], ["gemini/pro"], {"GOOGLE_API_KEY": "k"}) == []


def test_unresolved_reference_error_names_every_variable_and_no_value() -> None:
    with pytest.raises(MissingCredentialError) as error:
        substitute_variables("${A} ${B} ${C} ${A}", {"B": "secret-value"}, required_by="Server 'x'")

    assert "'x'" in str(error.value)
    assert "A, C" in str(error.value)
    assert error.value.variables == ("A", "C")


@given(st.dictionaries(NAMES, st.text()), st.text(alphabet="ab $}\\1"))
def test_substituted_values_are_literal(environment: dict[str, str], between: str) -> None:
    text = between + between.join(f"${{{name}}}" for name in environment)
    variables = {name: environment[name] for name in find_references(text)}

    assert substitute_variables(text, variables, required_by="x") == between + between.join(
        environment.values()
    )
