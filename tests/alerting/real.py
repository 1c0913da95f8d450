"""Real Alertmanagers with our configuration, and servers that record what they send."""

from __future__ import annotations

import contextlib
import json
import time
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from queenright.alerting.alertmanager import PostedAlert
from queenright.alerting.config import DELIVERED_PATH, WEBHOOK_PATH, render_alertmanager
from queenright.alerting.files import templates_folder
from queenright.alerting.peer import PeerAddress
from queenright.alerting.recorder import Receive, Recorder, Send
from queenright.server.ops.child_processes import Child
from queenright.server.ops.sockets import find_free_port, listen, serve_app, url_of
from tests.programs import program
from tests.waiting import until


@dataclass
class People:
    """Slack, PagerDuty, the dead man's switch, and the service's two webhooks."""

    url: str = ""
    recorder: Recorder = field(default_factory=Recorder)
    posted: list[tuple[str, bytes]] = field(default_factory=list)
    """Every request: its path and its body."""

    @property
    def woken(self) -> list[bytes]:
        """What the judge was woken by."""
        return [body for path, body in self.posted if path == WEBHOOK_PATH]

    @property
    def told(self) -> list[dict[str, Any]]:
        """What Alertmanager said that it told people."""
        return [json.loads(body) for path, body in self.posted if path == DELIVERED_PATH]

    async def __call__(self, scope: Any, receive: Receive, send: Send) -> None:
        body, more = b"", scope["type"] == "http"
        while more:
            message = await receive()
            body, more = body + message.get("body", b""), message.get("more_body", False)
        if scope["type"] == "http":
            self.posted.append((scope["path"], body))
        if scope.get("path") in (WEBHOOK_PATH, DELIVERED_PATH):
            await send({"type": "http.response.start", "status": 202, "headers": []})
            await send({"type": "http.response.body", "body": b""})
            return

        async def again() -> dict[str, Any]:
            return {"type": "http.request", "body": body}

        await self.recorder(scope, again if scope["type"] == "http" else receive, send)


@contextlib.asynccontextmanager
async def people() -> AsyncIterator[People]:
    """Listen in place of everybody that Alertmanager tells anything."""
    listener = People()
    sock = listen("127.0.0.1", 0, what="the recorder", option="")
    with contextlib.closing(sock):
        async with serve_app(listener, sock):
            listener.url = url_of(sock)
            yield listener


@dataclass
class RealAlertmanager:
    address: PeerAddress
    url: str
    people: People
    child: Child

    @property
    def recorder(self) -> Recorder:
        return self.people.recorder

    @property
    def woken(self) -> list[bytes]:
        return self.people.woken

    async def until(self, done: Callable[[], object], what: str, seconds: float = 60) -> None:
        await until(done, f"{what}; received {list(self.recorder.received)}", seconds=seconds)


def configure(folder: Path, people: People, **options: Any) -> Path:
    """Write our configuration, with short waits, and the secrets it reads; return where it is."""
    folder.mkdir(parents=True, exist_ok=True)
    slack, key, config = folder / "slack", folder / "key", folder / "alertmanager.yml"
    slack.write_text(f"{people.url}/slack/services/T/B/X")
    key.write_text("k" * 32)
    values: dict[str, Any] = {
        "service_url": people.url,
        "slack_api_url_file": slack,
        "pagerduty_routing_key_file": key,
        "pagerduty_url": f"{people.url}/pagerduty/v2/enqueue",
        "deadman_url": f"{people.url}/deadman",
        "templates": templates_folder(),
        "group_wait": "1s",
        "group_interval": "1s",
    }
    config.write_text(render_alertmanager(**values | options))
    return config


@contextlib.asynccontextmanager
async def real_alertmanager(
    folder: Path,
    people: People,
    version: str = "bundled",
    *,
    port: int = 0,
    cluster: Sequence[str] = (),
    config: Path | None = None,
) -> AsyncIterator[RealAlertmanager]:
    """
    Run one Alertmanager of one version.

    Args:
        folder: Of its own, for its state and its log.
        people: Who is told.
        version: One of ``tests.programs.VERSIONS``.
        port: Where it listens; a free one if 0.
        cluster: Its options as one peer of a cluster; alone without any.
        config: Its configuration; ours with short waits if there is none.
    """
    binary = program("alertmanager", version)
    config = config or configure(folder, people)
    port = port or find_free_port("127.0.0.1", 0, what="Alertmanager", option="")
    command: list[str | Path] = [
        binary,
        f"--config.file={config}",
        f"--storage.path={folder / 'data'}",
        f"--web.listen-address=127.0.0.1:{port}",
        *(cluster or ["--cluster.listen-address="]),
        # By itself it takes the machine's name.
        f"--web.external-url=http://127.0.0.1:{port}",
    ]
    child = await Child.start("Alertmanager", command, folder / "alertmanager.log")
    try:
        address = PeerAddress.parse(f"http://127.0.0.1:{port}")
        await child.wait_ready(f"{address.name}/-/ready", within=60)
        yield RealAlertmanager(address, address.name, people, child)
    finally:
        await child.stop()


def alert(**labels: str) -> PostedAlert:
    """An alert of now, with the least that one of ours has."""
    now = time.time()
    annotations = {
        "summary": f"{labels.get('agent', '')} {labels['alertname']}.",
        "runbook_url": "http://127.0.0.1:8420/runbooks/X",
    }
    return PostedAlert(
        labels={"cluster": "default", **labels}, annotations=annotations, starts_at=now, ends_at=now + 3600
    )


def queen(severity: str, agent: str = "researcher", **labels: str) -> PostedAlert:
    """The alert of an approved ticket."""
    values = {
        "alertname": "QueenrightIntervention",
        "agent": agent,
        "cause": "doom_loop",
        "severity": severity,
        "ticket_severity": severity,
        "source": "queen",
        "ticket_id": f"ticket-of-{agent}",
    }
    return alert(**values | labels)
