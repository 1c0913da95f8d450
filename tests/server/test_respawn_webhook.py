"""Recovery over HTTP of workers in other processes, with real servers and in one test with real processes."""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import hmac
import json
import logging
import re
import socket
import subprocess
import sys
import threading
from collections.abc import AsyncIterator, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
import stamina
from pydantic import SecretStr

from queenright.health.interventions.target import Target
from queenright.health.recovery.decisions import is_lost
from queenright.health.recovery.recovery import Recovery, RecoveryState
from queenright.health.recovery.respawner import (
    CheckpointRef,
    InvalidCheckpointError,
    RespawnRefusedError,
)
from queenright.health.store.store import Store
from queenright.runtime.events import AgentEvent, EventType
from queenright.server.ops.sockets import find_free_port
from queenright.server.serving import RunningService, serving
from queenright.server.settings import Settings, load_settings
from queenright.server.up_options import DEMO_DEFAULTS
from queenright.server.webhooks.post import ATTEMPTS, SIGNATURE, TIMESTAMP
from queenright.server.webhooks.respawn import IDEMPOTENCY_KEY, RespawnWebhook
from tests.isolation import environment
from tests.waiting import until

PAGE = Path(__file__).parents[2] / "docs" / "recovery.md"
BEE = Target(agent_id="bee", session_id="s1", incarnation_id="i1")
CP2 = CheckpointRef(checkpoint_id="cp-2", created_at=20.0, valid=True)
TOKEN = "T0kenInTheUrl"


class Supervisor(ThreadingHTTPServer):
    """A supervisor of workers, which responds as configured and stores the requests."""

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.answers: list[tuple[int, object]] = [(202, {})]
        """Responses, as status and body, in order; the last one is repeated."""
        self.broken: set[str] = set()
        """Ids of checkpoints that the supervisor reports as broken."""
        self.requests: list[tuple[dict[str, str], bytes]] = []

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_port}/{TOKEN}"

    @property
    def bodies(self) -> list[dict[str, Any]]:
        return [json.loads(body) for _, body in self.requests]

    @property
    def keys(self) -> list[str]:
        return [headers[IDEMPOTENCY_KEY] for headers, _ in self.requests]


class _Handler(BaseHTTPRequestHandler):
    server: Supervisor

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"]))
        self.server.requests.append((dict(self.headers), body))
        checkpoint = json.loads(body)["checkpoint_id"]
        answers = self.server.answers
        status: int = 409
        reply: object = {"broken_checkpoint": checkpoint}
        if checkpoint not in self.server.broken:
            status, reply = answers[0] if len(answers) == 1 else answers.pop(0)
        answer = reply if isinstance(reply, bytes) else json.dumps(reply).encode()
        self.send_response(status)
        self.send_header("Content-Length", str(len(answer)))
        self.end_headers()
        self.wfile.write(answer)

    def log_request(self, code: int | str = "-", size: int | str = "-") -> None:
        pass


@pytest.fixture
def supervisor() -> Iterator[Supervisor]:
    with Supervisor() as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
        thread.start()
        yield server
        server.shutdown()
        thread.join()


@pytest.fixture(autouse=True)
def _skip_retry_delay() -> Iterator[None]:
    with stamina.set_testing(True, attempts=ATTEMPTS, cap=True):
        yield


@pytest.fixture
async def store(tmp_path: Path) -> AsyncIterator[Store]:
    store = Store.open(f"sqlite:///{tmp_path / 'q.db'}")
    yield store
    await store.close()


@contextlib.asynccontextmanager
async def make_webhook(url: str, store: Store, **options: Any) -> AsyncIterator[RespawnWebhook]:
    webhook = RespawnWebhook(SecretStr(url), store, **options)
    try:
        yield webhook
    finally:
        await webhook.close()


async def respawn_worker(
    url: str, store: Store, checkpoint: CheckpointRef | None = CP2, **options: Any
) -> Target:
    async with make_webhook(url, store, **options) as webhook:
        return await webhook.respawn(
            BEE,
            checkpoint,
            task_id="forage",
            attempt=2,
            note="It was killed.",
            repeatable=True,
            may_start_over=True,
        )


