"""Hook calls over real HTTP: requests, responses, and that the agent always continues."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import httpx
import pytest
from prometheus_client import CollectorRegistry

from queenright.health.store.store import StoreError
from queenright.health.vitals.session_outcome import WorkerStatus
from queenright.runtime.events import AgentEvent
from queenright.server.access.roles import Role
from queenright.server.ops.sockets import listen, serve_app, socket_url
from queenright.server.otlp import OtlpReceiver
from queenright.server.serving import RunningService, serving
from queenright.server.telemetry.assembler import Assembler
from queenright.server.webhooks import hooks as hooks_module
from queenright.server.webhooks.hooks import CALL_ID, HookReceiver, route_hooks
from tests.clients.fixtures import FOLDER, Record, load_fixture
from tests.frameworks.matrix import settings_for
from tests.server.access.test_service_with_tokens import guarded, token_for
from tests.waiting import until

HOOK = "/hooks/claude-code?user=ada&host=laptop"
AGENT = "claude-code/ada@laptop/project"


def records(name: str) -> list[Record]:
    """Return what was recorded, moved to the present."""
    fixture = load_fixture(FOLDER / "claude-code" / f"{name}.json")
    return list(fixture.moved(time.time() - fixture.ended_at))


def calls(name: str) -> list[dict[str, Any]]:
    return [record.body for record in records(name) if record.path.startswith("/hooks/")]


async def send(telemetry: httpx.AsyncClient, record: Record) -> dict[str, Any]:
    path = HOOK if record.path.startswith("/hooks/") else record.path
    answer = await telemetry.post(path, json=record.body)
    assert answer.status_code == 200, answer.text
    body: dict[str, Any] = answer.json()
    return body


@pytest.fixture
async def telemetry(running: RunningService) -> Any:
    async with httpx.AsyncClient(base_url=running.otlp_url, verify=False, trust_env=False) as client:
        yield client


async def ask(telemetry: httpx.AsyncClient, call: dict[str, Any]) -> dict[str, Any]:
    return await send(telemetry, Record(0.0, "/hooks/claude-code", call))


async def test_session_name_has_its_owner(
    telemetry: httpx.AsyncClient, http: httpx.AsyncClient, running: RunningService
) -> None:
    """B84: with its tools, tokens and end, from hook calls and log records together."""
    for record in records("healthy"):
        if record.path != "/v1/metrics":
            await send(telemetry, record)

    [agent] = (await http.get("/api/agents")).json()["agents"]
    health = (await http.get(f"/api/agents/{AGENT}/health")).json()
    assert agent["agent_id"] == AGENT
    assert agent["framework"] == "claude-code"
    assert (agent["owner"], agent["repository"]) == ("ada@laptop", AGENT.rpartition("/")[2])
    assert health["state"] == "healthy"
    [worker] = running.service.monitor.of_agent(AGENT)
    vitals = worker.vitals
    assert (vitals.steps_total, vitals.tool_calls_total, vitals.tokens) == (4, 3, 4080)


@pytest.mark.parametrize("folder", [7, ["/home/user/website"], None, "", "/"])
async def test_empty_folder_is_not_part_of_the_name(
    telemetry: httpx.AsyncClient, http: httpx.AsyncClient, folder: object
) -> None:
    await ask(telemetry, {"hook_event_name": "UserPromptSubmit", "session_id": "s", "cwd": folder})

    assert [agent["agent_id"] for agent in (await http.get("/api/agents")).json()["agents"]] == [
        "claude-code/ada@laptop"
    ]


async def test_session_goes_on_under_its_name_after_a_restart(tmp_path: Path) -> None:
    """B84: what comes first then may know less of the name, or be from another folder."""
    remaining_records = [record for record in records("healthy") if record.path != "/v1/metrics"]
    half = len(remaining_records) // 2
    for record in remaining_records[half:]:
        if record.path.startswith("/hooks/"):
            record.body["cwd"] = "/home/user/elsewhere"
    for part in (remaining_records[:half], remaining_records[half:]):
        async with (
            serving(settings_for(tmp_path)) as running,
            httpx.AsyncClient(base_url=running.otlp_url, trust_env=False) as client,
        ):
            for record in part:
                await send(client, record)

            [worker] = running.service.monitor.workers()
            assert worker.key[0] == AGENT

    vitals = worker.vitals
    assert (vitals.steps_total, vitals.tool_calls_total, vitals.tokens) == (4, 3, 4080)
    assert vitals.status is WorkerStatus.COMPLETED


async def test_nudge_reaches_the_model_at_the_next_tool_of_its_session_and_once(
    telemetry: httpx.AsyncClient, http: httpx.AsyncClient
) -> None:
    """B92: another session of the same person does not get it."""
    start, prompt, before, after, *_ = calls("healthy")
    other = [one | {"session_id": "another"} for one in (start, prompt, before, after)]
    for call in (start, prompt, before, *other[:3]):
        assert await ask(telemetry, call) == {}
    nudged = await http.post(
        f"/api/agents/{AGENT}/nudge",
        json={"message": "Read the log first.", "session_id": start["session_id"]},
    )
    assert nudged.status_code == 202, nudged.text

    assert await ask(telemetry, other[3]) == {}
    given = await ask(telemetry, after)
    assert given["hookSpecificOutput"]["hookEventName"] == "PostToolUse"
    assert "Read the log first." in given["hookSpecificOutput"]["additionalContext"]
    assert await ask(telemetry, before | {"tool_use_id": "t-9"}) == {}
    assert await ask(telemetry, after | {"tool_use_id": "t-9"}) == {}


async def test_termination_stops_the_run_at_its_next_tool(
    telemetry: httpx.AsyncClient, http: httpx.AsyncClient
) -> None:
    """B92."""
    start, prompt, before, after, *_ = calls("healthy")
    for call in (start, prompt, before):
        await ask(telemetry, call)
    stopping = asyncio.create_task(
        http.post(f"/api/agents/{AGENT}/terminate", json={"reason": "It burns money."}, timeout=60)
    )
    answer: dict[str, Any] = {}
    for number in range(200):
        answer = await ask(telemetry, after | {"tool_use_id": f"t-{number}"})
        if answer:
            break
        await asyncio.sleep(0.05)

    assert answer["continue"] is False
    assert "It burns money." in answer["stopReason"]
    stopped = (await stopping).json()
    assert stopped["outcome"] == "done", stopped


@pytest.mark.parametrize(
    ("method", "path", "body", "status"),
    [
        ("POST", HOOK, b"{", 400),
        ("POST", HOOK, b"[]", 400),
        ("POST", HOOK, b"\xff\xfe", 400),
        ("POST", HOOK, b"[" * 100_000, 400),
        ("POST", HOOK, b'{"hook_event_name": "Stop"}', 400),
        ("POST", HOOK, b'{"hook_event_name": "Stop", "session_id": 7}', 400),
        ("POST", HOOK, b'{"hook_event_name": "PreToolUse", "session_id": "s", "tool_name": {"a": 1}}', 400),
        ("POST", HOOK, b'{"hook_event_name": "Unheard", "session_id": "s"}', 200),
        ("POST", HOOK, b'{"hook_event_name": {"a": 1}, "session_id": "s", "tool_use_id": []}', 200),
        ("POST", f"{HOOK}?{'&'.join(f'f{n}=1' for n in range(17))}", b"{}", 400),
        ("POST", "/hooks/nobody", b"{}", 404),
        ("GET", HOOK, b"", 405),
    ],
)
async def test_invalid_call_is_answered_with_a_reason_and_counted(
    telemetry: httpx.AsyncClient, http: httpx.AsyncClient, method: str, path: str, body: bytes, status: int
) -> None:
    """B91: the client continues after any answer; none of these creates an agent or an error of ours."""
    answer = await telemetry.request(method, path, content=body)

    assert answer.status_code == status
    assert answer.json() == {} if status == 200 else answer.json()["error"]
    assert (await http.get("/api/agents")).json()["agents"] == []
    metrics = (await http.get("/metrics")).text
    client, outcome = "other" if status == 404 else "claude-code", "ignored" if status == 200 else "refused"
    assert f'queenright_hook_calls_total{{client="{client}",outcome="{outcome}"}} 1.0' in metrics


def refused(running: RunningService) -> float | None:
    labels = {"client": "claude-code", "outcome": "refused"}
    return running.service.registry.get_sample_value("queenright_hook_calls_total", labels)


@pytest.mark.parametrize("limit", ["MAX_BODY", "MAX_HELD"])
async def test_oversized_call_is_refused_and_the_next_accepted(
    telemetry: httpx.AsyncClient, running: RunningService, limit: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """B91: what was held of it is let go, so that the next call is taken."""
    monkeypatch.setattr(hooks_module, limit, 10_000)
    start, _, before, *_ = calls("healthy")

    for _ in range(3):
        answer = await telemetry.post(HOOK, json=before | {"tool_input": {"command": "x" * 20_000}})
        assert (answer.status_code, "longer than" in answer.json()["error"]) == (413, True)
    assert refused(running) == 3
    assert await ask(telemetry, start) == {}
    assert running.service.monitor.of_agent(AGENT)


async def test_call_that_does_not_arrive_is_refused(
    telemetry: httpx.AsyncClient, running: RunningService, monkeypatch: pytest.MonkeyPatch
) -> None:
    """B91."""
    monkeypatch.setattr(hooks_module, "BODY_SECONDS", 0.05)
    address = telemetry.base_url
    reader, writer = await asyncio.open_connection(address.host, address.port)
    head = f"POST {HOOK} HTTP/1.1\r\nHost: {address.host}\r\nContent-Length: 100\r\n\r\n"
    writer.write(head.encode() + b"{")

    async with asyncio.timeout(60):
        status = await reader.readline()
    writer.close()

    assert status.startswith(b"HTTP/1.1 408 ")
    assert refused(running) == 1


async def test_replayed_call_counts_once(telemetry: httpx.AsyncClient, running: RunningService) -> None:
    """B84, B91: a proxy, or a client that got no answer, may send it again."""
    *work, _end = calls("healthy")
    for call in work:
        for _ in range(3):
            assert await ask(telemetry, call) == {}

    [worker] = running.service.monitor.of_agent(AGENT)
    assert worker.vitals.tool_calls_total == 3
    assert worker.vitals.open_tools in (None, [])
    assert worker.vitals.waiting == "user_input"


@pytest.mark.parametrize("headers", [{"Origin": "https://example.org"}, {"Host": "example.org"}])
async def test_call_of_a_web_page_is_refused_and_counted(
    telemetry: httpx.AsyncClient, running: RunningService, headers: dict[str, str]
) -> None:
    """A page that its user opens must not be able to speak for an agent."""
    start, *_ = calls("healthy")

    answer = await telemetry.post(HOOK, json=start, headers=headers)

    assert answer.status_code in (403, 421)
    assert refused(running) == 1
    assert running.service.monitor.of_agent(AGENT) == []


async def test_call_without_a_token_is_refused_and_counted(tmp_path: Path) -> None:
    """B91: where a token is required; the agent continues, as after any answer that is not 200."""
    given = guarded(tmp_path / "storage")
    token_for(given, "admin", Role.ADMIN)
    start, *_ = calls("healthy")
    async with (
        serving(given) as running,
        httpx.AsyncClient(base_url=running.otlp_url, verify=False, trust_env=False) as client,
    ):
        for headers in ({}, {"Authorization": "Bearer qr_nobody"}, {"Authorization": "Basic eA=="}):
            answer = await client.post(HOOK, json=start, headers=headers)
            assert answer.status_code == 401
        assert (await client.post("/hooks/nobody", json=start)).status_code == 401
        assert refused(running) == 3
        assert running.service.monitor.of_agent(AGENT) == []


async def test_hostile_content_is_data_and_secrets_are_masked(
    telemetry: httpx.AsyncClient, running: RunningService
) -> None:
    start, _, before, *_ = calls("healthy")
    secret = "sk-ant-api03-abcdefghijklmnop1234567890"
    failed = before | {"hook_event_name": "PostToolUseFailure", "error": f"no key {secret} <script>"}
    for call in (start, before | {"tool_name": f"Bash {secret}"}, failed):
        await ask(telemetry, call)

    [worker] = running.service.monitor.of_agent(AGENT)
    events = json.dumps([event.to_dict() for event in running.service.recent])
    assert worker.vitals.error_count == 1
    assert secret not in events


class Slow:
    """Stores nothing until it is let."""

    def __init__(self) -> None:
        self.let = asyncio.Event()
        self.failure: Exception | None = None
        self.stored: list[AgentEvent] = []

    async def ingest(self, events: list[AgentEvent]) -> None:
        await self.let.wait()
        if self.failure is not None:
            raise self.failure
        self.stored += events


class Keeper:
    """Keeps one call; then NATS is away, too."""

    def __init__(self, database: Slow) -> None:
        self._database = database
        self.call_ids: list[str] = []
        self.kept: list[tuple[str, bytes, str]] = []

    async def ingest(self, events: Sequence[AgentEvent], call_id: str) -> None:
        self.call_ids.append(call_id)
        await self._database.ingest(list(events))

    async def keep(self, path: str, body: bytes, call_id: str) -> None:
        if self.kept:
            raise OSError("NATS is away, too")
        self.kept.append((path, body, call_id))


async def test_call_that_cannot_be_stored_in_a_cluster_is_kept(running: RunningService) -> None:
    """B119: PostgreSQL is away. What cannot be kept either is refused; the agent continues in any case."""
    database = Slow()
    keeper = Keeper(database)
    database.let.set()
    database.failure = StoreError("the server closed the connection")
    hooks = HookReceiver(
        database.ingest,
        Assembler(),
        running.service.instructions,
        running.service.permissions,
        running.service.intake,
        clock=time.time,
        registry=CollectorRegistry(),
        keeper=keeper,
    )
    start, prompt, *_ = calls("healthy")
    async with httpx.AsyncClient(transport=httpx.ASGITransport(hooks), base_url="http://q") as client:
        answer = await client.post(HOOK, json=start)
        assert (answer.status_code, answer.json()) == (200, {})
        [(path, body, call_id)] = keeper.kept
        assert (path, json.loads(body)) == (HOOK, start)
        assert (await client.post(HOOK, json=prompt)).status_code == 503
        again = await client.post(HOOK, json=start, headers={CALL_ID.decode(): call_id})
        assert (again.status_code, again.json()) == (503, {})
        # Its events may be stored, and the monitor does not know them.
        assert await hooks.end_call(call_id)
        again = await client.post(HOOK, json=start, headers={CALL_ID.decode(): call_id})
        assert (again.status_code, again.json()) == (200, {})
    database.failure = None
    path, _, query = path.partition("?")
    await hooks.store_call(path, query.encode(), body, time.time(), database.ingest)
    assert {event.session_id for event in database.stored} == {start["session_id"]}


async def test_call_from_the_stream_waits_for_the_same_call_that_is_late(running: RunningService) -> None:
    """B118: another process has kept it, as this one did not answer in time."""
    database = Slow()
    keeper = Keeper(database)
    hooks = HookReceiver(
        database.ingest,
        Assembler(),
        running.service.instructions,
        running.service.permissions,
        running.service.intake,
        clock=time.time,
        registry=CollectorRegistry(),
        keeper=keeper,
    )
    start, *_ = calls("healthy")
    headers = {CALL_ID.decode(): "call-7"}
    async with httpx.AsyncClient(transport=httpx.ASGITransport(hooks), base_url="http://q") as client:
        assert (await client.post(HOOK, json=start, headers=headers)).json() == {}
        ending = asyncio.create_task(hooks.end_call("call-7"))
        await asyncio.wait([ending], timeout=0)
        assert not ending.done()
        database.let.set()
        assert not await ending
        assert keeper.call_ids == ["call-7"]
        # One that arrives after the message of the stream is not stored.
        assert (await client.post(HOOK, json=start, headers=headers)).json() == {}
    assert keeper.call_ids == ["call-7"]


async def test_slow_or_failing_service_does_not_block_the_agent(running: RunningService) -> None:
    """B91: it is answered within the second that its client gives us, and what it said is stored later."""
    slow, assembler, registry = Slow(), Assembler(), CollectorRegistry()
    hooks = HookReceiver(
        slow.ingest,
        assembler,
        running.service.instructions,
        running.service.permissions,
        running.service.intake,
        clock=time.time,
        registry=registry,
    )
    sock = listen("127.0.0.1", 0, what="hooks", option="")
    app = route_hooks(OtlpReceiver(slow.ingest, assembler=assembler, registry=registry), hooks)

    def counted(outcome: str) -> float | None:
        labels = {"client": "claude-code", "outcome": outcome}
        return registry.get_sample_value("queenright_hook_calls_total", labels)

    start, prompt, *_ = calls("healthy")
    async with serve_app(app, sock), httpx.AsyncClient(base_url=socket_url(sock), verify=False) as client:
        answer = await client.post(HOOK, json=start)
        assert (answer.status_code, answer.json()) == (200, {})
        assert counted("late") == 1
        slow.let.set()
        await until(lambda: slow.stored, "it is stored later")
        slow.failure = OSError("disk full")
        failed = await client.post(HOOK, json=prompt)
        assert (failed.status_code, failed.json()) == (503, {})
        assert counted("failed") == 1
        slow.failure, slow.stored = None, []
        await client.post(HOOK, json=prompt)
        assert [event.type.value for event in slow.stored] == ["client_input_received", "llm_call_started"]


async def test_unstored_hook_calls_count_when_repeated(running: RunningService) -> None:
    """A client that is answered 503 sends its log records again."""
    slow, registry = Slow(), CollectorRegistry()
    slow.let.set()
    sock = listen("127.0.0.1", 0, what="telemetry", option="")
    logs = [record for record in records("healthy") if record.path == "/v1/logs"]
    app = OtlpReceiver(slow.ingest, registry=registry)
    async with serve_app(app, sock), httpx.AsyncClient(base_url=socket_url(sock), verify=False) as client:
        for record in logs:
            slow.failure = OSError("disk full")
            assert (await client.post(record.path, json=record.body)).status_code == 503
            slow.failure = None
            assert (await client.post(record.path, json=record.body)).status_code == 200

    assert sum(event.type == "tool_call_completed" for event in slow.stored) == 3
    assert sum(event.type == "llm_call_completed" for event in slow.stored) == 4
