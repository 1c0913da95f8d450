"""Commands that use the client: agents, events, one ticket."""

from __future__ import annotations

import asyncio
import json
import os
from pathlib import Path
from subprocess import CompletedProcess

import pytest

from queenright.server.serving import RunningService
from tests import warm
from tests.client.conftest import EXAMPLES

pytestmark = pytest.mark.asyncio(loop_scope="module")

SAMPLE = json.dumps({"folder": str(EXAMPLES / "docs_checker" / "sample")})


async def queenright(running: RunningService, *arguments: str, **env: str) -> CompletedProcess[str]:
    environment = os.environ | {"QUEENRIGHT_URL": running.url} | env
    return await asyncio.to_thread(warm.queenright, *arguments, env=environment)


async def test_ticket_commands_show_the_timeline_and_refuse_to_dismiss_an_active_ticket(
    running: RunningService,
) -> None:
    [ticket] = running.service.tickets.open_tickets()
    shown = await queenright(running, "tickets", "show", ticket.ticket_id)
    as_json = await queenright(running, "tickets", "show", ticket.ticket_id, "--json")
    timeline = await queenright(running, "tickets", "timeline", ticket.ticket_id)
    no_reason = await queenright(running, "tickets", "dismiss", ticket.ticket_id, "--reason", " ")
    refused = await queenright(running, "tickets", "dismiss", ticket.ticket_id, "--reason", "a test of ours")

    assert shown.stdout.startswith("looper: ")
    assert f"\n  ticket       {ticket.ticket_id}\n" in shown.stdout
    assert json.loads(as_json.stdout)["ticket_id"] == ticket.ticket_id
    assert len(timeline.stdout.splitlines()) >= 2
    assert no_reason.returncode == 2
    assert (refused.returncode, refused.stdout, len(refused.stderr.splitlines())) == (1, "", 1)


async def test_agent_is_loaded_run_followed_and_unloaded(running: RunningService) -> None:
    before_load = await queenright(running, "agents", "list")
    discovered = await queenright(running, "agents", "discover")
    loaded = await queenright(running, "agents", "load", "docs_checker", "--by", "ada")
    last_event_id = max((event.id for event in running.service.recent), default="")
    started = await queenright(running, "agents", "trigger", "docs_checker", "--input", SAMPLE, "--json")
    types = "execution_started,execution_completed"
    followed = await queenright(
        running,
        *("events", "--types", types, "--agent", "docs_checker", "--after", last_event_id, "--limit", "2"),
    )
    sessions = await queenright(running, "agents", "sessions", "docs_checker")
    listed = await queenright(running, "agents", "list")
    unloaded = await queenright(running, "agents", "unload", "docs_checker")
    after_unload = await queenright(running, "agents", "trigger", "docs_checker")

    assert before_load.stdout.count("\n") == 1
    assert {line.split()[0] for line in discovered.stdout.splitlines()} == {"docs_checker", "log_digest"}
    assert "docs_checker" in loaded.stdout, loaded.stderr
    assert json.loads(started.stdout)["status"] == "started"
    assert [line.split()[1:3] for line in followed.stdout.splitlines()] == [
        ["docs_checker", "execution_started"],
        ["docs_checker", "execution_completed"],
    ]
    assert sessions.stdout.split()[2] == "completed"
    assert listed.stdout.startswith("docs_checker ")
    assert unloaded.stdout == "docs_checker is unloaded.\n"
    assert (after_unload.returncode, len(after_unload.stderr.splitlines())) == (1, 1)


@pytest.mark.parametrize("input_text", ["{", "[1]", "@/nowhere"])
async def test_input_must_be_a_json_object(running: RunningService, input_text: str) -> None:
    result = await queenright(running, "agents", "trigger", "docs_checker", "--input", input_text)

    assert (result.returncode, result.stdout) == (2, "")


async def test_token_from_file_or_environment_is_never_shown(running: RunningService, tmp_path: Path) -> None:
    file = tmp_path / "token"
    file.write_text("qr_nobodys_secret\n")
    by_option = await queenright(running, "breakers", "list", "--token-file", str(file))
    by_variable = await queenright(running, "tickets", QUEENRIGHT_TOKEN="qr_nobodys_secret")
    by_file = await queenright(running, "list", QUEENRIGHT_TOKEN_FILE=str(file))
    without = await queenright(running, "breakers", "list")

    for result in (by_option, by_variable, by_file):
        assert (result.returncode, result.stdout) == (1, "")
        assert len(result.stderr.splitlines()) == 1
        assert "nobodys" not in result.stderr
    assert without.returncode == 0


async def test_events_of_an_unknown_type_are_a_usage_error(running: RunningService) -> None:
    result = await queenright(running, "events", "--types", "zzz")

    assert (result.returncode, result.stdout) == (2, "")
    assert "'zzz'" in result.stderr
    assert len(result.stderr.splitlines()) == 1


async def test_options_before_a_subcommand_are_misuse_but_environment_variables_are_not(
    running: RunningService,
) -> None:
    before = await queenright(running, "tickets", "--url", running.url, "list")
    after = await queenright(running, "tickets", "list")

    assert (before.returncode, after.returncode) == (2, 0)
    assert "`list`" in before.stderr
