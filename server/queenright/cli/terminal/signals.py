"""Signals during a run: the first pauses the run, the second ends the program."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
from collections.abc import Callable
from types import FrameType
from typing import Any, Final

from queenright.runtime.events import AgentEvent, EventType

STOP_SIGNALS: Final = (signal.SIGINT, signal.SIGTERM)
"""SIGHUP also pauses, but never ends the program: shells send it after the terminal already did."""


async def wait_unless_stopped(task: asyncio.Task[Any], stop: asyncio.Event) -> bool:
    """Wait for a task or for ``stop``; return whether the task has ended."""
    waiter = asyncio.create_task(stop.wait())
    try:
        await asyncio.wait({task, waiter}, return_when=asyncio.FIRST_COMPLETED)
    finally:
        waiter.cancel()
    return task.done()


class PauseOnSignal:
    """
    Sets ``stop`` on the first signal, and ends the program on the second.

    The second is for a pause that takes too long, so the program exits without cleaning up: the session on
    disk can be resumed, and MCP servers end when their stdin closes.

    Args:
        resume_command: Returns the command that resumes a session.
        session_id: The session, if it is known before the run.
    """

    types: Final = frozenset({EventType.EXECUTION_STARTED})

    def __init__(self, resume_command: Callable[[str], str], session_id: str = "") -> None:
        self.stop = asyncio.Event()
        self.execution_id = ""
        """The run to stop, as soon as it is known."""
        self._resume_command = resume_command
        self._session_id = session_id
        self._sessions: dict[str, str] = {}

    def install(self) -> None:
        """Install the signal handlers; the event loop must be running."""
        loop = asyncio.get_running_loop()
        for number in STOP_SIGNALS:
            loop.add_signal_handler(number, self._on_first_signal)
        # nohup starts a program with SIGHUP ignored; keep it ignored.
        if signal.getsignal(signal.SIGHUP) is not signal.SIG_IGN:
            loop.add_signal_handler(signal.SIGHUP, self._on_first_signal)

    def handle_event(self, event: AgentEvent) -> None:
        """Remember the session of a run."""
        self._sessions[event.execution_id] = event.session_id

    def _on_first_signal(self) -> None:
        self.stop.set()
        loop = asyncio.get_running_loop()
        loop.remove_signal_handler(signal.SIGHUP)
        signal.signal(signal.SIGHUP, signal.SIG_IGN)
        for number in STOP_SIGNALS:
            loop.remove_signal_handler(number)
            # Not a handler of the loop, which may be what hangs.
            signal.signal(number, self._on_second_signal)

    def _on_second_signal(self, number: int, _: FrameType | None) -> None:
        session_id = self._sessions.get(self.execution_id) or self._session_id
        message = "Stopped without pausing"
        if session_id:
            message += f"; the session can be resumed: {self._resume_command(session_id)}"
        # Not print, which the signal may have interrupted.
        with contextlib.suppress(OSError):
            os.write(2, f"{message}\n".encode())
        os._exit(128 + number)
