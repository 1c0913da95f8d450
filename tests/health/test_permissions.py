"""Permissions on a simulated clock: an answer reaches its request once and in time."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from queenright.health.action_kind import ActionKind
from queenright.health.interventions import permissions as module
from queenright.health.interventions.intervention import InterventionOutcome
from queenright.health.interventions.permissions import PermissionAnswer, PermissionNotFoundError, Permissions
from queenright.health.interventions.permit import ActionRefusedError
from queenright.health.interventions.target import Target
from queenright.health.store.store import Store
from tests.health.monitored_fleet import MonitoredFleet

BEE = Target(agent_id="bee", session_id="bee-1", incarnation_id="i1")


class PermissionDesk:
    """A worker with permission requests, and the service that answers them."""

    def __init__(self, fleet: MonitoredFleet, wait_seconds: float = 30.0) -> None:
        self.fleet = fleet
        self.permissions = Permissions(
            wait_seconds,
            answer=fleet.service.answer_permission,
            clock=fleet.time,
            sleep=fleet.time.sleep,
            ids=fleet.make_id,
        )

    async def ask(self, question: str = "Bash: rm -rf build") -> asyncio.Task[PermissionAnswer | None]:
        request_task = asyncio.create_task(self.permissions.wait(BEE, tool="Bash", question=question))
        await asyncio.sleep(0)
        return request_task

    @property
    def newest(self) -> str:
        return self.permissions.open_requests()[0].request_id

    async def expect_refusal(self, request_id: str, decision: Any = "allow") -> str:
        with pytest.raises(ActionRefusedError) as error_info:
            await self.permissions.answer(request_id, decision, by="ada")
        return error_info.value.reason

    async def list_outcomes(self) -> list[tuple[str, str, str]]:
        interventions = await self.fleet.list_interventions()
        return [
            (intervention.kind.value, intervention.outcome.value, intervention.by)
            for intervention in interventions
        ]


@pytest.fixture
async def store(tmp_path: Path) -> AsyncIterator[Store]:
    new_store = Store.open(f"sqlite:///{tmp_path / 'q.db'}")
    yield new_store
    await new_store.close()


@pytest.fixture
async def desk(store: Store) -> AsyncIterator[PermissionDesk]:
    fleet = MonitoredFleet(store)
    await fleet.start_worker()
    yield PermissionDesk(fleet)
    await fleet.service.close()


@pytest.mark.parametrize("decision", ["allow", "deny"])
async def test_answer_reaches_the_request_and_is_recorded(desk: PermissionDesk, decision: Any) -> None:
    """B93: the answer and its author are recorded as an intervention."""
    request_task = await desk.ask()

    answer = await desk.permissions.answer(desk.newest, decision, by="ada", reason="it is old")

    assert await request_task == PermissionAnswer(decision=decision, by="ada", reason="it is old")
    assert (answer.kind.value, answer.outcome, answer.by) == ("answer", InterventionOutcome.DONE, "ada")
    assert (answer.message, answer.reason) == (f"{decision}: Bash: rm -rf build", "it is old")
    assert await desk.list_outcomes() == [("answer", "done", "ada")]
    assert desk.permissions.open_requests() == []


async def test_late_answer_is_refused(desk: PermissionDesk) -> None:
    """B93."""
    request_task = await desk.ask()
    request_id = desk.newest
    await desk.fleet.time.advance(30)

    assert await request_task is None
    refusal_reason = await desk.expect_refusal(request_id)
    assert "30 s" in refusal_reason
    assert await desk.list_outcomes() == [("answer", "refused", "ada")]


async def test_second_answer_is_refused_with_the_name_of_the_first(desk: PermissionDesk) -> None:
    """B93: a request is answered once."""
    request_task = await desk.ask()
    request_id = desk.newest

    first, second = await asyncio.gather(
        desk.permissions.answer(request_id, "allow", by="ada"),
        desk.permissions.answer(request_id, "deny", by="bob"),
        return_exceptions=True,
    )

    assert not isinstance(first, BaseException)
    assert isinstance(second, ActionRefusedError)
    given_answer = await request_task
    assert given_answer is not None
    assert given_answer.decision == "allow"
    assert "allow by ada" in await desk.expect_refusal(request_id, "deny")


async def test_client_that_hung_up_is_not_answered(desk: PermissionDesk) -> None:
    """B93: the person at the terminal answered first, or the agent's own limit was shorter."""
    request_task = await desk.ask()
    request_id = desk.newest
    request_task.cancel()
    await asyncio.gather(request_task, return_exceptions=True)

    assert "its client no longer waits" in await desk.expect_refusal(request_id)


async def test_answer_after_the_person_at_the_terminal_is_refused(desk: PermissionDesk) -> None:
    """B93: a client may ask at the terminal and in Queenright at the same time; the first answer counts."""
    is_pending = True
    request_task = asyncio.create_task(
        desk.permissions.wait(BEE, tool="Bash", question="?", is_pending=lambda: is_pending)
    )
    await asyncio.sleep(0)
    request_id = desk.newest
    is_pending = False

    assert desk.permissions.open_requests() == []
    assert "its user answered at the terminal" in await desk.expect_refusal(request_id)
    desk.permissions.release_answered()
    assert await request_task is None
    assert "its user answered at the terminal" in await desk.expect_refusal(request_id)


