"""The effect of a tool call, inferred from its name and arguments."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from queenright.instrumentation.effect import Effect
from queenright.instrumentation.effects import get_effect_facts, infer_effect, is_shell
from queenright.instrumentation.fingerprint import NOTHING_FOUND, NOTHING_NEW, result_fingerprint


@pytest.mark.parametrize(
    ("tool", "effect"),
    [
        ("Read", Effect.READS),
        ("search_code_base", Effect.SEARCHES),
        ("mcp__github__get_issue", Effect.READS),
        ("functions.list_files", Effect.READS),
        ("getReservation", Effect.READS),
        ("Edit", Effect.EDITS),
        ("MultiEdit", Effect.EDITS),
        ("apply_patch", Effect.EDITS),
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
        ("search_replace", Effect.EDITS),
        ("browser_wait_for", Effect.WAITS),
        ("wait_for_message", Effect.WAITS),
        ("get_wait_times", Effect.READS),
        ("get_job_status", Effect.POLLS),
        ("list_workflow_runs", Effect.POLLS),
        ("git_status", None),
        ("run_tests", Effect.CHECKS),
        ("lint_file", Effect.CHECKS),
        ("get_test_results", Effect.READS),
        ("build_status", Effect.POLLS),
        ("get_command_output", Effect.POLLS),
        ("update_test", Effect.CHANGES),
        ("hand_in", Effect.SUBMITS),
        ("TaskDone", Effect.SUBMITS),
        ("submitAnswer", Effect.SUBMITS),
    ],
)
def test_tool_name_determines_effect(tool: str, effect: Effect | None) -> None:
    assert infer_effect(tool) is effect


@pytest.mark.parametrize(
    ("command", "effect"),
    [
        ("ls -la", Effect.READS),
        ("cd src && grep -rn 'a > b' . | head", Effect.SEARCHES),
        ("grep -c TODO a.py", Effect.READS),
        ("test -f a.py && echo yes", Effect.READS),
        ("ps aux | grep train", Effect.POLLS),
        ("tail -n 3 train.log", Effect.POLLS),
        ("gh run view 7 --json status", Effect.POLLS),
        ("gh pr view 1", Effect.POLLS),
        ("gh -R o/r api repos/o/r/actions/runs/1 --jq .status", Effect.POLLS),
        ("gh api -X POST repos/o/r/issues", Effect.CHANGES),
        ("gh api repos/o/r/issues -f title=x", Effect.CHANGES),
        ("kubectl -n x get pods", Effect.POLLS),
        ("cd x && timeout -k 5 10 kubectl get pods", Effect.POLLS),
        ("sudo -u me env A=b kubectl --context p delete pod get", Effect.CHANGES),
        ("bash -lc 'kubectl get pods'", Effect.POLLS),
        ("docker compose -f a.yml ps", Effect.POLLS),
        ("docker compose up -d", Effect.CHANGES),
        ("docker run --rm image ls", Effect.RUNS),
        ("aws --profile p cloudformation describe-stacks --stack-name x", Effect.POLLS),
        ("aws ec2 start-instances --instance-ids i", Effect.CHANGES),
        ("service nginx status", Effect.POLLS),
        ("curl -s localhost:8000/health", Effect.POLLS),
        ("curl -so /dev/null -w '%{http_code}' localhost", Effect.POLLS),
        ("curl -sX POST localhost", Effect.CHANGES),
        ("curl -fsSLO example.org/file", Effect.CHANGES),
        ("git -C src status", Effect.READS),
        ("git -C src commit -m wip", Effect.CHANGES),
        ("find . -name a | xargs rm -f", Effect.CHANGES),
        ("find . -name a -exec rm {} \\;", Effect.CHANGES),
        ("find . -name a -exec wc -l {} + | sort", Effect.READS),
        ("find . -name a -exec ./fix.sh {} +", Effect.RUNS),
        ("for f in a b; do wc -l $f; done", Effect.READS),
        ("for f in a b; do rm $f; done", Effect.CHANGES),
        ("find . -name a | xargs -n 1 wc -l", Effect.SEARCHES),
        ("sed -n 10,20p a.py", Effect.READS),
        ("git status", Effect.READS),
        ("find . -name '*.py' 2>/dev/null", Effect.SEARCHES),
        ("sed -i 's/a/b/' a.py && cat a.py", Effect.EDITS),
        ("echo x >> notes.txt", Effect.EDITS),
        ("cat <<'EOF' > a.py\nprint(1)\nEOF", Effect.EDITS),
        ("cat >> a.py <<'EOF'\nprint(1)\nEOF\ncat a.py", Effect.EDITS),
        ("cat > a.py <<'EOF'\nprint(1)\nEOF\npython a.py", Effect.CHANGES),
        ("python bench.py > out.txt; cat out.txt", Effect.CHANGES),
        ("git commit -am fix", Effect.CHANGES),
        ("pip install requests", Effect.CHANGES),
        ("sleep 30 && cat build.log", Effect.WAITS),
        ("sleep 1m; python check.py", Effect.WAITS),
        ("python -c 'import time; time.sleep(10)'; ls", Effect.WAITS),
        ("python -c 'import time; time.sleep(1)'", Effect.RUNS),
        ("cat > a.py <<'EOF'\ntime.sleep(10)\nEOF", Effect.EDITS),
        ("Start-Sleep -Seconds 10; Get-Service x", Effect.WAITS),
        ("Start-Sleep 1", Effect.READS),
        ("timeout 10 tail -f train.log", Effect.WAITS),
        ("docker compose -f a.yml logs --tail 5 web", Effect.POLLS),
        ("docker compose logs -f web", Effect.WAITS),
        ("kubectl get pods -w", Effect.WAITS),
        ("until test -f done; do sleep 1; done", Effect.WAITS),
        ("sleep 1; cat a.py", Effect.READS),
        ("pytest -q", Effect.CHECKS),
        ("mypy .", Effect.CHECKS),
        ("golangci-lint run", Effect.CHECKS),
        ("hatch test", Effect.CHECKS),
        ("cd app && npm run lint -- a.ts", Effect.CHECKS),
        ("uv run --frozen pytest tests/test_a.py", Effect.CHECKS),
        ("python -m py_compile a.py", Effect.CHECKS),
        ("make -C app test", Effect.CHECKS),
        ("node --check a.js", Effect.CHECKS),
        ("ruff check a.py", Effect.CHECKS),
        ("ruff check --fix a.py", Effect.RUNS),
        ("python fix.py tests/test_a.py", Effect.RUNS),
        ("npx create-app@latest app", Effect.RUNS),
        ("./gen.sh && ./gradlew test", Effect.RUNS),
        ("gcc -o a a.c", Effect.RUNS),
        ("hatch build", Effect.RUNS),
        ("dotnet test a", Effect.CHECKS),
        ("docker compose exec web pytest tests/test_a.py", Effect.CHECKS),
        ("docker exec db pg_isready", Effect.POLLS),
        ("docker exec db rm -r data", Effect.RUNS),
        ("Let me test this", None),
        ("jupytext --to py a.ipynb", None),
        ("python manage.py test 2>&1 | tail -5", Effect.CHECKS),
        ("", None),
    ],
)
def test_command_determines_the_effect_of_a_shell(command: str, effect: Effect | None) -> None:
    assert infer_effect("bash", command) is effect
    assert infer_effect("Bash", {"command": command}) is effect
    assert infer_effect("shell", {"command": ["bash", "-lc", command]}) is effect


@pytest.mark.parametrize(
    ("tool", "arguments", "effect"),
    [
        ("computer", {"action": "wait", "duration": 2}, Effect.WAITS),
        ("computer", '{"action": "left_click", "coordinate": [1, 2]}', Effect.CHANGES),
        ("computer", {"action": "screenshot"}, None),
        ("process", {"action": "poll", "id": "7"}, Effect.WAITS),
        ("github", {"action": "get_issue"}, Effect.READS),
        ("say", {"action": "read the file"}, None),
        ("say", "wait", None),
        ("memory", {"action": "write"}, None),
        ("read_file", {"action": "delete"}, Effect.READS),
    ],
)
def test_action_determines_effect_if_the_name_does_not(
    tool: str, arguments: object, effect: Effect | None
) -> None:
    assert infer_effect(tool, arguments) is effect


@pytest.mark.parametrize("shell", ["zsh", "fish", "nu", "pwsh", "powershell", "ksh", "dash"])
def test_shells_with_other_names_have_effects(shell: str) -> None:
    assert infer_effect(shell, {"command": "cat a.txt"}) is Effect.READS
    assert infer_effect(shell, {"command": "Get-Content a.txt"}) is Effect.READS
    assert infer_effect(shell, {"command": "bat a.txt"}) is Effect.READS
    assert infer_effect(shell, {"command": "Start-Sleep 30"}) is Effect.WAITS


def test_editor_view_reads_and_empty_input_waits() -> None:
    assert infer_effect("str_replace_editor", {"command": "view"}) is Effect.READS
    assert infer_effect("str_replace_editor", '{"command": "insert"}') is Effect.EDITS
    assert infer_effect("write_stdin", {"session_id": 1, "chars": ""}) is Effect.WAITS
    assert infer_effect("write_stdin", {"session_id": 1, "chars": "y\n"}) is None


def test_effect_fact_is_omitted_if_the_name_implies_it() -> None:
    assert get_effect_facts("Read", {"path": "a"}) == {}
    assert get_effect_facts("bash", "rm a") == {"effect": "changes"}


def test_is_shell_recognizes_shells() -> None:
    assert is_shell("execute_bash")
    assert not is_shell("Read")


@pytest.mark.parametrize(
    ("arguments", "effect"),
    [
        ({"seconds": 1}, Effect.READS),
        ('{"duration_ms": 4000}', Effect.READS),
        ({"time": 5}, Effect.WAITS),
        ({"minutes": 1}, Effect.WAITS),
        ({"text": "Loaded", "tab": 2}, Effect.WAITS),
        (None, Effect.WAITS),
    ],
)
def test_wait_under_five_seconds_is_not_a_wait(arguments: object, effect: Effect) -> None:
    assert infer_effect("wait_for", arguments) is effect


@given(st.text(), st.one_of(st.text(), st.dictionaries(st.text(), st.text()), st.none(), st.integers()))
def test_effect_never_raises(tool: str, arguments: object) -> None:
    infer_effect(tool, arguments)
    infer_effect("bash", arguments)


# -- results ------------------------------------------------------------------------------------------


def test_result_that_repeats_its_argument_has_nothing_new() -> None:
    """B97: this holds for any sentence that the result repeats unchanged from the arguments."""
    sentence = "All tests pass and the feature is complete."
    echo_fingerprints = [
        result_fingerprint({"result": f"{text}"}, {"message": text}) for text in (sentence, sentence * 2)
    ]

    assert result_fingerprint(sentence, {"message": sentence}) == NOTHING_NEW
    assert result_fingerprint(f'"{sentence}"', sentence) == NOTHING_NEW
    assert result_fingerprint(f"Done: {sentence}", {"message": sentence}) != NOTHING_NEW
    assert len(set(echo_fingerprints)) == 1


def test_short_answer_equal_to_its_argument_counts_as_an_answer() -> None:
    assert result_fingerprint("Paris", {"city": "Paris"}) != NOTHING_NEW


def test_empty_searches_for_different_terms_are_equal() -> None:
    fingerprints = {
        result_fingerprint(f"No matches for '{word}'.", {"query": word})
        for word in ("hive", "drone", "wax comb")
    }

    assert len(fingerprints) == 1


def test_error_on_another_line_is_equal_but_not_with_another_count() -> None:
    lines = {result_fingerprint(f'File "a.py", line {n}, in run: boom', has_failed=True) for n in (3, 40)}
    place_fingerprints = {result_fingerprint(f"a.py:{n}:7: E501", has_failed=True) for n in (3, 40)}
    counts = {result_fingerprint(f"{n} failed, 3 passed", has_failed=True) for n in (3, 40)}

    assert (len(lines), len(place_fingerprints), len(counts)) == (1, 1, 2)
    assert len({result_fingerprint(f"line {n}") for n in (3, 40)}) == 2


@pytest.mark.parametrize(
    "text",
    [
        'Traceback (most recent call last):\n  File "x.py", line {}, in f\nValueError: bad',
        "row {}: bad",
        "bad value in row {}",
        "check #{} failed",
        "L{}: unexpected indent",
        "line{}: invalid syntax",
        "SyntaxError: unexpected indent x.py:{}:3",
    ],
)
def test_unreported_failures_at_different_places_are_equal(text: str) -> None:
    command = {"command": "python x.py"}

    assert len({result_fingerprint(text.format(n), command) for n in (3, 41)}) == 1
    assert len({result_fingerprint(f"{n} of 50: {text}", command) for n in (3, 41)}) == 2


@pytest.mark.parametrize(
    ("text", "arguments"),
    [("row {}", {"q": "x"}), ("page #{}: bees", {"q": "x"}), ("row {}: bad", {}), ("row {}: bad", None)],
)
def test_different_places_differ_without_a_failure_or_without_arguments(text: str, arguments: object) -> None:
    assert len({result_fingerprint(text.format(n), arguments) for n in (3, 41)}) == 2


def test_step_number_does_not_change_the_result_of_a_click() -> None:
    click = {"element": "Next", "ref": "e5"}

    assert len({result_fingerprint(f"Step {n}: the same page", click) for n in (3, 41)}) == 1
    assert len({result_fingerprint(f"[step {n}/50] {n} bees", click) for n in (3, 41)}) == 2
    assert len({result_fingerprint(f"Step {n}", click) for n in (3, 41)}) == 2
    assert len({result_fingerprint(f"Step {n}: done", {"workflow": "a"}) for n in (3, 41)}) == 2


@pytest.mark.parametrize(
    "result",
    [
        "",
        "[]",
        [],
        None,
        "No matches found",
        "No files found.",
        "Found 0 matches",
        "0 results",
        "nothing found for 'hive'",
        {"matches": [], "count": 0},
        {"query": "hive", "results": [], "took": 0.1},
        '{"results": [], "truncated": false}',
        "Exit code 1",
        "exit_code_1\n",
        "<returncode>1</returncode>\n<output>\n</output>",
        "(no output)",
    ],
)
def test_empty_results_are_equal(result: object) -> None:
    assert result_fingerprint(result, {"query": "hive"}) == NOTHING_FOUND


@pytest.mark.parametrize(
    "result",
    [
        "0",
        "ok",
        "200 OK",
        "no",
        "none of the tests failed",
        "No such file or directory",
        "bash: rg: command not found",
        {"status": "active"},
        {"count": 0},
        {"results": ["a"]},
        "Exit code 1\nKeyError: 'q'",
        "No matches found\na.py:3: match",
    ],
)
def test_results_with_content_are_not_empty(result: object) -> None:
    assert result_fingerprint(result) != NOTHING_FOUND
