"""
The control channel, which delivers the service's instructions to a worker without blocking it.

One thread long-polls for instructions. Each instruction is passed to a callback of the agent, or queued
until the agent takes it. Nudges and terminations use separate threads, so that a hanging nudge cannot
delay a termination. The outcome is sent back to the service.
"""

from __future__ import annotations

import atexit
import os
import random
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping
from functools import partial
from typing import Final
from weakref import WeakSet

from queenright.instrumentation.control_client import (
    ControlClient,
    InstructionsResponse,
    ServiceUnreachableError,
)
from queenright.instrumentation.error_guard import suppress_errors, warn_once
from queenright.instrumentation.errors import error_text
from queenright.instrumentation.forks import after_fork_in_child
from queenright.instrumentation.instructions import (
    Instruction,
    InvalidInstruction,
    Nudge,
    Termination,
    parse_instructions,
)
from queenright.instrumentation.job_queue import JobQueue
from queenright.instrumentation.redaction import redact

OnNudge = Callable[[Nudge], object]
OnTerminate = Callable[[str], str | None]

WAIT: Final = 25.0
"""Maximum seconds of one long poll."""

_PAUSE_SECONDS: Final = 2.0
"""Minimum seconds between polls without news, even if the service ignores ``wait``."""
_SILENT_FAILURES: Final = 2
"""Failures that are not logged: the service may be starting."""
_SAME_CLOCK_SECONDS: Final = 5.0
"""Clock difference in seconds that is ignored: ``Date`` has whole seconds, and responses take time."""
_MAX_HANDLED_IDS: Final = 1024
_MAX_PENDING_INSTRUCTIONS: Final = 100
"""Maximum instructions that wait for the agent to take them."""
_EXIT_SECONDS: Final = 1.0

_channels: Final[WeakSet[ControlChannel]] = WeakSet()


