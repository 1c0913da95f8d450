"""What holds for all tests."""

from __future__ import annotations

from hypothesis import HealthCheck, settings

# How fast an example runs says how busy the machine is, not whether the code is right.
settings.register_profile("queenright", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("queenright")
