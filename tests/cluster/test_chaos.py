"""
Processes of a cluster are killed, paused and cut off at random, under load, without loss or duplicates.

To make more disturbances, run ``python -m tests.cluster.chaos --kills 1000 --seed 2``.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Sequence
from typing import Any

import pytest

from tests.cluster.chaos import DISTURBANCES, NETWORK_CUTS, wrap_in_network_namespace

DISTURBANCE_COUNT = 9


def run_chaos(kinds: Sequence[str]) -> dict[str, Any]:
    command = [sys.executable, "-m", "tests.cluster.chaos", "--kills", str(DISTURBANCE_COUNT), "--seed", "20"]
    command += ["--kinds", ",".join(kinds)]
    completed = subprocess.run(command, capture_output=True, text=True, check=False)
    assert completed.stdout, completed.stderr
    results: dict[str, Any] = json.loads(completed.stdout)
    return results


def test_random_kills_and_pauses_cause_no_loss_or_duplicates() -> None:
    """B118: each event is stored once, and each problem has one ticket and one notification."""
    results = run_chaos(DISTURBANCES)
    assert results["wrong"] == []
    assert sum(kind["times"] for kind in results["disturbances"].values()) == DISTURBANCE_COUNT


@pytest.mark.skipif(wrap_in_network_namespace("true") is None, reason="needs ip, unshare, and root on Linux")
def test_cut_off_process_causes_no_loss_or_duplicates() -> None:
    """B116, B118: the process keeps running, but cannot reach PostgreSQL, NATS, or both."""
    results = run_chaos([*NETWORK_CUTS])
    assert results["wrong"] == []
    assert set(results["disturbances"]) == set(NETWORK_CUTS)
