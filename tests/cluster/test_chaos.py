"""
Processes of a cluster are killed, paused and cut off at random, under load: nothing is lost or doubled.

``python -m tests.cluster.chaos --kills 1000 --seed 2`` does more.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Sequence
from typing import Any

import pytest

from tests.cluster.chaos import CUTS, KINDS, private_command

KILLS = 9


def disturb(kinds: Sequence[str]) -> dict[str, Any]:
    command = [sys.executable, "-m", "tests.cluster.chaos", "--kills", str(KILLS), "--seed", "20"]
    command += ["--kinds", ",".join(kinds)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.stdout, done.stderr
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def test_random_kills_and_pauses_lose_and_double_nothing() -> None:
    """B118: each event is stored once, each trouble is one ticket, and people are notified of it once."""
    found = disturb(KINDS)
    assert found["wrong"] == []
    assert sum(kind["times"] for kind in found["disturbances"].values()) == KILLS


@pytest.mark.skipif(private_command("true") is None, reason="needs ip, unshare, and root on Linux")
def test_process_that_is_cut_off_loses_and_doubles_nothing() -> None:
    """B116, B118: a process cannot reach PostgreSQL, NATS, or both of them, while it runs."""
    found = disturb([*CUTS])
    assert found["wrong"] == []
    assert set(found["disturbances"]) == set(CUTS)
