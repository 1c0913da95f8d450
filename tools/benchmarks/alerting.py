"""From a decision in the store to Slack, through the outbox and the real Alertmanager."""

from __future__ import annotations

import asyncio
import contextlib
import tempfile
import time
from pathlib import Path

from prometheus_client import CollectorRegistry

from queenright.alerting.alertmanager import AlertmanagerClient
from queenright.alerting.config import render_alertmanager
from queenright.alerting.files import templates_folder
from queenright.alerting.outbox import Outbox, enqueue
from queenright.alerting.recorder import Recorder
from queenright.alerting.settings import AlertingSettings
from queenright.health.store import Store
from queenright.runtime.events import AgentEvent
from queenright.server.ops.child_processes import Child
from queenright.server.ops.programs import ProgramNotFoundError, find_program
from queenright.server.ops.sockets import free_port, listen, listening, url_of
from tests.alerting.parts import ticket
from tools.benchmarks.row import Row

_PAGES = 40
_GROUP_WAIT = 1.0
_BUDGET = 5.0


def run() -> list[Row]:
    """Measure the delay of each of some pages, less Alertmanager's own wait."""
    with tempfile.TemporaryDirectory() as folder:
        delays = sorted(asyncio.run(_delays(Path(folder))))
    worst, median = delays[-1] - _GROUP_WAIT, delays[len(delays) // 2] - _GROUP_WAIT
    return [
        Row(
            "decision → Slack, real Alertmanager",
            f"median {median:.2f} s, worst of {_PAGES} {worst:.2f} s (+ group_wait)",
            f"p99 ≤ {_BUDGET:g} s + group_wait, with detection",
            worst <= _BUDGET,
        )
    ]


async def _delays(folder: Path) -> list[float]:
    program = find_program("alertmanager")
    if program is None:
        raise ProgramNotFoundError("alertmanager")
    recorder = Recorder()
    store = Store.open(f"sqlite:///{folder / 'q.db'}")
    sock = listen("127.0.0.1", 0, what="the recorder", option="")
    port = free_port("127.0.0.1", 0, what="Alertmanager", option="")
    async with contextlib.AsyncExitStack() as stack:
        stack.push_async_callback(store.close)
        stack.enter_context(contextlib.closing(sock))
        await stack.enter_async_context(listening(recorder, sock))
        config = _configure(folder, url_of(sock))
        command: list[str | Path] = [program, f"--config.file={config}", f"--storage.path={folder / 'data'}"]
        command += [f"--web.listen-address=127.0.0.1:{port}", "--cluster.listen-address="]
        child = await Child.start("Alertmanager", command, folder / "log")
        stack.push_async_callback(child.stop)
        await child.wait_ready(f"http://127.0.0.1:{port}/-/ready")
        return await _page(store, AlertingSettings(alertmanager_urls=(f"http://127.0.0.1:{port}",)), recorder)


def _configure(folder: Path, url: str) -> Path:
    slack, key, config = folder / "slack", folder / "key", folder / "alertmanager.yml"
    slack.write_text(f"{url}/slack/x")
    key.write_text("k" * 32)
    text = render_alertmanager(
        service_url=url,
        slack_api_url_file=slack,
        pagerduty_routing_key_file=key,
        pagerduty_url=f"{url}/pagerduty/v2/enqueue",
        deadman_url=f"{url}/deadman",
        templates=templates_folder(),
        group_wait=f"{_GROUP_WAIT:g}s",
    )
    config.write_text(text)
    return config


async def _page(store: Store, settings: AlertingSettings, recorder: Recorder) -> list[float]:
    async def publish(*events: AgentEvent) -> None: ...

    outbox = Outbox(
        store, settings, AlertmanagerClient(), clock=time.time, publish=publish, registry=CollectorRegistry()
    )
    delivering = asyncio.create_task(outbox.run())
    decided: dict[str, float] = {}
    for number in range(_PAGES):
        told = ticket(ticket_id=f"t{number}", worker_agent_id=f"agent-{number}")
        decided[told.worker_agent_id] = time.time()
        await store.transact(lambda conn, told=told: enqueue(conn, told, settings, time.time()))  # type: ignore[misc]  # mypy cannot infer a lambda's default
        outbox.wake()
        await asyncio.sleep(0.02)
    deadline = time.monotonic() + 30
    arrived: dict[str, float] = {}
    while len(arrived) < _PAGES and time.monotonic() < deadline:
        await asyncio.sleep(0.05)
        arrived = {m.title.split()[0]: m.time for m in recorder.received if m.channel == "slack"}
    delivering.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await delivering
    return [arrived.get(agent, decided[agent] + 30) - at for agent, at in decided.items()]


if __name__ == "__main__":
    print(*run(), sep="\n")
