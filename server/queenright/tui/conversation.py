"""A conversation with a loaded agent, without widgets: its entries, and notices about other graphs."""

from __future__ import annotations

from dataclasses import dataclass, replace

from queenright.api.events import Event
from queenright.tui.formatting import strip_control
from queenright.tui.models import ChatEntry, Transcript


@dataclass(frozen=True, slots=True)
class BackgroundNotice:
    """A notice from a background graph; ``kind`` is a key of ``styles``."""

    kind: str
    title: str
    text: str


class Conversation:
    """
    The entries of a conversation with one agent. Text of its active graph is appended as it streams in.

    The caller passes only events of this agent; see ``RunOwnership``.

    Args:
        agent_id: The agent.
        active_graph: The graph that receives messages; empty if it is not known.
    """

    def __init__(self, agent_id: str, active_graph: str = "") -> None:
        self.agent_id = agent_id
        self.active_graph = active_graph
        self.entries: list[ChatEntry] = []
        self._is_streaming = False
        self._graph_start = 0
        """Index in ``entries`` where the active graph's part starts."""
        self._loaded_until = 0.0
        """Time up to which the transcript has been loaded."""

    def add_user_message(self, text: str, by: str, at: float) -> None:
        """Add a message of the user."""
        self._add(ChatEntry(by=by, text=text, at=at, is_own=True))

    def add_note(self, text: str, at: float) -> None:
        """Add a note of the interface itself."""
        self._add(ChatEntry(by="", text=text, at=at, is_own=False))

    def switch_graph(self, graph_id: str, at: float) -> bool:
        """Switch to another active graph; return whether it changed."""
        if graph_id == self.active_graph:
            return False
        if self.active_graph:
            self.add_note(f"── graph {graph_id} ──", at)
        self.active_graph = graph_id
        self._graph_start, self._loaded_until, self._is_streaming = len(self.entries), 0.0, False
        return True

    def load_transcript(self, transcript: Transcript, mark: int) -> None:
        """
        Replace the active graph's entries by its stored transcript.

        Args:
            transcript: The transcript.
            mark: Length of ``entries`` when the transcript was requested; later entries are kept.
        """
        old, newer = self.entries[self._graph_start : mark], self.entries[mark:]
        # A message that is still streaming is not stored yet.
        open_entries = old[-1:] if self._is_streaming and not newer else []
        if any(entry.text in other.text for entry in open_entries for other in transcript.entries):
            open_entries = []
        own_texts = [entry.text for entry in transcript.entries if entry.is_own][-1:]
        new_entries = [entry for entry in newer if not (entry.is_own and entry.text in own_texts)]
        self.entries[self._graph_start :] = [*transcript.entries, *open_entries, *new_entries]
        self._is_streaming = bool(open_entries)
        self._loaded_until = transcript.until

    def handle_event(self, event: Event) -> None:
        """Handle an event of this agent; events of background graphs are ignored."""
        if event.graph_id and self.active_graph and event.graph_id != self.active_graph:
            return
        match event.type:
            case "client_output_delta":
                if event.time > self._loaded_until:
                    self._append_text(event)
            case "client_input_requested":
                self._add_question(event)
            case "execution_failed":
                error = strip_control(
                    event.data.get("error") or event.data.get("error_type") or "no reason given"
                )
                self.add_note(f"the run failed: {error}", event.time)
            case "execution_completed":
                self.add_note("the run completed", event.time)
            case "execution_paused":
                self.add_note("the run was paused", event.time)

    def _add_question(self, event: Event) -> None:
        question = strip_control(event.data.get("question") or "").strip()
        last = [entry for entry in self.entries if entry.by][-1:]
        if question and not (last and not last[0].is_own and question in strip_control(last[0].text)):
            self._add(ChatEntry(by=event.node_id, text=question, at=event.time, is_own=False))
        self._is_streaming = False

    def _append_text(self, event: Event) -> None:
        text = strip_control(event.data.get("text") or "")
        if not text:
            return
        if self._is_streaming and self.entries[-1].by == event.node_id:
            self.entries[-1] = replace(self.entries[-1], text=self.entries[-1].text + text)
            return
        self._add(ChatEntry(by=event.node_id, text=text, at=event.time, is_own=False))
        self._is_streaming = True

    def _add(self, entry: ChatEntry) -> None:
        self.entries.append(entry)
        self._is_streaming = False


def make_background_notice(event: Event, *, agent_id: str, is_active: bool) -> BackgroundNotice | None:
    """
    Return the notice for an event of a graph that is not on the screen; None if it needs none.

    Args:
        event: The event.
        agent_id: The agent that the graph belongs to.
        is_active: Whether it is the graph that receives messages.
    """
    name = agent_id if is_active else event.graph_id
    match event.type:
        case "client_input_requested":
            question = strip_control(event.data.get("question") or "It needs input.")
            command = f"/talk {agent_id}" if is_active else f"/talk {agent_id}, /graph {event.graph_id}"
            return BackgroundNotice("act", f"{name} asks", f"{question}\n{command} to answer")
        case "execution_failed":
            error = strip_control(
                event.data.get("error") or event.data.get("error_type") or "no reason given"
            )
            return BackgroundNotice("failing", f"{name} failed", error)
        case "execution_completed":
            return BackgroundNotice("healthy", f"{name} completed", "Its run completed.")
    return None
