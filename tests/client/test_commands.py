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


async def queenright(running_service: RunningService, *arguments: str, **env: str) -> CompletedProcess[str]:
    environment = os.environ | {"QUEENRIGHT_URL": running_service.url} | env
    return await asyncio.to_thread(warm.queenright, *arguments, env=environment)


async def test_ticket_commands_show_the_timeline_and_refuse_to_dismiss_an_active_ticket(
    running_service: RunningService,
) -> None:
    [ticket] = running_service.service.tickets.open_tickets()
    text_result = await queenright(running_service, "tickets", "show", ticket.ticket_id)
    json_result = await queenright(running_service, "tickets", "show", ticket.ticket_id, "--json")
    timeline_result = await queenright(running_service, "tickets", "timeline", ticket.ticket_id)
    blank_reason_result = await queenright(
        running_service, "tickets", "dismiss", ticket.ticket_id, "--reason", " "
    )
    refused_result = await queenright(
        running_service, "tickets", "dismiss", ticket.ticket_id, "--reason", "a test of ours"
    )

    assert text_result.stdout.startswith("looper: ")
    assert f"\n  ticket       {ticket.ticket_id}\n" in text_result.stdout
    assert json.loads(json_result.stdout)["ticket_id"] == ticket.ticket_id
    assert len(timeline_result.stdout.splitlines()) >= 2
    assert blank_reason_result.returncode == 2
    assert (refused_result.returncode, refused_result.stdout, len(refused_result.stderr.splitlines())) == (
        1,
        "",
        1,
    )


async def test_agent_is_loaded_run_followed_and_unloaded(running_service: RunningService) -> None:
    before_load = await queenright(running_service, "agents", "list")
    discover_result = await queenright(running_service, "agents", "discover")
    load_result = await queenright(running_service, "agents", "load", "docs_checker", "--by", "ada")
    last_event_id = max((event.id for event in running_service.service.recent), default="")
    trigger_result = await queenright(
        running_service, "agents", "trigger", "docs_checker", "--input", SAMPLE, "--json"
    )
    types = "execution_started,execution_completed"
    events_result = await queenright(
        running_service,
        *("events", "--types", types, "--agent", "docs_checker", "--after", last_event_id, "--limit", "2"),
    )
    sessions_result = await queenright(running_service, "agents", "sessions", "docs_checker")
    list_result = await queenright(running_service, "agents", "list")
    unload_result = await queenright(running_service, "agents", "unload", "docs_checker")
    after_unload = await queenright(running_service, "agents", "trigger", "docs_checker")

    assert before_load.stdout.count("\n") == 1
    assert {line.split()[0] for line in discover_result.stdout.splitlines()} == {"docs_checker", "log_digest"}
    assert "docs_checker" in load_result.stdout, load_result.stderr
    assert json.loads(trigger_result.stdout)["status"] == "started"
    assert [line.split()[1:3] for line in events_result.stdout.splitlines()] == [
        ["docs_checker", "execution_started"],
        ["docs_checker", "execution_completed"],
    ]
    assert sessions_result.stdout.split()[2] == "completed"
    assert list_result.stdout.startswith("docs_checker ")
    assert unload_result.stdout == "docs_checker is unloaded.\n"
    assert (after_unload.returncode, len(after_unload.stderr.splitlines())) == (1, 1)


@pytest.mark.parametrize("input_text", ["{", "[1]", "@/nowhere"])
async def test_input_must_be_a_json_object(running_service: RunningService, input_text: str) -> None:
    result = await queenright(running_service, "agents", "trigger", "docs_checker", "--input", input_text)

    assert (result.returncode, result.stdout) == (2, "")


async def test_token_from_file_or_environment_is_never_shown(
    running_service: RunningService, tmp_path: Path
) -> None:
    file = tmp_path / "token"
    file.write_text("qr_nobodys_secret\n")
    by_option = await queenright(running_service, "breakers", "list", "--token-file", str(file))
    by_variable = await queenright(running_service, "tickets", QUEENRIGHT_TOKEN="qr_nobodys_secret")
    by_file = await queenright(running_service, "list", QUEENRIGHT_TOKEN_FILE=str(file))
    no_token_result = await queenright(running_service, "breakers", "list")

    for result in (by_option, by_variable, by_file):
        assert (result.returncode, result.stdout) == (1, "")
        assert len(result.stderr.splitlines()) == 1
        assert "nobodys" not in result.stderr
    assert no_token_result.returncode == 0


async def test_events_of_an_unknown_type_are_a_usage_error(running_service: RunningService) -> None:
    result = await queenright(running_service, "events", "--types", "zzz")

    assert (result.returncode, result.stdout) == (2, "")
    assert "'zzz'" in result.stderr
    assert len(result.stderr.splitlines()) == 1


async def test_options_before_a_subcommand_are_misuse_but_environment_variables_are_not(
    running_service: RunningService,
) -> None:
    option_before_subcommand = await queenright(
        running_service, "tickets", "--url", running_service.url, "list"
    )
    variables_only = await queenright(running_service, "tickets", "list")

    assert (option_before_subcommand.returncode, variables_only.returncode) == (2, 0)
    assert "`list`" in option_before_subcommand.stderr
