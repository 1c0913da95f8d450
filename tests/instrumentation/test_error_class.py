"""Errors with the same cause have the same class, whatever their wording."""

from __future__ import annotations

import pytest

from queenright.instrumentation.effect import Effect
from queenright.instrumentation.error_class import (
    NOT_ACCEPTED,
    SHELL_REFUSED,
    classify_error,
    classify_error_text,
    find_unreported_failure,
    is_refused_by_shell,
)


@pytest.mark.parametrize(
    "text",
    [
        "bash: line 1: Let: command not found",
        "/bin/bash: line 3: I: command not found\n/bin/bash: line 3: FooBar.html: command not found",
        "/bin/sh: 1: Let: not found",
        'sh: 1: Syntax error: "(" unexpected',
        "zsh: command not found: Let",
        "zsh: parse error near `)'",
        "fish: Unknown command: Let",
        "-bash: syntax error near unexpected token `('",
        "/bin/bash: -c: line 2: syntax error: unexpected end of file",
        "'Let' is not recognized as an internal or external command,\noperable program or batch file.",
        "The term 'Let' is not recognized as the name of a cmdlet, function, or operable program.",
        "<returncode>127</returncode>\n<output>\n</output>",
        "Exit code 127\nwhatever the locale says",
        "Let: command not found",
        "(eval):1: command not found: Let",
        "ksh: Let: not found [No such file or directory]",
        "bash: Let: No such file or directory",
        "Unknown command: Let",
        "Let: The term 'Let' is not recognized as a name of a cmdlet, function, script file, or program.",
        "+ FullyQualifiedErrorId : CommandNotFoundException",
        "Command 'Let' not found, did you mean:\n  command 'set' from deb x",
        "External command failed: Command `Let` not found",
        'exec failed: "Let": executable file not found in $PATH: unknown',
        "/usr/bin/ls: /usr/bin/ls: cannot execute binary file",
    ],
)
def test_commands_that_a_shell_cannot_run_are_one_class(text: str) -> None:
    assert is_refused_by_shell(text)
    assert classify_error_text(text) == SHELL_REFUSED


@pytest.mark.parametrize(
    "text",
    [
        "FAQ: what if my terminal says command not found? Add the folder to PATH.",
        "If bash says: foo: command not found, install foo.",
        "README: 127 tests passed",
        "the route was not found",
        "grep: command not found in the index",
        "Command not found in the menu: save",
        "The user asked: bash: command not found?",
        "python: can't open file 'a.py': [Errno 2] No such file or directory",
        "The face is not recognized as a known person",
        "exit code 1",
        "SyntaxError: invalid syntax",
        "cat: notes.txt: No such file or directory",
    ],
)
def test_text_about_shells_is_not_a_shell_error(text: str) -> None:
    assert not is_refused_by_shell(text)


@pytest.mark.parametrize(
    "error_type", ["error", "Error", "tool_error", "ToolError", "exit_code_1", "1", "failed", ""]
)
def test_generic_error_type_takes_its_class_from_the_text(error_type: str) -> None:
    text = "Traceback (most recent call last):\n  File \"a.py\", line 3\nKeyError: 'x'"

    assert classify_error(error_type, text) == "KeyError"
    assert classify_error(error_type, "") == ""


def test_specific_error_type_is_used_as_the_class() -> None:
    assert classify_error("RateLimitError", "anything else") == "RateLimitError"
    assert classify_error("timeout", "") == "timeout"
    assert classify_error("exit_code_127", "") == SHELL_REFUSED


