"""What a tool call does, by its name and its arguments."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from queenright.instrumentation.effects import Effect, effect_facts, effect_of, is_edit, is_shell
from queenright.instrumentation.fingerprint import NOTHING_NEW, result_fingerprint


@pytest.mark.parametrize(
    ("tool", "effect"),
    [
        ("Read", Effect.READS),
        ("search_code_base", Effect.READS),
        ("mcp__github__get_issue", Effect.READS),
        ("functions.list_files", Effect.READS),
        ("getReservation", Effect.READS),
        ("Edit", Effect.CHANGES),
        ("MultiEdit", Effect.CHANGES),
        ("apply_patch", Effect.CHANGES),
        ("mcp__github__create_issue", Effect.CHANGES),
        ("cancel_reservation", Effect.CHANGES),
        ("BashOutput", Effect.WAITS),
        ("sleep", Effect.WAITS),
        ("task_done", Effect.SUBMITS),
        ("finish", Effect.SUBMITS),
        ("attempt_completion", Effect.SUBMITS),
        ("TodoWrite", None),
        ("update_plan", None),
        ("calculator", None),
        ("execute_sql", None),
        ("think", None),
        ("search_replace", Effect.CHANGES),
    ],
)
def test_tool_name_determines_effect(tool: str, effect: Effect | None) -> None:
    assert effect_of(tool) is effect


@pytest.mark.parametrize(
    ("command", "effect"),
    [
        ("ls -la", Effect.READS),
        ("cd src && grep -rn 'a > b' . | head", Effect.READS),
        ("sed -n 10,20p a.py", Effect.READS),
        ("git status", Effect.READS),
        ("find . -name '*.py' 2>/dev/null", Effect.READS),
        ("sed -i 's/a/b/' a.py", Effect.CHANGES),
        ("echo x >> notes.txt", Effect.CHANGES),
        ("cat <<'EOF' > a.py\nprint(1)\nEOF", Effect.CHANGES),
        ("git commit -am fix", Effect.CHANGES),
        ("pip install requests", Effect.CHANGES),
        ("sleep 30 && cat build.log", Effect.WAITS),
        ("pytest -q", None),
        ("python manage.py test 2>&1 | tail -5", None),
        ("", None),
    ],
)
def test_shell_effect_is_that_of_its_command(command: str, effect: Effect | None) -> None:
    assert effect_of("bash", command) is effect
    assert effect_of("Bash", {"command": command}) is effect
    assert effect_of("shell", {"command": ["bash", "-lc", command]}) is effect


def test_an_editor_that_views_only_reads_and_an_empty_input_waits() -> None:
    assert effect_of("str_replace_editor", {"command": "view"}) is Effect.READS
    assert effect_of("str_replace_editor", '{"command": "insert"}') is Effect.CHANGES
    assert effect_of("write_stdin", {"session_id": 1, "chars": ""}) is Effect.WAITS
    assert effect_of("write_stdin", {"session_id": 1, "chars": "y\n"}) is None


def test_effect_implied_by_the_name_is_not_repeated() -> None:
    assert effect_facts("Read", {"path": "a"}) == {}
    assert effect_facts("bash", "rm a") == {"effect": "changes"}


def test_edits_and_shells_are_known() -> None:
    assert [is_edit(tool) for tool in ("Edit", "write_file", "delete_file", "bash")] == [
        True,
        True,
        False,
        False,
    ]
    assert is_shell("execute_bash")
    assert not is_shell("Read")


@given(st.text(), st.one_of(st.text(), st.dictionaries(st.text(), st.text()), st.none(), st.integers()))
def test_effect_never_raises(tool: str, arguments: object) -> None:
    effect_of(tool, arguments)
    effect_of("bash", arguments)


# -- results ------------------------------------------------------------------------------------------


def test_result_that_repeats_its_argument_is_nothing_new() -> None:
    """B97: a sentence that comes back as it went in, whatever the sentence."""
    said = "All tests pass and the feature is complete."
    echoed = [result_fingerprint({"result": f"{text}"}, {"message": text}) for text in (said, said * 2)]

    assert result_fingerprint(said, {"message": said}) == NOTHING_NEW
    assert result_fingerprint(f'"{said}"', said) == NOTHING_NEW
    assert result_fingerprint(f"Done: {said}", {"message": said}) != NOTHING_NEW
    assert len(set(echoed)) == 1


def test_a_short_answer_that_is_its_argument_may_be_an_answer() -> None:
    assert result_fingerprint("Paris", {"city": "Paris"}) != NOTHING_NEW


def test_searches_that_find_nothing_for_other_words_say_the_same() -> None:
    found = {
        result_fingerprint(f"No matches for '{word}'.", {"query": word})
        for word in ("hive", "drone", "wax comb")
    }

    assert len(found) == 1


def test_an_error_is_the_same_on_another_line_and_not_with_other_counts() -> None:
    lines = {result_fingerprint(f'File "a.py", line {n}, in run: boom', failed=True) for n in (3, 40)}
    places = {result_fingerprint(f"a.py:{n}:7: E501", failed=True) for n in (3, 40)}
    counts = {result_fingerprint(f"{n} failed, 3 passed", failed=True) for n in (3, 40)}

    assert (len(lines), len(places), len(counts)) == (1, 1, 2)
    assert len({result_fingerprint(f"line {n}") for n in (3, 40)}) == 2
