from __future__ import annotations

import os
from pathlib import Path

import pytest

from queenright.server.ops.programs import ProgramNotFoundError, find_program


def write_program(folder: Path, name: str) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / name
    path.write_text("#!/bin/sh\n")
    path.chmod(0o755)
    return path


@pytest.fixture
def path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Use an empty folder as PATH, another working folder, and no environment variables."""
    elsewhere = tmp_path / "work" / "deep"
    elsewhere.mkdir(parents=True)
    monkeypatch.chdir(elsewhere)
    monkeypatch.setenv("PATH", str(tmp_path / "path"))
    for name in ("PROMTOOL_BIN", "ALERTMANAGER_BIN", "BEE_BIN"):
        monkeypatch.delenv(name, raising=False)
    return tmp_path / "path"


def test_environment_variable_overrides_path(
    path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_program(path, "promtool")
    chosen_program = write_program(tmp_path / "own", "promtool-3")
    monkeypatch.setenv("PROMTOOL_BIN", str(chosen_program))

    assert find_program("promtool") == chosen_program


def test_path_overrides_the_tools_of_the_checkout(path: Path, tmp_path: Path) -> None:
    write_program(tmp_path / "work" / ".tools" / "bin", "promtool")
    on_path = write_program(path, "promtool")

    assert find_program("promtool") == on_path


def test_tools_are_found_in_parent_folders(path: Path, tmp_path: Path) -> None:
    tool = write_program(tmp_path / "work" / ".tools" / "bin", "bee")

    assert find_program("bee") == tool


def test_tools_of_another_user_are_not_run(
    path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tool = write_program(tmp_path / "work" / ".tools" / "bin", "bee")
    owner = tool.parent.stat().st_uid
    monkeypatch.setattr("os.getuid", lambda: owner + 1)
    if owner == 0:
        # Everyone trusts the tools of root, and root can change their owner.
        os.chown(tool.parent, 2, -1)

    assert find_program("bee") is None


def test_alertmanager_is_found_under_its_debian_name(path: Path) -> None:
    debian_path = write_program(path, "prometheus-alertmanager")

    assert find_program("alertmanager") == debian_path


def test_unknown_program_is_not_found(path: Path) -> None:
    assert find_program("bee") is None


def test_file_that_is_not_executable_is_not_a_program(path: Path) -> None:
    write_program(path, "bee").chmod(0o644)

    assert find_program("bee") is None


def test_invalid_program_variable_is_an_error(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_program(path, "promtool")
    monkeypatch.setenv("PROMTOOL_BIN", "/no/such/promtool")

    with pytest.raises(ProgramNotFoundError, match="PROMTOOL_BIN is '/no/such/promtool'"):
        find_program("promtool")


@pytest.mark.parametrize(
    ("platform", "remedy"),
    [("linux", "package prometheus-alertmanager"), ("darwin", "brew install alertmanager")],
)
def test_missing_program_is_named_with_the_way_to_install_it(
    platform: str, remedy: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sys.platform", platform)

    message = str(ProgramNotFoundError("amtool"))

    assert "amtool" in message
    assert remedy in message
    assert "AMTOOL_BIN" in message
