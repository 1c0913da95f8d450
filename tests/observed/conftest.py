"""The recorded story of a fleet, which is played once for all tests in this folder."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pytest

from tools.story.recording import Story, running_story

_FOLDER: Final = Path(__file__).parent
_open_stacks: list[contextlib.ExitStack] = []


@pytest.fixture(scope="session")
def story(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Story]:
    """Yield a real service, agents and Prometheus after all events of the story."""
    with contextlib.ExitStack() as stack:
        _open_stacks.append(stack)
        yield stack.enter_context(running_story(tmp_path_factory.mktemp("story")))


@pytest.hookimpl(trylast=True)
def pytest_runtest_teardown(item: pytest.Item, nextitem: pytest.Item | None) -> None:
    """End the story after the last test of this folder, because the session fixture would keep it running."""
    if nextitem is None or _FOLDER not in nextitem.path.parents:
        while _open_stacks:
            _open_stacks.pop().close()
