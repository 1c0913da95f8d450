"""
The time until a hook call is stored and answered over HTTP, with 1,000 sessions.

The service is a separate process (``queenright serve``). Each session makes a call every five seconds,
alternating between the start and the end of a tool call, on connections that stay open. Calls are sent when
they are due, and measured from then. Between them, calls to an unknown path measure HTTP and the machine
alone. ``HOOKS_SECONDS`` sets the duration.
"""

from __future__ import annotations

import asyncio
import json
import os
import time
from collections.abc import Iterator
from typing import Any, Final
from urllib.parse import urlsplit

import uvloop

from tools.benchmarks.row import Row
from tools.benchmarks.start import Service, process_time, serve

SESSIONS: Final = 1_000
SECONDS: Final = float(os.environ.get("HOOKS_SECONDS", "30"))
RATE: Final = 200
"""Calls per second."""
CONNECTIONS: Final = 32
_WARM_UP: Final = 5.0
_IDLE: Final = 3.0
"""Seconds. The server closes a connection after five idle seconds."""
_BUDGET: Final = 0.010
_HOOK: Final = "/hooks/claude-code?user=ada&host=laptop"
_PLAIN: Final = "/hooks/plain"
"""An unknown path. It is answered with 404 through the same server, guard and connection."""


def run() -> list[Row]:
    """Measure both kinds of call in one run."""
    with serve() as service:
        hooks, plain, processor = uvloop.run(_measure(service))
    return [
        Row(
            f"hook call answered, {SESSIONS} sessions, {RATE} per second: p99",
            f"{_quantile(hooks, 0.99) * 1000:.1f} ms (median {_quantile(hooks, 0.5) * 1000:.1f} ms, "
            f"{processor * 1000:.2f} ms of CPU time)",
            f"{_BUDGET * 1000:.0f} ms",
            _quantile(hooks, 0.99) <= _BUDGET,
        ),
        Row(
            "a call to an unknown path in between: p99",
            f"{_quantile(plain, 0.99) * 1000:.1f} ms (median {_quantile(plain, 0.5) * 1000:.1f} ms)",
            "-",
            True,
        ),
    ]


def _quantile(durations: list[float], share: float) -> float:
    return sorted(durations)[min(len(durations) - 1, int(share * len(durations)))]


async def _measure(service: Service) -> tuple[list[float], list[float], float]:
    """Return the seconds of each hook call and each plain call, and the CPU seconds of one hook call."""
    address = urlsplit(service.otlp)
    pool: asyncio.Queue[_Connection] = asyncio.Queue()
    for _ in range(CONNECTIONS):
        reader, writer = await asyncio.open_connection(address.hostname, address.port)
        pool.put_nowait(_Connection(reader, writer))
    for number in range(SESSIONS):
        for name in ("SessionStart", "UserPromptSubmit"):
            await _send(pool, _HOOK, _make_call(number, name, ""), time.perf_counter(), [])
    work = _make_calls()
    await _run_phase(pool, work, _WARM_UP, is_hook=True, is_plain=True)
    idle = process_time(service.pid)
    await asyncio.sleep(_IDLE)
    idle = (process_time(service.pid) - idle) / _IDLE
    before = process_time(service.pid)
    only_plain = await _run_phase(pool, work, _IDLE, is_hook=False, is_plain=True)
    plain_cpu_seconds = (process_time(service.pid) - before - _IDLE * idle) / len(only_plain[1])
    before, start = process_time(service.pid), time.perf_counter()
    hooks, plain = await _run_phase(pool, work, SECONDS, is_hook=True, is_plain=True)
    cpu_seconds = process_time(service.pid) - before - (time.perf_counter() - start) * idle
    while not pool.empty():
        pool.get_nowait().writer.close()
    return hooks, plain, (cpu_seconds - len(plain) * plain_cpu_seconds) / len(hooks)


async def _run_phase(
    pool: asyncio.Queue[_Connection], work: Iterator[bytes], seconds: float, *, is_hook: bool, is_plain: bool
) -> tuple[list[float], list[float]]:
    hooks, plain = list[float](), list[float]()
    start = time.perf_counter()
    async with asyncio.TaskGroup() as group:
        for number in range(int(seconds * RATE)):
            due = start + number / RATE
            await asyncio.sleep(due - time.perf_counter())
            body = next(work) if is_hook else b"{}"
            if is_hook:
                group.create_task(_send(pool, _HOOK, body, due, hooks))
            if is_plain:
                plain_due = due + 0.5 / RATE
                await asyncio.sleep(plain_due - time.perf_counter())
                group.create_task(_send(pool, _PLAIN, body, plain_due, plain))
    return hooks, plain


class _Connection:
    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader, self.writer = reader, writer

    async def post(self, path: str, body: bytes) -> int:
        """Send a request, read the whole response, and return its status."""
        head = f"POST {path} HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/json\r\n"
        self.writer.write(f"{head}Content-Length: {len(body)}\r\n\r\n".encode() + body)
        answer = (await self.reader.readuntil(b"\r\n\r\n")).lower()
        length = answer.split(b"content-length: ")[1].split(b"\r\n")[0]
        await self.reader.readexactly(int(length))
        return int(answer.split(b" ")[1])


async def _send(
    pool: asyncio.Queue[_Connection], path: str, body: bytes, due: float, durations: list[float]
) -> None:
    connection = await pool.get()
    status = await connection.post(path, body)
    durations.append(time.perf_counter() - due)
    pool.put_nowait(connection)
    if status != (200 if path == _HOOK else 404):
        raise RuntimeError(f"{path} was answered with {status}")


def _make_calls() -> Iterator[bytes]:
    """Yield the calls of all sessions, one call per session in each round."""
    turn = 0
    while True:
        for number in range(SESSIONS):
            yield _make_call(number, "PostToolUse" if turn % 2 else "PreToolUse", f"t-{turn // 2}")
        turn += 1


def _make_call(session: int, name: str, tool: str) -> bytes:
    call: dict[str, Any] = {
        "session_id": f"session-{session}",
        "transcript_path": f"/home/ada/.claude/projects/honey/session-{session}.jsonl",
        "cwd": f"/home/ada/honey-{session}",
        "permission_mode": "default",
        "hook_event_name": name,
    }
    if tool:
        call |= {"tool_name": "Bash", "tool_use_id": tool, "tool_input": {"command": f"cat notes-{tool}.txt"}}
    if name == "PostToolUse":
        call |= {"tool_response": {"stdout": "a line of notes\n" * 120, "stderr": "", "interrupted": False}}
        call["duration_ms"] = 20
    return json.dumps(call).encode()
