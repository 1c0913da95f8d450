"""Answers: what became of an instruction, told to the service, again until it has heard."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from functools import partial
from typing import Final

from queenright.instrumentation.control_client import ControlClient, ServiceUnreachableError
from queenright.instrumentation.harmless import harmless
from queenright.instrumentation.lane import Lane

LONGEST_BACKOFF: Final = 60.0
"""Seconds between two attempts at most."""
_TRIES: Final = 8
"""So often an answer is offered: over two minutes."""

exiting: Final = threading.Event()
"""Set when the process ends: nothing is waited for any more."""

Spread = Callable[[float, float], float]


def backoff(failures: int, spread: Spread) -> float:
    """Return the seconds to the next attempt after so many failures in a row, from 1 on."""
    return min(LONGEST_BACKOFF, 2.0 ** min(failures - 1, 16)) * spread(0.5, 1.0)


class Answers:
    """
    Tells the service, in a thread of its own.

    Args:
        connect: Makes a client.
        spread: Returns a number between two, to spread what is tried again.
    """

    def __init__(self, connect: Callable[[], ControlClient], spread: Spread) -> None:
        self._connect = connect
        self._spread = spread
        self._lane = Lane("queenright-answers")

    def say(
        self, instruction_id: str, outcome: str, *, detail: str = "", checkpoint_id: str | None = None
    ) -> None:
        """Tell the outcome of an instruction: done, refused or failed; never waits, never raises."""
        said = {"outcome": outcome, "detail": detail, "checkpoint_id": checkpoint_id or ""}
        with harmless:
            self._lane.put(partial(self._post, instruction_id, {k: v for k, v in said.items() if v}))

    def wait(self, seconds: float) -> bool:
        """Wait for what is on its way, for at most so many seconds; return whether all is told."""
        return self._lane.wait(seconds)

    def _post(self, instruction_id: str, answer: Mapping[str, str]) -> None:
        client = self._connect()
        try:
            for tried in range(1, _TRIES + 1):
                try:
                    return client.answer(instruction_id, answer)
                except ServiceUnreachableError as away:
                    if away.final:
                        return None
                exiting.wait(backoff(tried, self._spread))
        finally:
            client.close()
        return None
