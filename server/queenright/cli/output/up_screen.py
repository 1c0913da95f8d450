"""What `queenright up` prints: addresses, events, notifications, and what needs a person."""

from __future__ import annotations

import asyncio
from typing import Final

from rich.console import Console
from rich.table import Table
from rich.text import Text

from queenright.instrumentation.counts import format_count
from queenright.server.up import Running, UpOptions
from queenright.server.views.api_models import feed
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
_POLL_SECONDS: Final = 0.5


class UpScreen:
    """
    The terminal of `queenright up`.

    Args:
        console: Where to write. Default: the terminal.
    """

    def __init__(self, console: Console | None = None) -> None:
        self.console = console or Console(highlight=False)

    def print_line(self, line: str) -> None:
        """Print one line."""
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
        """Print events, notifications and what needs a person, until cancelled."""
        service = running.service
        event_ids: set[str] = set()
        page_count, needs = 0, 0
        while True:
            for event in reversed(feed(service)):
                if event.id not in event_ids:
                    event_ids.add(event.id)
                    self._print(event.at, event.text, _STYLES.get(event.kind, ""))
            if (recorder := service.recorder) is not None:
                for page in recorder.after(page_count):
                    style = "green" if page.status == "resolved" else _STYLES["page"]
                    self._print(page.time, f"{page.channel} {page.status}: {page.title}", style)
                page_count = recorder.count
            if (total := attention(service).total) != needs:
                needs = total
                self._print(service.clock(), attention_text(needs, running.url), "bold")
            await asyncio.sleep(_POLL_SECONDS)

    def _print(self, at: float, text: str, style: str) -> None:
        line = Text.assemble((f"{clock_time(at)} ", "bright_black"), (text, style))
        self.console.print(line, soft_wrap=True)


def attention_text(needs: int, url: str) -> str:
    """Return how many items need a person, and where to answer them."""
    if not needs:
        return "Nothing needs you."
    return f"{format_count(needs, 'item')} need{'s' if needs == 1 else ''} you: {url}"
