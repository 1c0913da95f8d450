"""A conversation with a loaded agent: messages go to its active graph, whose text streams in."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any, ClassVar, Final

from rich.text import Text
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.widgets import Input, Static

from queenright.api.events import Event
from queenright.api.loaded_agents import Edge, NodeDetail
from queenright.api.tickets import Ticket
from queenright.client.notices import Notice
from queenright.instrumentation.errors import QueenrightError
from queenright.tui import styles
from queenright.tui.app_state import AppState
from queenright.tui.commands import Command
from queenright.tui.conversation import Conversation
from queenright.tui.formatting import clip
from queenright.tui.models import Graph, get_health_or_outcome
from queenright.tui.screens.base import AppScreen
from queenright.tui.widgets.chat import Chat


class TalkScreen(AppScreen):
    """
    A conversation with one agent.

    Args:
        app_state: State that all screens share.
        agent_id: The agent.
    """

    ALWAYS_TYPING: ClassVar[bool] = True
    COMMAND_HINT: ClassVar[str] = "message · /graphs /graph <id> /nodes /data /load <path> /help"
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("pageup", "scroll(-1)", "Scroll", key_display="PgUp/PgDn"),
        Binding("pagedown", "scroll(1)", "Scroll", show=False),
    ]

    def __init__(self, app_state: AppState, agent_id: str) -> None:
        super().__init__(app_state)
        self.agent_id = agent_id
        self.conversation = Conversation(agent_id)
        self._graphs: list[Graph] = []
        self._lock = asyncio.Lock()
        """Serialises events, and loading the transcript."""
        self._ready = asyncio.Event()
        """Set once the transcript is loaded, or failed to load."""

    def compose_body(self) -> ComposeResult:
        """Compose the list of graphs and the conversation."""
        yield Static(id="graphs")
        yield Chat(name="chat")

    def on_mount(self) -> None:
        """Follow the agent."""
        self.app_state.chatted_agents.add(self.agent_id)
        self.run_in_background(self._follow_events)
        self.query_one("#input", Input).focus()

    def ticket(self) -> Ticket | None:
        """Return the agent's ticket."""
        return self.app_state.fleet.worst_ticket_of(self.agent_id)

    async def draw(self) -> None:
        """Update all widgets from the state."""
        await super().draw()
        self.query_one("#graphs", Static).update(self._render_header())
        entries = self.conversation.entries
        placeholder = (
            "" if entries else "No messages yet. A message starts a run, or answers one that waits for input."
        )
        await self.query_one(Chat).show(entries, placeholder)

    def _render_header(self) -> Text:
        line = Text(f" {clip(self.agent_id, 30)} ", style="bold", no_wrap=True, overflow="ellipsis")
        worker = self.app_state.fleet.worker(self.agent_id)
        if worker is not None:
            line.append_text(styles.make_label(get_health_or_outcome(worker))).append("  ")
        for graph in self._graphs:
            is_active = graph.graph_id == self.conversation.active_graph
            name = f"[{graph.graph_id}]" if is_active else f" {graph.graph_id} "
            line.append(name, style="bold" if is_active else styles.DIM)
        return line

    # -- input -------------------------------------------------------------------------------

    def handle_message(self, text: str) -> None:
        """Send a message to the agent."""
        self.run_in_background(lambda: self._send_message(text))

    async def _send_message(self, text: str) -> None:
        await self._ready.wait()
        self.conversation.add_user_message(text, self.app_state.gateway.by, self.app_state.clock())
        self.app_state.set_status("act", await self.app_state.gateway.send_message(self.agent_id, text))

    def handle_command(self, command: Command) -> None:
        """Execute a command; graph commands apply to this agent."""
        name, argument = command.name, command.argument
        actions: dict[str, Callable[[], None]] = {
            "graphs": lambda: self.run_in_background(self._list_graphs),
            "graph": lambda: self.run_in_background(lambda: self._switch_graph(argument)),
            "nodes": lambda: self.run_in_background(self._show_nodes),
            "data": lambda: self.run_in_background(self._show_data),
            "load": lambda: self.run_in_background(lambda: self._load(argument)),
        }
        if name == "unload" and argument != self.agent_id:
            self.run_in_background(lambda: self._remove_graph(argument))
        elif name in actions:
            actions[name]()
        else:
            super().handle_command(command)

    async def _list_graphs(self) -> None:
        await self._refresh_graphs()
        lines = [
            f"{'▸' if graph.active else ' '} {graph.graph_id}"
            f"{', primary' if graph.primary else ''}"
            f"{f', {graph.running} run' + ('s' if graph.running > 1 else '') if graph.running else ', idle'}"
            f"{', waiting for input at ' + ', '.join(graph.waiting) if graph.waiting else ''}"
            for graph in self._graphs
        ]
        self.conversation.add_note("\n".join(lines), self.app_state.clock())

    async def _show_nodes(self) -> None:
        graph_id = self.conversation.active_graph
        lines = make_graph_lines(await self.app_state.gateway.nodes(self.agent_id, graph_id))
        self.conversation.add_note("\n".join([f"{graph_id}:", *lines]), self.app_state.clock())

    async def _show_data(self) -> None:
        lines = make_memory_lines(
            await self.app_state.gateway.session_memory(self.agent_id, self.conversation.active_graph)
        )
        empty = f"the session of {self.conversation.active_graph} has no memory yet"
        self.conversation.add_note("\n".join(lines) or empty, self.app_state.clock())

    async def _switch_graph(self, graph_id: str) -> None:
        await self.app_state.gateway.client.agents.set_active_graph(self.agent_id, graph_id)
        await self._refresh_graphs()

    async def _load(self, path: str) -> None:
        graph = await self.app_state.gateway.client.agents.add_graph(self.agent_id, path)
        await self._refresh_graphs()
        self.app_state.set_status(
            "healthy", f"graph {graph.graph_id} is loaded; /graph {graph.graph_id} switches to it"
        )

    async def _remove_graph(self, graph_id: str) -> None:
        await self.app_state.gateway.client.agents.remove_graph(self.agent_id, graph_id)
        await self._refresh_graphs()
        self.app_state.set_status("healthy", f"graph {graph_id} is unloaded")

    async def _unload(self, agent_id: str) -> None:
        await super()._unload(agent_id)
        self.leave()

    async def _refresh_graphs(self) -> None:
        async with self._lock:
            await self._load_graphs(reload=False)

    async def _load_graphs(self, *, reload: bool) -> None:
        """Load the graphs; load the transcript if the active graph changed or ``reload`` is set."""
        self._graphs = await self.app_state.gateway.graphs(self.agent_id)
        active = next((graph.graph_id for graph in self._graphs if graph.active), "")
        if self.conversation.switch_graph(active, self.app_state.clock()) or reload:
            mark = len(self.conversation.entries)
            self.conversation.load_transcript(
                await self.app_state.gateway.transcript(self.agent_id, active), mark
            )

    # -- output -------------------------------------------------------------------------------

    async def _follow_events(self) -> None:
        try:
            async for event in self.app_state.gateway.conversation_events(self._on_notice):
                await self._ready.wait()
                if self._may_be_own(event):
                    await self._handle_own_event(event)
        except QueenrightError as error:
            self.app_state.set_status("failing", f"messages of {self.agent_id} failed: {error}")

    async def _handle_own_event(self, event: Event) -> None:
        async with self._lock:
            if await self.app_state.run_ownership.is_run_of(event, self.agent_id):
                self.conversation.handle_event(event)

    def _on_notice(self, notice: Notice) -> None:
        """Load the transcript once new events arrive, and again after a break."""
        if notice.kind in ("connected", "reset", "dropped"):
            self.run_in_background(self._load_transcript)

    async def _load_transcript(self) -> None:
        try:
            async with self._lock:
                await self._load_graphs(reload=True)
        finally:
            self._ready.set()

    def _may_be_own(self, event: Event) -> bool:
        """Return whether an event names one of the agent's graphs."""
        return event.graph_id in {graph.graph_id for graph in self._graphs}

    def handle_event(self, event: Event) -> None:
        """Refresh the graphs when someone has changed them."""
        if event.type != "agent_operated" or event.agent_id != self.agent_id:
            return
        match event.data.get("what"):
            case "switch_graph" | "add_graph" | "remove_graph":
                self.run_in_background(self._refresh_graphs)
            case "unload":
                self.conversation.add_note(f"{self.agent_id} was unloaded by {event.data['by']}", event.time)

    def action_scroll(self, pages: int) -> None:
        """Scroll the conversation."""
        chat = self.query_one(Chat)
        chat.scroll_relative(y=pages * max(chat.size.height - 1, 1), animate=False)