@pytest.mark.parametrize(
    ("result", "effect", "expected"),
    [
        ("zsh: command not found: Let", Effect.RUNS, SHELL_REFUSED),
        ("zsh: command not found: Let", None, SHELL_REFUSED),
        ("zsh: command not found: Let", Effect.READS, ""),
        ("x" * 400 + "\nzsh: command not found: Let", None, ""),
        ("Not accepted.", None, NOT_ACCEPTED),
        ("Submission recorded: all done. Not accepted yet.", Effect.SUBMITS, NOT_ACCEPTED),
        ("Your answer was rejected", Effect.CHANGES, NOT_ACCEPTED),
        ("Not accepted.", Effect.READS, ""),
        ("Not accepted, 3 of 5 tests pass", None, ""),
        ("Cards are not accepted here, cash is.", None, ""),
        ("2 accepted, 1 rejected", None, ""),
        (
            "Error: String to replace not found in file.",
            Effect.EDITS,
            "Error: String to replace not found in file.",
        ),
        ("Error: no such text in the file.", Effect.RUNS, ""),
        ("The file has been edited; errors: none", Effect.EDITS, ""),
        ("The edit could not be applied to a.py", Effect.EDITS, "The edit could not be applied to a.py"),
        ("1 SEARCH/REPLACE block failed to match!", Effect.EDITS, "~ ~ block failed to match!"),
        (
            "apply_patch verification failed: no such line",
            Effect.EDITS,
            "apply_patch verification failed: no such line",
        ),
        ("old_string was not found in the file", Effect.EDITS, "old_string was not found in the file"),
        ("Rejected: tests still fail", Effect.SUBMITS, "Rejected: tests still fail"),
        ("File did not exist; created a.py", Effect.EDITS, ""),
        ("Replaced 3 lines. 2 hunks failed", Effect.EDITS, ""),
        ("Updated a.py, which could not be parsed before", Effect.EDITS, ""),
        ("Invalid action 'clikc'", None, "Invalid action ~"),
        ("HTTP 503 Service Unavailable", Effect.CHANGES, "HTTP 503 Service Unavailable"),
        ("Unknown command line of the hive", Effect.READS, ""),
        ("503 bees", None, ""),
        ({"error": "no such bee"}, Effect.EDITS, "no such bee"),
        ('{"success": false, "message": "out of honey"}', None, "out of honey"),
        ({"status": "error", "error": {"message": "no such bee"}}, None, "no such bee"),
        ({"isError": True, "content": []}, None, "error"),
        ({"error": None, "rows": []}, None, ""),
        ({"error": "", "ok": True}, None, ""),
        ({"success": True, "error": "1 warning"}, None, ""),
        ('{"error": "no such bee"}', Effect.READS, ""),
        ({"errors": 0, "status": "done"}, Effect.RUNS, ""),
    ],
)
def test_failure_visible_only_in_the_result_is_found(
    result: object, effect: Effect | None, expected: str
) -> None:
    assert find_unreported_failure(result, effect) == expected


@pytest.mark.parametrize(
    "text",
    ["apply_patch failed: Failed to find context in a.py: {}", "Invalid patch: {}", "No such hive: {}"],
)
def test_variable_last_word_does_not_change_the_class(text: str) -> None:
    assert len({classify_error_text(text.format(word)) for word in ("alpha", "beta.gamma")}) == 1
    assert classify_error_text("Error: timeout") != classify_error_text("Error: forbidden")


def test_http_status_with_its_phrase_is_part_of_the_class() -> None:
    text = "503 Service Unavailable: overloaded"

    assert classify_error("RuntimeError", text) == text


def test_names_paths_and_numbers_do_not_change_the_class() -> None:
    texts = [f"cannot open 'file_{n}.txt': no space left on /mnt/disk{n} (sector {n}00)" for n in range(3)]

    assert len({classify_error_text(text) for text in texts}) == 1


def test_argument_text_does_not_change_the_class() -> None:
    texts = [(f"no user called {name} was found", {"name": name}) for name in ("alice", "bob")]

    assert len({classify_error_text(text, arguments) for text, arguments in texts}) == 1


@pytest.mark.parametrize(
    "text",
    [
        "Error code: {} - {{'type': 'error', 'error': {{'message': 'try again'}}}}",
        "API Error: {} {{'type': 'error'}}",
        "Request failed with status code {}",
        "HTTP {} (request id: 7c9e6679-7425-40de-944b-e07fc1f90ae7)",
        "{}: overloaded",
        "{} Overloaded",
        "the provider answered {} Service Unavailable",
        "Server error '{} Service Unavailable' for url 'https://llm.test/v1'",
    ],
)
def test_status_code_distinguishes_errors(text: str) -> None:
    assert len({classify_error_text(text.format(code)) for code in (401, 404, 429, 500, 529)}) == 5


@pytest.mark.parametrize(
    "texts",
    [
        [
            "HTTP 503 Service Unavailable (request id: 7c9e6679-7425-40de-944b-e07fc1f90ae7)",
            "HTTP 503 Service Unavailable (request id: cafebabe-aaaa-40de-bbbb-e07fc1f90ae7)",
        ],
        ["Session deadbeefcafe failed", "Session 8f14e45fceea failed", "Session 812345678901 failed"],
        ["412 ms without an answer", "503 ms without an answer"],
        ["Timed out after 30012 ms", "Timed out after 30.4 s", "Timed out after 1m30s"],
        ["No answer, waited 5.0 seconds", "No answer, waited 30 seconds", "No answer, waited 1,500 seconds"],
        ["connect ECONNREFUSED 10.0.3.17:8931", "connect ECONNREFUSED 10.0.4.99:80"],
    ],
)
def test_ids_and_durations_do_not_change_the_class(texts: list[str]) -> None:
    assert len({classify_error_text(text) for text in texts}) == 1
