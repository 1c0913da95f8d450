"""Both clients, on a real service over real sockets."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import httpx
import pytest
from pydantic import BaseModel

from queenright.client import AsyncQueenright, Queenright, RequestRejectedError, UnreachableError
from queenright.instrumentation.certificates import certificates
from queenright.server.serving import RunningService

pytestmark = pytest.mark.asyncio(loop_scope="module")

READS: dict[str, Callable[[Any], Any]] = {
    "agents": lambda qr: qr.agents.list(),
    "agents in a state": lambda qr: qr.agents.list(state="healthy"),
    "one agent": lambda qr: qr.agents.get("looper"),
    "health": lambda qr: qr.agents.health("looper", session_id="looper-session"),
    "health of all": lambda qr: qr.agents.all_health(),
    "history": lambda qr: qr.agents.history("looper", seconds=3600.0),
    "tickets of one": lambda qr: qr.agents.escalations("looper"),
    "loaded": lambda qr: qr.agents.loaded(),
    "discover": lambda qr: qr.agents.discover(),
    "tickets": lambda qr: qr.tickets.list(agent_id="looper"),
    "breakers": lambda qr: qr.breakers.list(only_open=True),
    "recoveries": lambda qr: qr.recoveries.list(),
    "interventions": lambda qr: qr.interventions.list(),
    "escalations": lambda qr: qr.escalations.list(only_open=True),
    "approvals": lambda qr: qr.approvals.list(),
    "silences": lambda qr: qr.silences.list(),
    "audit": lambda qr: qr.audit.list(types=["health_state_changed", "worker_escalation_ticket"]),
    "status": lambda qr: qr.service.status(),
    "version": lambda qr: qr.service.version(),
    "settings": lambda qr: qr.service.settings(),
    "ready": lambda qr: qr.service.ready(),
    "emergency stop": lambda qr: qr.service.emergency_stop(),
    "notifications": lambda qr: qr.service.notifications(),
    "judge checks": lambda qr: qr.service.judge_checks(),
}
_CHANGING_NAMES = (
    "ago",
    "_for",
    "now",
    "uptime",
    "uptime_seconds",
    "free_at",
    "latest",
    "outbox",
    "next_attempt_at",
    "feed",
)


def drop_changing_values(response: Any) -> Any:
    """Return a response as JSON values, without those that change over time."""
    if isinstance(response, BaseModel):
        return drop_changing_values(response.model_dump(mode="json"))
    if isinstance(response, dict):
        return {
            name: drop_changing_values(value)
            for name, value in response.items()
            if name != "at" and not name.endswith(_CHANGING_NAMES)
        }
    return (
        [drop_changing_values(item) for item in response] if isinstance(response, list | tuple) else response
    )


async def read_asynchronously(response: Any) -> Any:
    if isinstance(response, AsyncIterator):
        return [item async for item in response]
    return await response


def read_synchronously(response: Any) -> Any:
    return list(response) if inspect.isgenerator(response) else response


@pytest.mark.parametrize("name", READS)
async def test_both_clients_return_the_same_values(
    qr: AsyncQueenright, sync_client: Queenright, name: str
) -> None:
    # The service keeps judging its worker, so the responses may change between the two reads.
    for _ in range(10):
        asynchronous = await read_asynchronously(READS[name](qr))
        synchronous = await asyncio.to_thread(lambda: read_synchronously(READS[name](sync_client)))
        if drop_changing_values(asynchronous) == drop_changing_values(synchronous):
            break

    assert type(asynchronous) is type(synchronous)
    assert drop_changing_values(asynchronous) == drop_changing_values(synchronous)


async def test_operator_actions_are_carried_out_and_reported(qr: AsyncQueenright) -> None:
    [ticket] = [item async for item in qr.tickets.list()]

    acknowledged = await qr.tickets.acknowledge(ticket.ticket_id, by="ada", note="on it")
    [acknowledged_row] = [
        item async for item in qr.tickets.list(status="acknowledged", severity=ticket.severity)
    ]
    released = await qr.tickets.unacknowledge(ticket.ticket_id, by="ada")
    timeline = await qr.tickets.timeline(ticket.ticket_id)
    escalation = await qr.agents.escalation("looper", ticket.ticket_id)
    nudge = await qr.agents.nudge("looper", "What blocks you?", by="ada")
    [row] = [item async for item in qr.interventions.list(agent_id="looper", kind="nudge", limit=1)]
    stopped = await qr.service.set_emergency_stop(True, "a test", by="ada")
    with pytest.raises(RequestRejectedError, match="emergency stop") as error:
        await qr.agents.terminate("looper", "it loops")
    resumed = await qr.service.set_emergency_stop(False, "over")

    assert (acknowledged.acknowledged_by, acknowledged.acknowledged_note) == ("ada", "on it")
    assert acknowledged_row.ticket_id == ticket.ticket_id == escalation.ticket_id
    assert released.acknowledged_by == ""
    assert "ticket_acknowledged" in [entry.what for entry in timeline.timeline]
    assert (row.intervention_id, row.outcome) == (nudge.intervention_id, "unreachable")
    assert (error.value.status, bool(error.value.reason)) == (409, True)
    assert (stopped.on, resumed.on) == (True, False)


async def test_client_reads_a_heartbeat_and_a_queen_answer(qr: AsyncQueenright) -> None:
    [ticket] = [item async for item in qr.tickets.list()]

    await qr.agents.send_heartbeat({"agent_id": "beater", "task_id": "report-7", "token_count": 12})
    heartbeat = await qr.agents.heartbeat("beater")
    answer = await qr.tickets.chat(ticket.ticket_id, "what is wrong?", by="ada")
    messages = await qr.tickets.messages(ticket.ticket_id)
    later_messages = await qr.tickets.messages(ticket.ticket_id, after=messages[0].id)

    assert (heartbeat.task_id, heartbeat.token_count) == ("report-7", 12)
    assert [message.role for message in messages] == ["operator", "queen"]
    assert later_messages == messages[1:]
    assert messages[1].id == answer.id


async def test_breaker_with_any_name_is_reset(qr: AsyncQueenright, running_service: RunningService) -> None:
    running_service.service.breakers.get("tool_execution", "team/looper", "a b?c")
    [breaker_row] = [item async for item in qr.breakers.list() if item.agent_id == "team/looper"]

    breaker = await qr.breakers.reset(breaker_row.name, by="ada")

    assert breaker.state == "closed"
    assert await qr.breakers.get(breaker_row.name) == breaker


async def test_list_is_paged_only_as_far_as_iterated(running_service: RunningService) -> None:
    for number in range(2_100):
        running_service.service.breakers.get("tool_execution", "paged", f"t{number:04}")
    requested_urls: list[httpx.URL] = []

    class CountingTransport(httpx.AsyncHTTPTransport):
        async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
            requested_urls.append(request.url)
            return await super().handle_async_request(request)

    async with AsyncQueenright(
        running_service.url, transport=CountingTransport(verify=certificates(running_service.url))
    ) as qr:
        rows = qr.breakers.list()
        assert not requested_urls
        await anext(rows)
        first_request_count = len(requested_urls)
        all_names = [item.name async for item in qr.breakers.list()]
        first_names = [item.name async for item in qr.breakers.list(limit=1_200)]

    assert first_request_count == 1
    assert len(all_names) == len(set(all_names)) >= 2_100
    assert first_names == all_names[:1_200]
    assert [url.params["limit"] for url in requested_urls[-2:]] == ["1000", "200"]


async def test_action_with_a_lost_response_is_retried_and_executed_once(
    running_service: RunningService,
) -> None:
    keys: list[str] = []

    class LossyTransport(httpx.AsyncHTTPTransport):
        """Loses the first response, after the action is done."""

        async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
            response = await super().handle_async_request(request)
            keys.append(request.headers.get("idempotency-key", ""))
            if len(keys) == 1:
                await response.aread()
                raise httpx.ReadError("the connection was reset", request=request)
            return response

    transport = LossyTransport(verify=certificates(running_service.url))
    async with AsyncQueenright(running_service.url, transport=transport, ids=lambda: "the-only-key") as qr:
        nudge = await qr.agents.nudge("looper", "Only once, please.", by="ada")
        nudges = [item async for item in qr.interventions.list(agent_id="looper", kind="nudge")]

    assert keys[:2] == ["the-only-key", "the-only-key"]
    assert [nudge.intervention_id for nudge in nudges if nudge.message == "Only once, please."] == [
        nudge.intervention_id
    ]


async def test_refusal_has_the_message_and_status_of_the_service(qr: AsyncQueenright) -> None:
    with pytest.raises(RequestRejectedError, match="no ticket 'none'") as unknown:
        await qr.tickets.get("none")
    with pytest.raises(RequestRejectedError) as invalid:
        await qr.agents.nudge("looper", "x" * 5000)

    assert (unknown.value.status, unknown.value.problem["status"]) == (404, 404)
    assert (invalid.value.status, invalid.value.reason) == (422, "")


async def test_unknown_token_is_refused_without_being_quoted(
    running_service: RunningService, tmp_path: Path
) -> None:
    file = tmp_path / "token"
    file.write_text("qr_none-of-them_0123456789")
    async with AsyncQueenright(running_service.url, token_file=file) as qr:
        with pytest.raises(RequestRejectedError) as error:
            await qr.service.status()

    assert error.value.status == 401
    assert "none-of-them" not in f"{error.value}{error.value.problem}{qr!r}"


async def test_other_server_is_reported_as_not_queenright(running_service: RunningService) -> None:
    """The server may be Prometheus, a file server, or a service of another version."""

    def respond(request: httpx.Request) -> httpx.Response:
        bodies = {"/api/status": "[1]", "/api/version": '{"version": 7}', "/api/agents": '{"pages": []}'}
        if request.url.path == "/api/settings":
            return httpx.Response(502, text="<html>bad gateway</html>")
        return httpx.Response(200, text=bodies.get(request.url.path, "<html>"))

    async with AsyncQueenright("http://there:1", transport=httpx.MockTransport(respond)) as qr:
        for request_coroutine, message in (
            (qr.service.status(), "http://there:1 is not Queenright: the response is not a JSON object"),
            (qr.service.version(), "not a valid Version: version: .*same version"),
            (qr.agents.list().__anext__(), "without 'agents'"),
            (qr.events.stream().__anext__(), "the response is not an event stream"),
        ):
            with pytest.raises(UnreachableError, match=message):
                await request_coroutine
        with pytest.raises(RequestRejectedError, match="returned 502 for /api/settings"):
            await qr.service.settings()


async def test_https_url_of_an_http_port_names_the_remedy(running_service: RunningService) -> None:
    async with AsyncQueenright(running_service.url.replace("http://", "https://")) as qr:
        with pytest.raises(UnreachableError, match=r"does not use HTTPS\. Start the URL with http://"):
            await qr.service.status()


async def test_slow_service_is_not_reported_as_absent() -> None:
    def time_out(request: httpx.Request) -> httpx.Response:
        raise httpx.ReadTimeout("", request=request)

    async with AsyncQueenright("http://there:1", transport=httpx.MockTransport(time_out)) as qr:
        with pytest.raises(UnreachableError, match=r"did not respond in time\. It may be overloaded"):
            await qr.service.status()


async def test_unreachable_service_error_is_one_sentence_with_a_remedy() -> None:
    async with AsyncQueenright("http://127.0.0.1:9") as qr:
        with pytest.raises(UnreachableError, match=r"Queenright does not respond at http:.*queenright up"):
            await qr.service.status()
