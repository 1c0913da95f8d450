"""The base class of all Queenright exceptions."""

from __future__ import annotations


class QueenrightError(Exception):
    """Base class of all Queenright exceptions."""
