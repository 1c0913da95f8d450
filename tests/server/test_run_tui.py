"""`queenright run --tui` and `--approve-tools`."""

from __future__ import annotations

from pathlib import Path

import pytest

from queenright.cli.terminal.run_in_tui import private_settings, running_interface
from queenright.cli.terminal.run_options import RunOptions
from queenright.tui.screens.talk import TalkScreen
from tests.runtime.agents import chatter, talker
from tests.tui.test_on_a_service import enter_line, wait_for_text
from tests.waiting import until
from tests.warm import queenright

RUN_COMMAND = ("run", "agent", "--storage", "here", "--no-telemetry")


@pytest.mark.parametrize(
    ("stdin", "line"),
    [("y\n", "work: double ok"), ("n\n", "not approved"), ("", "Denied: stdin has ended")],
)
def test_each_tool_call_is_confirmed_before_it_runs(tmp_path: Path, stdin: str, line: str) -> None:
    talker(tmp_path / "agent")

    result = queenright(*RUN_COMMAND, "--approve-tools", cwd=tmp_path, typed=stdin)

    assert result.returncode == 0, result.stderr
    assert 'work wants to call double {"number": 21}' in result.stdout
    assert "Allow it? [y/N]" in result.stdout
    assert line in result.stdout
    assert ("work: double ok" in result.stdout) is (stdin == "y\n")


@pytest.mark.parametrize(
    ("options", "expected_error"),
    [
        ((), "This needs a terminal. Leave --tui out to run the agent in a pipe."),
        (("--json",), "--tui and --json exclude each other"),
        (("--approve-tools",), "--tui and --approve-tools exclude each other"),
    ],
)
def test_tui_needs_a_terminal_and_conflicting_options_are_named(
    tmp_path: Path, options: tuple[str, ...], expected_error: str
) -> None:
    talker(tmp_path / "agent")

    result = queenright(*RUN_COMMAND, "--tui", *options, cwd=tmp_path)

    assert result.returncode == 2
    assert expected_error in " ".join(result.stderr.split())


async def test_agent_runs_and_chats_in_the_tui(tmp_path: Path) -> None:
    options = RunOptions(path=chatter(tmp_path / "chatter"), storage=tmp_path / "here", entry_point="start")
    settings = private_settings(options, tmp_path / "service")

    async with running_interface(options, settings, {}, "ada") as app, app.run_test(size=(80, 24)) as pilot:
        await until(lambda: isinstance(app.screen, TalkScreen), "a conversation is shown")
        await wait_for_text(app, "Hello, who are you?")
        await enter_line(app, pilot, "Ada")
        await wait_for_text(app, "the run completed")
        await pilot.press("escape", "2")
        await wait_for_text(app, "chatter")  # The fleet lists the agent, so it is monitored.

    assert list((tmp_path / "here").rglob("state.json"))
