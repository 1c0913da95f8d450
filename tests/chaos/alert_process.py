"""
The service as a process that will be killed: ``python -m tests.chaos.alert_process``.

It imports everything once. Each line that it reads, an ``Order`` as JSON, starts a service process: a child
that connects to the test's port, ingests batches of events, and is killed, or kills itself at a named point
of the outbox. After each durable batch it writes ``{"done": N, "outbox": STATUS}``; ``null`` ends it.
"""

from __future__ import annotations

import asyncio
import functools
import json
import os
import signal
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any

from queenright.alerting import notification_table, outbox, peer_delivery
from queenright.alerting.alertmanager import AlertmanagerClient
from queenright.runtime.bus import EventBus
from queenright.runtime.events import AgentEvent, EventType
from queenright.server.build import build
from queenright.server.notifications import ticket_notifications as wiring
from queenright.server.settings import Settings

POINTS = (
    "decided, not committed",
    "committed, not sent",
    "taken, not written down",
    "refused, not written down",
    "written down, not committed",
    "committed, not said",
    "said",
)
"""Points at which a process may end, in the order in which a notification passes them."""

_NEWS = frozenset({EventType.NOTIFICATION_DELIVERED, EventType.NOTIFICATION_FAILED})


class Reaper:
    """Kills this process when it passes a point for the ``nth`` time."""

    def __init__(self, point: str, nth: int) -> None:
        self._point, self._left = point, nth

    def passes(self, point: str) -> None:
        """Report that the process is at ``point``, and kill it if it is due."""
        if point == self._point:
            self._left -= 1
            if self._left == 0:
                os.kill(os.getpid(), signal.SIGKILL)

    def watch(self) -> None:
        """Insert the points around calls of the service, which otherwise work as usual."""
        vars(wiring)["enqueue"] = self._after(outbox.enqueue, "decided, not committed")
        recorded = self._after(notification_table.record_receipts, "written down, not committed")
        vars(outbox)["record_receipts"] = recorded
        post, publish = AlertmanagerClient.post_alerts, EventBus.publish

        async def posting(client: AlertmanagerClient, *args: Any) -> None:
            self.passes("committed, not sent")
            try:
                await post(client, *args)
            except Exception:
                self.passes("refused, not written down")
                raise
            self.passes("taken, not written down")

        async def publishing(bus: EventBus, *events: AgentEvent) -> None:
            news = any(event.type in _NEWS for event in events)
            if news:
                self.passes("committed, not said")
            await publish(bus, *events)
            if news:
                self.passes("said")

        setattr(AlertmanagerClient, "post_alerts", posting)  # noqa: B010  # mypy minds the plain way
        setattr(EventBus, "publish", publishing)  # noqa: B010

    def _after(self, does: Callable[..., None], point: str) -> Callable[..., None]:
        @functools.wraps(does)
        def wrapped(*args: Any, **named: Any) -> None:
            does(*args, **named)
            self.passes(point)

        return wrapped


async def run_service(order: dict[str, Any], settings: Settings) -> None:
    """Run until killed, or until the test ends the process."""
    ago = float(order["ago"])
    Reaper(order["point"], order["nth"]).watch()
    service = await build(settings, clock=lambda: time.time() - ago)
    await service.start()
    reader, writer = await asyncio.open_connection("127.0.0.1", order["port"], limit=1 << 24)

    done = 0
    while True:
        writer.write(json.dumps({"done": done, "outbox": asdict(service.outbox.status())}).encode() + b"\n")
        batch = json.loads(await reader.readline())
        if batch is None:
            break
        ago, done = batch["ago"], batch["n"]
        await service.ingest([_event(event) for event in batch["events"]])
    await service.stop()


def _event(given: dict[str, Any]) -> AgentEvent:
    return AgentEvent(**given | {"type": EventType(given["type"])})


async def _warm() -> None:
    """Run once, in a separate folder, so that lazy imports are done for all processes."""
    with tempfile.TemporaryDirectory() as folder:
        service = await build(Settings(storage=Path(folder)))
        await service.start()
        await service.stop()
    import httpx

    await httpx.AsyncClient().aclose()


def main() -> None:
    """Run as the parent of all service processes."""
    vars(peer_delivery)["PEER_TIMEOUT_SECONDS"] = 1
    asyncio.run(_warm())
    for line in sys.stdin:
        child = os.fork()
        if child == 0:
            order = json.loads(line)
            settings = Settings.model_validate_json(Path(order["settings"]).read_text("utf-8"))
            asyncio.run(run_service(order, settings))
            os._exit(0)
        print("born", child, flush=True)
        status = os.waitpid(child, 0)[1]
        print("dead", os.WTERMSIG(status) or os.WEXITSTATUS(status), flush=True)


if __name__ == "__main__":
    main()
