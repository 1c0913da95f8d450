"""Instructions reach the right incarnation in time, and are repeated until answered."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable

import pytest
from sqlalchemy import Connection, select

from queenright.health.interventions.instructions import (
    Instruction,
    InstructionClosedError,
    InstructionMailbox,
    InstructionNotFoundError,
)
from queenright.health.interventions.target import Target
from queenright.health.interventions.worker_control import NudgeDelivery, WorkerUnreachableError
from queenright.health.store.store import Store
from queenright.health.store.tables import INSTRUCTIONS
from tests.runtime.conftest import FakeTime

BEE = Target(agent_id="bee", session_id="s", incarnation_id="i1")
SUCCESSOR = Target(agent_id="bee", session_id="s", incarnation_id="i2")


@pytest.fixture
async def store(database_url: str) -> AsyncIterator[Store]:
    new_store = Store.open(database_url)
    yield new_store
    await new_store.close()


@pytest.fixture
def fake_time() -> FakeTime:
    return FakeTime()


@pytest.fixture
async def open_mailbox(store: Store, fake_time: FakeTime) -> Callable[[], InstructionMailbox]:
    return lambda: InstructionMailbox(store, clock=fake_time, sleep=fake_time.sleep)


async def send_nudge(
    mailbox: InstructionMailbox, target: Target = BEE, instruction_id: str = "n1"
) -> NudgeDelivery:
    return await mailbox.nudge(
        target, "are you there?", instruction_id=instruction_id, expires_at=1_000_600.0
    )


def list_messages(instructions: list[Instruction]) -> list[str]:
    return [instruction.message for instruction in instructions]


async def test_worker_that_never_fetched_is_unreachable(
    open_mailbox: Callable[[], InstructionMailbox],
) -> None:
    with pytest.raises(
        WorkerUnreachableError, match="does not fetch instructions; give its Worker an on_nudge"
    ):
        await send_nudge(open_mailbox())


async def test_worker_that_fetched_recently_gets_instruction_at_next_fetch(
    open_mailbox: Callable[[], InstructionMailbox],
) -> None:
    """002 §11: a nudge reaches an agent of any framework."""
    mailbox = open_mailbox()
    assert await mailbox.pull(BEE, 0) == []

    assert await send_nudge(mailbox) is NudgeDelivery.QUEUED

    assert list_messages(await mailbox.pull(BEE, 0)) == ["are you there?"]


async def test_long_poll_returns_instruction_immediately(
    open_mailbox: Callable[[], InstructionMailbox], fake_time: FakeTime
) -> None:
    mailbox = open_mailbox()
    fetch = asyncio.create_task(mailbox.pull(BEE, 25))
    await fake_time.settle()

    await send_nudge(mailbox)

    assert list_messages(await fetch) == ["are you there?"]


async def test_long_poll_without_instruction_returns_empty_list(
    open_mailbox: Callable[[], InstructionMailbox], fake_time: FakeTime
) -> None:
    fetch = asyncio.create_task(open_mailbox().pull(BEE, 25))
    await fake_time.advance(25)

    assert await fetch == []


async def test_instruction_is_repeated_until_answered(
    open_mailbox: Callable[[], InstructionMailbox],
) -> None:
    mailbox = open_mailbox()
    await mailbox.pull(BEE, 0)
    await send_nudge(mailbox)
    assert len(await mailbox.pull(BEE, 0)) == 1
    assert len(await mailbox.pull(BEE, 0)) == 1

    await mailbox.answer(BEE, "n1", "done")
    await mailbox.answer(BEE, "n1", "done")

    assert await mailbox.pull(BEE, 0) == []


async def test_same_id_is_queued_once(open_mailbox: Callable[[], InstructionMailbox]) -> None:
    mailbox = open_mailbox()
    await mailbox.pull(BEE, 0)
    await send_nudge(mailbox)
    await send_nudge(mailbox)

    assert len(await mailbox.pull(BEE, 0)) == 1


async def test_instruction_is_hidden_from_other_incarnations(
    open_mailbox: Callable[[], InstructionMailbox],
) -> None:
    """B67: a nudge for incarnation A is never delivered to B."""
    mailbox = open_mailbox()
    await mailbox.pull(BEE, 0)
    await send_nudge(mailbox)

    assert await mailbox.pull(SUCCESSOR, 0) == []
    with pytest.raises(InstructionClosedError, match="was for incarnation 'i1'"):
        await mailbox.answer(SUCCESSOR, "n1", "done")


async def test_old_incarnation_cannot_fetch_instruction_of_successor(
    open_mailbox: Callable[[], InstructionMailbox],
) -> None:
    """B67: polls by the old process do not remove its successor's instructions."""
    mailbox = open_mailbox()
    await mailbox.pull(BEE, 0)
    await mailbox.pull(SUCCESSOR, 0)
    await send_nudge(mailbox, SUCCESSOR)

    assert await mailbox.pull(BEE, 0) == []

    assert mailbox.can_reach(SUCCESSOR)
    assert list_messages(await mailbox.pull(SUCCESSOR, 0)) == ["are you there?"]