def make_event(
    kind: EventType,
    event_time: float,
    *,
    session: str = "s1",
    agent: str = "bee",
    incarnation: str = "i1",
    **data: Any,
) -> AgentEvent:
    return AgentEvent(
        type=kind, time=event_time, agent_id=agent, session_id=session, incarnation_id=incarnation, data=data
    )


async def test_respawn_request_has_all_fields(supervisor: Supervisor, store: Store) -> None:
    new_worker = await respawn_worker(supervisor.url, store)

    assert new_worker == Target(agent_id="bee", session_id="s1", incarnation_id="")
    assert supervisor.bodies == [
        {
            "type": "respawn_requested",
            "task_id": "forage",
            "agent_id": "bee",
            "session_id": "s1",
            "incarnation_id": "i1",
            "checkpoint_id": "cp-2",
            "attempt": 2,
            "note": "It was killed.",
            "repeatable": True,
            "may_start_over": True,
        }
    ]


@pytest.mark.parametrize(
    ("answer", "session", "incarnation"),
    [
        ({"incarnation_id": "i2"}, "s1", "i2"),
        ({"session_id": "s2", "incarnation_id": "i2", "pid": 7}, "s2", "i2"),
        ({"session_id": 7}, "s1", ""),
        ({"session_id": "s" * 201}, "s1", ""),
        (b"thank you", "s1", ""),
        (b"[" * 100_00, "s1", ""),
    ],
)
async def test_response_may_name_the_new_incarnation(
    supervisor: Supervisor, store: Store, answer: object, session: str, incarnation: str
) -> None:
    supervisor.answers = [(200, answer)]

    new_worker = await respawn_worker(supervisor.url, store)

    assert (new_worker.session_id, new_worker.incarnation_id) == (session, incarnation)


async def test_start_of_a_task_is_sent_without_a_checkpoint(supervisor: Supervisor, store: Store) -> None:
    await respawn_worker(supervisor.url, store, None)

    assert supervisor.bodies[0]["checkpoint_id"] is None


async def test_transient_failures_are_retried_with_the_same_key(supervisor: Supervisor, store: Store) -> None:
    supervisor.answers = [(503, b""), (429, b""), (202, {})]

    await respawn_worker(supervisor.url, store)
    await respawn_worker(supervisor.url, store, None)

    assert len(supervisor.requests) == 4
    assert len(set(supervisor.keys[:3])) == 1
    assert supervisor.keys[3] != supervisor.keys[0]


@pytest.mark.parametrize(
    ("status", "is_final", "request_count"),
    [(400, True, 1), (404, True, 1), (409, True, 1), (503, False, ATTEMPTS)],
)
async def test_permanent_error_is_final_and_transient_error_is_retried(
    supervisor: Supervisor, store: Store, status: int, is_final: bool, request_count: int
) -> None:
    supervisor.answers = [(status, b"no such worker")]

    with pytest.raises(RespawnRefusedError, match=f"it answered {status} no such worker") as error:
        await respawn_worker(supervisor.url, store)

    assert (error.value.final, len(supervisor.requests)) == (is_final, request_count)
    assert not isinstance(error.value, InvalidCheckpointError)


async def test_only_the_broken_checkpoint_is_rejected(supervisor: Supervisor, store: Store) -> None:
    supervisor.broken = {"cp-2"}

    with pytest.raises(InvalidCheckpointError, match="checkpoint cp-2 is broken"):
        await respawn_worker(supervisor.url, store)


async def test_report_about_a_checkpoint_that_was_not_sent_rejects_no_checkpoint(
    supervisor: Supervisor, store: Store
) -> None:
    supervisor.answers = [(409, {"broken_checkpoint": "cp-9"})]

    with pytest.raises(RespawnRefusedError) as error:
        await respawn_worker(supervisor.url, store)

    assert not isinstance(error.value, InvalidCheckpointError)


async def test_requests_are_signed_with_the_secret(supervisor: Supervisor, store: Store) -> None:
    await respawn_worker(supervisor.url, store, secret=SecretStr("honey"))

    [(headers, body)] = supervisor.requests
    signed_bytes = headers[TIMESTAMP].encode() + b"." + body
    assert headers[SIGNATURE] == "sha256=" + hmac.new(b"honey", signed_bytes, hashlib.sha256).hexdigest()


