"""
A service process that will be killed: ``python -m tests.chaos.alert_process``.

The parent process imports everything once. Each line that it reads is an order in JSON, and starts a service
as a child process. The child connects to the test's port and ingests batches of events until it is killed, or
kills itself at a named point of the outbox. After each durable batch it writes ``{"done": N, "outbox":
STATUS}``. The batch ``null`` ends it.
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
    "accepted, not recorded",
    "refused, not recorded",
    "recorded, not committed",
    "committed, not published",
    "published",
)
"""Points at which a process can be killed, in the order in which a notification passes them."""

_DELIVERY_EVENTS = frozenset({EventType.NOTIFICATION_DELIVERED, EventType.NOTIFICATION_FAILED})


class ProcessKiller:
    """Kills this process when it passes a point for the ``nth`` time."""

    def __init__(self, point: str, nth: int) -> None:
        self._point, self._remaining = point, nth

    def pass_point(self, point: str) -> None:
        """Note that the process passes ``point``, and kill it if this is the ``nth`` time."""
        if point == self._point:
            self._remaining -= 1
            if self._remaining == 0:
                os.kill(os.getpid(), signal.SIGKILL)

    def insert_points(self) -> None:
        """Wrap calls of the service so that they pass the points."""
        vars(wiring)["enqueue"] = self._after(outbox.enqueue, "decided, not committed")
        record_with_point = self._after(notification_table.record_receipts, "recorded, not committed")
        vars(outbox)["record_receipts"] = record_with_point
        post, publish = AlertmanagerClient.post_alerts, EventBus.publish

        async def post_with_points(client: AlertmanagerClient, *args: Any) -> None:
            self.pass_point("committed, not sent")
            try:
                await post(client, *args)
            except Exception:
                self.pass_point("refused, not recorded")
                raise
            self.pass_point("accepted, not recorded")

        async def publish_with_points(bus: EventBus, *events: AgentEvent) -> None:
            is_delivery = any(event.type in _DELIVERY_EVENTS for event in events)
            if is_delivery:
                self.pass_point("committed, not published")
            await publish(bus, *events)
            if is_delivery:
                self.pass_point("published")

        setattr(AlertmanagerClient, "post_alerts", post_with_points)  # noqa: B010  # mypy rejects the assignment
        setattr(EventBus, "publish", publish_with_points)  # noqa: B010

    def _after(self, function: Callable[..., None], point: str) -> Callable[..., None]:
        @functools.wraps(function)
        def call_with_point(*args: Any, **keywords: Any) -> None:
            function(*args, **keywords)
            self.pass_point(point)

        return call_with_point


async def run_service(order: dict[str, Any], settings: Settings) -> None:
    """Run the service until it is killed, or until the test ends it."""
    ago = float(order["ago"])
    ProcessKiller(order["point"], order["nth"]).insert_points()
    service = await build(settings, clock=lambda: time.time() - ago)
    await service.start()
    reader, writer = await asyncio.open_connection("127.0.0.1", order["port"], limit=1 << 24)

    last_batch = 0
    while True:
        writer.write(
            json.dumps({"done": last_batch, "outbox": asdict(service.outbox.status())}).encode() + b"\n"
        )
        batch = json.loads(await reader.readline())
        if batch is None:
            break
        ago, last_batch = batch["ago"], batch["n"]
        await service.ingest([_parse_event(event) for event in batch["events"]])
    await service.stop()


def _parse_event(fields: dict[str, Any]) -> AgentEvent:
    return AgentEvent(**fields | {"type": EventType(fields["type"])})


async def _import_lazy_modules() -> None:
    """Run a service once, in a separate folder, so that its lazy imports are done for all processes."""
    with tempfile.TemporaryDirectory() as folder:
        service = await build(Settings(storage=Path(folder)))
        await service.start()
        await service.stop()
    import httpx

    await httpx.AsyncClient().aclose()


def main() -> None:
    """Run as the parent of all service processes."""
    vars(peer_delivery)["PEER_TIMEOUT_SECONDS"] = 1
    asyncio.run(_import_lazy_modules())
    for line in sys.stdin:
        child = os.fork()
        if child == 0:
            order = json.loads(line)
            settings = Settings.model_validate_json(Path(order["settings"]).read_text("utf-8"))
            asyncio.run(run_service(order, settings))
            os._exit(0)
        print("started", child, flush=True)
        status = os.waitpid(child, 0)[1]
        print("exited", os.WTERMSIG(status) or os.WEXITSTATUS(status), flush=True)


if __name__ == "__main__":
    main()
