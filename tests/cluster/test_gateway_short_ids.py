"""Abbreviated ids in a fleet of two partitions must be unique in the whole fleet."""

from __future__ import annotations

import contextlib
import itertools
import uuid
from collections.abc import AsyncIterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

import httpx
import pytest
import pytest_asyncio
from starlette.types import ASGIApp, Receive, Scope, Send

from queenright.server.app import create_app
from queenright.server.cluster.gateway.pages import RowOrderMiddleware
from queenright.server.http.gateway_header import GATEWAY_HEADER
from queenright.server.http.problems import make_problem_response
from queenright.server.service import Service
from queenright.server.serving import run_service
from tests.cluster.test_gateway import make_client, make_gateway
from tests.server.conftest import demo_settings, looping
from tests.waiting import until

pytestmark = pytest.mark.asyncio(loop_scope="module")


class Fleet(NamedTuple):
    """Two partitions, each with a ticket and a request to terminate its worker."""

    services: Sequence[Service]
    apps: list[ASGIApp | None]
    http: httpx.AsyncClient

    @property
    def tickets(self) -> list[str]:
        return [service.tickets.open_tickets()[0].ticket_id for service in self.services]

    @property
    def approvals(self) -> list[str]:
        return [service.approvals.pending()[0].approval_id for service in self.services]


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def fleet(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Fleet]:
    folder: Path = tmp_path_factory.mktemp("short-ids")
    async with contextlib.AsyncExitStack() as stack:
        services: list[Service] = []
        apps: list[ASGIApp | None] = []
        for number in range(2):
            settings = demo_settings(folder / str(number), orchestrator="none")
            service = await stack.enter_async_context(run_service(settings, "http://127.0.0.1:4318"))
            app = RowOrderMiddleware(create_app(service, bind_address="127.0.0.1"))
            await loop_until_termination_request(service, app, f"looper-{number}")
            services.append(service)
            apps.append(app)
        http = await stack.enter_async_context(make_client(make_gateway(lambda: apps)))
        yield Fleet(services, apps, http)


async def loop_until_termination_request(service: Service, app: ASGIApp | None, agent: str) -> None:
    """Let a worker loop until the queen requests approval to terminate it."""
    await service.ingest(list(looping(service.clock(), agent=agent)))
    await until(
        lambda: any(
            ticket.analysis and ticket.agent_id == agent for ticket in service.tickets.open_tickets()
        ),
        "the ticket is triaged",
    )
    worker = {"session_id": f"{agent}-session", "incarnation_id": "one"}
    assert app is not None
    async with make_client(app) as http:
        await http.get(f"/api/agents/{agent}/instructions", params=worker)
    [ticket] = [ticket for ticket in service.tickets.open_tickets() if ticket.agent_id == agent]
    await service.remediation.queen_actions.request_termination(ticket, "It loops.")


def find_common_prefix(ids: Sequence[str]) -> str:
    pairs = itertools.takewhile(lambda pair: len(set(pair)) == 1, zip(*ids, strict=True))
    return "".join(pair[0] for pair in pairs)


async def test_ambiguous_ticket_names_the_matches_of_all_partitions(fleet: Fleet) -> None:
    prefix = find_common_prefix(fleet.tickets)

    response = await fleet.http.get(f"/api/tickets/{prefix}")

    assert (response.status_code, response.headers["content-type"]) == (409, "application/problem+json")
    matches = ", ".join(f"{ticket} (looper-{number})" for number, ticket in enumerate(fleet.tickets))
    title = f"2 tickets begin with {prefix!r}: {matches}; give more characters of the id"
    assert response.json() == {"type": "about:blank", "title": title, "status": 409}


async def test_unique_beginning_names_a_ticket_of_any_partition(fleet: Fleet) -> None:
    length = len(find_common_prefix(fleet.tickets)) + 1
    for ticket in fleet.tickets:
        response = await fleet.http.get(f"/api/tickets/{ticket[:length]}")
        assert (response.status_code, response.json()["ticket_id"]) == (200, ticket)


