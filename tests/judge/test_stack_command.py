"""What the job's command says and returns when something is not as it should be."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
from collections.abc import AsyncIterator, Callable
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest.mock import AsyncMock

import pytest

from queenright.cli.jobs.judge import TicketChanges, run_forever, run_once
from queenright.cli.options import JobOptions
from queenright.cli.output.text import local_time
from queenright.health.store.database import StoreError
from queenright.health.store.retention import Retention
from queenright.health.store.store import Store
from queenright.health.tickets.ticket_table import find_ticket
from queenright.judge.stack.http import InvalidQueryError, InvalidSelectorError
from queenright.judge.stack.stale_tickets import REPORT_AFTER_SECONDS, MissingWorker
from queenright.judge.stack_job import CheckResult, StackJudge
from queenright.server.ops.sockets import listen, serve_app, socket_url
from tests.alerting.parts import ticket
from tests.judge.stack_parts import serving
from tests.judge.test_stack_job import SETTINGS, Stack, up
from tests.judge.test_stack_workers import row


@pytest.fixture
async def stack(tmp_path: Path) -> AsyncIterator[Stack]:
    made = Stack(tmp_path)
    async with serving(made.answer) as (_, made.url):
        yield made


@contextlib.asynccontextmanager
async def alertmanager(told: list[Any]) -> AsyncIterator[str]:
    """Something that takes alerts as Alertmanager does."""

    async def take(scope: Any, receive: Any, send: Any) -> None:
        body, more = b"", True
        while more:
            message = await receive()
            body, more = body + message.get("body", b""), message.get("more_body", False)
        told.extend(json.loads(body))
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": b"{}"})

    sock = listen("127.0.0.1", 0, what="a stand-in", option="")
    with contextlib.closing(sock):
        async with serve_app(take, sock):
            yield socket_url(sock)


@pytest.fixture
def no_key(monkeypatch: pytest.MonkeyPatch) -> str:
    """A model that fails at every call, before anything is sent."""
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)
    return "openai/gpt-5-mini"


async def once(stack: Stack, **more: Any) -> int:
    allow_empty = more.pop("allow_empty", False)
    options = JobOptions(**{"prometheus": stack.url, "state": stack.storage / "state", **more})
    return await asyncio.to_thread(run_once, options, allow_empty=allow_empty)


async def test_samples_that_are_not_numbers_are_counted_and_stop_nothing(
    stack: Stack, capsys: pytest.CaptureFixture[str]
) -> None:
    stack.is_stuck()
    stack.told["totals"] = [row("steps_total", float("nan")), row("custom", 1)]

    assert await once(stack) == 1
    assert "1 worker, 1 ticket, 0 dismissed, 2 samples skipped" in capsys.readouterr().out


async def test_ticket_names_since_when_its_worker_is_missing_and_what_to_do(
    stack: Stack, capsys: pytest.CaptureFixture[str]
) -> None:
    stack.is_stuck()
    codes = [await once(stack)]
    stack.says(up(0))
    stack.told["here"] = [row("last_activity_timestamp_seconds", stack.now, "somebody_else")]
    codes.append(await once(stack))
    at_first = capsys.readouterr().out
    stack.now += REPORT_AFTER_SECONDS
    stack.told["here"] = [row("last_activity_timestamp_seconds", stack.now, "somebody_else")]
    codes += [await once(stack), await once(stack, as_json=True)]
    *words, line = capsys.readouterr().out.splitlines()
    codes.append(await once(stack, gone=["workers/host:9464"]))

    assert codes == [1, 1, 1, 1, 0]
    assert "its worker is not seen" not in at_first
    why = "its target is down, and its last metrics are older than an hour"
    assert all(
        part in " ".join(words) for part in (local_time(1_800_000_000.0), why, "--gone workers/host:9464")
    )
    assert json.loads(line)["unseen"] == {"since": 1_800_000_000.0, "why": why}


def test_unchanged_findings_of_a_missing_worker_are_not_repeated(
    capsys: pytest.CaptureFixture[str],
) -> None:
    known = ticket()
    unseen = {known.ticket_id: MissingWorker(0.0, "its target is down")}
    look = CheckResult(
        at=2 * REPORT_AFTER_SECONDS,
        workers=(),
        tickets=(known,),
        closed_tickets=(),
        dismissed=0,
        unknown=0,
        missing=unseen,
    )
    news = TicketChanges(as_json=False)
    news.print_check(look)
    capsys.readouterr()

    news.print_tickets([known])
    news.print_check(look)

    assert capsys.readouterr().out == ""


@pytest.mark.parametrize("allow_empty", [False, True])
async def test_no_workers_with_an_open_ticket_is_unknown(
    stack: Stack, allow_empty: bool, capsys: pytest.CaptureFixture[str]
) -> None:
    stack.is_stuck()
    await once(stack)
    stack.says()

    assert await once(stack, allow_empty=allow_empty) == 3
    output = capsys.readouterr()
    assert "1 ticket, 0 dismissed, 1 without metrics" in output.out
    assert "there are tickets, but no worker has metrics" in output.err


async def test_unexpected_error_is_unknown_and_shows_no_secret(
    stack: Stack,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def broken(self: StackJudge) -> CheckResult:
        raise KeyError("password=hunter2hunter2")

    monkeypatch.setattr(StackJudge, "check", broken)

    assert await once(stack) == 3
    output = capsys.readouterr().err
    assert "KeyError" in output
    assert "in broken" in caplog.text
    assert "hunter2" not in output + caplog.text


@pytest.mark.parametrize("go", [run_once, lambda options: run_forever(options, 0.0)])
@pytest.mark.parametrize("state", ["/proc/nope", "{tmp}/file", "{tmp}/file/below"])
def test_unusable_state_file_is_a_one_line_usage_error(
    tmp_path: Path, state: str, go: Callable[[JobOptions], int], capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "file").write_text("")
    folder = Path(state.format(tmp=tmp_path))

    assert go(JobOptions(prometheus="http://127.0.0.1:1", state=folder)) == 2
    [line] = capsys.readouterr().err.splitlines()
    assert line.startswith(f"queenright: the folder {folder} cannot be used: ")
    assert "--state" in line


def test_run_continues_after_any_check_result(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    looks: list[Exception | None] = [
        ZeroDivisionError("division by zero"),
        None,
        InvalidQueryError("http://prometheus", "422 too many samples"),
        RuntimeError("once more"),
    ]

    async def broken(self: StackJudge) -> CheckResult:
        fault = looks.pop(0)
        if not looks:
            os.kill(os.getpid(), signal.SIGTERM)
        if fault is not None:
            raise fault
        return CheckResult(at=0.0, workers=(), tickets=(), closed_tickets=(), dismissed=0, unknown=0)

    monkeypatch.setattr(StackJudge, "check", broken)

    assert run_forever(JobOptions(prometheus="http://127.0.0.1:1", state=tmp_path), 0.0) == 0
    output = capsys.readouterr().err
    assert looks == []
    assert "ZeroDivisionError" in output
    assert "422 too many samples" in output
    assert "RuntimeError: once more" in output


@pytest.mark.parametrize(
    "selector", ["foo", "{job=", "{job=workers}", 'up{job="x"}', '{job="x" cluster="y"}', '{job="x}', "{job}"]
)
def test_invalid_selector_is_named_without_a_query(selector: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run_once(JobOptions(prometheus="http://127.0.0.1:1", selector=selector)) == 2
    [line] = capsys.readouterr().err.splitlines()
    assert "--selector" in line
    assert line.endswith(f"not {selector!r}")


@pytest.mark.parametrize(
    "selector",
    ["", "{}", " {a='b',} ", 'a="b", c!~`d,}`', '{"a.b"="c", __d_=~"e|\\"f"}', "{a!='{'}"],
)
async def test_matchers_in_any_spelling_are_queried(stack: Stack, selector: str) -> None:
    stack.is_stuck()

    assert await once(stack, selector=selector) == 1


async def test_prometheus_selector_error_is_reported_for_the_selector(
    stack: Stack, capsys: pytest.CaptureFixture[str]
) -> None:
    def refuse(path: str, params: dict[str, str]) -> tuple[int, Any]:
        if params["query"] == "time()":
            return stack.answer(path, params)
        return 400, {"error": 'invalid parameter "query": 1:77: parse error: missing closing ): `(`'}

    options = JobOptions(selector='{job=~"("}')
    async with serving(refuse) as (_, url):
        assert await asyncio.to_thread(run_once, replace(options, prometheus=url)) == 2
    output = capsys.readouterr().err
    assert """--selector '{job=~"("}'""" in output
    assert "parse error: missing closing ): `(`" in output
    assert "1:77" not in output


@pytest.mark.parametrize(
    ("status", "body"),
    [
        (404, b"404 page not found"),
        (400, b"The plain HTTP request was sent to HTTPS port"),
        (422, b"many"),
        (200, b"<html>"),
    ],
)
async def test_other_server_is_not_accepted_as_prometheus(
    status: int, body: bytes, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    async with serving(lambda path, params: (status, body)) as (_, url):
        options = JobOptions(prometheus=url, selector='{job="x"}', state=tmp_path)
        assert await asyncio.to_thread(run_once, options) == 3
    output = capsys.readouterr().err
    assert url in output
    if status in (404, 200):
        assert "check the address" in output


def test_run_does_not_end_where_the_first_look_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    looks: list[Exception | None] = [InvalidQueryError("http://prometheus", "422 too many samples"), None]

    async def look(self: StackJudge) -> CheckResult:
        fault = looks.pop(0)
        if fault is not None:
            raise fault
        os.kill(os.getpid(), signal.SIGTERM)
        return CheckResult(at=0.0, workers=(), tickets=(), closed_tickets=(), dismissed=0, unknown=0)

    monkeypatch.setattr(StackJudge, "check", look)

    assert run_forever(JobOptions(prometheus="http://127.0.0.1:1", state=tmp_path), 0.0) == 0
    assert looks == []
    assert "422 too many samples" in capsys.readouterr().err


# -- who is told, and in which words --------------------------------------------------------------


@pytest.mark.parametrize("state", [None, "kept"])
async def test_undecided_binding_ticket_is_notified_at_the_end_of_the_check(
    stack: Stack, state: str | None, tmp_path: Path, no_key: str, capsys: pytest.CaptureFixture[str]
) -> None:
    stack.is_stuck()
    notified: list[Any] = []
    async with alertmanager(notified) as url:
        more = {"alertmanager": [url], "model": no_key, "state": state and tmp_path / state}
        codes = [await once(stack, **more)]
        stack.now += 300
        stack.is_stuck()
        codes.append(await once(stack, **more))

    assert codes == [1, 1]
    assert [alert["labels"]["severity"] for alert in notified] == ["critical"] * len(notified)
    assert notified, "nothing was told"
    # DESIGN 36: without a state each job has a ticket of its own about it, and yet it is one alert.
    assert len({alert["labels"]["ticket_id"] for alert in notified}) == 1
    out = capsys.readouterr().out
    assert out.count("critical intervening") == 2
    assert all("Untriaged: " in json.dumps(alert["annotations"]) for alert in notified)


async def test_check_deletes_what_is_older_than_the_retention(
    stack: Stack, capsys: pytest.CaptureFixture[str]
) -> None:
    stack.is_stuck()
    await once(stack, as_json=True)
    ticket_id = json.loads(capsys.readouterr().out)["ticket_id"]
    stack.is_well()
    # Longer than the hold: the job adds to the time of Prometheus how long its check has taken.
    for after in (120, SETTINGS.tickets.hold_seconds + 60):
        stack.now += after
        await once(stack)
    kept = []
    for days in (29, 2):
        stack.now += days * 86_400
        await once(stack)
        store = Store.open(f"sqlite:///{stack.storage / 'state' / 'judge.db'}")
        kept.append(await store.read(lambda conn: find_ticket(conn, ticket_id)) is not None)
        await store.close()

    assert kept == [True, False]


async def test_failed_deletion_of_old_records_holds_up_no_notification(
    stack: Stack, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    stack.is_stuck()
    received: list[Any] = []
    failing = AsyncMock(side_effect=StoreError("the disk is full"))
    monkeypatch.setattr(Retention, "prune", failing)

    async with alertmanager(received) as url:
        assert await once(stack, alertmanager=[url]) == 1

    assert len(received) == 1
    assert "Old records could not be deleted" in caplog.text


def test_run_stops_while_it_deletes_old_records(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ends: list[type[BaseException]] = []

    async def check(self: StackJudge) -> CheckResult:
        return CheckResult(at=0.0, workers=(), tickets=(), closed_tickets=(), dismissed=0, unknown=0)

    async def prune(self: Retention) -> None:
        os.kill(os.getpid(), signal.SIGTERM)
        try:
            await asyncio.wait_for(asyncio.Event().wait(), 20)
        except BaseException as error:
            ends.append(type(error))
            raise

    monkeypatch.setattr(StackJudge, "check", check)
    monkeypatch.setattr(Retention, "prune", prune)

    assert run_forever(JobOptions(prometheus="http://127.0.0.1:1", state=tmp_path), 60.0) == 0
    assert ends == [asyncio.CancelledError]


async def test_once_without_an_alertmanager_notifies_no_one(
    stack: Stack, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Whoever looks once by hand, with the service's settings, pages nobody; the tickets are printed."""
    stack.is_stuck()
    notified: list[Any] = []
    async with alertmanager(notified) as url:
        config = tmp_path / "queenright.yaml"
        config.write_text(f"alerting: {{alertmanager_urls: ['{url}']}}\n")
        code = await once(stack, config=config)

    assert (code, notified) == (1, [])
    assert "1 worker, 1 ticket" in capsys.readouterr().out


