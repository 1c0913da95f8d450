"""
The control channel: how a worker is told something by the service, without ever waiting for it.

One thread asks for instructions and stays on the line until there are some. What comes is handed to the
agent's own functions, nudges in one thread and terminations in another, so that a nudge that hangs cannot
keep a termination from arriving; or it waits until the agent takes it. What became of it is told the service.
"""

from __future__ import annotations

import atexit
import os
import random
import threading
import time
from collections import deque
from collections.abc import Callable
from functools import partial
from typing import Final
from weakref import WeakSet

from queenright.instrumentation.control_answers import Answers, backoff, exiting
from queenright.instrumentation.control_client import ControlClient, Fetched
from queenright.instrumentation.forks import after_fork_in_child
from queenright.instrumentation.harmless import harmless, notice
from queenright.instrumentation.instructions import (
    Instruction,
    Nudge,
    Termination,
    Unusable,
    parse_instructions,
)
from queenright.instrumentation.lane import Lane
from queenright.instrumentation.redaction import redact

OnNudge = Callable[[Nudge], object]
OnTerminate = Callable[[str], str | None]

WAIT: Final = 25.0
"""Seconds that the service may keep a question open."""

_PAUSE: Final = 2.0
"""Seconds between questions that brought nothing new, whatever the service makes of ``wait``."""
_SILENT_FAILURES: Final = 2
"""A service that is just starting is no trouble yet."""
_SAME_CLOCK: Final = 5.0
"""Seconds that two clocks may differ: answers name whole seconds, and take their time."""
_SEEN: Final = 1024
_WAITING: Final = 100
"""So many instructions wait at most until the agent takes them."""
_EXIT_SECONDS: Final = 1.0

_channels: Final[WeakSet[ControlChannel]] = WeakSet()