async def test_ambiguous_approval_id_terminates_no_worker(fleet: Fleet) -> None:
    prefix = find_common_prefix(fleet.approvals)
    for action in ("approve", "deny"):
        response = await fleet.http.post(f"/api/approvals/{prefix}/{action}", json={"by": "ada"})
        assert response.status_code == 409
        assert response.json()["title"].startswith(
            f"2 approvals begin with {prefix!r}: {fleet.approvals[0]} ("
        )
    assert [len(service.approvals.pending()) for service in fleet.services] == [1, 1]


async def test_abbreviated_id_is_rejected_while_a_partition_has_no_owner(fleet: Fleet) -> None:
    """The unowned partition may have another match."""
    length = len(find_common_prefix(fleet.approvals)) + 1
    approval, ticket = fleet.approvals[0], fleet.tickets[0]
    async with make_client(make_gateway(lambda: [fleet.apps[0], None])) as http:
        approval_response = await http.post(f"/api/approvals/{approval[:length]}/deny", json={"by": "ada"})
        abbreviated_response = await http.get(f"/api/tickets/{ticket[:length]}")
        full_response = await http.get(f"/api/tickets/{ticket}")
    assert (approval_response.status_code, abbreviated_response.status_code, full_response.status_code) == (
        503,
        503,
        200,
    )
    assert approval_response.headers["retry-after"] == "2"
    assert f"{approval[:length]!r} is an abbreviated id" in approval_response.json()["title"]
    assert len(fleet.services[0].approvals.pending()) == 1


async def test_abbreviated_id_is_rejected_while_an_owner_answers_503(fleet: Fleet) -> None:
    """The response says what to do instead of repeating the owner's error."""
    length = len(find_common_prefix(fleet.tickets)) + 1
    ticket = fleet.tickets[0]
    starting_app = make_problem_response(503, "the service is starting")
    async with make_client(make_gateway(lambda: [fleet.apps[0], starting_app])) as http:
        abbreviated_response = await http.get(f"/api/tickets/{ticket[:length]}")
        full_response = await http.get(f"/api/tickets/{ticket}")
    assert (abbreviated_response.status_code, full_response.status_code) == (503, 200)
    assert abbreviated_response.headers["retry-after"] == "2"
    assert f"{ticket[:length]!r} is an abbreviated id" in abbreviated_response.json()["title"]


async def test_abbreviated_id_is_rejected_while_an_older_version_cannot_list_matches(
    fleet: Fleet,
) -> None:
    """During a rolling upgrade, the older version answers as if a client had sent the request."""

    async def respond_like_older_version(scope: Scope, receive: Receive, send: Send) -> None:
        assert fleet.apps[1] is not None
        headers = [(name, value) for name, value in scope["headers"] if name != GATEWAY_HEADER.encode()]
        await fleet.apps[1]({**scope, "headers": headers}, receive, send)

    length = len(find_common_prefix(fleet.tickets)) + 1
    async with make_client(make_gateway(lambda: [fleet.apps[0], respond_like_older_version])) as http:
        for ticket in fleet.tickets:
            abbreviated_response = await http.get(f"/api/tickets/{ticket[:length]}")
            full_response = await http.get(f"/api/tickets/{ticket}")
            assert (abbreviated_response.status_code, full_response.status_code) == (503, 200)
            assert abbreviated_response.headers["retry-after"] == "2"
            assert f"{ticket[:length]!r} is an abbreviated id" in abbreviated_response.json()["title"]


async def test_full_id_is_not_looked_up_in_other_partitions(fleet: Fleet) -> None:
    paths: list[str] = []

    async def record_path(scope: Scope, receive: Receive, send: Send) -> None:
        paths.append(scope["path"])
        assert fleet.apps[0] is not None
        await fleet.apps[0](scope, receive, send)

    async with make_client(make_gateway(lambda: [record_path, fleet.apps[1]])) as http:
        assert (await http.get(f"/api/tickets/{fleet.tickets[0]}")).status_code == 200
    assert paths == [f"/api/tickets/{fleet.tickets[0]}"]


