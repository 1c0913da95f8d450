"""What holds for all tests."""

from __future__ import annotations

from hypothesis import HealthCheck, settings

from tests.databases import database_url, postgres

__all__ = ["database_url", "postgres"]

# How fast an example runs says how busy the machine is, not whether the code is right.
settings.register_profile("queenright", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("queenright")
