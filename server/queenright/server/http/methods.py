"""HTTP methods."""

from __future__ import annotations

from typing import Final

CHANGING_METHODS: Final = frozenset({"POST", "PUT", "PATCH", "DELETE"})
"""Methods of requests that may change something."""
