"""The base of every exception that Queenright raises."""

from __future__ import annotations


class QueenrightError(Exception):
    """Base of Queenright's own exceptions: catch this one to catch them all."""
