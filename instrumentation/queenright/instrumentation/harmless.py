"""The one guard between Queenright's own faults and the agent it watches."""

from __future__ import annotations

import logging
from types import TracebackType
from typing import Final

_logger: Final = logging.getLogger("queenright.instrumentation")


class _Notice:
    """Says the first trouble of this process aloud, and the rest only to those who debug."""

    def __init__(self) -> None:
        self.given = False

    def __call__(self, message: str, *args: object) -> None:
        level = logging.DEBUG if self.given else logging.WARNING
        self.given = True
        # Not even a broken logging handler of the application may turn into an error of the agent's.
        try:
            _logger.log(level, message, *args)
        except Exception:
            return


notice: Final = _Notice()


def report(error: Exception) -> None:
    """Say that something of ours went wrong; the agent hears nothing of it."""
    notice("Queenright could not record something, and goes on: %s: %s", type(error).__name__, error)


class _Harmless:
    """
    ``with harmless:`` lets no exception of ours out.

    Only ``Exception``: an interrupt or a cancellation is meant for the agent and passes.
    """

    __slots__ = ()

    def __enter__(self) -> None:
        return None

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> bool:
        if not isinstance(error, Exception):
            return False
        report(error)
        return True


harmless: Final = _Harmless()
