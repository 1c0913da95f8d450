"""Hook calls over real HTTP: requests, responses, and errors that never stop the agent."""

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
from queenright.server.ops.sockets import listen, make_socket_url, serve_app
from queenright.server.otlp import OtlpReceiver
from queenright.server.serving import RunningService, serving
from queenright.server.telemetry.assembler import Assembler
from queenright.server.webhooks import hooks as hooks_module
from queenright.server.webhooks.hooks import CALL_ID_HEADER, HookReceiver, route_hooks
from tests.clients.fixtures import FOLDER, Record, load_fixture
from tests.frameworks.matrix import matrix_settings
from tests.server.access.test_service_with_tokens import create_token, make_guarded_settings
from tests.waiting import until

HOOK_PATH = "/hooks/claude-code?user=ada&host=laptop"
AGENT_ID = "claude-code/ada@laptop/project"


def load_records(name: str) -> list[Record]:
    """Return the recorded requests of a fixture, moved to the current time."""
    fixture = load_fixture(FOLDER / "claude-code" / f"{name}.json")
    return list(fixture.moved(time.time() - fixture.ended_at))


def load_hook_calls(name: str) -> list[dict[str, Any]]:
    return [record.body for record in load_records(name) if record.path.startswith("/hooks/")]


async def send_record(telemetry: httpx.AsyncClient, record: Record) -> dict[str, Any]:
    path = HOOK_PATH if record.path.startswith("/hooks/") else record.path
    response = await telemetry.post(path, json=record.body)
    assert response.status_code == 200, response.text
    body: dict[str, Any] = response.json()
    return body


@pytest.fixture
async def telemetry(running: RunningService) -> Any:
    async with httpx.AsyncClient(base_url=running.otlp_url, verify=False, trust_env=False) as client:
        yield client


async def post_call(telemetry: httpx.AsyncClient, call: dict[str, Any]) -> dict[str, Any]:
    return await send_record(telemetry, Record(0.0, "/hooks/claude-code", call))


async def test_session_name_contains_its_user(
    telemetry: httpx.AsyncClient, http: httpx.AsyncClient, running: RunningService
) -> None:
    """B84: the session has tools, tokens and an end, from hook calls and log records together."""
    for record in load_records("healthy"):
        if record.path != "/v1/metrics":
            await send_record(telemetry, record)

    [agent] = (await http.get("/api/agents")).json()["agents"]
    health = (await http.get(f"/api/agents/{AGENT_ID}/health")).json()
    assert agent["agent_id"] == AGENT_ID
    assert agent["framework"] == "claude-code"
    assert (agent["owner"], agent["repository"]) == ("ada@laptop", AGENT_ID.rpartition("/")[2])
    assert health["state"] == "healthy"
    [worker] = running.service.monitor.of_agent(AGENT_ID)
    vitals = worker.vitals
    assert (vitals.steps_total, vitals.tool_calls_total, vitals.tokens) == (4, 3, 4080)


@pytest.mark.parametrize("folder", [7, ["/home/user/website"], None, "", "/"])
async def test_empty_folder_is_not_part_of_the_name(
    telemetry: httpx.AsyncClient, http: httpx.AsyncClient, folder: object
) -> None:
    await post_call(telemetry, {"hook_event_name": "UserPromptSubmit", "session_id": "s", "cwd": folder})

    assert [agent["agent_id"] for agent in (await http.get("/api/agents")).json()["agents"]] == [
        "claude-code/ada@laptop"
    ]


