"""Commands that intervene, with a service on real sockets."""

from __future__ import annotations

import asyncio
import json
import os
import pwd
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import pytest

from queenright.cli.options import get_current_user
from queenright.cli.output.text import format_local_time
from queenright.client import Queenright
from queenright.instrumentation.errors import QueenrightError
from queenright.runtime.events import AgentEvent, EventType
from queenright.server.serving import RunningService
from queenright.server.settings import Settings
from tests import warm
from tests.server.conftest import demo_settings, looping
from tests.server.test_app import wait_for_lost_ticket, wait_for_ticket

WORKER = {"session_id": "looper-session", "incarnation_id": "one"}


@pytest.fixture
def settings(tmp_path: Path) -> Settings:
    """Return settings with which only the test decides. Otherwise the queen would decide immediately."""
    return demo_settings(tmp_path / "storage", orchestrator="none")


@dataclass(frozen=True)
class CommandResult:
    code: int
    out: str
    err: str

    @property
    def json(self) -> Any:
        return json.loads(self.out)


async def queenright(running: RunningService, *arguments: str) -> CommandResult:
    completed = await asyncio.to_thread(warm.queenright, *arguments, "--url", running.url)
    return CommandResult(completed.returncode, completed.stdout, completed.stderr)


async def start_looper(running: RunningService, *, fetches: bool = True) -> None:
    await running.service.ingest(list(looping(running.service.clock(), times=3)))
    if fetches:
        async with httpx.AsyncClient(base_url=running.url, verify=False, trust_env=False) as http:
            await http.get("/api/agents/looper/instructions", params=WORKER)


async def test_nudge_is_queued_or_refused_with_a_reason(running: RunningService) -> None:
    await start_looper(running, fetches=False)
    unreached_result = await queenright(running, "nudge", "looper")
    await start_looper(running)
    queued_result = await queenright(running, "nudge", "looper", "--message", "What blocks you?")
    unknown_result = await queenright(running, "interventions", "--agent", "nobody")
    assert (unknown_result.code, "no worker 'nobody' is known" in unknown_result.err) == (1, True)
    list_result = await queenright(running, "interventions", "--agent", "looper")

    assert (unreached_result.code, queued_result.code) == (1, 0)
    assert unreached_result.out.startswith("Not carried out: ")
    assert queued_result.out.startswith("Queued")
    assert [line.split()[2:4] for line in list_result.out.splitlines()] == [
        ["nudge", "queued"],
        ["nudge", "unreachable"],
    ]
    assert {tuple(line.split()[4:6]) for line in list_result.out.splitlines()} == {
        ("looper", "looper-session")
    }


async def test_json_output_is_the_response_of_the_service(running: RunningService) -> None:
    await start_looper(running)

    result = await queenright(running, "nudge", "looper", "--by", "ada", "--json")
    list_result = await queenright(running, "interventions", "--json")

    assert result.json["outcome"] == "queued"
    assert [(row["kind"], row["by"]) for row in list_result.json] == [("nudge", "ada")]


async def test_termination_waits_for_the_worker_and_prints_its_checkpoint(running: RunningService) -> None:
    await start_looper(running)
    terminate_task = asyncio.create_task(queenright(running, "terminate", "looper", "--reason", "it loops"))
    async with httpx.AsyncClient(base_url=running.url, verify=False, trust_env=False, timeout=60) as http:
        instructions = await http.get("/api/agents/looper/instructions", params=WORKER | {"wait": 30})
        [instruction] = instructions.json()["instructions"]
        path = f"/api/agents/looper/instructions/{instruction['instruction_id']}/answer"
        await http.post(path, json=WORKER | {"outcome": "done", "checkpoint_id": "cp-7"})

    result = await terminate_task

    assert (result.code, "checkpoint cp-7" in result.out) == (0, True)


