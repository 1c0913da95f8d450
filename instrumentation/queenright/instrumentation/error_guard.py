"""Keep Queenright's own errors away from the agent that it monitors."""

from __future__ import annotations

import logging
from types import TracebackType
from typing import Final

_logger: Final = logging.getLogger("queenright.instrumentation")


class _WarnOnce:
    """Logs the first problem of this process as a warning and later ones at debug level."""

    def __init__(self) -> None:
        self.has_warned = False

    def __call__(self, message: str, *args: object) -> None:
        level = logging.DEBUG if self.has_warned else logging.WARNING
        self.has_warned = True
        # A broken logging handler of the application must not break the agent.
        try:
            _logger.log(level, message, *args)
        except Exception:
            return


warn_once: Final = _WarnOnce()


def report_error(error: Exception) -> None:
    """Log an internal error without raising it into the agent."""
    warn_once("Queenright lost some telemetry after an internal error: %s: %s", type(error).__name__, error)


class _ErrorGuard:
    """
    A context manager that logs and suppresses every ``Exception``.

    Interrupts and cancellations are not suppressed: they are meant for the agent.
    """

    __slots__ = ()

    def __enter__(self) -> None:
        return None

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> bool:
        if not isinstance(error, Exception):
            return False
        report_error(error)
        return True


suppress_errors: Final = _ErrorGuard()