async def test_session_keeps_its_name_after_a_restart(tmp_path: Path) -> None:
    """B84: the first source after the restart may know less of the name, or report another folder."""
    remaining_records = [record for record in load_records("healthy") if record.path != "/v1/metrics"]
    middle = len(remaining_records) // 2
    for record in remaining_records[middle:]:
        if record.path.startswith("/hooks/"):
            record.body["cwd"] = "/home/user/elsewhere"
    for records in (remaining_records[:middle], remaining_records[middle:]):
        async with (
            serving(matrix_settings(tmp_path)) as running,
            httpx.AsyncClient(base_url=running.otlp_url, trust_env=False) as client,
        ):
            for record in records:
                await send_record(client, record)

            [worker] = running.service.monitor.workers()
            assert worker.key[0] == AGENT_ID

    vitals = worker.vitals
    assert (vitals.steps_total, vitals.tool_calls_total, vitals.tokens) == (4, 3, 4080)
    assert vitals.status is WorkerStatus.COMPLETED


async def test_nudge_reaches_its_session_once_at_the_next_tool(
    telemetry: httpx.AsyncClient, http: httpx.AsyncClient
) -> None:
    """B92: another session of the same user does not get the nudge."""
    session_start, prompt, tool_start, tool_end, *_ = load_hook_calls("healthy")
    other_session_calls = [
        hook_call | {"session_id": "another"} for hook_call in (session_start, prompt, tool_start, tool_end)
    ]
    for call in (session_start, prompt, tool_start, *other_session_calls[:3]):
        assert await post_call(telemetry, call) == {}
    nudge_response = await http.post(
        f"/api/agents/{AGENT_ID}/nudge",
        json={"message": "Read the log first.", "session_id": session_start["session_id"]},
    )
    assert nudge_response.status_code == 202, nudge_response.text

    assert await post_call(telemetry, other_session_calls[3]) == {}
    message = await post_call(telemetry, tool_end)
    assert message["hookSpecificOutput"]["hookEventName"] == "PostToolUse"
    assert "Read the log first." in message["hookSpecificOutput"]["additionalContext"]
    assert await post_call(telemetry, tool_start | {"tool_use_id": "t-9"}) == {}
    assert await post_call(telemetry, tool_end | {"tool_use_id": "t-9"}) == {}


async def test_termination_stops_the_run_at_its_next_tool(
    telemetry: httpx.AsyncClient, http: httpx.AsyncClient
) -> None:
    """B92: the response to the next hook call stops the run."""
    session_start, prompt, tool_start, tool_end, *_ = load_hook_calls("healthy")
    for call in (session_start, prompt, tool_start):
        await post_call(telemetry, call)
    termination_task = asyncio.create_task(
        http.post(f"/api/agents/{AGENT_ID}/terminate", json={"reason": "It burns money."}, timeout=60)
    )
    answer: dict[str, Any] = {}
    for number in range(200):
        answer = await post_call(telemetry, tool_end | {"tool_use_id": f"t-{number}"})
        if answer:
            break
        await asyncio.sleep(0.05)

    assert answer["continue"] is False
    assert "It burns money." in answer["stopReason"]
    termination_response = (await termination_task).json()
    assert termination_response["outcome"] == "done", termination_response


@pytest.mark.parametrize(
    ("method", "path", "body", "status"),
    [
        ("POST", HOOK_PATH, b"{", 400),
        ("POST", HOOK_PATH, b"[]", 400),
        ("POST", HOOK_PATH, b"\xff\xfe", 400),
        ("POST", HOOK_PATH, b"[" * 100_000, 400),
        ("POST", HOOK_PATH, b'{"hook_event_name": "Stop"}', 400),
        ("POST", HOOK_PATH, b'{"hook_event_name": "Stop", "session_id": 7}', 400),
        (
            "POST",
            HOOK_PATH,
            b'{"hook_event_name": "PreToolUse", "session_id": "s", "tool_name": {"a": 1}}',
            400,
        ),
        ("POST", HOOK_PATH, b'{"hook_event_name": "Unheard", "session_id": "s"}', 200),
        ("POST", HOOK_PATH, b'{"hook_event_name": {"a": 1}, "session_id": "s", "tool_use_id": []}', 200),
        ("POST", f"{HOOK_PATH}?{'&'.join(f'f{n}=1' for n in range(17))}", b"{}", 400),
        ("POST", "/hooks/nobody", b"{}", 404),
        ("GET", HOOK_PATH, b"", 405),
    ],
)
async def test_invalid_call_is_answered_with_a_reason_and_counted(
    telemetry: httpx.AsyncClient, http: httpx.AsyncClient, method: str, path: str, body: bytes, status: int
) -> None:
    """
    B91: the client continues after any response. Invalid calls create no agent and cause no server error.
    """
    response = await telemetry.request(method, path, content=body)

    assert response.status_code == status
    assert response.json() == {} if status == 200 else response.json()["error"]
    assert (await http.get("/api/agents")).json()["agents"] == []
    metrics = (await http.get("/metrics")).text
    client, outcome = "other" if status == 404 else "claude-code", "ignored" if status == 200 else "refused"
    assert f'queenright_hook_calls_total{{client="{client}",outcome="{outcome}"}} 1.0' in metrics


