"""
Play the story, then keep everything running: ``python -m tools.story FOLDER``.

Prints one line of JSON with the addresses once everything has happened. Ends at the end of stdin.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
import time
from pathlib import Path

from tools.story.plot import play
from tools.story.provider import Provider, warm_up
from tools.story.stage import stage


async def main(folder: Path) -> None:
    """Play the story, print the addresses, and wait for the end of stdin."""
    provider = Provider()
    listener = await asyncio.start_server(provider.serve, "127.0.0.1", 0)
    os.environ |= {
        "OPENAI_API_KEY": "none",
        "OPENAI_API_BASE": f"http://127.0.0.1:{listener.sockets[0].getsockname()[1]}/v1",
        "LITELLM_LOCAL_MODEL_COST_MAP": "True",
    }
    await warm_up()
    async with listener, stage(folder) as running_stage:
        since = time.time()
        await play(running_stage)
        addresses = {
            "prometheus": f"{running_stage.prometheus_url}/api/v1",
            "alertmanager": running_stage.alertmanager_url,
            "service_url": running_stage.running.url,
            "since": since,
            "until": time.time(),
        }
        sys.stdout.write(json.dumps(addresses) + "\n")
        sys.stdout.flush()
        await asyncio.to_thread(sys.stdin.read)
        await provider.close()


if __name__ == "__main__":
    asyncio.run(main(Path(sys.argv[1])))
