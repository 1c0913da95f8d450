"""Invalid files in the settings of judge and queen are reported before the service starts."""

from __future__ import annotations

from pathlib import Path

import pytest
from typer.testing import CliRunner

from queenright.cli.app import app
from queenright.instrumentation.errors import QueenrightError
from queenright.server.serving import serving
from queenright.server.settings import load_settings

FAULTS = {
    "missing": (
        "judging: {queen: {prompt: mine.md}}",
        None,
        "judging.queen.prompt: mine.md: it cannot be read",
    ),
    "a stray $": (
        "judging: {judge: {prompt: mine.md}}",
        b"It costs 5$.",
        "judging.judge.prompt: mine.md: it has a $ without a placeholder",
    ),
    "unknown": (
        "judging: {judge: {prompt: mine.md}}",
        b"Be $kind.",
        "judging.judge.prompt: mine.md: unknown placeholder $kind",
    ),
    "not UTF-8": (
        "judging: {judge: {prompt: mine.md}}",
        b"\xff\xfe",
        "judging.judge.prompt: mine.md: it is not UTF-8",
    ),
    "empty": ("judging: {queen: {prompt: mine.md}}", b" \n", "judging.queen.prompt: mine.md: it is empty"),
    "no version": (
        "judging: {queen: {prompt: mine.md}}",
        b"---\nversion: x\n---\nBe fair.\n",
        "judging.queen.prompt: mine.md: its version is 'x'",
    ),
    "no script": (
        "judging: {judge: {model: 'scripted:mine.md'}}",
        None,
        "cannot load the judge's model: mine.md: cannot be read",
    ),
    "no JSON": (
        "judging: {queen: {model: 'scripted:mine.md'}}",
        b"{",
        "cannot load the queen's model: mine.md: is not JSON",
    ),
}


@pytest.mark.parametrize(("settings", "content", "reason"), FAULTS.values(), ids=FAULTS)
async def test_config_check_and_serve_reject_the_same_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, settings: str, content: bytes | None, reason: str
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "queenright.yaml").write_text(settings)
    if content is not None:
        (tmp_path / "mine.md").write_bytes(content)

    check_result = CliRunner().invoke(app, ["config", "check"])
    with pytest.raises(QueenrightError) as start_error:
        async with serving(load_settings(storage=Path("there"), http={"port": 0}, otlp={"port": 0})):
            pass

    assert (check_result.exit_code, str(check_result.exception)) == (1, str(start_error.value))
    # A path in a setting becomes absolute. The path of a script does not, because it is part of a model name.
    assert str(start_error.value).startswith(
        reason.replace("prompt: mine.md", f"prompt: {tmp_path / 'mine.md'}")
    )
    assert not (tmp_path / "there").exists()


def test_usable_files_are_valid(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "mine.md").write_text("---\nversion: 3\n---\nCritical from $critical on.\n")
    (tmp_path / "script.json").write_text('{"replies": []}')
    (tmp_path / "queenright.yaml").write_text(
        "judging: {judge: {prompt: mine.md, model: 'scripted:script.json'}}"
    )

    check_result = CliRunner().invoke(app, ["config", "check"])

    assert check_result.exit_code == 0
