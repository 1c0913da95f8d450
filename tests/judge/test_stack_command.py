"""What the job's command says and returns when something is not as it should be."""

from __future__ import annotations

import asyncio
import json
import os
import signal
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from queenright.cli.judge_job import JobOptions, run_always, run_once
from queenright.judge.stack.http import QueryRefused
from queenright.judge.stack.job import Look, StackJudge
from queenright.judge.stack.unseen import TOLD_AFTER
from tests.judge.stack_parts import serving
from tests.judge.test_stack_job import Stack, up
from tests.judge.test_stack_workers import row


@pytest.fixture
async def stack(tmp_path: Path) -> AsyncIterator[Stack]:
    made = Stack(tmp_path)
    async with serving(made.answer) as (_, made.url):
        yield made


async def once(stack: Stack, **more: Any) -> int:
    options = JobOptions(prometheus=stack.url, state=stack.storage / "state", **more)
    return await asyncio.to_thread(run_once, options)


async def test_samples_that_are_no_numbers_are_counted_and_stop_nothing(
    stack: Stack, capsys: pytest.CaptureFixture[str]
) -> None:
    stack.is_stuck()
    stack.told["totals"] = [row("steps_total", float("nan")), row("custom", 1)]

    assert await once(stack) == 1
    assert "1 workers, 1 tickets, 0 dismissed, 2 samples skipped" in capsys.readouterr().out


async def test_a_ticket_says_since_when_its_worker_is_not_seen_and_what_to_do(
    stack: Stack, capsys: pytest.CaptureFixture[str]
) -> None:
    stack.is_stuck()
    codes = [await once(stack)]
    stack.says(up(0))
    stack.told["here"] = [row("last_activity_timestamp_seconds", stack.now, "somebody_else")]
    codes.append(await once(stack))
    at_first = capsys.readouterr().out
    stack.now += TOLD_AFTER
    stack.told["here"] = [row("last_activity_timestamp_seconds", stack.now, "somebody_else")]
    codes += [await once(stack), await once(stack, as_json=True)]
    *words, line = capsys.readouterr().out.splitlines()
    codes.append(await once(stack, gone=("workers/host:9464",)))

    assert codes == [1, 1, 1, 1, 0]
    assert "its worker is not seen" not in at_first
    why = "its target is down, and its last word is older than an hour"
    assert (
        f"  its worker is not seen since 2027-01-15T08:00:00.000+00:00: {why}; "
        "if it is no more, say --gone workers/host:9464" in words
    )
    assert json.loads(line)["unseen"] == {"since": "2027-01-15T08:00:00.000+00:00", "why": why}


@pytest.mark.parametrize("allow_empty", [False, True])
async def test_nobody_seen_and_a_ticket_is_not_known(
    stack: Stack, allow_empty: bool, capsys: pytest.CaptureFixture[str]
) -> None:
    stack.is_stuck()
    await once(stack)
    stack.says()

    assert await once(stack, allow_empty=allow_empty) == 3
    told = capsys.readouterr()
    assert "1 tickets, 0 dismissed, 1 not seen" in told.out
    assert "no worker is seen at all, though there are tickets, which stay" in told.err


async def test_what_nobody_has_thought_of_is_not_known_and_shows_no_secret(
    stack: Stack,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def broken(self: StackJudge) -> Look:
        raise KeyError("password=hunter2hunter2")

    monkeypatch.setattr(StackJudge, "look", broken)

    assert await once(stack) == 3
    said = capsys.readouterr().err
    assert "not known how the workers are: KeyError" in said
    assert "in broken" in caplog.text
    assert "hunter2" not in said + caplog.text


def test_a_state_that_cannot_be_used_is_not_known(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "state").write_text("")

    assert run_once(JobOptions(prometheus="http://127.0.0.1:1", state=tmp_path / "state")) == 3
    assert "File exists" in capsys.readouterr().err


def test_run_goes_on_whatever_a_look_comes_to(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    looks: list[Exception | None] = [
        ZeroDivisionError("division by zero"),
        None,
        QueryRefused("http://prometheus", "422 too many samples"),
        RuntimeError("once more"),
    ]

    async def broken(self: StackJudge) -> Look:
        fault = looks.pop(0)
        if not looks:
            os.kill(os.getpid(), signal.SIGTERM)
        if fault is not None:
            raise fault
        return Look(at=0.0, workers=(), tickets=(), closed=(), dismissed=0, unknown=0)

    monkeypatch.setattr(StackJudge, "look", broken)

    assert run_always(JobOptions(prometheus="http://127.0.0.1:1", state=tmp_path), 0.0) == 0
    said = capsys.readouterr().err
    assert looks == []
    assert "ZeroDivisionError: division by zero" in said
    assert "422 too many samples" in said
    assert "RuntimeError: once more" in said


def test_run_ends_at_once_where_the_selector_is_wrong(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    async def broken(self: StackJudge) -> Look:
        raise QueryRefused("http://prometheus", "400 parse error")

    monkeypatch.setattr(StackJudge, "look", broken)

    assert run_always(JobOptions(prometheus="http://127.0.0.1:1", state=tmp_path), 0.0) == 2
    assert "parse error" in capsys.readouterr().err
