"""
Take pictures of rare states of the console: ``python -m tools.console_states FOLDER``.

The pictures show each page while it loads, without a connection, refused, and with 10,000 agents; on a phone
and a desktop, light and dark. Check them after a change of the console.
"""

from __future__ import annotations

import argparse
import asyncio
import sys
import tempfile
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Final, Literal

from playwright.async_api import Page, Route, async_playwright

from queenright.runtime.events import AgentEvent, EventType
from queenright.server.ops.programs import find_program
from queenright.server.serving import RunningService, serving
from queenright.server.settings import load_settings
from tests.browser import FLAGS

AGENTS: Final = 10_000
LOOPING: Final = 40
"""Agents that repeat a call."""
CALLS: Final = 20
PAGES: Final = {
    "fleet": "/console/",
    "session": "/console/agents/agent-00000?session=s",
    "recorder": "/console/agents/agent-00000?session=s&view=recorder",
    "tickets": "/console/tickets",
    "operate": "/console/operate/actions",
}
SCREENS: Final[tuple[tuple[int, int, Literal["light", "dark"]], ...]] = (
    (390, 844, "light"),
    (390, 844, "dark"),
    (1280, 900, "light"),
    (1280, 900, "dark"),
)


async def _run(folder: Path) -> None:
    async with _run_service() as running, async_playwright() as playwright:
        browser = await playwright.chromium.launch(executable_path=find_program("chromium"), args=list(FLAGS))
        for width, height, theme in SCREENS:
            for state in ("loading", "lost", "refused", "thousands"):
                context = await browser.new_context(
                    viewport={"width": width, "height": height}, color_scheme=theme
                )
                page = await context.new_page()
                for name, address in PAGES.items():
                    await _show(page, state, running.url + address)
                    await page.screenshot(path=folder / f"{state}-{name}-{width}-{theme}.png")
                await context.close()
        await browser.close()


@asynccontextmanager
async def _run_service() -> AsyncIterator[RunningService]:
    """Run a service with 10,000 agents."""
    with tempfile.TemporaryDirectory() as folder:
        settings = load_settings(storage=Path(folder), http={"port": 0}, otlp={"port": 0})
        async with serving(settings) as running:
            await running.service.ingest(_make_events(running.service.clock()))
            yield running


def _make_events(now: float) -> list[AgentEvent]:
    agents = [f"agent-{number:05}" for number in range(AGENTS)]
    call = {"tool": "search", "args_hash": "a" * 16, "result_hash": "b" * 16, "outcome": "ok"}
    begin = now - CALLS - 1
    return [
        _make_event(EventType.EXECUTION_STARTED, agent, begin, {"framework": "example"}) for agent in agents
    ] + [
        _make_event(EventType.TOOL_CALL_COMPLETED, agent, begin + number, call | {"turn": str(number)})
        for agent in agents[:LOOPING]
        for number in range(1, CALLS + 1)
    ]


def _make_event(kind: EventType, agent: str, at: float, data: dict[str, str]) -> AgentEvent:
    return AgentEvent(type=kind, time=at, agent_id=agent, session_id="s", incarnation_id="i", data=data)


async def _show(page: Page, state: str, url: str) -> None:
    """Open a page in a state."""

    async def refuse(route: Route) -> None:
        problem = {"title": "Reading the fleet needs the role viewer.", "status": 403}
        await route.fulfill(status=403, json=problem, content_type="application/problem+json")

    async def hold(route: Route) -> None:
        """Never answer."""

    await page.unroute_all(behavior="ignoreErrors")
    await page.context.set_offline(False)
    if state in ("loading", "refused"):
        await page.route("**/api/**", hold if state == "loading" else refuse)
    await page.goto(url)
    await page.wait_for_timeout(4_000)
    if state == "lost":
        await page.route("**/api/**", lambda route: route.abort())
        await page.context.set_offline(True)
        await page.get_by_role("alert").filter(has_text="No connection").wait_for()


def main() -> int:
    """Write the pictures; return the exit status."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    folder: Path = parser.parse_args().folder
    folder.mkdir(parents=True, exist_ok=True)
    asyncio.run(_run(folder))
    return 0


if __name__ == "__main__":
    sys.exit(main())
