"""What `queenright up` prints: addresses, events, notifications, and what needs a person."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Final

from rich.console import Console
from rich.table import Table
from rich.text import Text

from queenright.api.attention import AttentionItem
from queenright.api.event_text import has_feed_line
from queenright.cli.output.text import to_single_line
from queenright.instrumentation.counts import format_count, format_names
from queenright.runtime.events import AgentEvent, EventType
from queenright.server.serving import RunningService
from queenright.server.up_options import UpOptions
from queenright.server.views.api_models import make_feed_line
from queenright.server.views.attention import list_attention_items

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
_END_STYLE: Final = "green"
_POLL_SECONDS: Final = 0.5
_MAX_NAMED: Final = 3
"""Maximum number of items that the line names."""


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

    def print_addresses(self, running: RunningService, options: UpOptions) -> None:
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

    async def follow(self, running: RunningService) -> None:
        """Print events, notifications and what needs a person, until cancelled."""
        service = running.service
        event_ids: set[str] = set()
        page_count, attention_count = 0, 0
        while True:
            recorder = service.recorder
            are_all_recorded = recorder is not None and not running.has_real_receiver
            recent_events = list(service.recent)
            for event in recent_events:
                if event.id not in event_ids and _has_line(event, are_all_recorded=are_all_recorded):
                    line = make_feed_line(event, brief=True)
                    style = _END_STYLE if _is_end_of_alert(event) else _STYLES.get(line.kind, "")
                    self._print(line.at, line.text, style)
            event_ids = {event.id for event in recent_events}
            if recorder is not None:
                for page in recorder.after(page_count):
                    style = _END_STYLE if page.status == "resolved" else _STYLES["page"]
                    self._print(page.time, f"{page.channel} {page.status}: {page.title}", style)
                page_count = recorder.count
            pending_items = list_attention_items(service)
            if pending_items.total != attention_count:
                attention_count = pending_items.total
                self._print(
                    service.clock(),
                    describe_attention(pending_items.items, attention_count, running.url),
                    "bold",
                )
            await asyncio.sleep(_POLL_SECONDS)

    def _print(self, at: float, text: str, style: str) -> None:
        clock = f"{datetime.fromtimestamp(at, UTC):%H:%M:%S} "
        line = Text.assemble((clock, "bright_black"), (text, style))
        self.console.print(line, soft_wrap=True)


def _has_line(event: AgentEvent, *, are_all_recorded: bool) -> bool:
    """Return whether an event has its own line. Recorded notifications are printed from the recorder."""
    match event.type:
        case EventType.WORKER_ESCALATION_TICKET:
            # `renewed` changes only the text of the ticket.
            return event.data.get("change") != "renewed"
        case EventType.TICKET_TRIAGED:
            # An intervention has its own event with the analysis.
            return event.data.get("decision") == "dismiss"
        case EventType.NOTIFICATION_DELIVERED:
            return not are_all_recorded
    return has_feed_line(event.type, event.data)


def _is_end_of_alert(event: AgentEvent) -> bool:
    return event.type is EventType.NOTIFICATION_DELIVERED and event.data.get("status") == "resolved"


def describe_attention(items: Sequence[AttentionItem], total: int, url: str) -> str:
    """Return how many items need a person, which ones are first, and where to answer them."""
    if not total:
        return "Nothing needs you."
    names = ", ".join(
        f"{to_single_line(format_names(item.agents, item.agents_more))} ({item.kind})"
        for item in items[:_MAX_NAMED]
    )
    omission = f" and {total - _MAX_NAMED} more" if total > _MAX_NAMED else ""
    return f"{format_count(total, 'item')} need{'s' if total == 1 else ''} you: {names}{omission}. See {url}"