class ControlChannel:
    """
    What one incarnation of a worker is told.

    An instruction is delivered once at most, by its id, and not after it has expired. Forked children
    have their parent's incarnation: it is the parent that is told, and a child that is used after its
    parent has left.

    Args:
        connect: Makes a client; called in each thread that needs one.
        session_id: The session that instructions are for.
        incarnation_id: The life of the worker that they are for.
        on_nudge: Is called with each nudge.
        on_terminate: Is called with the reason; returns the id of the checkpoint it saved, if it did.
        by_hand: Whether what no function takes waits for ``take``; else it is refused.
        clock: Seconds since the epoch.
        spread: Returns a number between two, to spread what is tried again.
        wait: Seconds that the service may keep a question open.
    """

    def __init__(
        self,
        connect: Callable[[], ControlClient],
        *,
        session_id: str,
        incarnation_id: str,
        on_nudge: OnNudge | None,
        on_terminate: OnTerminate | None,
        by_hand: bool,
        clock: Callable[[], float],
        spread: Callable[[float, float], float] = random.uniform,
        wait: float = WAIT,
    ) -> None:
        self._connect = connect
        self._session_id, self._incarnation_id = session_id, incarnation_id
        self._on_nudge, self._on_terminate = on_nudge, on_terminate
        self._by_hand = by_hand
        self._clock = clock
        self._spread = spread
        self._wait = wait
        self._seen: dict[str, None] = {}
        self._checkpoint_id: str | None = None
        self._process: int | None = None
        self._closed = threading.Event()
        self._nudges = Lane("queenright-nudges")
        self._terminations = Lane("queenright-terminations")
        self._answers = Answers(connect, spread)
        self._reset()
        after_fork_in_child(self._reset)
        _channels.add(self)

    def _reset(self) -> None:
        closed = self._closed.is_set()
        self._closed = threading.Event()
        if closed:
            self._closed.set()
        self._lock = threading.Lock()
        self._thread: threading.Thread | None = None
        self._waiting: deque[Instruction] = deque()
        self._taken: list[Termination] = []

    def start(self) -> None:
        """Begin to ask; a second time does nothing."""
        with self._lock:
            if self._closed.is_set() or self._thread is not None:
                return
            self._process = self._process or os.getpid()
            self._thread = threading.Thread(target=self._ask, name="queenright-control", daemon=True)
            self._thread.start()

    def take(self) -> list[Instruction]:
        """Return what waits, oldest first, and tell the service; never waits for it."""
        with self._lock:
            waiting, self._waiting = list(self._waiting), deque()
        fresh = [one for one in waiting if not self._is_late(one)]
        for one in fresh:
            if isinstance(one, Nudge):
                self._answers.say(one.instruction_id, "done")
        with self._lock:
            # Whoever took it has yet to stop: that is told when the run ends.
            self._taken += [one for one in fresh if isinstance(one, Termination)]
        return fresh

    def close(self, checkpoint_id: str = "") -> None:
        """
        Ask no more, and say what became of what was still open; never waits.

        Args:
            checkpoint_id: The worker's last checkpoint.
        """
        with self._lock:
            if self._closed.is_set():
                return
            self._checkpoint_id = checkpoint_id or None
            self._closed.set()
            left = [*self._waiting, *self._taken]
            self._waiting, self._taken = deque(), []
        for one in left:
            self._answer_of_the_ended(one)

    def drain(self, seconds: float) -> None:
        """Wait for answers that are on their way, for at most so many seconds."""
        until = time.monotonic() + seconds
        self._terminations.wait(seconds)
        self._answers.wait(max(0.0, until - time.monotonic()))

    # -- asking ---------------------------------------------------------------------------------

    def _ask(self) -> None:
        closed, client, failures = self._closed, None, 0
        while os.getppid() == self._process and not closed.is_set():
            closed.wait(1.0)  # in a child, while its parent is there to be told
        while not closed.is_set():
            began = time.monotonic()
            try:
                client = client or self._connect()
                news = self._receive(client.fetch(self._wait))
                failures = 0
                closed.wait(0.0 if news else max(0.0, _PAUSE - (time.monotonic() - began)))
            except Exception as error:
                failures += 1
                if failures > _SILENT_FAILURES:
                    notice("Queenright's instructions do not arrive (%s); the agent goes on.", error)
                closed.wait(backoff(failures, self._spread))
        if client is not None:
            with harmless:
                client.close()

    def _receive(self, fetched: Fetched) -> bool:
        """Deliver what is new in an answer; return whether anything was."""
        now = self._clock()
        ahead = now - fetched.time if fetched.time is not None else 0.0
        if abs(ahead) <= _SAME_CLOCK:
            ahead = 0.0
        found = parse_instructions(
            fetched.body,
            session_id=self._session_id,
            incarnation_id=self._incarnation_id,
            now=now,
            ahead=ahead,
        )
        new = [one for one in found if self._is_new(one.instruction_id)]
        for one in new:
            if isinstance(one, Unusable):
                self._answers.say(one.instruction_id, "refused", detail=one.reason)
            else:
                self._deliver(one)
        return bool(new)

    def _is_new(self, instruction_id: str) -> bool:
        if instruction_id in self._seen:
            return False
        if len(self._seen) >= _SEEN:
            del self._seen[next(iter(self._seen))]
        self._seen[instruction_id] = None
        return True

    # -- delivering -----------------------------------------------------------------------------

    def _deliver(self, one: Instruction) -> None:
        if isinstance(one, Nudge) and self._on_nudge is not None:
            self._nudges.put(partial(self._call, one, partial(self._on_nudge, one)))
        elif isinstance(one, Termination) and self._on_terminate is not None:
            self._terminations.put(partial(self._call, one, partial(self._on_terminate, one.reason)))
        elif not self._by_hand:
            wanted = "on_nudge" if isinstance(one, Nudge) else "on_terminate"
            self._answers.say(one.instruction_id, "refused", detail=f"this worker has no {wanted}")
        else:
            with self._lock:
                keep = len(self._waiting) < _WAITING and not self._closed.is_set()
                if keep:
                    self._waiting.append(one)
            if not keep and not self._is_late(one):
                self._answers.say(
                    one.instruction_id, "failed", detail=f"{_WAITING} wait already, and nobody takes them"
                )

    def _call(self, one: Instruction, function: Callable[[], object]) -> None:
        """Call the agent's function; whatever it raises ends here."""
        if self._is_late(one):
            return
        outcome, checkpoint_id, detail = "done", None, ""
        try:
            said = function()
            checkpoint_id = said if isinstance(one, Termination) and isinstance(said, str) else None
        except BaseException as error:
            if not (isinstance(error, SystemExit) and error.code in (None, 0)):
                outcome, detail = "failed", _described(error)
                notice(
                    "Queenright called a function of the agent's for an instruction, which raised %s", detail
                )
        self._answers.say(one.instruction_id, outcome, detail=detail, checkpoint_id=checkpoint_id)

    def _is_late(self, one: Instruction) -> bool:
        """Return whether an instruction comes too late, and say so to the service."""
        if self._closed.is_set():
            self._answer_of_the_ended(one)
            return True
        if one.expires_at <= self._clock():
            self._answers.say(one.instruction_id, "refused", detail="it has expired")
            return True
        return False

    # -- answering ------------------------------------------------------------------------------

    def _answer_of_the_ended(self, one: Instruction) -> None:
        if isinstance(one, Termination):
            self._answers.say(
                one.instruction_id, "done", detail="the run ended", checkpoint_id=self._checkpoint_id
            )
        else:
            self._answers.say(one.instruction_id, "refused", detail="the run has ended")


def _described(error: BaseException) -> str:
    """Return the class and text of an error, with secrets masked."""
    try:
        text = str(error)
    except Exception:
        text = ""
    return redact(f"{type(error).__name__}: {text}")


def _drain_all() -> None:
    exiting.set()
    until = time.monotonic() + _EXIT_SECONDS
    for channel in list(_channels):
        with harmless:
            channel.drain(max(0.0, until - time.monotonic()))


atexit.register(_drain_all)
