"""The remaining calls of the client, on a real service with a real Alertmanager."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from typing import Any

import pytest
import pytest_asyncio

from queenright.client import AsyncQueenright
from queenright.health.findings import Severity
from queenright.health.tickets.ticket import TicketDraft
from queenright.server.access.roles import Role
from queenright.server.access.token_file import edit_tokens
from queenright.server.access.tokens import build_token
from queenright.server.serving import RunningService, serving
from tests.alerting.real import real_alertmanager, run_receivers
from tests.client.conftest import make_settings
from tests.server.agents.parts import write_guide
from tests.server.conftest import looping
from tests.waiting import until

pytestmark = pytest.mark.asyncio(loop_scope="module")

INCARNATION = {"incarnation_id": "one"}


@pytest.fixture(scope="module", autouse=True)
def _poll_silences_every_second() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("queenright.alerting.silencing.POLL_SECONDS", 1)
        yield


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def running_service(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[RunningService]:
    """Yield a service with an Alertmanager, two agents to load, and tickets that only people decide."""
    folder = tmp_path_factory.mktemp("actions")
    for name in ("guide", "second"):
        write_guide(folder / "guides" / name, name)
    settings = make_settings(folder)
    async with run_receivers() as recorder, real_alertmanager(folder / "am", recorder) as alertmanager:
        alerting = {"alertmanager_urls": (alertmanager.url,)}
        changed_settings = {
            "alerting": settings.alerting.model_copy(update=alerting),
            "agents": settings.agents.model_copy(update={"roots": (folder / "guides",)}),
        }
        async with serving(settings.model_copy(update=changed_settings)) as service_run:
            for name in ("looper", "walker"):
                await service_run.service.ingest(list(looping(service_run.service.clock(), agent=name)))
            tickets = service_run.service.tickets
            await until(
                lambda: sum(bool(t.analysis) for t in tickets.open_tickets()) == 2, "both tickets are triaged"
            )
            await service_run.service.judging.stop()
            yield service_run


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def qr(running_service: RunningService) -> AsyncIterator[AsyncQueenright]:
    """Yield a client with an admin's token."""
    token, secret = build_token(
        "ada", Role.ADMIN, id_="0" * 8, secret="s" * 43, now=running_service.service.clock(), expires_at=None
    )
    path = running_service.service.settings.storage / "tokens.json"
    edit_tokens(path, lambda tokens: tokens.with_token(token, running_service.service.clock()))
    async with AsyncQueenright(running_service.url, secret) as client:
        yield client


def find_ticket_id(running_service: RunningService, agent: str) -> str:
    [ticket] = [
        candidate
        for candidate in running_service.service.tickets.open_tickets()
        if candidate.agent_id == agent
    ]
    return ticket.ticket_id


async def test_token_actions_are_recorded_under_its_name(
    qr: AsyncQueenright, running_service: RunningService
) -> None:
    service = running_service.service
    # The worker's last call is recent, so that it does not stall on a busy machine.
    await service.ingest(list(looping(service.clock() + 40, agent="drill", times=4)))
    worker = service.monitor.get("drill")
    assert worker is not None
    draft = TicketDraft(
        severity=Severity.LOW,
        cause="It repeats itself",
        judge_reasoning="Four times the same call.",
        suggested_action="Look.",
        evidence_snippet="",
    )
    ticket = (await service.tickets.raise_ticket(worker, draft)).ticket

    dismissed = await qr.tickets.dismiss(ticket.ticket_id, "A drill.")

    assert (dismissed.status, dismissed.triaged_by) == ("dismissed", "ada")


async def test_silence_is_created_listed_and_ended(
    qr: AsyncQueenright, running_service: RunningService
) -> None:
    ticket = find_ticket_id(running_service, "looper")
    created = await qr.silences.add(ticket, seconds=3600, comment="known", by="bob")
    [silence] = [row async for row in qr.silences.list() if ticket in row.tickets]
    await qr.silences.remove(silence.silence_id)

    assert silence.silence_id == created.silence_id
    assert ticket not in [name async for row in qr.silences.list() for name in row.tickets]
    assert not (await qr.silences.snapshot()).unknown


@pytest.mark.parametrize(("agent", "is_allowed"), [("looper", True), ("walker", False)])
async def test_queen_request_is_approved_or_denied(
    qr: AsyncQueenright, running_service: RunningService, agent: str, is_allowed: bool
) -> None:
    # Fetch instructions like a worker.
    identity: dict[str, Any] = {"session_id": f"{agent}-session", **INCARNATION}
    instructions_path = f"/api/agents/{agent}/instructions"
    await qr._transport.get_json(instructions_path, **identity)
    ticket = running_service.service.tickets.get(find_ticket_id(running_service, agent))
    assert ticket is not None
    await running_service.service.remediation.queen_actions.request_termination(ticket, "It loops.")
    [pending_request] = [item async for item in qr.approvals.list(only_open=True)]

    if not is_allowed:
        denied = await qr.approvals.deny(pending_request.approval_id, reason="wait")
        assert (denied.status, denied.decided_by) == ("denied", "ada")
        return
    approval_task = asyncio.create_task(qr.approvals.approve(pending_request.approval_id, reason="seen it"))
    [instruction] = (await qr._transport.get_json(instructions_path, **identity, wait=30))["instructions"]
    await qr._transport.send(
        f"{instructions_path}/{instruction['instruction_id']}/answer", identity | {"outcome": "done"}
    )
    approval = await approval_task
    assert (approval.status, approval.outcome) == ("approved", "done")
    assert approval.decided_by == "ada (admin, 127.0.0.1)"


async def test_run_is_stopped_resumed_and_restored_next_to_another_graph(
    qr: AsyncQueenright, running_service: RunningService
) -> None:
    slot = await qr.agents.load("guide")
    name = slot.agent_id
    runtime = running_service.service.agents.get(name).runtime

    async def wait_for_session(execution: str) -> str:
        await until(
            lambda: [n for n in runtime.list_waiting_nodes() if n.execution_id == execution],
            "the run waits for input",
        )
        return next(n.session_id for n in runtime.list_waiting_nodes() if n.execution_id == execution)

    graph = await qr.agents.add_graph(name, "second")
    session = await wait_for_session((await qr.agents.trigger(name, {"topic": "bees"})).execution_id)
    stopped = await qr.agents.stop(name, session_id=session)
    resumed = await qr.agents.resume(name, session)
    await wait_for_session(resumed.execution_id)
    injected = await qr.agents.inject(name, "talk", "Ada", session_id=session)
    await runtime.wait(resumed.execution_id)
    [*_, oldest_checkpoint] = [
        checkpoint.checkpoint_id async for checkpoint in qr.agents.checkpoints(name, session)
    ]
    restored = await qr.agents.restore(name, session, oldest_checkpoint)
    await wait_for_session(restored.execution_id)
    await qr.agents.remove_graph(name, graph.graph_id)

    assert len(stopped.executions) == 1
    assert (injected.node_id, injected.session_id) == ("talk", session)
    assert (resumed.status, restored.status) == ("resumed", "restored")
    assert [graph.graph_id async for graph in qr.agents.graphs(name) if not graph.of_service] == [
        slot.graph_id
    ]
    actions = {"load", "add_graph", "trigger", "stop", "resume", "inject", "restore", "remove_graph"}
    operations = [event async for event in qr.audit.list(types=["agent_operated"], agent_id=name)]
    assert {event.data["what"] for event in operations} == actions
    assert {event.data["by"] for event in operations} == {"ada"}