_MAX_VALUE: Final = 300
"""Maximum characters of a value."""
_CONDITION_TEXTS: Final = {"success": "", "always": " always", "failure": " on failure"}


def make_graph_lines(nodes: Sequence[NodeDetail]) -> list[str]:
    """Return one line per node, with its state and the targets of its edges."""
    width = max((len(node.node_id) for node in nodes), default=0)
    lines = []
    for node in nodes:
        state = _get_state(node)
        edges = ", ".join(map(_format_edge, node.edges_out))
        line = f"{_SYMBOLS[state]} {node.node_id:<{width}}  {state}"
        lines.append(f"{line:<{width + 24}}{f'→ {edges}' if edges else ''}".rstrip())
    return lines


def make_memory_lines(memory: Mapping[str, Any]) -> list[str]:
    """Return one line per key of a session's memory; long values are truncated."""
    width = max(map(len, memory), default=0)
    return [
        f"{key:<{width}}  {clip(json.dumps(value, ensure_ascii=False, default=str), _MAX_VALUE)}"
        for key, value in memory.items()
    ]


_SYMBOLS: Final = {"waiting for input": "?", "working": "▶", "idle": "○"}


def _get_state(node: NodeDetail) -> str:
    if node.waiting_for_user:
        return "waiting for input"
    return "working" if node.running else "idle"


def _format_edge(edge: Edge) -> str:
    condition = _CONDITION_TEXTS.get(edge.when, f" if {clip(edge.expression or edge.route, 40)}")
    return f"{edge.target}{condition}"