async def test_refusal_is_one_line_with_a_remedy(running: RunningService) -> None:
    await start_looper(running)
    waiting_event = AgentEvent(
        type=EventType.WORKER_WAITING,
        time=running.service.clock(),
        agent_id="looper",
        data={"reason": "user_input"},
        **WORKER,
    )
    await running.service.ingest([waiting_event])

    refused_result = await queenright(running, "terminate", "looper", "--reason", "x")
    unknown_result = await queenright(running, "nudge", "nobody")
    task_result = await queenright(running, "recover", "none")

    for result in (refused_result, unknown_result, task_result):
        assert (result.code, result.out) == (1, "")
        assert len(result.err.splitlines()) == 1
    assert "waits (user_input)" in refused_result.err
    assert "queenright list" in unknown_result.err


async def test_unconfirmed_termination_names_the_next_command(running: RunningService) -> None:
    await start_looper(running)
    terminate_task = asyncio.create_task(queenright(running, "terminate", "looper", "--reason", "it loops"))
    async with httpx.AsyncClient(base_url=running.url, verify=False, trust_env=False, timeout=60) as http:
        instructions = await http.get("/api/agents/looper/instructions", params=WORKER | {"wait": 30})
        [instruction] = instructions.json()["instructions"]
        path = f"/api/agents/looper/instructions/{instruction['instruction_id']}/answer"
        await http.post(path, json=WORKER | {"outcome": "failed", "detail": "busy"})

    result = await terminate_task
    recover_result = await queenright(running, "recover", "looper-session")

    assert result.code == 1
    assert "Unconfirmed: busy" in result.out
    assert "queenright recover looper-session" in result.out
    assert recover_result.code == 1
    assert "stop its process yourself" in recover_result.err


async def test_list_shows_the_ids_that_other_commands_need(running: RunningService) -> None:
    long_id = "a-session-with-a-name-of-its-own-that-is-long"
    start_event = AgentEvent(
        type=EventType.EXECUTION_STARTED,
        time=running.service.clock(),
        agent_id="reporter",
        session_id=long_id,
        incarnation_id="one",
        data={"task_id": "report-7"},
    )
    await start_looper(running)
    await running.service.ingest([start_event])

    list_result = await queenright(running, "list")
    wide_result = await queenright(running, "list", "--wide")
    plain_result = await queenright(running, "list", "--json")

    lines = list_result.out.splitlines()
    assert lines[0].split() == ["health", "agent", "session", "task", "steps", "bad"]
    assert max(len(line) for line in lines) <= 80
    [row] = [line.split() for line in lines if "reporter" in line]
    # The end of a session id distinguishes sessions that started at the same time.
    assert row[2:4] == [f"…{long_id[-39:]}", "report-7"]
    assert long_id in wide_result.out
    assert [(row["agent_id"], row["session_id"], row["task_id"]) for row in plain_result.json] == [
        ("looper", "looper-session", "looper-session"),
        ("reporter", long_id, "report-7"),
    ]


async def test_storm_and_exhausted_budget_precede_the_lists(running: RunningService) -> None:
    service = running.service
    clock_time = service.clock()
    for number in range(6):
        service.remediation.storm.record_worse((f"bee{number}", "s"), clock_time)
    for _ in range(service.interventions.budget.most):
        service.interventions.budget.spend(clock_time)

    list_result = await queenright(running, "list")
    result = await queenright(running, "escalations")

    for output in (list_result, result):
        storm, budget = output.err.splitlines()
        assert storm.startswith("A storm since ")
        assert "6 workers" in storm
        assert "interventions per minute reached; the next in" in budget


async def test_emergency_stop_precedes_the_lists(running: RunningService) -> None:
    state = await running.service.health.emergency_stop(True, by="ada", reason="drill")

    list_result = await queenright(running, "list")

    assert state.changed_at is not None
    assert (
        list_result.err
        == f"The emergency stop is on since {format_local_time(state.changed_at)}, by ada: drill.\n"
    )


