"""Real Alertmanagers with our configuration, and servers that record their messages."""

from __future__ import annotations

import asyncio
import contextlib
import json
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from starlette.types import Receive, Send

from queenright.alerting.alertmanager import AlertmanagerClient, PostedAlert
from queenright.alerting.config import DELIVERED_PATH, WEBHOOK_PATH, render_alertmanager
from queenright.alerting.files import templates_folder
from queenright.alerting.peer import PeerAddress
from queenright.alerting.recorder import RecordedMessage, Recorder
from queenright.server.ops.child_processes import Child
from queenright.server.ops.sockets import find_free_port, listen, make_socket_url, serve_app
from tests.ports import reserve_port
from tests.programs import program
from tests.waiting import until


@dataclass
class Receivers:
    """Slack, PagerDuty, the dead man's switch, and the service's two webhooks."""

    url: str = ""
    recorder: Recorder = field(default_factory=Recorder)
    requests: list[tuple[str, bytes]] = field(default_factory=list)
    """The path and body of every request."""

    def count_messages(self, agent: str) -> Counter[tuple[str, str]]:
        """Count the messages about an agent, by channel and status."""
        return Counter(
            (message.channel, message.status) for message in self.recorder.messages if agent in message.title
        )

    @property
    def judge_posts(self) -> list[bytes]:
        """Return the posts to the judge's webhook."""
        return [body for path, body in self.requests if path == WEBHOOK_PATH]

    @property
    def notification_posts(self) -> list[dict[str, Any]]:
        """Return the posts to the notifications webhook."""
        return [json.loads(body) for path, body in self.requests if path == DELIVERED_PATH]

    async def __call__(self, scope: Any, receive: Receive, send: Send) -> None:
        body, has_more = b"", scope["type"] == "http"
        while has_more:
            message = await receive()
            body, has_more = body + message.get("body", b""), message.get("more_body", False)
        if scope["type"] == "http":
            self.requests.append((scope["path"], body))
        if scope.get("path") in (WEBHOOK_PATH, DELIVERED_PATH):
            await send({"type": "http.response.start", "status": 202, "headers": []})
            await send({"type": "http.response.body", "body": b""})
            return

        async def repeat_request() -> dict[str, Any]:
            return {"type": "http.request", "body": body}

        await self.recorder(scope, repeat_request if scope["type"] == "http" else receive, send)


@contextlib.asynccontextmanager
async def run_receivers(
    on_message: Callable[[RecordedMessage], None] | None = None,
) -> AsyncIterator[Receivers]:
    """Listen in place of all of Alertmanager's receivers; ``on_message`` is called with each message."""
    receivers = Receivers(recorder=Recorder(on_message))
    sock = listen("127.0.0.1", 0, what="the recorder", option="")
    with contextlib.closing(sock):
        async with serve_app(receivers, sock):
            receivers.url = make_socket_url(sock)
            yield receivers


@dataclass
class RealAlertmanager:
    address: PeerAddress
    url: str
    receivers: Receivers
    child: Child

    @property
    def recorder(self) -> Recorder:
        return self.receivers.recorder

    @property
    def judge_posts(self) -> list[bytes]:
        return self.receivers.judge_posts

    async def wait_until(self, done: Callable[[], object], condition: str, seconds: float = 60) -> None:
        await until(done, f"{condition}; received {list(self.recorder.messages)}", seconds=seconds)


def write_config(folder: Path, receivers: Receivers, **options: Any) -> Path:
    """Write our configuration with short waits, and the secret files that it names; return its path."""
    folder.mkdir(parents=True, exist_ok=True)
    slack, key, config = folder / "slack", folder / "key", folder / "alertmanager.yml"
    slack.write_text(f"{receivers.url}/slack/services/T/B/X")
    key.write_text("k" * 32)
    values: dict[str, Any] = {
        "service_url": receivers.url,
        "slack_api_url_file": slack,
        "pagerduty_routing_key_file": key,
        "pagerduty_url": f"{receivers.url}/pagerduty/v2/enqueue",
        "deadman_url": f"{receivers.url}/deadman",
        "templates": templates_folder(),
        "group_wait": "1s",
        "group_interval": "1s",
    }
    config.write_text(render_alertmanager(**values | options))
    return config


