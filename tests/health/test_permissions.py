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
from tests.health.acting import Acting

BEE = Target(agent_id="bee", session_id="bee-1", incarnation_id="i1")


class PermissionDesk:
    """A worker with permission requests, and the service that answers them."""

    def __init__(self, acting: Acting, wait_seconds: float = 30.0) -> None:
        self.acting = acting
        self.permissions = Permissions(
            wait_seconds,
            answer=acting.service.answer_permission,
            clock=acting.time,
            sleep=acting.time.sleep,
            ids=acting.ids,
        )

    async def ask(self, question: str = "Bash: rm -rf build") -> asyncio.Task[PermissionAnswer | None]:
        waiting = asyncio.create_task(self.permissions.wait(BEE, tool="Bash", question=question))
        await asyncio.sleep(0)
        return waiting

    @property
    def newest(self) -> str:
        return self.permissions.open_requests()[0].request_id

    async def refused(self, request_id: str, decision: Any = "allow") -> str:
        with pytest.raises(ActionRefusedError) as refused:
            await self.permissions.answer(request_id, decision, by="ada")
        return refused.value.reason

    async def outcomes(self) -> list[tuple[str, str, str]]:
        interventions = await self.acting.interventions()
        return [
            (intervention.kind.value, intervention.outcome.value, intervention.by)
            for intervention in interventions
        ]


@pytest.fixture
async def store(tmp_path: Path) -> AsyncIterator[Store]:
    opened = Store.open(f"sqlite:///{tmp_path / 'q.db'}")
    yield opened
    await opened.close()


@pytest.fixture
async def desk(store: Store) -> AsyncIterator[PermissionDesk]:
    acting = Acting(store)
    await acting.start()
    yield PermissionDesk(acting)
    await acting.service.close()


@pytest.mark.parametrize("decision", ["allow", "deny"])
async def test_answer_reaches_the_request_and_is_recorded(desk: PermissionDesk, decision: Any) -> None:
    """B93: the answer and its author are recorded as an intervention."""
    waiting = await desk.ask()

    answer = await desk.permissions.answer(desk.newest, decision, by="ada", reason="it is old")

    assert await waiting == PermissionAnswer(decision=decision, by="ada", reason="it is old")
    assert (answer.kind.value, answer.outcome, answer.by) == ("answer", InterventionOutcome.DONE, "ada")
    assert (answer.message, answer.reason) == (f"{decision}: Bash: rm -rf build", "it is old")
    assert await desk.outcomes() == [("answer", "done", "ada")]
    assert desk.permissions.open_requests() == []


async def test_late_answer_is_refused(desk: PermissionDesk) -> None:
    """B93."""
    waiting = await desk.ask()
    request_id = desk.newest
    await desk.acting.time.advance(30)

    assert await waiting is None
    result = await desk.refused(request_id)
    assert "30 s" in result
    assert await desk.outcomes() == [("answer", "refused", "ada")]


async def test_second_answer_is_refused_with_the_name_of_the_first(desk: PermissionDesk) -> None:
    """B93: a request is answered once."""
    waiting = await desk.ask()
    request_id = desk.newest

    first, second = await asyncio.gather(
        desk.permissions.answer(request_id, "allow", by="ada"),
        desk.permissions.answer(request_id, "deny", by="bob"),
        return_exceptions=True,
    )

    assert not isinstance(first, BaseException)
    assert isinstance(second, ActionRefusedError)
    given_answer = await waiting
    assert given_answer is not None
    assert given_answer.decision == "allow"
    assert "allow by ada" in await desk.refused(request_id, "deny")


async def test_client_that_hung_up_is_not_answered(desk: PermissionDesk) -> None:
    """B93: the person at the terminal answered first, or the agent's own limit was shorter."""
    waiting = await desk.ask()
    request_id = desk.newest
    waiting.cancel()
    await asyncio.gather(waiting, return_exceptions=True)

    assert "its client no longer waits" in await desk.refused(request_id)


async def test_answer_after_the_person_at_the_terminal_is_refused(desk: PermissionDesk) -> None:
    """B93: a client may ask at the terminal and in Queenright at the same time; the first answer counts."""
    is_pending = True
    waiting = asyncio.create_task(
        desk.permissions.wait(BEE, tool="Bash", question="?", is_pending=lambda: is_pending)
    )
    await asyncio.sleep(0)
    request_id = desk.newest
    is_pending = False

    assert desk.permissions.open_requests() == []
    assert "its user answered at the terminal" in await desk.refused(request_id)
    desk.permissions.release_answered()
    assert await waiting is None
    assert "its user answered at the terminal" in await desk.refused(request_id)


async def test_unknown_request_is_not_answered(desk: PermissionDesk) -> None:
    with pytest.raises(PermissionNotFoundError, match="no permission request 'nothing'"):
        await desk.permissions.answer("nothing", "allow", by="ada")


