"""A process of a cluster that is cut off from the network; `test_chaos` does this at random."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.cluster.chaos import wrap_in_network_namespace


@pytest.mark.skipif(wrap_in_network_namespace("true") is None, reason="needs ip, unshare, and root on Linux")
def test_cut_off_owner_writes_nothing_and_becomes_a_standby(tmp_path: Path) -> None:
    """B116, B118: PostgreSQL and NATS do not respond to the owner, and the other process takes over."""
    command = wrap_in_network_namespace(sys.executable, "-m", "tests.cluster.network_cut", tmp_path)
    assert command is not None
    completed = subprocess.run(command, capture_output=True, text=True, check=False)
    assert completed.stdout, completed.stderr
    results = json.loads(completed.stdout)
    assert results.pop("seconds") < 60
    assert results == {
        "is_taken_over": True,
        "refused": 503,
        "calls": 15,
        "different_calls": 15,
        "tracebacks": [],
    }