class ControlChannel:
    """
    The control channel of one incarnation of a worker.

    An instruction is delivered at most once, by its id, and never after it expires. Forked children share
    their parent's incarnation: instructions go to the parent, or to the child if its parent has exited.

    Args:
        connect: Creates a client; called in each thread that needs one.
        session_id: The session to fetch instructions for.
        incarnation_id: The incarnation to fetch instructions for.
        on_nudge: Called with each nudge.
        on_terminate: Called with the reason; returns the id of the checkpoint that it saved, if any.
        keep_unhandled: Whether to keep instructions without a callback for ``take``; otherwise refuse them.
        clock: Returns seconds since the epoch.
        jitter: Returns a random number between its two arguments.
        wait: Maximum seconds of one long poll.
    """

    def __init__(
        self,
        connect: Callable[[], ControlClient],
        *,
        session_id: str,
        incarnation_id: str,
        on_nudge: OnNudge | None,
        on_terminate: OnTerminate | None,
        keep_unhandled: bool,
        clock: Callable[[], float],
        jitter: Callable[[float, float], float] = random.uniform,
        wait: float = WAIT,
    ) -> None:
        self._connect = connect
        self._session_id, self._incarnation_id = session_id, incarnation_id
        self._on_nudge, self._on_terminate = on_nudge, on_terminate
        self._keep_unhandled = keep_unhandled
        self._clock = clock
        self._jitter = jitter
        self._wait = wait
        self._handled_ids: dict[str, None] = {}
        self._checkpoint_id: str | None = None
        self._process: int | None = None
        self._close_event = threading.Event()
        self._nudges = JobQueue("queenright-nudges")
        self._terminations = JobQueue("queenright-terminations")
        self._answers = InstructionAnswers(connect, jitter)
        self._reset()
        after_fork_in_child(self._reset)
        _channels.add(self)

    def _reset(self) -> None:
        is_closed = self._close_event.is_set()
        self._close_event = threading.Event()
        if is_closed:
            self._close_event.set()
        self._lock = threading.Lock()
        self._thread: threading.Thread | None = None
        self._pending_instructions: deque[Instruction] = deque()
        self._unread_terminations: list[Termination] = []

    def start(self) -> None:
        """Start polling. Further calls do nothing."""
        with self._lock:
            if self._close_event.is_set() or self._thread is not None:
                return
            self._process = self._process or os.getpid()
            self._thread = threading.Thread(target=self._poll, name="queenright-control", daemon=True)
            self._thread.start()

    def take(self) -> list[Instruction]:
        """Return waiting instructions, oldest first, and answer the nudges. Does not block."""
        with self._lock:
            instructions, self._pending_instructions = list(self._pending_instructions), deque()
        timely_instructions = [instruction for instruction in instructions if not self._is_late(instruction)]
        for instruction in timely_instructions:
            if isinstance(instruction, Nudge):
                self._answers.send_outcome(instruction.instruction_id, "done")
        with self._lock:
            # Terminations are answered when the run ends.
            self._unread_terminations += [
                instruction for instruction in timely_instructions if isinstance(instruction, Termination)
            ]
        return timely_instructions

    def close(self, checkpoint_id: str = "") -> None:
        """
        Stop polling and answer open instructions. Does not block.

        Args:
            checkpoint_id: The worker's last checkpoint.
        """
        with self._lock:
            if self._close_event.is_set():
                return
            self._checkpoint_id = checkpoint_id or None
            self._close_event.set()
            remaining = [*self._pending_instructions, *self._unread_terminations]
            self._pending_instructions, self._unread_terminations = deque(), []
        for instruction in remaining:
            self._answer_after_end(instruction)

    def drain(self, seconds: float) -> None:
        """Wait at most ``seconds`` for running terminations and unsent answers."""
        deadline = time.monotonic() + seconds
        self._terminations.wait(seconds)
        self._answers.wait(max(0.0, deadline - time.monotonic()))

    # -- polling --------------------------------------------------------------------------------

    def _poll(self) -> None:
        close_event, client, failures = self._close_event, None, 0
        while os.getppid() == self._process and not close_event.is_set():
            close_event.wait(1.0)  # a forked child polls only after its parent has exited
        while not close_event.is_set():
            start_time = time.monotonic()
            try:
                client = client or self._connect()
                has_news = self._receive(client.fetch(self._wait))
                failures = 0
                close_event.wait(
                    0.0 if has_news else max(0.0, _PAUSE_SECONDS - (time.monotonic() - start_time))
                )
            except Exception as error:
                failures += 1
                if failures > _SILENT_FAILURES:
                    warn_once(
                        "Queenright cannot fetch instructions (%s); the agent continues and polling retries.",
                        error,
                    )
                close_event.wait(backoff(failures, self._jitter))
        if client is not None:
            with suppress_errors:
                client.close()

    def _receive(self, response: InstructionsResponse) -> bool:
        """Deliver the new instructions of a response; return whether there were any."""
        now = self._clock()
        clock_offset = now - response.time if response.time is not None else 0.0
        if abs(clock_offset) <= _SAME_CLOCK_SECONDS:
            clock_offset = 0.0
        instructions = parse_instructions(
            response.body,
            session_id=self._session_id,
            incarnation_id=self._incarnation_id,
            now=now,
            clock_offset=clock_offset,
        )
        new_instructions = [
            instruction for instruction in instructions if self._is_new(instruction.instruction_id)
        ]
        for instruction in new_instructions:
            if isinstance(instruction, InvalidInstruction):
                self._answers.send_outcome(instruction.instruction_id, "refused", detail=instruction.reason)
            else:
                self._deliver(instruction)
        return bool(new_instructions)

    def _is_new(self, instruction_id: str) -> bool:
        if instruction_id in self._handled_ids:
            return False
        if len(self._handled_ids) >= _MAX_HANDLED_IDS:
            del self._handled_ids[next(iter(self._handled_ids))]
        self._handled_ids[instruction_id] = None
        return True

    # -- delivering -----------------------------------------------------------------------------

    def _deliver(self, instruction: Instruction) -> None:
        if isinstance(instruction, Nudge) and self._on_nudge is not None:
            self._nudges.put(partial(self._run_callback, instruction, partial(self._on_nudge, instruction)))
        elif isinstance(instruction, Termination) and self._on_terminate is not None:
            self._terminations.put(
                partial(self._run_callback, instruction, partial(self._on_terminate, instruction.reason))
            )
        elif not self._keep_unhandled:
            callback = "on_nudge" if isinstance(instruction, Nudge) else "on_terminate"
            self._answers.send_outcome(
                instruction.instruction_id, "refused", detail=f"this worker has no {callback}"
            )
        else:
            with self._lock:
                has_room = (
                    len(self._pending_instructions) < _MAX_PENDING_INSTRUCTIONS
                    and not self._close_event.is_set()
                )
                if has_room:
                    self._pending_instructions.append(instruction)
            if not has_room and not self._is_late(instruction):
                self._answers.send_outcome(
                    instruction.instruction_id,
                    "failed",
                    detail=f"{_MAX_PENDING_INSTRUCTIONS} instructions already wait to be taken",
                )

    def _run_callback(self, instruction: Instruction, function: Callable[[], object]) -> None:
        """Call the agent's callback and suppress whatever it raises."""
        if self._is_late(instruction):
            return
        outcome, checkpoint_id, detail = "done", None, ""
        try:
            result = function()
            checkpoint_id = (
                result if isinstance(instruction, Termination) and isinstance(result, str) else None
            )
        except BaseException as error:
            if not (isinstance(error, SystemExit) and error.code in (None, 0)):
                outcome, detail = "failed", redact(f"{type(error).__name__}: {error_text(error)}")
                warn_once(
                    "Queenright called the agent's callback for an instruction, which raised %s", detail
                )
        self._answers.send_outcome(
            instruction.instruction_id, outcome, detail=detail, checkpoint_id=checkpoint_id
        )

    def _is_late(self, instruction: Instruction) -> bool:
        """Return whether an instruction is too late to deliver; if so, answer it."""
        if self._close_event.is_set():
            self._answer_after_end(instruction)
            return True
        if instruction.expires_at <= self._clock():
            self._answers.send_outcome(
                instruction.instruction_id, "refused", detail="the instruction has expired"
            )
            return True
        return False

    # -- answering ------------------------------------------------------------------------------

    def _answer_after_end(self, instruction: Instruction) -> None:
        if isinstance(instruction, Termination):
            self._answers.send_outcome(
                instruction.instruction_id, "done", detail="the run ended", checkpoint_id=self._checkpoint_id
            )
        else:
            self._answers.send_outcome(instruction.instruction_id, "refused", detail="the run has ended")


def _drain_all() -> None:
    exiting.set()
    deadline = time.monotonic() + _EXIT_SECONDS
    for channel in list(_channels):
        with suppress_errors:
            channel.drain(max(0.0, deadline - time.monotonic()))


atexit.register(_drain_all)


MAX_BACKOFF_SECONDS: Final = 60.0
"""Maximum seconds between two attempts."""
_MAX_ATTEMPTS: Final = 8
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
            for attempt in range(1, _MAX_ATTEMPTS + 1):
                try:
                    return client.answer(instruction_id, answer)
                except ServiceUnreachableError as error:
                    if error.is_final:
                        return None
                exiting.wait(backoff(attempt, self._jitter))
        finally:
            client.close()
        return None
