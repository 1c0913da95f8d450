"""
Coding agents with a wrong clock. Their log records have the client's time, and most hook calls have no time.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.clients.fixtures import BEGAN, FOLDER, load_fixture
from tests.server.telemetry.test_recall import PATHS, RecordedService


def make_fixture_id(path: Path) -> str:
    return f"{path.parent.name}/{path.stem}"


OFFSETS = {"far behind, slightly ahead": (-7_200, 3), "all others": (-90, -3, 90, 7_200)}


@pytest.mark.parametrize("offsets", OFFSETS)
@pytest.mark.parametrize("path", PATHS, ids=make_fixture_id)
def test_run_is_independent_of_the_client_clock(path: Path, offsets: str) -> None:
    """B84, B94: counts, outcome and waits are the same. A wait that stayed open would become a stall."""
    fixture = load_fixture(path)
    right_clock = RecordedService()
    right_clock.ingest_records(fixture.records)
    expected_state, expected_waits = right_clock.list_states(), right_clock.list_waits()

    for seconds in OFFSETS[offsets]:
        wrong_clock = RecordedService()
        wrong_clock.ingest_records(list(fixture.moved(BEGAN + seconds)))

        assert wrong_clock.list_states() == expected_state, seconds
        if seconds > 0:  # A clock that is behind cannot be distinguished from slow delivery.
            assert wrong_clock.list_waits() == expected_waits, seconds


@pytest.mark.parametrize("client", ["claude-code", "gemini-cli"])
def test_permission_request_waits_if_the_log_clock_is_ahead(client: str) -> None:
    """B93: log records with a later time do not make the request late, or the run a stall."""
    result, questions = RecordedService(), set[str]()

    for record in load_fixture(FOLDER / client / "permission.json").moved(BEGAN + 30):
        result.ingest_records([record])
        questions |= {worker.vitals.question for worker in result.monitor.workers()}

    assert any("touch new.txt" in question for question in questions)
