"""Silences of tickets through the service: over HTTP, on the command line, and in the tickets."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import pytest
from typer.testing import CliRunner, Result

from queenright.cli.app import app
from queenright.cli.output.text import format_local_time
from queenright.server.serving import RunningService, serving
from tests.alerting.conftest import ServedPeer, peer, start_peer
from tests.alerting.real import RealAlertmanager, real_alertmanager, run_receivers
from tests.server.conftest import demo_settings
from tests.server.test_app import wait_for_ticket
from tests.waiting import until

__all__ = ["peer", "start_peer"]


@dataclass(frozen=True)
class Stack:
    running: RunningService
    http: httpx.AsyncClient
    alertmanager: RealAlertmanager

    async def queenright(self, *arguments: str) -> Result:
        """Run a command in another thread, because the service runs in this thread."""
        return await asyncio.to_thread(CliRunner().invoke, app, [*arguments, "--url", self.running.url])

    async def get(self, path: str) -> Any:
        return (await self.http.get(path)).json()


@pytest.fixture
async def stack(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Stack]:
    """Yield the service with a real Alertmanager."""
    monkeypatch.setattr("queenright.alerting.silencing.POLL_SECONDS", 1)
    alerting_settings = demo_settings(tmp_path / "storage")
    async with run_receivers() as recorder, real_alertmanager(tmp_path / "am", recorder) as alertmanager:
        options = {"alertmanager_urls": (alertmanager.url,)}
        settings = alerting_settings.model_copy(
            update={"alerting": alerting_settings.alerting.model_copy(update=options)}
        )
        async with (
            serving(settings) as running,
            httpx.AsyncClient(base_url=running.url, verify=False, trust_env=False) as http,
        ):
            yield Stack(running, http, alertmanager)


async def test_list_command_names_the_missing_alertmanager(running: RunningService) -> None:
    result = await asyncio.to_thread(CliRunner().invoke, app, ["silences", "--url", running.url])

    assert (result.exit_code, "No Alertmanager is configured" in result.output) == (0, True)


async def test_ticket_can_be_silenced_and_unsilenced_on_the_command_line(stack: Stack) -> None:
    """B41: a silenced ticket is marked everywhere, and has no reminders during the silence."""
    ticket_id = await wait_for_ticket(stack.running)
    recorder = stack.alertmanager.recorder
    await until(
        lambda: any("looper" in message.title for message in recorder.messages), "the ticket is notified"
    )
    due_time = stack.running.service.tickets.next_deadline()
    assert due_time is not None

    not_silenced = await stack.queenright("silences", "list")
    create_result = await stack.queenright("silences", "add", ticket_id, "--for", "2h", "--comment", "known")
    first_list = await stack.queenright("silences", "list", "--json")
    result = await stack.queenright("silences")
    shorter_result = await stack.queenright("silences", "add", ticket_id[:12], "--for", "1h")
    list_result = await stack.queenright("silences", "list", "--json")

    assert (not_silenced.exit_code, not_silenced.output) == (0, "No silences.\n")
    assert (create_result.exit_code, result.exit_code) == (0, 0), create_result.output
    [silence] = json.loads(first_list.output)["silences"]
    assert silence["silence_id"] in create_result.output
    assert f"already silenced until {format_local_time(silence['ends_at'])}" in shorter_result.output
    assert (shorter_result.exit_code, silence["silence_id"] in shorter_result.output) == (0, True)
    assert json.loads(list_result.output)["silences"] == [silence]
    assert (silence["tickets"], silence["comment"]) == ([ticket_id], f"known (ticket {ticket_id})")
    for expected_part in ("2 h left", 'agent="looper"', ticket_id):
        assert expected_part in result.output
    for row in (
        await stack.get(f"/api/tickets/{ticket_id}"),
        (await stack.get("/api/tickets"))["tickets"][0],
    ):
        assert row["silenced"]["until"] == silence["ends_at"]
        assert row["silenced"]["comment"] == silence["comment"]
    assert stack.running.service.tickets.next_deadline() == silence["ends_at"]

    expire_result = await stack.queenright("silences", "expire", silence["silence_id"])
    assert (expire_result.exit_code, expire_result.output) == (
        0,
        f"Silence {silence['silence_id']} expired.\n",
    )
    unknown_silence = await stack.queenright("silences", "expire", "nope")
    assert unknown_silence.exit_code == 1
    assert str(unknown_silence.exception) == (
        "no Alertmanager knows the silence 'nope'; list them: queenright silences"
    )
    assert (await stack.get(f"/api/tickets/{ticket_id}"))["silenced"] is None
    assert stack.running.service.tickets.next_deadline() == due_time

    # Without Alertmanager, the answer is "unknown" instead of "none".
    await stack.alertmanager.child.stop()
    await stack.running.service.silences.read_peers()
    unknown_result = await stack.queenright("silences")
    assert (unknown_result.exit_code, "cannot be reached" in unknown_result.output) == (1, True)
    assert "No silences" not in unknown_result.output
    body = {"ticket_id": ticket_id, "seconds": 3600, "comment": "c"}
    assert (await stack.http.post("/api/silences", json=body)).status_code == 502


@pytest.mark.parametrize("expected_body", [b"<html>Log in</html>", b"null", b"{}", b"[]"])
async def test_unexpected_response_of_a_peer_is_reported(
    tmp_path: Path, peer: ServedPeer, expected_body: bytes
) -> None:
    """An example is a login page in front of Alertmanager."""
    peer.peer.response_body = expected_body
    alerting_settings = demo_settings(tmp_path)
    changes = {"alertmanager_urls": (peer.url,)}
    settings = alerting_settings.model_copy(
        update={"alerting": alerting_settings.alerting.model_copy(update=changes)}
    )
    async with (
        serving(settings) as running,
        httpx.AsyncClient(base_url=running.url, verify=False, trust_env=False) as http,
    ):
        ticket_id = await wait_for_ticket(running)
        await until(lambda: ticket_id in running.service.silences._labels, "the notification is recorded")
        body = {"ticket_id": ticket_id, "seconds": 3600, "comment": "c"}
        response = await http.post("/api/silences", json=body)

    assert response.status_code == 502
    assert peer.url in response.json()["title"]


async def test_ticket_that_cannot_be_silenced_is_refused_with_a_reason(tmp_path: Path) -> None:
    async with (
        serving(demo_settings(tmp_path)) as running,
        httpx.AsyncClient(base_url=running.url, verify=False, trust_env=False) as http,
    ):
        body = {"ticket_id": "nobody", "seconds": 3600, "comment": "c"}
        unknown = await http.post("/api/silences", json=body)
        without_alert = await http.delete("/api/silences/x")
        invalid_responses = [
            await http.post("/api/silences", json=body | changes)
            for changes in ({"seconds": 1}, {"seconds": 1e9}, {"comment": " "}, {"by": "\0"})
        ]
        silences = (await http.get("/api/silences")).json()

    assert (unknown.status_code, "nothing to silence" in unknown.json()["title"]) == (409, True)
    assert (without_alert.status_code, "alerting.alertmanager_urls" in without_alert.json()["title"]) == (
        409,
        True,
    )
    assert [open_ticket.status_code for open_ticket in invalid_responses] == [422] * 4
    assert silences == {"silences": [], "unknown": "", "peers": []}


@pytest.mark.parametrize("span", ["2", "2x", "", "0.5m", "31d", "-1h"])
def test_invalid_silence_duration_is_rejected(span: str) -> None:
    result = CliRunner().invoke(app, ["silences", "add", "T", "--comment", "c", f"--for={span}"])

    assert result.exit_code == 2
    assert "30m" in result.output or "30d" in result.output