@pytest.mark.parametrize(
    ("environment", "requester"), [({"USER": "ada"}, "ada"), ({"LOGNAME": "bob"}, "bob"), ({}, None)]
)
def test_requester_is_the_user_who_is_logged_in(
    monkeypatch: pytest.MonkeyPatch, environment: dict[str, str], requester: str | None
) -> None:
    for name in ("USER", "LOGNAME"):
        monkeypatch.delenv(name, raising=False)
    for name, value in environment.items():
        monkeypatch.setenv(name, value)

    assert get_current_user() == (requester or pwd.getpwuid(os.getuid()).pw_name)


async def test_escalation_is_listed_and_decided(running: RunningService) -> None:
    await start_looper(running)
    empty_list = await queenright(running, "escalations", "list")
    async with httpx.AsyncClient(base_url=running.url, verify=False, trust_env=False) as http:
        response = await http.post("/api/agents/looper/escalate", json={"reason": "odd"})
    escalation = response.json()["escalation_id"]

    list_result = await queenright(running, "escalations", "list")
    without_decision = await queenright(running, "escalations")
    decide_result = await queenright(
        running, "escalations", "decide", escalation, "more_time", "--minutes", "30", "--reason", "slow"
    )
    repeated_result = await queenright(running, "escalations", "decide", escalation, "terminate")
    result = await queenright(running, "escalations", "list", "--all", "--json")

    assert empty_list.out == "No pending escalations.\n"
    assert list_result.out.split()[0] == escalation
    assert without_decision.out == list_result.out
    assert "looper-session" in list_result.out
    assert (decide_result.code, decide_result.out) == (0, "looper: more time.\n")
    assert repeated_result.code == 1
    assert "more_time" in repeated_result.err
    assert result.json[0]["more_time_seconds"] == 1800


