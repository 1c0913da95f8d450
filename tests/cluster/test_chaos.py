"""
Processes of a cluster are killed, paused and cut off at random, under load, without loss or duplicates.

``python -m tests.cluster.chaos --kills 1000 --seed 2`` makes more disturbances.
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


def run_chaos(kinds: Sequence[str]) -> dict[str, Any]:
    command = [sys.executable, "-m", "tests.cluster.chaos", "--kills", str(KILLS), "--seed", "20"]
    command += ["--kinds", ",".join(kinds)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.stdout, done.stderr
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def test_random_kills_and_pauses_cause_no_loss_or_duplicates() -> None:
    """B118: each event is stored once, and each problem has one ticket and one notification."""
    found = run_chaos(KINDS)
    assert found["wrong"] == []
    assert sum(kind["times"] for kind in found["disturbances"].values()) == KILLS


@pytest.mark.skipif(private_command("true") is None, reason="needs ip, unshare, and root on Linux")
def test_cut_off_process_causes_no_loss_or_duplicates() -> None:
    """B116, B118: a running process cannot reach PostgreSQL, NATS, or both."""
    found = run_chaos([*CUTS])
    assert found["wrong"] == []
    assert set(found["disturbances"]) == set(CUTS)