@pytest.mark.parametrize("failure", ["refused", "away", "bad"])
async def test_url_and_secret_are_in_no_error_log_or_repr(
    supervisor: Supervisor, store: Store, failure: str, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    caplog.set_level(logging.WARNING, logger="httpx")  # As `queenright serve` sets it.
    supervisor.answers = [(500, b"down")]
    url = {
        "refused": supervisor.url,
        "away": f"http://127.0.0.1:9/{TOKEN}",
        "bad": f"ftp://u:{TOKEN}@127.0.0.1/{TOKEN}",
    }[failure]

    async with make_webhook(url, store, secret=SecretStr("honeypot")) as webhook:
        with pytest.raises(RespawnRefusedError, match=r"127\.0\.0\.1") as error:
            await webhook.respawn(
                BEE, None, task_id="forage", attempt=1, note="", repeatable=False, may_start_over=False
            )

    assert error.value.__cause__ is None
    for output in (str(error.value), repr(webhook), caplog.text):
        assert TOKEN not in output
        assert "honeypot" not in output


async def test_chain_has_the_reported_checkpoints_newest_first(store: Store) -> None:
    checkpoint_type = EventType.CHECKPOINT_SAVED
    await store.append(
        [
            make_event(checkpoint_type, 10.0, checkpoint_id="cp-1"),
            make_event(checkpoint_type, 11.0),
            make_event(checkpoint_type, 20.0, checkpoint_id="cp-2"),
            make_event(checkpoint_type, 21.0, checkpoint_id="theirs", session="s2"),
            make_event(checkpoint_type, 22.0, checkpoint_id="hers", agent="wasp"),
            make_event(EventType.AGENT_TERMINATED, 30.0, checkpoint_id="cp-3", reason="it looped"),
            make_event(checkpoint_type, 25.0, checkpoint_id="cp-1"),
        ]
    )

    async with make_webhook("http://127.0.0.1:9/", store) as webhook:
        chain = await webhook.chain(BEE)

    assert [(link.checkpoint_id, link.created_at, link.valid) for link in chain] == [
        ("cp-3", 30.0, True),
        ("cp-1", 25.0, True),
        ("cp-2", 20.0, True),
    ]


# -- with the service ---------------------------------------------------------------------------------


def make_settings_with(storage: Path, url: str, **recovery: Any) -> Settings:
    return load_settings(
        defaults=DEMO_DEFAULTS | {"storage": storage},
        http={"port": 0},
        otlp={"port": 0},
        health_monitoring={"recovery": {"webhook_url": url} | recovery, "intervention": {"quiet_seconds": 0}},
    )


def find_attempt(running: RunningService) -> Recovery | None:
    return next(iter(running.service.remediation.recovery.active()), None)


async def crash_worker(running: RunningService, *, repeatable: bool = False) -> None:
    service = running.service
    start_time = service.clock() - 5
    start_event = make_event(
        EventType.EXECUTION_STARTED, start_time, task_id="forage", start_records=True, repeatable=repeatable
    )
    checkpoints = [
        make_event(EventType.CHECKPOINT_SAVED, start_time + number, checkpoint_id=f"cp-{number}")
        for number in (1, 2, 3)
    ]
    await service.ingest(
        [start_event, *checkpoints, make_event(EventType.EXECUTION_FAILED, start_time + 4, error_type="Boom")]
    )


def make_successor_event(start_time: float) -> AgentEvent:
    """Return the start event of another session with the same task."""
    return make_event(
        EventType.EXECUTION_STARTED, start_time, session="s2", incarnation="i2", task_id="forage"
    )


async def test_task_that_is_not_repeatable_is_not_restarted(supervisor: Supervisor, tmp_path: Path) -> None:
    """B100: without a checkpoint, a person decides. The ticket names the command."""
    supervisor.broken = {"cp-1", "cp-2", "cp-3"}
    async with serving(make_settings_with(tmp_path / "storage", supervisor.url)) as running:
        service = running.service
        await crash_worker(running)
        await service.health.initiate_recovery("forage", by="ada")
        await until(
            lambda: any(ticket.kind == "recovery_failed" for ticket in service.tickets.open_tickets()),
            "a ticket is open",
        )
        [ticket] = service.tickets.open_tickets()

    assert [request["checkpoint_id"] for request in supervisor.bodies] == ["cp-3", "cp-2", "cp-1"]
    assert {(request["repeatable"], request["may_start_over"]) for request in supervisor.bodies} == {
        (False, False)
    }
    assert "queenright recover forage --from-start" in ticket.finding_evidence


@pytest.mark.parametrize("repeatable", ["the task", "a person"])
async def test_respawn_request_states_who_allows_a_repeat(
    supervisor: Supervisor, tmp_path: Path, repeatable: str
) -> None:
    """B100: the supervisor must know whether the work may start again without a checkpoint."""
    async with serving(make_settings_with(tmp_path / "storage", supervisor.url)) as running:
        await crash_worker(running, repeatable=repeatable == "the task")
        health = running.service.health
        await health.initiate_recovery("forage", by="ada", from_start=repeatable == "a person")
        await until(lambda: bool(supervisor.bodies), "the receiver got a request")

    [requests] = supervisor.bodies
    assert (requests["repeatable"], requests["may_start_over"]) == (repeatable == "the task", True)


async def test_broken_checkpoints_are_skipped_within_one_attempt(
    supervisor: Supervisor, tmp_path: Path
) -> None:
    """
    B74: if a checkpoint is broken, the one before it is used. At the start of the task, a person is notified.
    """
    supervisor.broken = {"cp-1", "cp-2", "cp-3"}
    async with serving(make_settings_with(tmp_path / "storage", supervisor.url)) as running:
        service = running.service
        await crash_worker(running, repeatable=True)
        await service.health.initiate_recovery("forage", by="ada")
        await until(
            lambda: (attempt := find_attempt(running)) is not None and bool(attempt.watch_until),
            "the worker was started",
        )
        recovery = find_attempt(running)
        events = await service.store.history(
            types={EventType.RECOVERY_INITIATED, EventType.RECOVERY_COMPLETED}
        )

    assert [request["checkpoint_id"] for request in supervisor.bodies] == ["cp-3", "cp-2", "cp-1", None]
    assert {request["attempt"] for request in supervisor.bodies} == {1}
    assert recovery is not None
    assert (recovery.attempt, recovery.from_checkpoint) == (1, None)
    assert recovery.skipped == ("cp-3", "cp-2", "cp-1")
    started_events, from_start, recovery_event = events
    assert (started_events.data["from_checkpoint"], started_events.data["skipped"]) == ("cp-3", [])
    assert from_start.data["from_checkpoint"] is None
    assert "it starts over" in from_start.data["reason"]
    assert (recovery_event.type, recovery_event.data["skipped"]) == (
        EventType.RECOVERY_COMPLETED,
        ["cp-3", "cp-2", "cp-1"],
    )


async def test_new_session_with_the_same_task_completes_the_recovery(
    supervisor: Supervisor, tmp_path: Path
) -> None:
    async with serving(make_settings_with(tmp_path / "storage", supervisor.url)) as running:
        service = running.service
        await crash_worker(running)
        await service.health.initiate_recovery("forage", by="ada")
        await until(
            lambda: (attempt := find_attempt(running)) is not None and bool(attempt.watch_until),
            "the worker was started",
        )
        await service.ingest([make_successor_event(service.clock())])
        await until(
            lambda: (attempt := find_attempt(running)) is not None and bool(attempt.new_incarnation_id),
            "the new session reports",
        )
        recovery = find_attempt(running)

    assert recovery is not None
    assert recovery.state is RecoveryState.WATCHING
    assert (recovery.new_session_id, recovery.new_incarnation_id) == ("s2", "i2")


async def test_task_that_runs_elsewhere_is_not_started_again(supervisor: Supervisor, tmp_path: Path) -> None:
    async with serving(make_settings_with(tmp_path / "storage", supervisor.url)) as running:
        service = running.service
        await crash_worker(running)
        target = Target(agent_id="bee", session_id="s1", incarnation_id="i1")
        later_time = service.clock() + 1
        await service.remediation.recovery.request(target, "it crashed", by="ada", not_before=later_time)
        await service.ingest([make_successor_event(service.clock())])
        await until(lambda: find_attempt(running) is None, "the attempt has ended")
        [recovery] = await service.health.recoveries()

    assert recovery.state is RecoveryState.DROPPED
    assert "'s2'" in recovery.outcome
    assert supervisor.requests == []


WORKER = """
import pathlib, sys, time
from queenright.instrumentation import Worker

session, task, checkpoint, note = sys.argv[1:]
pathlib.Path("notes.txt").open("a").write(f"{checkpoint}|{note}\\n")
# The first is to be missed soon after it was killed; the second never, however busy the machine is.
beats = 30 if checkpoint else 0.3
with Worker("bee", session_id=session, task_id=task, heartbeat_interval=beats) as worker:
    for number in (1, 2) if not checkpoint else (3,):
        with worker.step("forage") as step:
            step.verdict("ACCEPT")
        worker.checkpoint(f"cp-{number}")
    for _ in range(12_000):
        if checkpoint and pathlib.Path("end").exists():
            break
        time.sleep(0.05)
"""


@contextlib.contextmanager
def start_process(*arguments: str, folder: Path, otlp_url: str) -> Iterator[subprocess.Popen[bytes]]:
    env = environment(OTEL_EXPORTER_OTLP_ENDPOINT=otlp_url, PATH="/usr/bin:/bin")
    with subprocess.Popen([sys.executable, *arguments], cwd=folder, env=env) as process:
        try:
            yield process
        finally:
            process.kill()


def load_receiver_from_docs() -> str:
    blocks = re.findall(r"^```python\n(.*?)^```", PAGE.read_text("utf-8"), re.MULTILINE | re.DOTALL)
    [code] = [block for block in blocks if "HTTPServer" in block]
    return str(code)


def is_listening(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0


async def test_killed_process_continues_from_its_checkpoint_in_a_new_one(tmp_path: Path) -> None:
    """002 §11: the receiver from the docs continues the work of a killed process from its checkpoint."""
    (tmp_path / "worker.py").write_text(WORKER, encoding="utf-8")
    (tmp_path / "receiver.py").write_text(load_receiver_from_docs(), encoding="utf-8")
    port = find_free_port("127.0.0.1", 0, what="the receiver", option="")
    settings = make_settings_with(tmp_path / "storage", f"http://127.0.0.1:{port}/", automatic=False)
    async with serving(settings) as running:
        service, folder = running.service, {"folder": tmp_path, "otlp_url": running.otlp_url}

        def find_worker() -> Any:
            return service.monitor.get("bee", "s1")

        with (
            start_process("receiver.py", str(port), **folder),  # type: ignore[arg-type]
            start_process("worker.py", "s1", "forage", "", "", **folder) as first_process,  # type: ignore[arg-type]
        ):
            await until(lambda: is_listening(port), "the receiver listens")
            await until(
                lambda: find_worker() is not None and find_worker().vitals.last_heartbeat is not None,
                "the worker sends heartbeats",
            )
            checkpoints: list[AgentEvent] = []
            async with asyncio.timeout(60):
                while len(checkpoints) < 2:
                    checkpoints = await service.store.history(types={EventType.CHECKPOINT_SAVED})
                    await asyncio.sleep(0.05)
            first_incarnation = find_worker().vitals.incarnation_id
            first_process.kill()
            await until(lambda: is_lost(find_worker()), "the worker is dead")
            response = await service.health.initiate_recovery("forage", by="ada")
            await until(
                lambda: (attempt := find_attempt(running)) is not None and bool(attempt.new_incarnation_id),
                "the worker is recovered",
            )
            attempt = find_attempt(running)
            (tmp_path / "end").touch()
            await until(lambda: find_attempt(running) is None, "the task is done")
            [recovery] = await service.health.recoveries()

    assert response.accepted
    assert attempt is not None
    assert attempt.state is RecoveryState.WATCHING
    assert (attempt.new_session_id, attempt.from_checkpoint) == ("s1", "cp-2")
    assert attempt.new_incarnation_id != first_incarnation
    assert (recovery.state, recovery.outcome) == (RecoveryState.SUCCEEDED, "it has completed")
    _, second_line = (tmp_path / "notes.txt").read_text("utf-8").splitlines()
    assert second_line.startswith("cp-2|Recovery, attempt 1: ")
