"""Send the outcomes of instructions to the service, with retries."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from functools import partial
from typing import Final

from queenright.instrumentation.control_client import ControlClient, ServiceUnreachableError
from queenright.instrumentation.error_guard import suppress_errors
from queenright.instrumentation.job_queue import JobQueue

MAX_BACKOFF_SECONDS: Final = 60.0
"""Maximum seconds between two attempts."""
_ATTEMPTS: Final = 8
"""Attempts to send an outcome, over about two minutes."""

exiting: Final = threading.Event()
"""Set when the process ends, so that retries no longer wait."""

Jitter = Callable[[float, float], float]


def backoff(failures: int, jitter: Jitter) -> float:
    """Return the seconds until the next attempt after ``failures`` consecutive failures, at least 1."""
    return min(MAX_BACKOFF_SECONDS, 2.0 ** min(failures - 1, 16)) * jitter(0.5, 1.0)


class InstructionAnswers:
    """
    Sends outcomes in a background thread.

    Args:
        connect: Creates a client.
        jitter: Returns a random number between its two arguments.
    """

    def __init__(self, connect: Callable[[], ControlClient], jitter: Jitter) -> None:
        self._connect = connect
        self._jitter = jitter
        self._jobs = JobQueue("queenright-answers")

    def send_outcome(
        self, instruction_id: str, outcome: str, *, detail: str = "", checkpoint_id: str | None = None
    ) -> None:
        """Queue the outcome of an instruction: done, refused or failed. Does not block or raise."""
        answer = {"outcome": outcome, "detail": detail, "checkpoint_id": checkpoint_id or ""}
        with suppress_errors:
            self._jobs.put(partial(self._post, instruction_id, {k: v for k, v in answer.items() if v}))

    def wait(self, seconds: float) -> bool:
        """Wait at most ``seconds`` for queued outcomes; return whether all were sent."""
        return self._jobs.wait(seconds)

    def _post(self, instruction_id: str, answer: Mapping[str, str]) -> None:
        client = self._connect()
        try:
            for attempt in range(1, _ATTEMPTS + 1):
                try:
                    return client.answer(instruction_id, answer)
                except ServiceUnreachableError as error:
                    if error.is_final:
                        return None
                exiting.wait(backoff(attempt, self._jitter))
        finally:
            client.close()
        return None