async def test_batch_worker_that_has_ended_is_not_a_page(
    stack: Stack, capsys: pytest.CaptureFixture[str]
) -> None:
    """Its target is down for 50 min, and nothing was wrong when it spoke last."""
    ended = row("last_activity_timestamp_seconds", stack.now - 3000)
    stack.told = {"gone": [ended, row("steps_since_accept", 0)], "up": [row("up", 0, "")]}
    notified: list[Any] = []
    async with alertmanager(notified) as url:
        code = await once(stack, alertmanager=[url])

    assert (code, notified) == (0, [])
    assert all(part in capsys.readouterr().out for part in ("1 worker, 0 tickets",))


async def test_undelivered_tickets_are_reported(
    stack: Stack, no_key: str, capsys: pytest.CaptureFixture[str]
) -> None:
    stack.is_stuck()

    assert await once(stack, model=no_key, alertmanager=["http://127.0.0.1:1"]) == 3
    assert "all notifications failed: http://127.0.0.1:1: " in capsys.readouterr().err


async def test_undecided_minor_ticket_is_not_notified_and_reported(
    stack: Stack, no_key: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    config = tmp_path / "queenright.yaml"
    config.write_text(json.dumps({"judging": {"queen": {"model": no_key}}}))
    activity = row("last_activity_timestamp_seconds", stack.now - 5)
    calls = [row("tool_calls_total", 5, tool="search", outcome="ok")]
    stack.told = {"here": [activity], "before": [activity], "long_before": [activity], "calls": calls}
    notified: list[Any] = []
    async with alertmanager(notified) as url:
        code = await once(stack, config=config, alertmanager=[url], as_json=True)

    output = capsys.readouterr()
    ticket = json.loads(output.out)
    assert (code, notified, ticket["severity"]) == (3, [], "medium")
    untold = f"not notified, because triage has not decided: {ticket['ticket_id']} (medium)"
    assert f"queenright: {untold}" in output.err.splitlines()


EVIL = "re\x1b]0;owned\x07se\nar\u202echer\x9b31m"


async def test_label_names_are_clean_in_every_output(
    stack: Stack, capsys: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture
) -> None:
    notified: list[Any] = []
    stack.is_stuck(agent=EVIL)
    stack.told["gone"] = []
    stack.told["here"].append(row("errors_total\x1b[2J", 1, agent=EVIL))
    stack.told["calls"] = [row("tool_calls_total", 9, agent=EVIL, tool="t\x1b[2J", outcome="ok")]
    async with alertmanager(notified) as url, serving(lambda path, params: (500, b"\x1b[2J")) as (_, tempo):
        codes = [await once(stack, alertmanager=[url], tempo=tempo, as_json=at) for at in (False, True)]

    assert codes == [1, 1]
    output = capsys.readouterr()
    everything = output.out + output.err + caplog.text + json.dumps(notified, ensure_ascii=False)
    assert not set(everything) - {"\n"} & {chr(n) for n in (*range(32), *range(127, 160), 0x202E)}
    assert {alert["labels"]["agent"] for alert in notified} == {"rese ar cher"}


async def test_worker_with_an_unclean_name_is_recognised_when_gone(stack: Stack) -> None:
    stack.is_stuck(agent=EVIL)
    codes = [await once(stack)]
    here = stack.told["here"]
    stack.now += 300
    stack.told = {
        "here": [row("last_activity_timestamp_seconds", stack.now, "other")],
        "still": [*here, up(1)],
    }
    codes.append(await once(stack))

    assert codes == [1, 1], "it is there, though not among those that are chosen"


def test_run_ends_at_once_where_the_selector_is_wrong(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    async def broken(self: StackJudge) -> CheckResult:
        raise InvalidSelectorError("""'{job=~"("}'""", "parse error")

    monkeypatch.setattr(StackJudge, "check", broken)

    assert run_forever(JobOptions(prometheus="http://127.0.0.1:1", state=tmp_path), 0.0) == 2
    assert "parse error" in capsys.readouterr().err
