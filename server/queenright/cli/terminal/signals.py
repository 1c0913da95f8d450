"""Ctrl-C, SIGTERM and SIGHUP: the first puts a run by, the second ends the program."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
from collections.abc import Callable
from types import FrameType
from typing import Final

from queenright.runtime.events import AgentEvent, EventType

SIGNALS: Final = (signal.SIGINT, signal.SIGTERM)
"""SIGHUP is one too, but the second may only be the shell's word of what the terminal said already."""


class Stopping:
    """
    Sets ``stop`` at the first signal, and ends the program at the second.

    The second is for a pause that takes too long, so nothing is waited for: what a session has on the disk
    is enough to take it up again, and MCP servers end when their stdin does.

    Args:
        resume_command: What takes up a session, by its id.
        session_id: The session, if it is known before the run.
    """

    types: Final = frozenset({EventType.EXECUTION_STARTED})

    def __init__(self, resume_command: Callable[[str], str], session_id: str = "") -> None:
        self.stop = asyncio.Event()
        self.execution_id = ""
        """The run that is stopped, as soon as it is known."""
        self._resume_command = resume_command
        self._session_id = session_id
        self._sessions: dict[str, str] = {}

    def listen(self) -> None:
        """Wait for signals from now on; the event loop must be running."""
        loop = asyncio.get_running_loop()
        for number in SIGNALS:
            loop.add_signal_handler(number, self._first)
        # Under nohup it is to be ignored.
        if signal.getsignal(signal.SIGHUP) is not signal.SIG_IGN:
            loop.add_signal_handler(signal.SIGHUP, self._first)

    def show(self, event: AgentEvent) -> None:
        """Take in which session a run is in."""
        self._sessions[event.execution_id] = event.session_id

    def _first(self) -> None:
        self.stop.set()
        loop = asyncio.get_running_loop()
        loop.remove_signal_handler(signal.SIGHUP)
        signal.signal(signal.SIGHUP, signal.SIG_IGN)
        for number in SIGNALS:
            loop.remove_signal_handler(number)
            # Not by the loop: it may be what hangs.
            signal.signal(number, self._second)

    def _second(self, number: int, _: FrameType | None) -> None:
        session_id = self._sessions.get(self.execution_id) or self._session_id
        said = "Stopped at once"
        if session_id:
            said += f"; the session can be resumed. Go on with: {self._resume_command(session_id)}"
        # Not by print: the signal may have come in the midst of one.
        with contextlib.suppress(OSError):
            os.write(2, f"{said}\n".encode())
        os._exit(128 + number)
