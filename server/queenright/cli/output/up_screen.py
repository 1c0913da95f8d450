"""The screen of `queenright up`: a live table of agents with a feed, or plain lines in a pipe."""

from __future__ import annotations

import asyncio
from typing import Final

from rich.console import Console, Group
from rich.live import Live
from rich.panel import Panel
from rich.table import Table
from rich.text import Text

from queenright.api.status import FeedLine, StandInMessage, Status
from queenright.cli.output.text import single_line, truncate_start
from queenright.instrumentation.counts import format_count
from queenright.server.up import Running, UpOptions
from queenright.server.views.api_models import feed, status
from queenright.server.views.attention import attention
from queenright.server.views.formatting import clock_time

_STYLES: Final = {
    "healthy": "green",
    "degraded": "yellow",
    "stuck": "dark_orange",
    "failing": "red",
    "terminated": "bright_black",
    "ticket": "dark_orange",
    "queen": "magenta",
    "page": "bold red",
    "act": "gold1",
}
_REFRESH_SECONDS: Final = 0.5
_COLUMNS: Final = ("Health", "Agent", "Session", "Activity", "Steps", "Bad", "Findings")
_CUT_COLUMNS: Final = ("Session", "Activity", "Findings")
"""The table is narrowed at the columns that may wrap; their cells are one line each."""
_MANY_BAD_STEPS: Final = 5


class UpScreen:
    """
    The terminal of `queenright up`.

    Args:
        console: Where to write. Default: the terminal.
    """

    def __init__(self, console: Console | None = None) -> None:
        self.console = console or Console(highlight=False)

    def print_line(self, line: str) -> None:
        """Print one line, above the live part if there is one."""
        self.console.print(Text(line, style="bright_black"))

    def print_addresses(self, running: Running, options: UpOptions) -> None:
        """Print the addresses of everything that runs."""
        grid = Table.grid(padding=(0, 2))
        grid.add_row("Console", Text(running.url, style="bold"))
        grid.add_row("In the terminal", f"queenright tui --url {running.url}")
        grid.add_row("Send telemetry", f"OTEL_EXPORTER_OTLP_ENDPOINT={running.otlp_url}")
        grid.add_row("Prometheus", running.prometheus_url or "not running")
        grid.add_row("Alertmanager", running.alertmanager_url or "not running")
        if options.demo:
            grid.add_row("Demo clock", "thresholds shortened to seconds; --no-demo uses the real ones")
        self.console.print(grid)
        self.console.print(Text("Ctrl-C stops everything.", style="bright_black"))

    async def follow(self, running: Running) -> None:
        """Show the fleet until cancelled."""
        if self.console.is_terminal:
            await self._follow_live(running)
        else:
            await self._follow_lines(running)

    async def _follow_live(self, running: Running) -> None:
        with Live(console=self.console, auto_refresh=False, transient=False) as live:
            while True:
                needs = attention(running.service).total
                shown = render_board(status(running.service), running.url, needs, self.console.height)
                live.update(shown, refresh=True)
                await asyncio.sleep(_REFRESH_SECONDS)

    async def _follow_lines(self, running: Running) -> None:
        shown: set[str] = set()
        pages = 0
        while True:
            for event in reversed(feed(running.service)):
                if event.id not in shown:
                    shown.add(event.id)
                    self._print_plain(f"{clock_time(event.at)} {event.text}")
            if (recorder := running.service.recorder) is not None:
                for page in recorder.after(pages):
                    self._print_plain(f"{clock_time(page.time)} {page.channel} {page.status}: {page.title}")
                pages = recorder.count
            await asyncio.sleep(_REFRESH_SECONDS)

    def _print_plain(self, text: str) -> None:
        self.console.print(text, markup=False, soft_wrap=True)


def render_board(now: Status, url: str, needs: int, height: int) -> Group:
    """Return the screen: agents, timeline and what needs a person. Wide texts are cut."""
    agents = Table(expand=True, box=None, header_style="bright_black")
    for column in _COLUMNS:
        agents.add_column(
            column,
            justify="right" if column in ("Steps", "Bad") else "left",
            no_wrap=column not in _CUT_COLUMNS,
            overflow="ellipsis",
            max_width=28 if column == "Agent" else None,
        )
    shown = now.agents[: max(height // 2 - 4, 4)]
    for row in shown:
        activity = f"{row.activity}: {row.question}" if row.question else row.activity
        findings = "; ".join(f"{f.kind} ({f.severity})" for f in row.findings)
        agents.add_row(
            Text(row.outcome or row.state, style=_STYLES[row.state]),
            Text(single_line(row.agent_id)),
            Text(truncate_start(single_line(row.session_id), 16), no_wrap=True),
            Text(single_line(activity), no_wrap=True),
            str(row.steps),
            Text(str(row.bad_steps), style="dark_orange" if row.bad_steps >= _MANY_BAD_STEPS else ""),
            Text(findings, no_wrap=True),
        )
    if hidden := len(now.agents) - len(shown) + now.agents_left_out:
        agents.add_row("", f"and {hidden} more", "", "", "", "", "")
    room = max(height - len(shown) - 14, 4)
    entries = [(page.at, _page_line(page)) for page in now.paged[:room]]
    entries += [(event.at, _event_line(event)) for event in now.feed[:room]]
    lines = [line for _, line in sorted(entries, key=lambda entry: entry[0], reverse=True)[:room]]
    for line in lines:
        line.truncate(400, overflow="ellipsis")
        line.no_wrap = True
    feed = Group(*lines) if lines else Text("No events yet", style="bright_black")
    return Group(
        Panel(agents, title="Agents", border_style="bright_black"),
        Panel(feed, title="Timeline", border_style="bright_black"),
        status_line(url, needs),
    )


def status_line(url: str, needs: int) -> Text:
    """Return what needs a person, and where to answer it: in the console and in the terminal."""
    line = Text(no_wrap=True, overflow="ellipsis")
    if needs:
        line.append(
            f" {format_count(needs, 'item')} need{'s' if needs == 1 else ''} you", style="dark_orange"
        )
    else:
        line.append(" Nothing needs you", style="green")
    return line.append(f"  {url}  ", style="bold").append(f"queenright tui --url {url}", style="bright_black")


def _event_line(event: FeedLine) -> Text:
    return Text.assemble(
        (clock_time(event.at) + "  ", "bright_black"), (event.text, _STYLES.get(event.kind, ""))
    )


def _page_line(page: StandInMessage) -> Text:
    style = "bold green" if page.status == "resolved" else "bold red"
    return Text.assemble(
        (clock_time(page.at) + "  ", "bright_black"), (f"{page.channel} {page.status}: ", style), page.title
    )
