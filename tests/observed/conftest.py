"""The story that dashboards and queries are asked about, played once for all tests of this folder."""

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
    """A real service, agents and Prometheus after all has happened once that anybody asks about."""
    with contextlib.ExitStack() as stack:
        _open.append(stack)
        yield stack.enter_context(running_story(tmp_path_factory.mktemp("story")))


@pytest.hookimpl(trylast=True)
def pytest_runtest_teardown(item: pytest.Item, nextitem: pytest.Item | None) -> None:
    """End the story with the last test of this folder: it would play on beside all others."""
    if nextitem is None or _HERE not in nextitem.path.parents:
        while _open:
            _open.pop().close()
