"""What holds for all tests."""

from __future__ import annotations

import os

from hypothesis import HealthCheck, settings

from tests.databases import database_url, postgres

__all__ = ["database_url", "postgres"]

# How fast an example runs says how busy the machine is, not whether the code is right. 40 examples a run, and
# new ones each time; HYPOTHESIS_EXAMPLES=1000 looks longer.
settings.register_profile(
    "queenright",
    deadline=None,
    max_examples=int(os.environ.get("HYPOTHESIS_EXAMPLES", "40")),
    suppress_health_check=[HealthCheck.too_slow],
)
settings.load_profile("queenright")
