"""
What `make test` leaves to `make test-slow`, with the seconds that each takes on two busy cores.

Each has a quicker test of the same fact in `make test`: the bundled programs instead of the newest ones, a
simulated day instead of a week, some of the recorded frameworks instead of all.
"""

from __future__ import annotations

from typing import Final

import pytest

FILES: Final = {
    "alerting/test_cluster.py": 48,
    "chaos/test_alerts_under_fire.py": 43,
    "end_to_end/test_alertmanager_away.py": 83,
    "end_to_end/test_symptoms.py": 114,
    "packaging/test_image.py": 380,
    "simulation/test_week.py": 99,
}

FRAMEWORKS: Final = frozenset(
    {"crewai-openinference", "langgraph-openinference", "openai-agents-v2", "pydantic-ai", "vercel-ai-sdk"}
)
"""The recorded frameworks that `make test` replays; all others take 330 s."""

_REPLAYED: Final = "frameworks/test_frameworks.py"


def is_slow(file: str, item: pytest.Item) -> bool:
    """Return whether a test is left to `make test-slow`."""
    parameters = getattr(getattr(item, "callspec", None), "params", {})
    if "newest" in parameters.values() or file in FILES:
        return True
    return file == _REPLAYED and parameters.get("name", "langgraph-openinference") not in FRAMEWORKS