async def test_permission_answer_is_not_sent_to_another_incarnation(desk: PermissionDesk) -> None:
    """B93: a restarted agent sends a new request."""
    waiting = await desk.ask()
    request_id = desk.newest
    await desk.acting.start(incarnation="i2")

    assert "the worker was restarted in the meantime" in await desk.refused(request_id)
    await desk.acting.time.advance(30)
    assert await waiting is None


async def test_emergency_stop_leaves_permission_requests_to_the_terminal(desk: PermissionDesk) -> None:
    waiting = await desk.ask()
    request_id = desk.newest
    await desk.acting.stop.set(True, by="ada", reason="an incident")

    assert "an incident" in await desk.refused(request_id)
    await desk.acting.time.advance(30)
    assert await waiting is None


async def test_dry_run_records_the_answer_and_sends_none(store: Store) -> None:
    acting = Acting(store, dry_run=True)
    await acting.start()
    result = PermissionDesk(acting)
    waiting = await result.ask()

    answer = await result.permissions.answer(result.newest, "allow", by="ada")

    assert answer.outcome is InterventionOutcome.DRY_RUN
    await acting.time.advance(30)
    assert await waiting is None
    await acting.service.close()


async def test_nothing_waits_unless_answering_is_turned_on(desk: PermissionDesk) -> None:
    """B93: by default, Queenright does not answer requests."""
    off = PermissionDesk(desk.acting, wait_seconds=0)

    assert await off.permissions.wait(BEE, tool="Bash", question="?") is None
    assert off.permissions.open_requests() == []


async def test_service_that_stops_leaves_all_to_the_terminal(desk: PermissionDesk) -> None:
    waiting = [await desk.ask(), await desk.ask()]
    desk.permissions.close()

    assert await asyncio.gather(*waiting) == [None, None]
    assert await desk.permissions.wait(BEE, tool="Bash", question="?") is None


async def test_requests_are_bounded(desk: PermissionDesk, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MAX_OPEN", 2)
    monkeypatch.setattr(module, "MAX_CLOSED", 1)
    waiting = [await desk.ask(), await desk.ask()]
    ids = [request.request_id for request in desk.permissions.open_requests()]

    assert await desk.permissions.wait(BEE, tool="Bash", question="a third") is None
    await desk.acting.time.advance(30)
    assert await asyncio.gather(*waiting) == [None, None]
    known = 0
    for request_id in ids:
        with pytest.raises((ActionRefusedError, PermissionNotFoundError)) as error:
            await desk.permissions.answer(request_id, "allow", by="ada")
        known += isinstance(error.value, ActionRefusedError)
    assert known == 1


@given(steps=st.lists(st.sampled_from(["ask", "allow", "deny", "hang up", "10 s"]), max_size=20))
def test_each_request_ends_exactly_once(steps: list[str]) -> None:
    """B93: every request ends, and gets the answer that was accepted."""
    asyncio.run(_play(steps))


async def _play(steps: list[str]) -> None:
    now = 1000.0
    sleeping: list[tuple[float, asyncio.Future[None]]] = []

    async def sleep(seconds: float) -> None:
        done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        sleeping.append((now + seconds, done))
        await done

    async def deliver(request: Any, decision: Any, *, unless: Any, deliver: Any, **_: Any) -> Any:
        if unless() is not None:
            raise ActionRefusedError(ActionKind.ANSWER, request.agent_id, unless())
        await asyncio.sleep(0)  # the disk
        deliver()

    ids = iter(range(1000))
    permissions = Permissions(30, answer=deliver, clock=lambda: now, sleep=sleep, ids=lambda: str(next(ids)))
    waiting: list[asyncio.Task[PermissionAnswer | None]] = []
    accepted: dict[int, str] = {}
    for step in steps:
        if step == "ask":
            waiting.append(asyncio.create_task(permissions.wait(BEE, tool="t", question="q")))
        elif step == "10 s":
            now += 10
            for at, done in sleeping:
                if at <= now and not done.done():
                    done.set_result(None)
        elif waiting and step == "hang up":
            waiting[-1].cancel()
        elif waiting:
            number = len(waiting) - 1
            try:
                await permissions.answer(str(number), step, by="ada")  # type: ignore[arg-type]
            except ActionRefusedError:
                pass
            else:
                assert number not in accepted
                accepted[number] = step
        for _ in range(5):
            await asyncio.sleep(0)
    permissions.close()
    ends = await asyncio.gather(*waiting, return_exceptions=True)
    assert permissions.open_requests() == []
    for number, end in enumerate(ends):
        given_answer = end.decision if isinstance(end, PermissionAnswer) else None
        assert given_answer == accepted.get(number)