def count_refused_calls(running: RunningService) -> float | None:
    labels = {"client": "claude-code", "outcome": "refused"}
    return running.service.registry.get_sample_value("queenright_hook_calls_total", labels)


@pytest.mark.parametrize("limit", ["MAX_BODY", "MAX_HELD_BYTES"])
async def test_call_after_an_oversized_one_is_accepted(
    telemetry: httpx.AsyncClient, running: RunningService, limit: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """B91: the memory of a refused call is released."""
    monkeypatch.setattr(hooks_module, limit, 10_000)
    session_start, _, tool_start, *_ = load_hook_calls("healthy")

    for _ in range(3):
        response = await telemetry.post(
            HOOK_PATH, json=tool_start | {"tool_input": {"command": "x" * 20_000}}
        )
        assert (response.status_code, "longer than" in response.json()["error"]) == (413, True)
    assert count_refused_calls(running) == 3
    assert await post_call(telemetry, session_start) == {}
    assert running.service.monitor.of_agent(AGENT_ID)


async def test_call_whose_body_does_not_arrive_is_refused(
    telemetry: httpx.AsyncClient, running: RunningService, monkeypatch: pytest.MonkeyPatch
) -> None:
    """B91: the body must arrive within the time limit."""
    monkeypatch.setattr(hooks_module, "BODY_SECONDS", 0.05)
    address = telemetry.base_url
    reader, writer = await asyncio.open_connection(address.host, address.port)
    head = f"POST {HOOK_PATH} HTTP/1.1\r\nHost: {address.host}\r\nContent-Length: 100\r\n\r\n"
    writer.write(head.encode() + b"{")

    async with asyncio.timeout(60):
        status = await reader.readline()
    writer.close()

    assert status.startswith(b"HTTP/1.1 408 ")
    assert count_refused_calls(running) == 1


async def test_repeated_call_counts_once(telemetry: httpx.AsyncClient, running: RunningService) -> None:
    """B84, B91: a proxy, or a client that got no response, may repeat a call."""
    *calls, _end = load_hook_calls("healthy")
    for call in calls:
        for _ in range(3):
            assert await post_call(telemetry, call) == {}

    [worker] = running.service.monitor.of_agent(AGENT_ID)
    assert worker.vitals.tool_calls_total == 3
    assert worker.vitals.open_tools in (None, [])
    assert worker.vitals.waiting == "user_input"


@pytest.mark.parametrize("headers", [{"Origin": "https://example.org"}, {"Host": "example.org"}])
async def test_call_from_a_web_page_is_refused_and_counted(
    telemetry: httpx.AsyncClient, running: RunningService, headers: dict[str, str]
) -> None:
    """Otherwise a web page that the user opens could report for an agent."""
    session_start, *_ = load_hook_calls("healthy")

    response = await telemetry.post(HOOK_PATH, json=session_start, headers=headers)

    assert response.status_code in (403, 421)
    assert count_refused_calls(running) == 1
    assert running.service.monitor.of_agent(AGENT_ID) == []


async def test_call_without_a_token_is_refused_and_counted(tmp_path: Path) -> None:
    """B91: the agent continues, as after any response that is not 200."""
    guarded = make_guarded_settings(tmp_path / "storage")
    create_token(guarded, "admin", Role.ADMIN)
    session_start, *_ = load_hook_calls("healthy")
    async with (
        serving(guarded) as running,
        httpx.AsyncClient(base_url=running.otlp_url, verify=False, trust_env=False) as client,
    ):
        for headers in ({}, {"Authorization": "Bearer qr_nobody"}, {"Authorization": "Basic eA=="}):
            response = await client.post(HOOK_PATH, json=session_start, headers=headers)
            assert response.status_code == 401
        assert (await client.post("/hooks/nobody", json=session_start)).status_code == 401
        assert count_refused_calls(running) == 3
        assert running.service.monitor.of_agent(AGENT_ID) == []


async def test_hostile_content_is_quoted_and_secrets_are_masked(
    telemetry: httpx.AsyncClient, running: RunningService
) -> None:
    session_start, _, tool_start, *_ = load_hook_calls("healthy")
    secret = "sk-ant-api03-abcdefghijklmnop1234567890"
    failed_call = tool_start | {"hook_event_name": "PostToolUseFailure", "error": f"no key {secret} <script>"}
    for call in (session_start, tool_start | {"tool_name": f"Bash {secret}"}, failed_call):
        await post_call(telemetry, call)

    [worker] = running.service.monitor.of_agent(AGENT_ID)
    events = json.dumps([event.to_dict() for event in running.service.recent])
    assert worker.vitals.error_count == 1
    assert secret not in events


class SlowStore:
    """A store that stores nothing until it is released."""

    def __init__(self) -> None:
        self.let = asyncio.Event()
        self.failure: Exception | None = None
        self.stored_events: list[AgentEvent] = []

    async def ingest(self, events: list[AgentEvent]) -> None:
        await self.let.wait()
        if self.failure is not None:
            raise self.failure
        self.stored_events += events


class FakeCallStore:
    """A store that keeps one call in the stream. After that, NATS is unavailable too."""

    def __init__(self, database: SlowStore) -> None:
        self._database = database
        self.call_ids: list[str] = []
        self.kept_calls: list[tuple[str, bytes, str]] = []

    async def ingest(self, events: Sequence[AgentEvent], call_id: str) -> None:
        self.call_ids.append(call_id)
        await self._database.ingest(list(events))

    async def keep(self, path: str, body: bytes, call_id: str) -> None:
        if self.kept_calls:
            raise OSError("NATS is unavailable too")
        self.kept_calls.append((path, body, call_id))


async def test_call_that_cannot_be_stored_in_a_cluster_is_kept_in_the_stream(running: RunningService) -> None:
    """
    B119: PostgreSQL is unavailable. If the call cannot be kept either, it is refused, and the agent
    continues.
    """
    database = SlowStore()
    keeper = FakeCallStore(database)
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
    session_start, prompt, *_ = load_hook_calls("healthy")
    async with httpx.AsyncClient(transport=httpx.ASGITransport(hooks), base_url="http://q") as client:
        response = await client.post(HOOK_PATH, json=session_start)
        assert (response.status_code, response.json()) == (200, {})
        [(path, body, call_id)] = keeper.kept_calls
        assert (path, json.loads(body)) == (HOOK_PATH, session_start)
        assert (await client.post(HOOK_PATH, json=prompt)).status_code == 503
        repeated_response = await client.post(
            HOOK_PATH, json=session_start, headers={CALL_ID_HEADER.decode(): call_id}
        )
        assert (repeated_response.status_code, repeated_response.json()) == (503, {})
        # The events of this call may be stored although the monitor has not received them.
        assert await hooks.end_call(call_id)
        repeated_response = await client.post(
            HOOK_PATH, json=session_start, headers={CALL_ID_HEADER.decode(): call_id}
        )
        assert (repeated_response.status_code, repeated_response.json()) == (200, {})
    database.failure = None
    path, _, query = path.partition("?")
    await hooks.store_call(path, query.encode(), body, time.time(), database.ingest)
    assert {event.session_id for event in database.stored_events} == {session_start["session_id"]}


async def test_call_from_the_stream_waits_for_its_late_direct_call(running: RunningService) -> None:
    """B118: another process has kept the call, because this process did not respond in time."""
    database = SlowStore()
    keeper = FakeCallStore(database)
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
    session_start, *_ = load_hook_calls("healthy")
    headers = {CALL_ID_HEADER.decode(): "call-7"}
    async with httpx.AsyncClient(transport=httpx.ASGITransport(hooks), base_url="http://q") as client:
        assert (await client.post(HOOK_PATH, json=session_start, headers=headers)).json() == {}
        session_end = asyncio.create_task(hooks.end_call("call-7"))
        await asyncio.wait([session_end], timeout=0)
        assert not session_end.done()
        database.let.set()
        assert not await session_end
        assert keeper.call_ids == ["call-7"]
        # If the direct call arrives after its message in the stream, it is not stored.
        assert (await client.post(HOOK_PATH, json=session_start, headers=headers)).json() == {}
    assert keeper.call_ids == ["call-7"]


async def test_slow_or_failing_store_does_not_block_the_agent(running: RunningService) -> None:
    """B91: the response comes within the client's limit of one second, and the call is stored later."""
    slow_store, assembler, registry = SlowStore(), Assembler(), CollectorRegistry()
    hooks = HookReceiver(
        slow_store.ingest,
        assembler,
        running.service.instructions,
        running.service.permissions,
        running.service.intake,
        clock=time.time,
        registry=registry,
    )
    sock = listen("127.0.0.1", 0, what="hooks", option="")
    app = route_hooks(OtlpReceiver(slow_store.ingest, assembler=assembler, registry=registry), hooks)

    def read_count(outcome: str) -> float | None:
        labels = {"client": "claude-code", "outcome": outcome}
        return registry.get_sample_value("queenright_hook_calls_total", labels)

    session_start, prompt, *_ = load_hook_calls("healthy")
    async with (
        serve_app(app, sock),
        httpx.AsyncClient(base_url=make_socket_url(sock), verify=False) as client,
    ):
        response = await client.post(HOOK_PATH, json=session_start)
        assert (response.status_code, response.json()) == (200, {})
        assert read_count("late") == 1
        slow_store.let.set()
        await until(lambda: slow_store.stored_events, "the call is stored later")
        slow_store.failure = OSError("disk full")
        failed_response = await client.post(HOOK_PATH, json=prompt)
        assert (failed_response.status_code, failed_response.json()) == (503, {})
        assert read_count("failed") == 1
        slow_store.failure, slow_store.stored_events = None, []
        await client.post(HOOK_PATH, json=prompt)
        assert [event.type.value for event in slow_store.stored_events] == [
            "client_input_received",
            "llm_call_started",
        ]


async def test_hook_calls_that_were_not_stored_count_when_repeated(running: RunningService) -> None:
    """A client that gets a 503 sends its log records again."""
    slow_store, registry = SlowStore(), CollectorRegistry()
    slow_store.let.set()
    sock = listen("127.0.0.1", 0, what="telemetry", option="")
    logs = [record for record in load_records("healthy") if record.path == "/v1/logs"]
    app = OtlpReceiver(slow_store.ingest, registry=registry)
    async with (
        serve_app(app, sock),
        httpx.AsyncClient(base_url=make_socket_url(sock), verify=False) as client,
    ):
        for record in logs:
            slow_store.failure = OSError("disk full")
            assert (await client.post(record.path, json=record.body)).status_code == 503
            slow_store.failure = None
            assert (await client.post(record.path, json=record.body)).status_code == 200

    assert sum(event.type == "tool_call_completed" for event in slow_store.stored_events) == 3
    assert sum(event.type == "llm_call_completed" for event in slow_store.stored_events) == 4
