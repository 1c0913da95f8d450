"""The matrix in docs/coding-agents.md agrees with what a service shows about recorded requests."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import httpx
import pytest

from queenright.server.serving import serving
from tests.clients.clients import CLIENTS
from tests.clients.fixtures import FOLDER, load_fixture
from tests.clients.install import pinned_version
from tests.clients.live import LIMITS, STEERED_SCENARIOS, ObservedRun
from tests.clients.matrix import DOCUMENT, ROWS, read_matrix, render_matrix
from tests.frameworks.matrix import matrix_settings, renumber_record
from tests.server.conftest import demo_settings
from tests.waiting import until

CELLS = read_matrix(DOCUMENT.read_text(encoding="utf-8"))
SECONDS_SINCE_END = 10.0
"""The replayed clients ended this many seconds ago."""


def replayed_rows(client: str) -> list[str]:
    """Return the rows that a recording can show: a recorded client is not controlled, and does not retry."""
    return [
        row
        for row, (scenario_names, _) in ROWS.items()
        if CELLS[client][row] != "not run"
        and not set(scenario_names) & {*STEERED_SCENARIOS}
        and not row.startswith(("provider", "cost"))
    ]


async def replay_to_service(folder: Path, client: str, scenario: str) -> ObservedRun:
    """Send the recorded requests up to the client's end, and return what the service then shows."""
    fixture = load_fixture(FOLDER / client / f"{scenario}.json")
    settings = demo_settings(folder)
    health = settings.health_monitoring
    stall = health.stall.model_copy(update=LIMITS)
    settings = settings.model_copy(update={"health_monitoring": health.model_copy(update={"stall": stall})})
    observed_run = ObservedRun(scenario)
    hooks = f"/hooks/{client}?user=ada&host=laptop"
    killed_at = fixture.ended_at if fixture.ended_by else float("inf")
    async with serving(settings) as running_service, httpx.AsyncClient(verify=False, trust_env=False) as http:

        async def poll() -> None:
            agents: list[dict[str, Any]] = (await http.get(f"{running_service.url}/api/agents")).json()[
                "agents"
            ]
            observed_run.rows = {row["session_id"]: row for row in agents}
            observed_run.findings |= {finding["kind"]: 0.0 for row in agents for finding in row["findings"]}
            observed_run.wait_delay = 0.0 if any(row["waiting"] for row in agents) else None

        for record in fixture.moved(time.time() - fixture.ended_at - SECONDS_SINCE_END):
            if record.at < killed_at:
                path = hooks if record.path.startswith("/hooks/") else record.path
                response = await http.post(f"{running_service.otlp_url}{path}", json=record.body)
                assert response.status_code == 200, response.text
                if scenario == "loop":
                    await poll()
        await poll()
        deadline = time.monotonic() + 60
        while scenario.startswith("hang") and not observed_run.findings and time.monotonic() < deadline:
            await poll()
    return observed_run


@pytest.mark.parametrize("client", CLIENTS)
async def test_recorded_client_gives_the_cells_in_docs(client: str, tmp_path: Path) -> None:
    """B84, B89, B93, B94: the service shows the same for recorded requests as for the real client."""
    rows = replayed_rows(client)
    scenario_names = {name for row in rows for name in ROWS[row][0]}

    runs = {name: await replay_to_service(tmp_path / name, client, name) for name in sorted(scenario_names)}

    assert {row: ROWS[row][1](runs) for row in rows} == {row: CELLS[client][row] for row in rows}


def test_matrix_in_docs_has_every_row_of_every_client_at_its_pinned_version() -> None:
    versions = {name: pinned_version(client) for name, client in CLIENTS.items()}
    empty_table = render_matrix({name: {} for name in CLIENTS}, versions)

    assert {client: list(rows) for client, rows in CELLS.items()} == {
        client: list(ROWS) for client in CLIENTS
    }
    assert empty_table.splitlines()[0] in DOCUMENT.read_text(encoding="utf-8")


def test_cell_of_a_missing_or_failed_scenario_states_it() -> None:
    failed = {"loop": ObservedRun("loop", error="It took too long.")}

    lines = render_matrix({"codex": failed}, {"codex": "1"}).splitlines()

    assert "| loop | run failed |" in lines
    assert "| name | not run |" in lines


@pytest.mark.parametrize("client", CLIENTS)
async def test_consecutive_failed_runs_of_a_provider_open_a_ticket(client: str, tmp_path: Path) -> None:
    """B34: it makes no difference whether the client gives up at the first error or retries."""
    fixture = load_fixture(FOLDER / client / "provider_429.json")
    async with (
        serving(matrix_settings(tmp_path)) as running_service,
        httpx.AsyncClient(base_url=running_service.otlp_url, trust_env=False) as http,
    ):
        for number in range(4):
            for record in fixture.moved(time.time() - fixture.ended_at):
                renumbered = renumber_record(fixture, record, number)
                path = (
                    f"/hooks/{client}?user=ada&host=laptop"
                    if "/hooks/" in renumbered.path
                    else renumbered.path
                )
                assert (await http.post(path, json=renumbered.body)).status_code == 200
        await running_service.service.bus.drain()

        kinds = {"runs_failed", "provider_failure", "stall"}
        await until(
            lambda: any(ticket.kind in kinds for ticket in running_service.service.tickets.open_tickets()),
            "a ticket about the provider's failure is open",
        )
