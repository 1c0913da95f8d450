"""Child processes of `queenright up`."""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import signal
import sys
from collections.abc import Sequence
from pathlib import Path

import httpx

from queenright.instrumentation.certificates import certificates
from queenright.instrumentation.errors import QueenrightError

_PR_SET_PDEATHSIG = 1


class ChildProcessFailedError(QueenrightError):
    """Raised when a program exits or does not answer during startup."""

    def __init__(self, name: str, reason: str, log: Path) -> None:
        log_end = ""
        with contextlib.suppress(OSError):
            log_end = "\n  ".join(log.read_text(errors="replace").splitlines()[-5:])
        super().__init__(f"{name} {reason}. The end of its log ({log}):\n  {log_end}")
        self.log = log


def _die_with_parent() -> None:
    """Make Linux send the child SIGTERM when this process is killed, so that no port stays in use."""
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)


async def wait_for_answer(url: str, *, every: float = 1) -> None:
    """Wait until ``url`` responds with 200. Retry every ``every`` seconds."""
    async with httpx.AsyncClient(trust_env=False, verify=certificates(url)) as client:
        while True:
            if await _is_answering(client, url):
                return
            await asyncio.sleep(every)


async def _is_answering(client: httpx.AsyncClient, url: str) -> bool:
    with contextlib.suppress(httpx.HTTPError):
        return (await client.get(url)).status_code == 200
    return False


class Child:
    """
    A running program.

    It runs in a separate process session, so Ctrl-C in the terminal reaches only this process, which stops
    its children in order.
    """

    def __init__(self, name: str, process: asyncio.subprocess.Process, log: Path) -> None:
        self.name = name
        self.process = process
        self.log = log

    @classmethod
    async def start(cls, name: str, command: Sequence[str | Path], log: Path) -> Child:
        """Start a program; its output goes to ``log``."""
        log.parent.mkdir(parents=True, exist_ok=True)
        with log.open("ab") as output:
            process = await asyncio.create_subprocess_exec(
                *map(str, command),
                stdin=asyncio.subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                start_new_session=True,
                preexec_fn=_die_with_parent if sys.platform == "linux" else None,
            )
        return cls(name, process, log)

    async def wait_ready(self, url: str, *, within: float = 15) -> None:
        """
        Wait until ``url`` responds with 200.

        Raises:
            ChildProcessFailedError: The program exited, or did not answer within ``within`` seconds.
        """
        async with httpx.AsyncClient(trust_env=False, verify=certificates(url)) as client:
            for _ in range(int(within / 0.1)):
                if self.process.returncode is not None:
                    raise ChildProcessFailedError(
                        self.name, f"exited during startup (exit code {self.process.returncode})", self.log
                    )
                if await _is_answering(client, url):
                    return
                await asyncio.sleep(0.1)
        raise ChildProcessFailedError(self.name, f"did not answer within {within:.0f} s", self.log)

    async def stop(self, *, within: float = 5) -> None:
        """Terminate the program. Kill it if it has not exited after ``within`` seconds."""
        if self.process.returncode is not None:
            return
        with contextlib.suppress(ProcessLookupError):
            self.process.terminate()
        try:
            await asyncio.wait_for(self.process.wait(), within)
        except TimeoutError:
            with contextlib.suppress(ProcessLookupError):
                self.process.kill()
            await self.process.wait()
