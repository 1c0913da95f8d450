import json
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize("seed", range(2))
def test_a_run_that_is_killed_at_any_moment_goes_on_to_the_same_end(tmp_path: Path, seed: int) -> None:
    """B33: conversation, outputs, turns, user, question and the guard's counters are what they were."""
    done = subprocess.run(
        [sys.executable, "-m", "tests.runtime.killed_agent", str(tmp_path), str(seed), "12"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )

    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-4000:]
    assert json.loads(done.stdout.splitlines()[-1])["kills"] >= 12
