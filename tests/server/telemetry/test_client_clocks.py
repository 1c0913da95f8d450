"""Coding agents whose clock differs from ours: their log has its time, most of their hook calls have none."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.clients.fixtures import BEGAN, FOLDER, load_fixture
from tests.server.telemetry.test_recall import PATHS, Session


def by_name(path: Path) -> str:
    return f"{path.parent.name}/{path.stem}"


OFFSETS = {"far behind, little ahead": (-7_200, 3), "all others": (-90, -3, 90, 7_200)}


@pytest.mark.parametrize("offsets", OFFSETS)
@pytest.mark.parametrize("path", PATHS, ids=by_name)
def test_run_is_independent_of_the_client_clock(path: Path, offsets: str) -> None:
    """B84, B94: what counts, how it ended, and whether it waits: one that stays open is a stall to come."""
    fixture = load_fixture(path)
    right = Session()
    right.tell(fixture.records)
    known, waits = right.known(), right.waits()

    for seconds in OFFSETS[offsets]:
        wrong = Session()
        wrong.tell(list(fixture.moved(BEGAN + seconds)))

        assert wrong.known() == known, seconds
        if seconds > 0:  # one that is behind cannot be told from records that take long
            assert wrong.waits() == waits, seconds


@pytest.mark.parametrize("client", ["claude-code", "gemini-cli"])
def test_permission_request_is_a_wait_though_the_log_is_ahead_of_our_clock(client: str) -> None:
    """B93: what was logged with a later time does not make the request late, and the run a stall."""
    result, questions = Session(), set[str]()

    for record in load_fixture(FOLDER / client / "permission.json").moved(BEGAN + 30):
        result.tell([record])
        questions |= {worker.vitals.question for worker in result.monitor.workers()}

    assert any("touch new.txt" in question for question in questions)
