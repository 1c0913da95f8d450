import json
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize(
    ("seed", "kills"), [(0, 6), *(pytest.param(seed, 40, marks=pytest.mark.slow) for seed in range(1, 4))]
)
def test_run_killed_anywhere_resumes_to_the_same_result(tmp_path: Path, seed: int, kills: int) -> None:
    """B33: the conversation, outputs, turns, user input, question and guard counters are restored."""
    result = subprocess.run(
        [sys.executable, "-m", "tests.runtime.killed_agent", str(tmp_path), str(seed), str(kills)],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=280,
        check=False,
    )

    assert result.returncode == 0, result.stdout[-4000:] + result.stderr[-4000:]
    assert json.loads(result.stdout.splitlines()[-1])["kills"] >= kills
