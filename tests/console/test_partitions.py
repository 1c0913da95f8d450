"""The console of a fleet in three partitions."""

from __future__ import annotations

import contextlib
import time
from collections.abc import AsyncIterator, Sequence
from pathlib import Path

import pytest
import pytest_asyncio
from playwright.async_api import Page, expect

from queenright.server.cluster.gateway.gateway import Gateway
from queenright.server.ops.sockets import listen, make_socket_url, serve_app
from queenright.server.service import Service
from tests.cluster.test_gateway import PARTITIONS, find_partition, run_demo_service, unowned_app
from tests.server.conftest import looping

pytestmark = pytest.mark.asyncio(loop_scope="session")


@pytest_asyncio.fixture(loop_scope="session")
async def partitions(tmp_path: Path) -> AsyncIterator[tuple[str, Sequence[Service]]]:
    async with contextlib.AsyncExitStack() as stack:
        parts = [
            await stack.enter_async_context(run_demo_service(tmp_path / str(n))) for n in range(PARTITIONS)
        ]
        sock = listen("127.0.0.1", 0, what="the API", option="--port")
        gateway = Gateway(lambda: [app for _, app in parts], find_partition, unowned_app)
        await stack.enter_async_context(serve_app(gateway, sock))
        yield make_socket_url(sock), [service for service, _ in parts]


async def test_agents_of_all_partitions_appear_without_a_reload(
    partitions: tuple[str, Sequence[Service]], page: Page
) -> None:
    """B120: the console reads the merged event stream."""
    url, services = partitions
    await page.goto(url)
    await expect(page.get_by_text("Nothing needs you.")).to_be_visible()
    await expect(page.get_by_role("status").filter(has_text="Live")).to_be_visible()

    names = [
        next(name for n in range(99) if find_partition(name := f"looper-{n}") == number)
        for number in range(PARTITIONS)
    ]
    for service, name in zip(services, names, strict=True):
        await service.ingest(list(looping(time.time(), agent=name)))
    for name in names:
        await expect(page.get_by_role("row").filter(has_text=name)).to_contain_text("stuck")
    acknowledge = page.get_by_role("button", name="Acknowledge")
    await expect(acknowledge).to_have_count(PARTITIONS)
    await acknowledge.last.click()
    await expect(page.get_by_role("status").filter(has_text="Acknowledged")).to_be_visible()
    await expect(acknowledge).to_have_count(PARTITIONS - 1)

    await page.get_by_role("row").filter(has_text=names[-1]).get_by_role("link").first.click()
    await expect(page.get_by_role("heading", name=names[-1], exact=True)).to_be_visible()
