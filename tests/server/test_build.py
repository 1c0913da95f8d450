"""
Building the service and running it are separate steps. Nothing runs before the start, and a failed build
leaves nothing open.
"""

import asyncio
import contextlib
from pathlib import Path

import pytest

from queenright.server import build as building
from queenright.server.build import build
from queenright.server.ops import background_tasks
from queenright.server.ops.background_tasks import BackgroundTasks
from queenright.server.settings import Settings


async def run_forever() -> None:
    await asyncio.Event().wait()


async def test_build_starts_no_task_and_is_not_ready(tmp_path: Path) -> None:
    tasks_before = asyncio.all_tasks()

    service = await build(Settings(storage=tmp_path))

    assert asyncio.all_tasks() == tasks_before
    assert len(service.ready()) == 1
    await service.start()
    assert service.ready() == []
    await service.stop()
    assert asyncio.all_tasks() == tasks_before


async def test_failed_build_releases_the_database(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail_to_build(*arguments: object, **options: object) -> None:
        raise ValueError("a component cannot be built")

    with monkeypatch.context() as failing_part:
        failing_part.setattr(building, "TicketService", fail_to_build)
        with pytest.raises(ValueError, match="a component cannot be built"):
            await build(Settings(storage=tmp_path))

    service = await build(Settings(storage=tmp_path))
    await service.store.close()


async def test_failed_task_is_listed_and_cancels_no_other(caplog: pytest.LogCaptureFixture) -> None:
    async def fail() -> None:
        raise RuntimeError("a task failed")

    tasks = BackgroundTasks()
    await tasks.start({"fails": fail, "goes on": run_forever})
    await asyncio.wait([tasks["fails"]])

    assert tasks.list_stopped() == ["fails"]
    assert "background task 'fails' failed" in caplog.text
    await tasks.stop()


async def test_stop_cancels_all_tasks_and_waits_for_them() -> None:
    cleaned_up: list[str] = []

    async def clean_up() -> None:
        try:
            await run_forever()
        finally:
            await asyncio.sleep(0)
            cleaned_up.append("done")

    tasks = BackgroundTasks()
    await tasks.start({"first": clean_up})
    tasks.add("second", clean_up)
    await asyncio.sleep(0)
    await tasks.stop()

    assert cleaned_up == ["done", "done"]
    assert tasks.list_stopped() == ["first", "second"]


async def test_stop_before_a_task_has_run_leaves_no_unawaited_coroutine() -> None:
    tasks = BackgroundTasks()
    await tasks.start({"never": run_forever})
    await tasks.stop()

    assert tasks["never"].cancelled()


async def test_stop_ends_a_task_that_swallows_a_cancellation(monkeypatch: pytest.MonkeyPatch) -> None:
    """In Python 3.11, `asyncio.wait_for` in a client library can swallow a cancellation."""
    monkeypatch.setattr(background_tasks, "_CANCEL_SECONDS", 0.01)
    cancellations: list[str] = []

    async def ignore_cancellation() -> None:
        with contextlib.suppress(asyncio.CancelledError):
            await run_forever()
        cancellations.append("once")
        await run_forever()

    tasks = BackgroundTasks()
    await tasks.start({"stubborn": ignore_cancellation})
    await asyncio.sleep(0)
    await tasks.stop()

    assert cancellations == ["once"]
    assert tasks.list_stopped() == ["stubborn"]
