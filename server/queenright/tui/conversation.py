"""A talk with an agent that is loaded: what goes into it, and what is a notice beside it. No widgets here."""

from __future__ import annotations

from dataclasses import dataclass, replace

from queenright.tui.values import Moment, Said
from queenright.tui.words import plain


@dataclass(frozen=True, slots=True)
class Beside:
    """What a graph in the background wants one to know: a kind of ``looks``, a title and a text."""

    kind: str
    title: str
    text: str


class Conversation:
    """
    A talk with one agent. What its active graph says comes into it, piece by piece.

    Args:
        agent_id: The agent.
        active: The graph that what is typed goes to; empty if it is not known.
    """

    def __init__(self, agent_id: str, active: str = "") -> None:
        self.agent_id = agent_id
        self.active = active
        self.said: list[Said] = []
        self.agents = {agent_id}
        """The names under which its graphs run: one that is loaded beside it has its own."""
        self._speaking = False

    def typed(self, text: str, by: str, at: float) -> None:
        """Take in what a person says."""
        self._add(Said(by=by, text=text, at=at, mine=True))

    def note(self, text: str, at: float) -> None:
        """Take in what the terminal itself has to say."""
        self._add(Said(by="", text=text, at=at, mine=False))

    def switch(self, graph_id: str, at: float) -> None:
        """Let another graph be the active one; whoever spoke has finished."""
        if graph_id != self.active:
            self.active = graph_id
            self.note(f"── graph {graph_id} ──", at)

    def see(self, event: Moment) -> Beside | None:
        """Take in one event; return what it says beside the talk, if it is of a graph in the background."""
        if event.agent_id not in self.agents:
            return None
        if event.graph_id and self.active and event.graph_id != self.active:
            return _beside(event)
        match event.type:
            case "client_output_delta":
                self._speak(event)
            case "client_input_requested":
                question = plain(event.data.get("question") or "").strip()
                heard = self.said[-1].text if self._speaking else ""
                if question and question not in heard:
                    self._add(Said(by=event.node_id, text=question, at=event.time, mine=False))
                self._speaking = False
            case "execution_failed":
                error = plain(event.data.get("error") or event.data.get("error_type") or "no reason said")
                self.note(f"the run failed: {error}", event.time)
            case "execution_completed":
                self.note("the run is done", event.time)
            case "execution_paused":
                self.note("the run is paused", event.time)
        return None

    def _speak(self, event: Moment) -> None:
        piece = plain(event.data.get("text") or "")
        if not piece:
            return
        if self._speaking and self.said[-1].by == event.node_id:
            self.said[-1] = replace(self.said[-1], text=self.said[-1].text + piece)
            return
        self._add(Said(by=event.node_id, text=piece, at=event.time, mine=False))
        self._speaking = True

    def _add(self, one: Said) -> None:
        self.said.append(one)
        self._speaking = False


def _beside(event: Moment) -> Beside | None:
    graph = event.graph_id
    match event.type:
        case "client_input_requested":
            question = plain(event.data.get("question") or "It asks for input.")
            return Beside("act", f"{graph} asks", f"{question}\n/graph {graph} to answer")
        case "execution_failed":
            error = plain(event.data.get("error") or event.data.get("error_type") or "no reason said")
            return Beside("failing", f"{graph} failed", error)
        case "execution_completed":
            return Beside("healthy", f"{graph} is done", "Its run is complete.")
    return None
