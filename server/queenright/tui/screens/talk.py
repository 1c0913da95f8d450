"""A talk with an agent that is loaded: what is typed goes to its active graph, what that says comes in."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import ClassVar

from rich.text import Text
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.widgets import Input, Static

from queenright.client.notices import Notice
from queenright.instrumentation.errors import QueenrightError
from queenright.tui import styles
from queenright.tui.commands import Command
from queenright.tui.conversation import Conversation
from queenright.tui.graph_picture import data_lines, graph_lines
from queenright.tui.screens.base import Base
from queenright.tui.shared import Shared
from queenright.tui.values import Graph, Moment, Ticket
from queenright.tui.widgets.chat import Chat
from queenright.tui.words import clipped


class TalkScreen(Base):
    """
    A talk with one agent.

    Args:
        shared: What all screens share.
        agent_id: The agent.
    """

    ALWAYS_TYPING: ClassVar[bool] = True
    COMMAND_HINT: ClassVar[str] = "say something · /graphs /graph <id> /nodes /data /load <path> /help"
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("pageup", "scroll(-1)", "Scroll", key_display="PgUp/PgDn"),
        Binding("pagedown", "scroll(1)", "Scroll", show=False),
    ]

    def __init__(self, shared: Shared, agent_id: str) -> None:
        super().__init__(shared)
        self.agent_id = agent_id
        self.conversation = Conversation(agent_id)
        self._graphs: list[Graph] = []
        self._order = asyncio.Lock()
        """What comes is taken in one after the other, and not while what was said before is read."""
        self._ready = asyncio.Event()
        """What was said before is there, or cannot be had."""

    def body(self) -> ComposeResult:
        """Lay out its graphs above, the talk below."""
        yield Static(id="graphs")
        yield Chat(name="chat")

    def on_mount(self) -> None:
        """Begin to listen."""
        self.shared.talked.add(self.agent_id)
        self.act(self._events)
        self.query_one("#typed", Input).focus()

    def ticket(self) -> Ticket | None:
        """Return the agent's ticket."""
        return self.shared.fleet.ticket_of(self.agent_id)

    async def draw(self) -> None:
        """Show everything as it is known now."""
        await super().draw()
        self.query_one("#graphs", Static).update(self._header())
        shown = self.conversation.said
        waiting = "" if shown else "Nothing has been said yet: what you type starts a run, or answers one."
        await self.query_one(Chat).show(shown, waiting)

    def _header(self) -> Text:
        line = Text(f" {clipped(self.agent_id, 30)} ", style="bold", no_wrap=True, overflow="ellipsis")
        worker = self.shared.fleet.worker(self.agent_id)
        if worker is not None:
            line.append_text(styles.word(worker.outcome or worker.state)).append("  ")
        for one in self._graphs:
            chosen = one.graph_id == self.conversation.active
            said = f"[{one.graph_id}]" if chosen else f" {one.graph_id} "
            line.append(said, style="bold" if chosen else styles.DIM)
        return line

    # -- what is typed --------------------------------------------------------------------------

    def words(self, text: str) -> None:
        """Say something to the agent."""
        self.act(lambda: self._say(text))

    async def _say(self, text: str) -> None:
        await self._ready.wait()
        self.conversation.typed(text, self.shared.link.by, self.shared.clock())
        self.shared.say("act", await self.shared.link.say(self.agent_id, text))

    def command(self, command: Command) -> None:
        """Carry out a command; those on graphs are about this agent's."""
        name, given = command.name, command.argument
        does: dict[str, Callable[[], None]] = {
            "graphs": lambda: self.act(self._list_graphs),
            "graph": lambda: self.act(lambda: self._switch(given)),
            "nodes": lambda: self.act(self._show_nodes),
            "data": lambda: self.act(self._show_data),
            "load": lambda: self.act(lambda: self._load(given)),
        }
        if name == "unload" and given != self.agent_id:
            self.act(lambda: self._remove(given))
        elif name in does:
            does[name]()
        else:
            super().command(command)

    async def _list_graphs(self) -> None:
        await self._read_graphs()
        lines = [
            f"{'▸' if one.active else ' '} {one.graph_id}"
            f"{', its own' if one.primary else ''}"
            f"{f', {one.running} run' + ('s' if one.running > 1 else '') if one.running else ', idle'}"
            f"{', waiting for you at ' + ', '.join(one.waiting) if one.waiting else ''}"
            for one in self._graphs
        ]
        self.conversation.note("\n".join(lines), self.shared.clock())

    async def _show_nodes(self) -> None:
        active = self.conversation.active
        lines = graph_lines(await self.shared.link.nodes(self.agent_id, active))
        self.conversation.note("\n".join([f"{active}:", *lines]), self.shared.clock())

    async def _show_data(self) -> None:
        lines = data_lines(await self.shared.link.data(self.agent_id, self.conversation.active))
        none = f"the session of {self.conversation.active} knows nothing yet"
        self.conversation.note("\n".join(lines) or none, self.shared.clock())

    async def _switch(self, graph_id: str) -> None:
        await self.shared.link.switch(self.agent_id, graph_id)
        await self._read_graphs()

    async def _load(self, path: str) -> None:
        graph_id = await self.shared.link.add_graph(self.agent_id, path)
        await self._read_graphs()
        self.shared.say("healthy", f"graph {graph_id} is loaded; /graph {graph_id} talks with it")

    async def _remove(self, graph_id: str) -> None:
        await self.shared.link.remove_graph(self.agent_id, graph_id)
        await self._read_graphs()
        self.shared.say("healthy", f"graph {graph_id} is unloaded")

    async def _unload(self, agent_id: str) -> None:
        await super()._unload(agent_id)
        self.leave()

    async def _read_graphs(self) -> None:
        async with self._order:
            await self._read(anew=False)

    async def _read(self, *, anew: bool) -> None:
        """Read which graphs there are, and what was said with the active one if that is another, or anew."""
        self._graphs = await self.shared.link.graphs(self.agent_id)
        active = next((one.graph_id for one in self._graphs if one.active), "")
        if self.conversation.switch(active, self.shared.clock()) or anew:
            mark = len(self.conversation.said)
            self.conversation.take_before(await self.shared.link.before(self.agent_id, active), mark)

    # -- what it says ---------------------------------------------------------------------------

    async def _events(self) -> None:
        try:
            async for event in self.shared.link.talk_events(self._told):
                await self._ready.wait()
                if self._may_be_its(event):
                    await self._hear(event)
        except QueenrightError as error:
            self.shared.say("failing", f"what {self.agent_id} says does not come: {error}")

    async def _hear(self, event: Moment) -> None:
        async with self._order:
            if await self.shared.owners.belongs(event, self.agent_id):
                self.conversation.see(event)

    def _told(self, notice: Notice) -> None:
        """Read what was said before as soon as what is said from now on comes; also after a break."""
        if notice.kind in ("connected", "reset", "dropped"):
            self.act(self._read_before)

    async def _read_before(self) -> None:
        try:
            async with self._order:
                await self._read(anew=True)
        finally:
            self._ready.set()

    def _may_be_its(self, event: Moment) -> bool:
        """Return whether an event names one of its graphs."""
        return event.graph_id in {one.graph_id for one in self._graphs}

    def see(self, event: Moment) -> None:
        """Look at its graphs again when somebody has changed them."""
        if event.type != "agent_operated" or event.agent_id != self.agent_id:
            return
        match event.data.get("what"):
            case "switch_graph" | "add_graph" | "remove_graph":
                self.act(self._read_graphs)
            case "unload":
                self.conversation.note(f"{self.agent_id} was unloaded by {event.data['by']}", event.time)

    def action_scroll(self, pages: int) -> None:
        """Move through what was said."""
        chat = self.query_one(Chat)
        chat.scroll_relative(y=pages * max(chat.size.height - 1, 1), animate=False)
