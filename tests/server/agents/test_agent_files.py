"""Agent files: only text files below the agent's folder are read and written."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from queenright.server.agents.agent_files import (
    MAX_FILE_BYTES,
    MAX_FILES,
    MAX_VERSIONS,
    AgentFileError,
    AgentFiles,
)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    path = tmp_path / "agents" / "guide"
    (path / "prompts").mkdir(parents=True)
    (path / "tools.py").write_text("def search(q):\n    return q\n", encoding="utf-8")
    (path / "prompts" / "talk.md").write_text("Talk.\n", encoding="utf-8")
    (tmp_path / "secret.txt").write_text("outside", encoding="utf-8")
    return path


def open_agent_files(folder: Path) -> AgentFiles:
    return AgentFiles(folder, folder.parents[1] / "versions")


def test_files_are_listed_and_read(folder: Path) -> None:
    (folder / ".env").write_text("KEY=1", encoding="utf-8")
    (folder / "out.txt").symlink_to("../../secret.txt")

    assert open_agent_files(folder).list() == (["prompts/talk.md", "tools.py"], False)
    assert open_agent_files(folder).read("prompts/talk.md") == "Talk.\n"


def test_long_list_is_marked_as_truncated(folder: Path) -> None:
    for number in range(MAX_FILES):
        (folder / f"data{number}.txt").touch()

    paths, has_more = open_agent_files(folder).list()

    assert (len(paths), has_more) == (MAX_FILES, True)


def check_refused(folder: Path, path: str, reason: str) -> None:
    """Check that a path can be neither read nor written."""
    files = open_agent_files(folder)
    with pytest.raises(AgentFileError, match=reason):
        files.read(path)
    with pytest.raises(AgentFileError, match=reason):
        files.write(path, "changed", expected="", version="1")


@pytest.mark.parametrize(
    ("path", "reason"),
    [
        ("../../secret.txt", "is outside"),
        ("prompts/../../../secret.txt", "is outside"),
        ("/etc/hostname", "is outside"),
        (".env", "is hidden"),
        (".git/config", "is hidden"),
        ("__pycache__/tools.pyc", "is hidden"),
        ("", "is not the path"),
        (".", "is not the path"),
        ("tools\0.py", "is not the path"),
        ("tools.py/x", "there is no folder"),
        ("none/x.py", "there is no folder"),
    ],
)
def test_path_that_is_outside_or_hidden_is_refused(folder: Path, path: str, reason: str) -> None:
    check_refused(folder, path, reason)


def test_missing_file_is_named_in_the_error(folder: Path) -> None:
    with pytest.raises(AgentFileError, match=r"there is no file .none\.py."):
        open_agent_files(folder).read("none.py")


def test_links_are_not_followed(folder: Path) -> None:
    (folder / "out.txt").symlink_to("../../secret.txt")
    (folder / "in.py").symlink_to("tools.py")
    (folder / "up").symlink_to("../..")

    check_refused(folder, "out.txt", "is a link")
    check_refused(folder, "in.py", "is a link")
    check_refused(folder, "up/secret.txt", "links are not followed")
    assert (folder.parents[1] / "secret.txt").read_text(encoding="utf-8") == "outside"


def test_non_text_file_is_refused(folder: Path) -> None:
    (folder / "picture.png").write_bytes(b"\x89PNG\r\n\xff")
    (folder / "zeros").write_bytes(b"a\0b")
    with (folder / "large.txt").open("wb") as file:
        file.truncate(10_000_000)
    os.mkfifo(folder / "pipe")

    check_refused(folder, "picture.png", "is not UTF-8 text")
    check_refused(folder, "zeros", "is not UTF-8 text")
    check_refused(folder, "large.txt", "is larger than")
    check_refused(folder, "pipe", "is not a regular file")
    check_refused(folder, "prompts", "is not a regular file")


def test_written_file_keeps_its_mode_and_the_previous_version_is_saved(folder: Path) -> None:
    files = open_agent_files(folder)
    (folder / "prompts" / "talk.md").chmod(0o640)

    result = files.write("prompts/talk.md", "Listen.\n", expected="Talk.\n", version="20260101T000000Z")

    assert files.read("prompts/talk.md") == "Listen.\n"
    assert (folder / "prompts" / "talk.md").stat().st_mode & 0o777 == 0o640
    assert result == folder.parents[1] / "versions" / "20260101T000000Z-prompts-talk.md"
    assert result.read_text(encoding="utf-8") == "Talk.\n"
    assert result.stat().st_mode & 0o777 == 0o600
    assert sorted(os.listdir(folder / "prompts")) == ["talk.md"]


def test_new_file_has_no_previous_version(folder: Path) -> None:
    assert open_agent_files(folder).write("new.md", "Hello.\n", expected=None, version="1") is None

    assert open_agent_files(folder).read("new.md") == "Hello.\n"
    assert not (folder.parents[1] / "versions").exists()


@pytest.mark.parametrize("expected", [None, "another text\n"])
def test_file_changed_since_it_was_read_is_not_written(folder: Path, expected: str | None) -> None:
    with pytest.raises(AgentFileError, match="has changed in the meantime"):
        open_agent_files(folder).write("tools.py", "x = 1\n", expected=expected, version="1")

    assert open_agent_files(folder).read("tools.py").startswith("def search")


def test_text_above_the_size_limit_is_not_written(folder: Path) -> None:
    with pytest.raises(AgentFileError, match="at most"):
        open_agent_files(folder).write("new.md", "x" * (MAX_FILE_BYTES + 1), expected=None, version="1")


def test_file_is_not_written_if_its_previous_version_cannot_be_saved(folder: Path) -> None:
    (folder.parents[1] / "versions").touch()

    with pytest.raises(AgentFileError, match="nothing was changed"):
        open_agent_files(folder).write("prompts/talk.md", "Listen.\n", expected="Talk.\n", version="1")

    assert open_agent_files(folder).read("prompts/talk.md") == "Talk.\n"


def test_only_the_newest_versions_are_kept(folder: Path) -> None:
    files = open_agent_files(folder)
    for number in range(MAX_VERSIONS + 5):
        files.write("tools.py", f"{number}", expected=files.read("tools.py"), version=f"{number:04}")

    result = sorted(os.listdir(folder.parents[1] / "versions"))

    assert (len(result), result[0]) == (MAX_VERSIONS, "0005-tools.py")
