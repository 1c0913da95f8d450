"""The story that dashboards and queries are asked about, played once for all tests of this folder."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.story.told import Story, told_story


@pytest.fixture(scope="package")
def story(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Story]:
    """A real service, agents and Prometheus after all has happened once that anybody asks about."""
    with told_story(tmp_path_factory.mktemp("story")) as told:
        yield told
