"""All commands have help, an example and the required options, and the command table matches their help."""

from __future__ import annotations

import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from queenright.cli.app import app
from queenright.cli.command_table import COMMANDS
from tests.cli_reference import example, first_sentence, is_runnable, walk
from tests.isolation import ROOT
from tests.warm import queenright

ALL_COMMANDS = list(walk())
LONG_RUNNING_COMMANDS = [(words, command) for words, command in ALL_COMMANDS if is_runnable(command)]

# Commands that return no data: they run until they are stopped, chat, write files, or only report completion.
COMMANDS_WITHOUT_JSON = {
    *("up", "serve", "shell", "code", "tui"),
    *("connect", "disconnect", "hook"),
    *("config check", "rules export", "dashboards export"),
    *("silences expire", "token revoke", "agents unload"),
    "audit export",  # prints JSON lines
}


def make_command_id(entry: tuple[tuple[str, ...], Any]) -> str:
    return " ".join(entry[0])


@pytest.mark.parametrize("name", COMMANDS)
def test_command_table_has_the_first_sentence_of_each_help(name: str) -> None:
    [command] = [command for words, command in ALL_COMMANDS if words == (name,)]

    assert first_sentence(command) == f"{COMMANDS[name].help.rstrip('.')}."


@pytest.mark.parametrize(
    ("words", "command"), LONG_RUNNING_COMMANDS, ids=map(make_command_id, LONG_RUNNING_COMMANDS)
)
def test_command_has_help_and_a_valid_example(words: tuple[str, ...], command: Any) -> None:
    result = example(command)

    assert command.help
    assert result.startswith(f"queenright {' '.join(words)}"), result
    command.make_context(words[-1], shlex.split(result)[1 + len(words) :])
    for parameter in command.params:
        assert getattr(parameter, "help", ""), f"{parameter.name} has no help"


@pytest.mark.parametrize(
    ("words", "command"), LONG_RUNNING_COMMANDS, ids=map(make_command_id, LONG_RUNNING_COMMANDS)
)
def test_data_commands_have_json_output(words: tuple[str, ...], command: Any) -> None:
    has_json = any("--json" in parameter.opts for parameter in command.params)

    assert has_json == (" ".join(words) not in COMMANDS_WITHOUT_JSON)


def test_lists_of_commands_are_complete() -> None:
    groups = {words[:1] for words, _ in ALL_COMMANDS if len(words) > 1}

    pages = {group: CliRunner().invoke(app, [*group, "--help"]).output for group in groups}

    assert groups
    assert not [group for group, page in pages.items() if "..." in page.split("Commands:")[1]]


@pytest.mark.parametrize(("words", "command"), ALL_COMMANDS, ids=map(make_command_id, ALL_COMMANDS))
def test_invalid_option_is_a_usage_error(words: tuple[str, ...], command: Any) -> None:
    result = CliRunner().invoke(app, [*words, "--no-such-option"])

    assert result.exit_code == 2
    assert "No such option" in result.output


@pytest.mark.parametrize(
    ("arguments", "expected_error"),
    [
        (["rules", "check", "--service-selector", "x("], "--service-selector"),
        (["rules", "export", "-o", "-", "--format", "kubernetes"], "standard output"),
        (["rules", "export", "-o", "x", "--labels", "="], "--labels"),
        (["run", "nowhere"], "There is no agent"),
        (["evaluate", "nowhere"], "no such file"),
        (["evaluate", str(ROOT)], "is a folder; pass files, such as"),
        (["list", "--url", "nonsense"], "is not a URL"),
        (["nudge", ""], "is empty"),
        (["ticket"], "Did you mean 'tickets'?"),
        (["status"], "Did you mean 'list'?"),
        (["stop"], "Did you mean 'terminate' or 'stop-acting'?"),
        (["terminate", "researcher", "--reason", " "], "the reason is blank; say why the worker is stopped"),
        (["approvals", "deny", "01a2bcde", "--by", ""], "'--by': the name is blank; write yours"),
        (["help"], "Use queenright --help."),
        (["version"], "Use queenright --version."),
        (["tickets", "01J"], "Commands: list, show, "),
        (["connect", "foo"], "'client': 'foo' is not one of 'claude-code', 'codex', 'gemini'."),
        (["serve", "--port", "x"], "'--port': it must be a whole number, not 'x'"),
        (["audit", "export", "--since", "2026-03-02", "--until", "2026-03-01"], "'2026-03-01' is not after"),
        (["serve", "--port", "-1"], "'--port': it must be at least 0, not '-1'"),
        (["up", "--receiver-port", "70000"], "'--receiver-port': it must be at most 65,535, not '70000'"),
        (["events", "--limit", "0"], "'--limit': it must be at least 1, not '0'"),
        (["list", "--url", f"http://{'x' * 100}"], "is not a URL"),
    ],
)
def test_invalid_combination_exits_with_2(
    arguments: list[str],
    expected_error: str,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    from queenright.cli import main

    monkeypatch.setattr(sys, "argv", ["queenright", *arguments])

    with pytest.raises(SystemExit) as exit_info:
        main()

    assert exit_info.value.code == 2
    assert expected_error in capsys.readouterr().err


@pytest.mark.parametrize(
    "arguments",
    [
        [],
        ["token"],
        ["evaluate"],
        ["run"],
        ["list", "--url"],
        ["config", "check", "--config"],
        ["token", "create", "--role"],
    ],
)
def test_long_argument_is_truncated_in_the_error(
    arguments: list[str], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    from queenright.cli import main

    monkeypatch.setattr(sys, "argv", ["queenright", *arguments, "x" * 10_000])

    with pytest.raises(SystemExit) as exit_info:
        main()

    assert exit_info.value.code in {1, 2}
    assert len(capsys.readouterr().err) < 1_000


def test_help_imports_no_command_module() -> None:
    code = (
        "import sys; sys.argv = ['queenright', '--help']\n"
        "from queenright.cli import main\n"
        "try: main()\n"
        "except SystemExit: pass\n"
        "heavy = ('queenright.', 'rich', 'httpx', 'pydantic', 'yaml')\n"
        "print(*(m for m in sys.modules if m.startswith(heavy)))"
    )
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)

    imported_modules = {
        "queenright.cli",
        "queenright.cli.lazy_group",
        "queenright.cli.app",
        "queenright.cli.command_table",
    }
    assert set(result.stdout.splitlines()[-1].split()) == imported_modules


def test_config_check_imports_no_server_and_no_client() -> None:
    code = (
        "import sys; sys.argv = ['queenright', 'config', 'check']\n"
        "from queenright.cli import main\n"
        "try: main()\n"
        "except SystemExit: pass\n"
        "print([m for m in ('uvicorn', 'httpx', 'rich') if m in sys.modules])"
    )
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)

    assert result.stdout.splitlines()[-1] == "[]"


@pytest.mark.parametrize(
    ("option", "value", "expected_error"),
    [
        ("--files", "nowhere", "'nowhere' does not exist"),
        ("--files", __file__, "is a file"),
        ("--model", "queenright/rules", "use a litellm model"),
        ("--model", "nonsense", "write it as PROVIDER/MODEL"),
    ],
)
def test_up_rejects_unusable_demo_settings_before_the_start(
    tmp_path: Path, option: str, value: str, expected_error: str
) -> None:
    result = queenright("up", "--storage", "db", option, value, cwd=tmp_path)

    assert result.returncode in (1, 2)
    assert expected_error in result.stderr.replace("\n", " ")
    assert "Traceback" not in result.stderr
    assert list(tmp_path.iterdir()) == []