@contextlib.asynccontextmanager
async def real_alertmanager(
    folder: Path,
    receivers: Receivers,
    version: str = "bundled",
    *,
    port: int = 0,
    cluster: Sequence[str] = (),
    config: Path | None = None,
) -> AsyncIterator[RealAlertmanager]:
    """
    Run one Alertmanager of one version.

    Args:
        folder: A separate folder for state and log.
        receivers: The receivers of its messages.
        version: One of ``tests.programs.VERSIONS``.
        port: The port to listen on; a free one if 0.
        cluster: Options as a peer of a cluster; none to run alone.
        config: The configuration file; by default ours with short waits.
    """
    binary = program("alertmanager", version)
    config = config or write_config(folder, receivers)
    port = port or find_free_port("127.0.0.1", 0, what="Alertmanager", option="")
    command: list[str | Path] = [
        binary,
        f"--config.file={config}",
        f"--storage.path={folder / 'data'}",
        f"--web.listen-address=127.0.0.1:{port}",
        *(cluster or ["--cluster.listen-address="]),
        # By default it uses the machine's name.
        f"--web.external-url=http://127.0.0.1:{port}",
    ]
    child = await Child.start("Alertmanager", command, folder / "alertmanager.log")
    try:
        address = PeerAddress.parse(f"http://127.0.0.1:{port}")
        await child.wait_ready(f"{address.name}/-/ready", within=60)
        yield RealAlertmanager(address, address.name, receivers, child)
    finally:
        await child.stop()


class Peers:
    """A cluster of two Alertmanagers, ``a`` and ``b``, on fixed ports."""

    def __init__(
        self,
        stack: contextlib.AsyncExitStack,
        folder: Path,
        receivers: Receivers,
        version: str,
        peer_timeout: str,
        group_interval: str,
        gossip: Sequence[str],
    ) -> None:
        self._stack, self._folder, self._version = stack, folder, version
        self._peer_timeout, self._group_interval, self._gossip = peer_timeout, group_interval, gossip
        self.receivers = receivers
        self.web = {name: stack.enter_context(reserve_port()) for name in "ab"}
        self.gossip = {name: stack.enter_context(reserve_port()) for name in "ab"}
        self.running: dict[str, RealAlertmanager] = {}
        self.urls = tuple(f"http://127.0.0.1:{port}" for port in self.web.values())
        self.client = AlertmanagerClient()
        stack.push_async_callback(self.client.aclose)

    async def start(self, name: str) -> None:
        """Start or restart a peer."""
        [other] = set("ab") - {name}
        self.running[name] = await self._stack.enter_async_context(
            real_alertmanager(
                self._folder / name,
                self.receivers,
                self._version,
                port=self.web[name],
                config=write_config(self._folder / name, self.receivers, group_interval=self._group_interval),
                cluster=[
                    f"--cluster.listen-address=127.0.0.1:{self.gossip[name]}",
                    f"--cluster.peer=127.0.0.1:{self.gossip[other]}",
                    f"--cluster.peer-timeout={self._peer_timeout}",
                    *self._gossip,
                    "--cluster.reconnect-interval=1s",
                    "--cluster.settle-timeout=5s",
                ],
            )
        )

    async def kill(self, name: str) -> None:
        """Kill a peer with SIGKILL."""
        process = self.running.pop(name).child.process
        process.kill()
        await process.wait()

    async def wait_for_members(self, count: int) -> None:
        """Wait until every running peer knows ``count`` members."""
        for peer in self.running.values():
            for _ in range(1200):
                status = await self.client.status(peer.address)
                if len(status["cluster"].get("peers", [])) == count:
                    break
                await asyncio.sleep(0.05)
            assert len(status["cluster"]["peers"]) == count


@contextlib.asynccontextmanager
async def alertmanager_peers(
    folder: Path,
    receivers: Receivers,
    version: str = "bundled",
    *,
    peer_timeout: str = "1s",
    group_interval: str = "4s",
    gossip: Sequence[str] = ("--cluster.gossip-interval=50ms", "--cluster.pushpull-interval=1s"),
) -> AsyncIterator[Peers]:
    """
    Run two Alertmanagers as a cluster.

    Args:
        folder: A separate folder for state and logs.
        receivers: The receivers of their messages.
        version: One of ``tests.programs.VERSIONS``.
        peer_timeout: How long the second peer waits for the first to notify.
        group_interval: Longer than that, as in production: otherwise a flush that starts before an end and
            finishes after it would repeat the firing message.
        gossip: Options for the gossip intervals.
    """
    async with contextlib.AsyncExitStack() as stack:
        peers = Peers(stack, folder, receivers, version, peer_timeout, group_interval, gossip)
        await peers.start("a")
        await peers.start("b")
        await peers.wait_for_members(2)
        yield peers


def make_minimal_alert(**labels: str) -> PostedAlert:
    """Return an alert that starts now, with the required labels and annotations."""
    now = time.time()
    annotations = {
        "summary": f"{labels.get('agent', '')} {labels['alertname']}.",
        "runbook_url": "http://127.0.0.1:8420/runbooks/X",
    }
    return PostedAlert(
        labels={"cluster": "default", **labels}, annotations=annotations, starts_at=now, ends_at=now + 3600
    )


def make_queen_alert(severity: str, agent: str = "researcher", **labels: str) -> PostedAlert:
    """Return the alert of an approved ticket."""
    values = {
        "alertname": "QueenrightIntervention",
        "agent": agent,
        "cause": "doom_loop",
        "severity": severity,
        "ticket_severity": severity,
        "source": "queen",
        "ticket_id": f"ticket-of-{agent}",
    }
    return make_minimal_alert(**values | labels)
