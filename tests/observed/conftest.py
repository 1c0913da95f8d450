"""The recorded story for tests of dashboards and queries, played once for all tests in this folder."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pytest

from tools.story.recording import Story, running_story

_HERE: Final = Path(__file__).parent
_open: list[contextlib.ExitStack] = []


@pytest.fixture(scope="session")
def story(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Story]:
    """Yield a real service, agents and Prometheus after all events of the story."""
    with contextlib.ExitStack() as stack:
        _open.append(stack)
        yield stack.enter_context(running_story(tmp_path_factory.mktemp("story")))


@pytest.hookimpl(trylast=True)
def pytest_runtest_teardown(item: pytest.Item, nextitem: pytest.Item | None) -> None:
    """End the story after the last test of this folder; otherwise it would run on."""
    if nextitem is None or _HERE not in nextitem.path.parents:
        while _open:
            _open.pop().close()
