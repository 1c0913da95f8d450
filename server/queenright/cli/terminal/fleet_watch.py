"""
`queenright list --watch`: the agents of a running service, kept up to date.

Follows the service's event stream and requests the list when an event may have changed it, at most once a
second. It does not poll.
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
from queenright.api.terms import WORST_FIRST
from queenright.cli.output.printing import to_json_values
from queenright.cli.output.streams import guard_streams
from queenright.cli.output.text import to_single_line
from queenright.cli.service import describe_agent, list_failed_sessions
from queenright.client import AsyncQueenright
from queenright.client.errors import UnreachableError
from queenright.client.notices import Notice
from queenright.instrumentation.counts import format_count

EVENT_TYPES: Final = (
    *("execution_started", "execution_resumed", "execution_paused", "execution_completed"),
    *("execution_failed", "step_completed", "worker_waiting", "finding_opened", "finding_cleared"),
    *("health_state_changed", "agent_terminated", "agent_renamed", "recovery_completed"),
)
"""Events that change the list."""

_MIN_INTERVAL_SECONDS: Final = 1.0
_STYLES: Final = {"failing": "bold red", "stuck": "dark_orange", "degraded": "yellow", "healthy": "green"}
_QUIT_KEYS: Final = ("q", "Q", "\x1b", "")


class FleetView(Protocol):
    """A view of the agents of a service."""

    def show_agents(self, agents: Sequence[AgentRow]) -> None:
        """Show the current agents."""

    def show_outage(self, reason: str) -> None:
        """Show why the service is unreachable; an empty text means that it answers again."""


def run_watch(url: str, token_file: Path | None, *, wide: bool, as_json: bool) -> int:
    """
    Watch until Ctrl-C or, on a terminal, q; return the exit code.

    Raises:
        QueenrightError: The first request fails.
    """
    guard_streams()
    with contextlib.ExitStack() as stack:
        view: FleetView
        if as_json or not sys.stdout.isatty():
            view = ChangeLog(as_json=as_json)
        else:
            view = stack.enter_context(_live_table(url, wide=wide))
        asyncio.run(_watch(url, token_file, view))
    return 0


async def _watch(url: str, token_file: Path | None, view: FleetView) -> None:
    loop, stop = asyncio.get_running_loop(), asyncio.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, stop.set)
    with _watch_quit_keys(stop):
        async with AsyncQueenright(url, token_file=token_file) as service:
            await follow(service, view, stop)


async def follow(service: AsyncQueenright, view: FleetView, stop: asyncio.Event) -> None:
    """
    Show the agents now and after every event that changes them, until ``stop``.

    Raises:
        QueenrightError: The first request fails.
    """
    change_event = asyncio.Event()

    def on_notice(notice: Notice) -> None:
        view.show_outage("" if notice.kind == "connected" else str(notice.error or ""))
        if notice.kind in ("connected", "reset"):
            change_event.set()

    async def listen() -> None:
        async with service.events.stream(types=EVENT_TYPES, on_notice=on_notice) as events:
            async for _ in events:
                change_event.set()

    listen_task = asyncio.create_task(listen())
    stop_task = asyncio.create_task(stop.wait())
    try:
        while not stop.is_set():
            change_task = asyncio.create_task(change_event.wait())
            await asyncio.wait({change_task, stop_task, listen_task}, return_when=asyncio.FIRST_COMPLETED)
            change_task.cancel()
            if listen_task.done():
                listen_task.result()
                return
            if stop.is_set():
                return
            change_event.clear()
            # The stream reconnects automatically and then sends a notice.
            with contextlib.suppress(UnreachableError):
                urgent_sessions = list_failed_sessions(await service.service.status())
                view.show_agents(
                    [
                        agent
                        async for agent in service.agents.list()
                        if not agent.ended or (agent.agent_id, agent.session_id) in urgent_sessions
                    ]
                )
            await asyncio.wait(
                {stop_task, listen_task}, timeout=_MIN_INTERVAL_SECONDS, return_when=asyncio.FIRST_COMPLETED
            )
    finally:
        for task in (listen_task, stop_task):
            task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await listen_task


class ChangeLog:
    """
    Prints a line for each agent that is new, or whose state or problem has changed; for pipes and logs.

    Args:
        as_json: Print one JSON object per line.
    """

    def __init__(self, *, as_json: bool) -> None:
        self._as_json = as_json
        self._last_states: dict[tuple[str, str], tuple[str, str]] = {}

    def show_agents(self, agents: Sequence[AgentRow]) -> None:
        """Print what changed since the last call."""
        for agent in agents:
            key, values = (
                (agent.agent_id, agent.session_id),
                (agent.outcome or agent.state, describe_agent(agent)),
            )
            if self._last_states.get(key) != values:
                self._last_states[key] = values
                self._print(agent)

    def show_outage(self, reason: str) -> None:
        """Print the reason on stderr."""
        if reason:
            print(reason, file=sys.stderr, flush=True)

    def _print(self, agent: AgentRow) -> None:
        if self._as_json:
            print(json.dumps(to_json_values(agent)), flush=True)
            return
        clock = time.strftime("%H:%M:%S")
        state, problem = agent.outcome or agent.state, describe_agent(agent)
        print(
            to_single_line(f"{clock}  {state:<10} {agent.agent_id} {agent.session_id}  {problem}"), flush=True
        )


class LiveTable:
    """
    A table on the terminal that is redrawn on every change.

    Args:
        url: URL of the service.
        console: The terminal.
        live: Redraws the table.
        wide: Wrap long names instead of truncating them.
    """

    def __init__(self, url: str, console: Console, live: Live, *, wide: bool) -> None:
        self._url = url
        self._console = console
        self._live = live
        self._wide = wide
        self._agents: Sequence[AgentRow] = ()
        self._outage = ""

    def show_agents(self, agents: Sequence[AgentRow]) -> None:
        """Show as many agents as fit, worst first."""
        self._agents = sorted(agents, key=lambda a: (_rank_state(a.state), a.agent_id, a.session_id))
        self._draw()

    def show_outage(self, reason: str) -> None:
        """Show the reason in the last line."""
        self._outage = reason
        self._draw()

    def _draw(self) -> None:
        table = render_table(self._agents, self._url, self._outage, self._console.height, self._wide)
        self._live.update(table)
        self._live.refresh()


def render_table(agents: Sequence[AgentRow], url: str, outage: str, height: int, wide: bool) -> Group:
    """Return a table for a terminal of ``height`` lines, with the agents in the given order."""
    table = Table(box=None, padding=(0, 1, 0, 0), header_style="bold", expand=True)
    overflow = "fold" if wide else "ellipsis"
    table.add_column("health", no_wrap=True)
    for name in ("agent", "session", "task"):
        table.add_column(name, no_wrap=not wide, overflow=overflow, ratio=2)  # type: ignore[arg-type]
    table.add_column("steps", justify="right")
    table.add_column("bad", justify="right")
    table.add_column("reason", no_wrap=not wide, overflow=overflow, ratio=3)  # type: ignore[arg-type]
    visible_agents = agents[: max(1, height - 4)]
    for agent in visible_agents:
        cells = (
            agent.agent_id,
            agent.session_id,
            "-" if agent.task_id == agent.session_id else agent.task_id,
            str(agent.steps),
            str(agent.bad_steps),
            describe_agent(agent),
        )
        state = Text(agent.outcome or agent.state, style=_STYLES.get(agent.state, ""))
        table.add_row(state, *(Text(to_single_line(cell)) for cell in cells))
    counts = Counter(agent.state for agent in agents)
    summary = (
        ", ".join(f"{counts[state]} {state}" for state in sorted(counts, key=_rank_state)) or "no agents"
    )
    omission = (
        f", {len(agents) - len(visible_agents)} more below" if len(agents) > len(visible_agents) else ""
    )
    footer = (
        Text(to_single_line(outage), style="red") if outage else Text(f"{url}  q: quit", style="bright_black")
    )
    return Group(
        Text(f"{format_count(len(agents), 'agent')}: {summary}{omission}", style="bold"), table, footer
    )


def _rank_state(state: str) -> int:
    return WORST_FIRST.index(state) if state in WORST_FIRST else len(WORST_FIRST)


@contextlib.contextmanager
def _live_table(url: str, *, wide: bool) -> Iterator[LiveTable]:
    console = Console(highlight=False)
    with Live(console=console, screen=True, auto_refresh=False) as live:
        yield LiveTable(url, console, live, wide=wide)


@contextlib.contextmanager
def _watch_quit_keys(stop: asyncio.Event) -> Iterator[None]:
    """Set ``stop`` when q or Escape is pressed, if there is a terminal."""
    if not (sys.stdin and sys.stdin.isatty() and sys.stdout.isatty()):
        yield
        return
    number = sys.stdin.fileno()
    saved_attributes = termios.tcgetattr(number)
    loop = asyncio.get_running_loop()

    def read_key() -> None:
        if sys.stdin.read(1) in _QUIT_KEYS:
            stop.set()

    tty.setcbreak(number)
    loop.add_reader(number, read_key)
    try:
        yield
    finally:
        loop.remove_reader(number)
        termios.tcsetattr(number, termios.TCSADRAIN, saved_attributes)