async def test_request_with_a_unique_prefix_is_executed_once(fleet: Fleet) -> None:
    approvals = fleet.approvals
    prefix = approvals[1][: len(find_common_prefix(approvals)) + 1]
    key = {"Idempotency-Key": "one"}
    path = f"/api/approvals/{prefix}/deny"

    first_response = await fleet.http.post(path, json={"by": "ada"}, headers=key)
    repeated_response = await fleet.http.post(path, json={"by": "ada"}, headers=key)

    assert (first_response.status_code, first_response.json()["approval_id"]) == (202, approvals[1])
    assert (repeated_response.status_code, repeated_response.json()) == (202, first_response.json())
    assert [len(service.approvals.pending()) for service in fleet.services] == [1, 0]


async def test_repeated_request_is_answered_by_the_partition_that_executed_it(
    fleet: Fleet, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By then its abbreviated id matches another approval, whose worker must not be terminated."""
    prefix = str(uuid.uuid4())[:8]
    for service in fleet.services:
        monkeypatch.setattr(service.approvals, "_ids", lambda: prefix + str(uuid.uuid4())[8:])
    path, key = f"/api/approvals/{prefix}/deny", {"Idempotency-Key": "two"}
    await loop_until_termination_request(fleet.services[1], fleet.apps[1], "looper-3")
    first_response = await fleet.http.post(path, json={"by": "ada"}, headers=key)
    await loop_until_termination_request(fleet.services[0], fleet.apps[0], "looper-2")

    repeated_response = await fleet.http.post(path, json={"by": "ada"}, headers=key)

    assert (first_response.status_code, repeated_response.status_code) == (202, 202)
    assert repeated_response.headers["idempotent-replayed"] == "true"
    assert repeated_response.json() == first_response.json()
    assert "looper-2" in {approval.agent_id for approval in fleet.services[0].approvals.pending()}


async def test_repeated_request_without_a_session_does_not_reach_a_later_session(fleet: Fleet) -> None:
    now = fleet.services[0].clock()
    for number, time in ((0, now), (1, now + 60)):
        events = looping(time, agent="traveller")
        await fleet.services[number].ingest([replace(event, session_id=f"s{number}") for event in events])
        if number == 0:
            key = {"Idempotency-Key": "three"}
            body = {"message": "Read the error.", "by": "ada"}
            first_response = await fleet.http.post("/api/agents/traveller/nudge", json=body, headers=key)

    repeated_response = await fleet.http.post("/api/agents/traveller/nudge", json=body, headers=key)

    assert (first_response.status_code, repeated_response.status_code) == (202, 202)
    assert repeated_response.json() == first_response.json()


@pytest.mark.parametrize("request_number", [0, 1], ids=["during the lookup", "after the lookup"])
@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/api/agents/commuter/nudge", {"message": "Read the error.", "by": "ada"}),
        ("/api/heartbeats", {"agent_id": "commuter"}),
    ],
    ids=["nudge", "heartbeat"],
)
async def test_request_without_a_session_reaches_no_older_session_if_its_owner_goes_away(
    fleet: Fleet, request_number: int, path: str, body: dict[str, str]
) -> None:
    now = fleet.services[0].clock()
    for number, time in ((0, now), (1, now + 60)):
        events = looping(time, agent="commuter")
        await fleet.services[number].ingest([replace(event, session_id=f"s{number}") for event in events])
    requests = itertools.count()

    async def leave_after_request(scope: Scope, receive: Receive, send: Send) -> None:
        app = fleet.apps[1] if next(requests) < request_number else make_problem_response(503, "no owner")
        assert app is not None
        await app(scope, receive, send)

    async with make_client(make_gateway(lambda: [fleet.apps[0], leave_after_request])) as http:
        response = await http.post(path, json=body)

    assert response.status_code == 503


async def test_gateway_ignores_a_mark_that_a_client_sends(fleet: Fleet) -> None:
    """Otherwise the client would get the response that is meant for the gateway."""
    ticket = fleet.tickets[1]
    for mark in ("1", "key", "locate"):
        response = await fleet.http.get(f"/api/tickets/{ticket}", headers={GATEWAY_HEADER: mark})
        assert (response.status_code, response.json()["ticket_id"]) == (200, ticket)
