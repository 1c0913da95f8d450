"""
`queenright list --watch`: the agents of a running service, as they are now, until it is enough.

It follows the service's event stream and asks for the list when something happened that changes it, at most
once a second; it never asks just because time has passed.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import signal
import sys
import termios
import time
import tty
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final, Protocol

from rich.console import Console, Group
from rich.live import Live
from rich.table import Table
from rich.text import Text

from queenright.api.agents import AgentRow
from queenright.cli.commands.fleet import in_trouble
from queenright.cli.service import on_one_line, values
from queenright.cli.output.streams import guard_streams
from queenright.client import AsyncQueenright
from queenright.client.errors import UnreachableError
from queenright.client.notices import Notice

TYPES: Final = (
    *("execution_started", "execution_resumed", "execution_paused", "execution_completed"),
    *("execution_failed", "step_completed", "worker_waiting", "finding_opened", "finding_cleared"),
    *("health_state_changed", "agent_terminated", "agent_renamed", "recovery_completed"),
)
"""What changes the list."""

_CALM_SECONDS: Final = 1.0
_WORST_FIRST: Final = ("failing", "stuck", "degraded", "healthy")
_STYLES: Final = {"failing": "bold red", "stuck": "dark_orange", "degraded": "yellow", "healthy": "green"}


class View(Protocol):
    """What shows the agents."""

    def show(self, agents: Sequence[AgentRow]) -> None:
        """Show them as they are now."""

    def tell(self, trouble: str) -> None:
        """Say that the service is away, and why; an empty text: it is there."""


def run_watch(url: str, token_file: Path | None, *, wide: bool, as_json: bool) -> int:
    """
    Watch until Ctrl-C or, on a terminal, q; return the exit code.

    Raises:
        QueenrightError: Nobody answers at the beginning, or the answer is no.
    """
    guard_streams()
    with contextlib.ExitStack() as stack:
        view: View
        if as_json or not sys.stdout.isatty():
            view = Lines(as_json=as_json)
        else:
            view = stack.enter_context(_on_screen(url, wide=wide))
        asyncio.run(_watch(url, token_file, view))
    return 0


async def _watch(url: str, token_file: Path | None, view: View) -> None:
    loop, stop = asyncio.get_running_loop(), asyncio.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, stop.set)
    with _keys(stop):
        async with AsyncQueenright(url, token_file=token_file) as service:
            await follow(service, view, stop)


async def follow(service: AsyncQueenright, view: View, stop: asyncio.Event) -> None:
    """
    Show the agents at the beginning and after every event that changes them, until ``stop``.

    Raises:
        QueenrightError: Nobody answers at the beginning, or the answer is no.
    """
    changed = asyncio.Event()

    def told(notice: Notice) -> None:
        view.tell("" if notice.kind == "connected" else str(notice.error or ""))
        if notice.kind in ("connected", "reset"):
            changed.set()

    async def listen() -> None:
        async with service.events.stream(types=TYPES, told=told) as events:
            async for _ in events:
                changed.set()

    listening = asyncio.create_task(listen())
    stopped = asyncio.create_task(stop.wait())
    try:
        while not stop.is_set():
            waiting = asyncio.create_task(changed.wait())
            await asyncio.wait({waiting, stopped, listening}, return_when=asyncio.FIRST_COMPLETED)
            waiting.cancel()
            if listening.done():
                listening.result()
                return
            if stop.is_set():
                return
            changed.clear()
            # The stream comes back by itself, and says so.
            with contextlib.suppress(UnreachableError):
                troubled = in_trouble(await service.service.status())
                view.show(
                    [
                        agent
                        async for agent in service.agents.list()
                        if not agent.ended or (agent.agent_id, agent.session_id) in troubled
                    ]
                )
            await asyncio.wait(
                {stopped, listening}, timeout=_CALM_SECONDS, return_when=asyncio.FIRST_COMPLETED
            )
    finally:
        for task in (listening, stopped):
            task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await listening


class Lines:
    """
    A line for each agent that is new, or whose state, wait or trouble has changed; for pipes and logs.

    Args:
        as_json: One object a line, in place of words.
    """

    def __init__(self, *, as_json: bool) -> None:
        self._as_json = as_json
        self._known: dict[tuple[str, str], tuple[str, str]] = {}

    def show(self, agents: Sequence[AgentRow]) -> None:
        """Print what has changed since the last time."""
        for agent in agents:
            key, now = (agent.agent_id, agent.session_id), (agent.state, matter(agent))
            if self._known.get(key) != now:
                self._known[key] = now
                self._print(agent)

    def tell(self, trouble: str) -> None:
        """Say it on stderr."""
        if trouble:
            print(trouble, file=sys.stderr, flush=True)

    def _print(self, agent: AgentRow) -> None:
        if self._as_json:
            print(json.dumps(values(agent)), flush=True)
            return
        clock = time.strftime("%H:%M:%S")
        line = f"{clock}  {agent.state:<10} {agent.agent_id} {agent.session_id}  {matter(agent)}"
        print(on_one_line(line), flush=True)


class Screen:
    """
    A table that is kept as it is now.

    Args:
        url: Where the service is.
        console: The terminal.
        live: What redraws it.
        wide: Whether long names are wrapped, and not cut.
    """

    def __init__(self, url: str, console: Console, live: Live, *, wide: bool) -> None:
        self._url = url
        self._console = console
        self._live = live
        self._wide = wide
        self._agents: Sequence[AgentRow] = ()
        self._trouble = ""

    def show(self, agents: Sequence[AgentRow]) -> None:
        """Show them, the worst first, as many as there is room for."""
        self._agents = sorted(agents, key=lambda a: (_rank(a.state), a.agent_id, a.session_id))
        self._draw()

    def tell(self, trouble: str) -> None:
        """Say in the last line that the service is away."""
        self._trouble = trouble
        self._draw()

    def _draw(self) -> None:
        self._live.update(picture(self._agents, self._url, self._trouble, self._console.height, self._wide))
        self._live.refresh()


def picture(agents: Sequence[AgentRow], url: str, trouble: str, height: int, wide: bool) -> Group:
    """Return what a terminal of so many lines shows; the agents in the order they are given."""
    table = Table(box=None, padding=(0, 1, 0, 0), header_style="bold", expand=True)
    overflow = "fold" if wide else "ellipsis"
    table.add_column("state", no_wrap=True)
    for name in ("agent", "session", "task"):
        table.add_column(name, no_wrap=not wide, overflow=overflow, ratio=2)  # type: ignore[arg-type]
    table.add_column("steps", justify="right")
    table.add_column("bad", justify="right")
    table.add_column("what", no_wrap=not wide, overflow=overflow, ratio=3)  # type: ignore[arg-type]
    shown = agents[: max(1, height - 4)]
    for agent in shown:
        task = "-" if agent.task_id == agent.session_id else agent.task_id
        cells = (
            agent.agent_id,
            agent.session_id,
            task,
            str(agent.steps),
            str(agent.bad_steps),
            matter(agent),
        )
        state = Text(agent.state, style=_STYLES.get(agent.state, ""))
        table.add_row(state, *(Text(on_one_line(cell)) for cell in cells))
    counts = Counter(agent.state for agent in agents)
    summary = ", ".join(f"{counts[state]} {state}" for state in sorted(counts, key=_rank)) or "no agents"
    more = f", {len(agents) - len(shown)} more below" if len(agents) > len(shown) else ""
    foot = (
        Text(on_one_line(trouble), style="red") if trouble else Text(f"{url}  q ends", style="bright_black")
    )
    return Group(Text(f"{len(agents)} agents: {summary}{more}", style="bold"), table, foot)


def matter(agent: AgentRow) -> str:
    """Return what an agent waits for, or what is the matter with it; nothing if all is well."""
    asked = f": {agent.question}" if agent.question else ""
    return f"{agent.activity}{asked}" if agent.waiting else agent.reason if agent.findings else ""


def _rank(state: str) -> int:
    return _WORST_FIRST.index(state) if state in _WORST_FIRST else len(_WORST_FIRST)


@contextlib.contextmanager
def _on_screen(url: str, *, wide: bool) -> Iterator[Screen]:
    console = Console(highlight=False)
    with Live(console=console, screen=True, auto_refresh=False) as live:
        yield Screen(url, console, live, wide=wide)


@contextlib.contextmanager
def _keys(stop: asyncio.Event) -> Iterator[None]:
    """Let q end it, where there is a keyboard."""
    if not (sys.stdin and sys.stdin.isatty() and sys.stdout.isatty()):
        yield
        return
    number = sys.stdin.fileno()
    before = termios.tcgetattr(number)
    loop = asyncio.get_running_loop()

    def pressed() -> None:
        if sys.stdin.read(1) in ("q", "Q", "\x1b", ""):
            stop.set()

    tty.setcbreak(number)
    loop.add_reader(number, pressed)
    try:
        yield
    finally:
        loop.remove_reader(number)
        termios.tcsetattr(number, termios.TCSADRAIN, before)
