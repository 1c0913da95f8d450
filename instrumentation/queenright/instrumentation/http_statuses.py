"""HTTP status codes that may be transient."""

from __future__ import annotations

from typing import Final

TRANSIENT_STATUSES: Final = frozenset({408, 425, 429, 500, 502, 503, 504})
"""Statuses of errors that may be transient: the request may be repeated."""