async def test_open_breaker_is_listed_and_reset(running: RunningService) -> None:
    breaker = running.service.breakers.get("tool_execution", "looper", "search")
    for _ in range(10):
        try:
            breaker.call(lambda: 1 // 0)
        except Exception:
            continue

    list_result = await queenright(running, "breakers", "list", "--open")
    reset_result = await queenright(running, "breakers", "reset", "tool_execution:looper:search")
    list_after_reset = await queenright(running, "breakers", "--open")
    unknown_result = await queenright(running, "breakers", "reset", "tool_execution:looper:serch")

    assert list_result.out.startswith("open ")
    assert "half open in" in list_result.out
    assert (reset_result.code, reset_result.out) == (0, "tool_execution:looper:search is closed.\n")
    assert list_after_reset.out == "No circuit breaker is open.\n"
    assert unknown_result.code == 1
    assert "'tool_execution:looper:search'" in unknown_result.err


async def test_emergency_stop_is_set_and_released(running: RunningService) -> None:
    await start_looper(running)

    on_result = await queenright(running, "stop-acting", "on", "--reason", "drill")
    refused_nudge = await queenright(running, "nudge", "looper")
    status = await queenright(running, "stop-acting", "status")
    list_result = await queenright(running, "list")
    off_result = await queenright(running, "stop-acting", "off")
    repeated_off = await queenright(running, "stop-acting", "off")
    released_status = await queenright(running, "stop-acting", "status")
    nudge_result = await queenright(running, "nudge", "looper")

    assert (on_result.code, "emergency stop is on" in on_result.out) == (0, True)
    assert "drill" in refused_nudge.err
    assert "queenright stop-acting off" in refused_nudge.err
    assert "emergency stop is on" in status.out
    assert status.out.endswith(": drill.\n")
    assert "emergency stop is on" in list_result.err
    assert "looper" in list_result.out
    assert "emergency stop is off" in released_status.out
    assert off_result.out == "The emergency stop is off; pending waits resume.\n"
    assert repeated_off.out == "The emergency stop was off already.\n"
    assert (off_result.code, repeated_off.code, nudge_result.code) == (0, 0, 0)


async def test_long_name_is_truncated_in_lists_without_wide(
    running: RunningService,
) -> None:
    long_name = "a-name-" * 30
    ticket = await wait_for_ticket(running, agent=long_name)

    short_list = await queenright(running, "tickets")
    wide_list = await queenright(running, "tickets", "list", "--wide")

    assert f" {long_name[:23]}… " in short_list.out
    assert long_name not in short_list.out
    assert f" {long_name} " in wide_list.out
    assert [result.out.split()[-1] for result in (short_list, wide_list)] == [ticket, ticket]


async def test_ticket_is_listed_acknowledged_and_resolved(running: RunningService) -> None:
    ticket = await wait_for_lost_ticket(running)

    open_list = await queenright(running, "tickets")
    acknowledge_result = await queenright(running, "tickets", "acknowledge", ticket, "--by", "ada")
    repeated_result = await queenright(running, "tickets", "acknowledge", ticket)
    resolve_result = await queenright(
        running, "tickets", "resolve", ticket, "--reason", "written by hand", "--by", "ada"
    )
    remaining_list = await queenright(running, "tickets")
    result = await queenright(running, "tickets", "--all", "--json")
    all_tickets = await queenright(running, "tickets", "list", "--all", "--json")

    assert open_list.out.split()[-1] == ticket
    assert (acknowledge_result.code, acknowledge_result.out) == (0, "Acknowledged by ada.\n")
    assert repeated_result.code == 1
    assert "ada" in repeated_result.err
    assert (resolve_result.code, resolve_result.out) == (0, "looper: resolved.\n")
    assert remaining_list.out == "No open tickets.\n"
    assert [(open_ticket["status"], open_ticket["closed_reason"]) for open_ticket in result.json] == [
        ("resolved", "ada: written by hand")
    ]
    assert [open_ticket["ticket_id"] for open_ticket in all_tickets.json] == [ticket]


async def test_ticket_that_closes_by_itself_cannot_be_resolved(running: RunningService) -> None:
    ticket = await wait_for_ticket(running)

    result = await queenright(running, "tickets", "resolve", ticket, "--reason", "tired of it")

    assert (result.code, result.out) == (1, "")
    assert "it closes by itself" in result.err


@pytest.mark.parametrize(
    "arguments",
    [
        ["nudge", ""],
        ["nudge", "looper", "--message", " \t"],
        ["escalations", "--all", "list"],
        ["breakers", "--open", "list"],
        ["terminate", "looper"],
        ["stop-acting", "on"],
        ["stop-acting", "maybe"],
        ["escalations", "decide", "e", "kill"],
        ["escalations", "decide", "e", "terminate", "--minutes", "3"],
        ["breakers", "reset", " "],
        ["interventions", "--limit", "0"],
        ["tickets", "resolve", "t"],
        ["tickets", "resolve", "t", "--reason", " "],
        ["tickets", "acknowledge", ""],
        ["tickets", "--json", "acknowledge", "t"],
    ],
)
def test_usage_error_exits_with_2_and_sends_no_request(arguments: list[str]) -> None:
    # No service runs at this address, so a request would fail with exit code 1.
    result = warm.queenright(*arguments, "--url", "http://127.0.0.1:9")

    assert result.returncode == 2
    assert result.stdout == ""


async def test_list_shows_current_findings_and_numbers(running: RunningService) -> None:
    service = running.service
    # Use recent calls, so that no other finding can appear before the list, even on a slow machine.
    events = list(looping(service.clock() + 40, times=4))
    await service.ingest(events[:-2])
    [worker] = service.monitor.of_agent("looper")
    first_lines = worker.reason
    await service.ingest(events[-2:])
    list_result = await queenright(running, "list")

    assert "3 times" in first_lines
    assert "4 times" in list_result.out.splitlines()[-1]


@pytest.mark.parametrize("url", ["notaurl", "http://", "ftp://here", "http://127.0.0.1:x"])
def test_invalid_url_is_named_in_the_error(url: str) -> None:
    with pytest.raises(QueenrightError, match="is not a URL; pass one such as http://"):
        Queenright(url)
