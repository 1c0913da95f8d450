"""`queenright run --tui`: one agent inside a service of its own, with the terminal interface on it."""

from __future__ import annotations

import asyncio
import tempfile
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from queenright.cli.terminal.run_options import RunOptions, read_input
from queenright.client import AsyncQueenright
from queenright.server.settings import Settings, load_settings
from queenright.server.up import serving
from queenright.tui.app import QueenrightApp
from queenright.tui.link import Link


def run_tui(options: RunOptions, *, by: str) -> int:
    """
    Load an agent, begin a run if it was given something, and talk with it until the interface is left.

    The service is there for as long: nothing else can be sent to it, and it tells nobody. The agent's
    sessions are where `queenright run` has them.

    Raises:
        QueenrightError: The settings are refused, or the agent cannot be loaded or started.
    """
    given = read_input(options.input_text)
    with tempfile.TemporaryDirectory(prefix="queenright-") as folder:
        settings = settings_for(options, Path(folder))
        return asyncio.run(_run(options, settings, given, by))


def settings_for(options: RunOptions, folder: Path) -> Settings:
    """Return the settings of the service around one run; what it knows is kept in ``folder``."""
    return load_settings(
        options.config,
        storage=folder,
        step_logs=(),
        http={"host": "127.0.0.1", "port": 0},
        otlp={"host": "127.0.0.1", "port": 0},
        alerting={"alertmanager_urls": ()},
        agents={"roots": [options.path.resolve().parent], "storage": options.storage, "load": ()},
    )


@asynccontextmanager
async def interface(
    options: RunOptions, settings: Settings, given: dict[str, Any], by: str
) -> AsyncIterator[QueenrightApp]:
    """Have the service and the agent run while the interface on them is used."""
    async with serving(settings) as running:
        client = AsyncQueenright(running.url, running.own_token)
        slot = await client.agents.load(str(options.path.resolve()), model=options.model, by=by)
        if options.resume:
            await client.agents.resume(slot.agent_id, options.resume)
        elif given or options.entry_point or options.session:
            await client.agents.trigger(
                slot.agent_id, given, entry_point_id=options.entry_point, session_id=options.session
            )
        yield QueenrightApp(Link(client, by=by), talks_with=slot.agent_id)


async def _run(options: RunOptions, settings: Settings, given: dict[str, Any], by: str) -> int:
    async with interface(options, settings, given, by) as app:
        await app.run_async()
        return app.return_code or 0