async def test_withheld_instruction_is_delivered_later(store: Store, fake_time: FakeTime) -> None:
    """B71: the emergency stop also withholds queued instructions. B69: so does a legitimate wait."""
    withholding_reasons: list[str] = []
    mailbox = InstructionMailbox(
        store,
        clock=fake_time,
        sleep=fake_time.sleep,
        why_withheld=lambda _: withholding_reasons[0] if withholding_reasons else None,
    )
    await mailbox.pull(BEE, 0)
    await send_nudge(mailbox)

    withholding_reasons.append("the emergency stop is on")
    assert await mailbox.pull(BEE, 0) == []

    withholding_reasons.clear()
    assert list_messages(await mailbox.pull(BEE, 0)) == ["are you there?"]


async def test_expired_instruction_is_dropped(
    open_mailbox: Callable[[], InstructionMailbox], fake_time: FakeTime
) -> None:
    """B67: an expired nudge is dropped, whether or not it was fetched."""
    mailbox = open_mailbox()
    await mailbox.pull(BEE, 0)
    await send_nudge(mailbox)
    fake_time.now = 1_000_600.0

    await mailbox.expire(fake_time.now)

    assert await mailbox.pull(BEE, 0) == []
    with pytest.raises(InstructionClosedError, match="is expired"):
        await mailbox.answer(BEE, "n1", "done")


async def test_unknown_instruction_cannot_be_answered(open_mailbox: Callable[[], InstructionMailbox]) -> None:
    mailbox = open_mailbox()
    await mailbox.pull(BEE, 0)
    await send_nudge(mailbox)
    wasp = Target(agent_id="wasp", session_id="s", incarnation_id="i1")

    for target, instruction_id in ((BEE, "n2"), (wasp, "n1")):
        with pytest.raises(InstructionNotFoundError):
            await mailbox.answer(target, instruction_id, "done")


async def test_instruction_survives_a_restart(open_mailbox: Callable[[], InstructionMailbox]) -> None:
    mailbox = open_mailbox()
    await mailbox.pull(BEE, 0)
    await send_nudge(mailbox)

    reopened_mailbox = open_mailbox()
    await reopened_mailbox.load()

    assert list_messages(await reopened_mailbox.pull(BEE, 0)) == ["are you there?"]


async def test_worker_without_a_fetch_for_two_minutes_is_unreachable(
    open_mailbox: Callable[[], InstructionMailbox], fake_time: FakeTime
) -> None:
    mailbox = open_mailbox()
    await mailbox.pull(BEE, 0)
    fake_time.now += 119
    assert mailbox.can_reach(BEE)
    fake_time.now += 1
    assert not mailbox.can_reach(BEE)


async def test_worker_that_reports_its_stop_has_stopped(
    open_mailbox: Callable[[], InstructionMailbox], fake_time: FakeTime
) -> None:
    """002 §11: a termination stops the agent, and the checkpoint it reports is returned."""
    mailbox = open_mailbox()
    await mailbox.pull(BEE, 0)
    termination = asyncio.create_task(mailbox.terminate(BEE, "stuck", instruction_id="t1", within=30))
    [instruction] = await mailbox.pull(BEE, 25)
    assert (instruction.kind, instruction.message) == ("terminate", "stuck")

    await mailbox.answer(BEE, "t1", "done", detail="saved", checkpoint_id="c7")

    stop_result = await termination
    assert (stop_result.is_confirmed, stop_result.checkpoint_id) == (True, "c7")


@pytest.mark.parametrize("answer", ["refused", "failed", None])
async def test_termination_not_answered_done_is_unconfirmed(
    open_mailbox: Callable[[], InstructionMailbox], fake_time: FakeTime, answer: str | None
) -> None:
    mailbox = open_mailbox()
    await mailbox.pull(BEE, 0)
    termination = asyncio.create_task(mailbox.terminate(BEE, "stuck", instruction_id="t1", within=30))
    assert await mailbox.pull(BEE, 25)
    if answer is None:
        await fake_time.advance(30)
    else:
        await mailbox.answer(BEE, "t1", answer)  # type: ignore[arg-type]

    assert not (await termination).is_confirmed


async def test_secrets_in_an_answer_are_masked(
    open_mailbox: Callable[[], InstructionMailbox], store: Store
) -> None:
    mailbox = open_mailbox()
    await mailbox.pull(BEE, 0)
    await send_nudge(mailbox)
    await mailbox.answer(BEE, "n1", "failed", detail="key sk-ant-api03-abcdefghijklmnopqrstuvwxyz0123456789")

    def read_bodies(conn: Connection) -> str:
        return str(conn.execute(select(INSTRUCTIONS.c.body)).all())

    assert "sk-ant" not in await store.read(read_bodies)
