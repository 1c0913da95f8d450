"""`queenright run --tui`: one agent in a private service, with the terminal interface."""

from __future__ import annotations

import asyncio
import tempfile
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from queenright.cli.terminal.run_options import RunOptions, read_input
from queenright.client import AsyncQueenright
from queenright.server.serving import serving
from queenright.server.settings import Settings, load_settings
from queenright.tui.app import QueenrightApp
from queenright.tui.gateway import ServiceGateway


def run_in_tui(options: RunOptions, *, by: str) -> int:
    """
    Load an agent, start a run if the options ask for one, and show the interface until the user quits.

    The service runs for the same time. It listens on random local ports and sends no notifications. The
    agent's sessions are where `queenright run` keeps them.

    Raises:
        QueenrightError: The settings are invalid, or the agent cannot be loaded or started.
    """
    input_data = read_input(options.input_text)
    with tempfile.TemporaryDirectory(prefix="queenright-") as folder:
        settings = private_settings(options, Path(folder))
        return asyncio.run(_run(options, settings, input_data, by))


def private_settings(options: RunOptions, folder: Path) -> Settings:
    """Return the settings of the private service, which stores its data in ``folder``."""
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
async def running_interface(
    options: RunOptions, settings: Settings, input_data: dict[str, Any], by: str
) -> AsyncIterator[QueenrightApp]:
    """Run the service and the agent, and yield the interface on them."""
    async with serving(settings) as running:
        client = AsyncQueenright(running.url, running.own_token)
        slot = await client.agents.load(str(options.path.resolve()), model=options.model, by=by)
        if options.resume:
            await client.agents.resume(slot.agent_id, options.resume)
        elif input_data or options.entry_point or options.session:
            await client.agents.trigger(
                slot.agent_id, input_data, entry_point_id=options.entry_point, session_id=options.session
            )
        yield QueenrightApp(ServiceGateway(client, by=by), start_agent_id=slot.agent_id)


async def _run(options: RunOptions, settings: Settings, input_data: dict[str, Any], by: str) -> int:
    async with running_interface(options, settings, input_data, by) as app:
        await app.run_async()
        return app.return_code or 0