async def test_unknown_request_is_not_answered(desk: PermissionDesk) -> None:
    with pytest.raises(PermissionNotFoundError, match="no permission request 'nothing'"):
        await desk.permissions.answer("nothing", "allow", by="ada")


async def test_permission_answer_is_not_sent_to_another_incarnation(desk: PermissionDesk) -> None:
    """B93: a restarted agent sends a new request."""
    request_task = await desk.ask()
    request_id = desk.newest
    await desk.fleet.start_worker(incarnation="i2")

    assert "the worker was restarted in the meantime" in await desk.expect_refusal(request_id)
    await desk.fleet.time.advance(30)
    assert await request_task is None


async def test_emergency_stop_leaves_permission_requests_to_the_terminal(desk: PermissionDesk) -> None:
    request_task = await desk.ask()
    request_id = desk.newest
    await desk.fleet.stop.set(True, by="ada", reason="an incident")

    assert "an incident" in await desk.expect_refusal(request_id)
    await desk.fleet.time.advance(30)
    assert await request_task is None


async def test_dry_run_records_the_answer_and_sends_none(store: Store) -> None:
    fleet = MonitoredFleet(store, dry_run=True)
    await fleet.start_worker()
    dry_run_desk = PermissionDesk(fleet)
    request_task = await dry_run_desk.ask()

    answer = await dry_run_desk.permissions.answer(dry_run_desk.newest, "allow", by="ada")

    assert answer.outcome is InterventionOutcome.DRY_RUN
    await fleet.time.advance(30)
    assert await request_task is None
    await fleet.service.close()


async def test_permission_requests_do_not_wait_by_default(desk: PermissionDesk) -> None:
    """B93: by default, Queenright does not answer requests."""
    desk_without_answers = PermissionDesk(desk.fleet, wait_seconds=0)

    assert await desk_without_answers.permissions.wait(BEE, tool="Bash", question="?") is None
    assert desk_without_answers.permissions.open_requests() == []


async def test_service_that_stops_leaves_requests_to_the_terminal(desk: PermissionDesk) -> None:
    request_tasks = [await desk.ask(), await desk.ask()]
    desk.permissions.close()

    assert await asyncio.gather(*request_tasks) == [None, None]
    assert await desk.permissions.wait(BEE, tool="Bash", question="?") is None


async def test_requests_are_bounded(desk: PermissionDesk, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MAX_OPEN", 2)
    monkeypatch.setattr(module, "MAX_CLOSED", 1)
    request_tasks = [await desk.ask(), await desk.ask()]
    ids = [request.request_id for request in desk.permissions.open_requests()]

    assert await desk.permissions.wait(BEE, tool="Bash", question="a third") is None
    await desk.fleet.time.advance(30)
    assert await asyncio.gather(*request_tasks) == [None, None]
    request_count = 0
    for request_id in ids:
        with pytest.raises((ActionRefusedError, PermissionNotFoundError)) as error:
            await desk.permissions.answer(request_id, "allow", by="ada")
        request_count += isinstance(error.value, ActionRefusedError)
    assert request_count == 1


@given(steps=st.lists(st.sampled_from(["ask", "allow", "deny", "hang up", "10 s"]), max_size=20))
def test_each_request_ends_exactly_once(steps: list[str]) -> None:
    """B93: every request ends, and gets the answer that was accepted."""
    asyncio.run(_play(steps))


async def _play(steps: list[str]) -> None:
    now = 1000.0
    sleeping: list[tuple[float, asyncio.Future[None]]] = []

    async def sleep(seconds: float) -> None:
        wakeup: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        sleeping.append((now + seconds, wakeup))
        await wakeup

    async def deliver(request: Any, decision: Any, *, unless: Any, deliver: Any, **_: Any) -> Any:
        if unless() is not None:
            raise ActionRefusedError(ActionKind.ANSWER, request.agent_id, unless())
        await asyncio.sleep(0)  # the disk
        deliver()

    ids = iter(range(1000))
    permissions = Permissions(30, answer=deliver, clock=lambda: now, sleep=sleep, ids=lambda: str(next(ids)))
    request_tasks: list[asyncio.Task[PermissionAnswer | None]] = []
    accepted_decisions: dict[int, str] = {}
    for step in steps:
        if step == "ask":
            request_tasks.append(asyncio.create_task(permissions.wait(BEE, tool="t", question="q")))
        elif step == "10 s":
            now += 10
            for wakeup_time, wakeup in sleeping:
                if wakeup_time <= now and not wakeup.done():
                    wakeup.set_result(None)
        elif request_tasks and step == "hang up":
            request_tasks[-1].cancel()
        elif request_tasks:
            number = len(request_tasks) - 1
            try:
                await permissions.answer(str(number), step, by="ada")  # type: ignore[arg-type]
            except ActionRefusedError:
                pass
            else:
                assert number not in accepted_decisions
                accepted_decisions[number] = step
        for _ in range(5):
            await asyncio.sleep(0)
    permissions.close()
    results = await asyncio.gather(*request_tasks, return_exceptions=True)
    assert permissions.open_requests() == []
    for number, end in enumerate(results):
        given_answer = end.decision if isinstance(end, PermissionAnswer) else None
        assert given_answer == accepted_decisions.get(number)
