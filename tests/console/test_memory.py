"""The memory use of an open page."""

from __future__ import annotations

import pytest
from playwright.async_api import Page

from queenright.server.serving import RunningService
from tools.benchmarks.console import HOUR_OF_CHANGES, measure_heap

pytestmark = pytest.mark.asyncio(loop_scope="session")


@pytest.mark.parametrize("changes", [1_200, HOUR_OF_CHANGES])
async def test_memory_is_flat_while_changes_come_in(
    running_service: RunningService, page: Page, changes: int
) -> None:
    """The changes of an hour, five per second, are sent as fast as possible."""
    first, *_, last = await measure_heap(running_service, page, changes)

    assert last - first <= 1_000_000, f"{first:,.0f} bytes after a quarter, {last:,.0f} at the end"
