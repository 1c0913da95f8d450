"""A talk with an agent that is loaded: what goes into it, and what is a notice beside it. No widgets here."""

from __future__ import annotations

from dataclasses import dataclass, replace

from queenright.tui.values import Before, Moment, Said
from queenright.tui.words import plain


@dataclass(frozen=True, slots=True)
class BackgroundNotice:
    """What a graph in the background wants one to know: a kind of ``looks``, a title and a text."""

    kind: str
    title: str
    text: str


class Conversation:
    """
    A talk with one agent. What its active graph says comes into it, piece by piece.

    Whose events these are is for others to find out: see ``Belonging``.

    Args:
        agent_id: The agent.
        active: The graph that what is typed goes to; empty if it is not known.
    """

    def __init__(self, agent_id: str, active: str = "") -> None:
        self.agent_id = agent_id
        self.active = active
        self.said: list[Said] = []
        self._speaking = False
        self._begins = 0
        """Where the talk with the active graph begins in ``said``."""
        self._through = 0.0
        """What was said up to then is there already."""

    def typed(self, text: str, by: str, at: float) -> None:
        """Take in what a person says."""
        self._add(Said(by=by, text=text, at=at, mine=True))

    def note(self, text: str, at: float) -> None:
        """Take in what the terminal itself has to say."""
        self._add(Said(by="", text=text, at=at, mine=False))

    def switch(self, graph_id: str, at: float) -> bool:
        """Let another graph be the active one; whoever spoke has finished. Return whether it is another."""
        if graph_id == self.active:
            return False
        if self.active:
            self.note(f"── graph {graph_id} ──", at)
        self.active = graph_id
        self._begins, self._through, self._speaking = len(self.said), 0.0, False
        return True

    def take_before(self, known: Before, mark: int) -> None:
        """
        Take over what was said before with the active graph, in place of what was known of it here.

        Args:
            known: What was said.
            mark: How long ``said`` was when that was asked for: what came meanwhile stays behind it.
        """
        old, newer = self.said[self._begins : mark], self.said[mark:]
        # Somebody in the midst of a sentence: it is in no log yet.
        unfinished = old[-1:] if self._speaking and not newer else []
        if any(one.text in other.text for one in unfinished for other in known.said):
            unfinished = []
        mine = [one.text for one in known.said if one.mine][-1:]
        kept = [one for one in newer if not (one.mine and one.text in mine)]
        self.said[self._begins :] = [*known.said, *unfinished, *kept]
        self._speaking = bool(unfinished)
        self._through = known.through

    def see(self, event: Moment) -> None:
        """Take in one event of this agent; those of a graph in the background are left."""
        if event.graph_id and self.active and event.graph_id != self.active:
            return
        match event.type:
            case "client_output_delta":
                if event.time > self._through:
                    self._speak(event)
            case "client_input_requested":
                self._asked(event)
            case "execution_failed":
                error = plain(event.data.get("error") or event.data.get("error_type") or "no reason said")
                self.note(f"the run failed: {error}", event.time)
            case "execution_completed":
                self.note("the run is done", event.time)
            case "execution_paused":
                self.note("the run is paused", event.time)

    def _asked(self, event: Moment) -> None:
        question = plain(event.data.get("question") or "").strip()
        heard = [one for one in self.said if one.by][-1:]
        if question and not (heard and not heard[0].mine and question in plain(heard[0].text)):
            self._add(Said(by=event.node_id, text=question, at=event.time, mine=False))
        self._speaking = False

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


def background_notice(event: Moment, *, agent_id: str, active: bool) -> BackgroundNotice | None:
    """
    Return what a graph that nobody looks at wants one to know; None for nothing.

    Args:
        event: What happened.
        agent_id: Whose graph it is.
        active: Whether it is the one that what is said goes to.
    """
    name = agent_id if active else event.graph_id
    match event.type:
        case "client_input_requested":
            question = plain(event.data.get("question") or "It asks for input.")
            way = f"/talk {agent_id}" if active else f"/talk {agent_id}, /graph {event.graph_id}"
            return BackgroundNotice("act", f"{name} asks", f"{question}\n{way} to answer")
        case "execution_failed":
            error = plain(event.data.get("error") or event.data.get("error_type") or "no reason said")
            return BackgroundNotice("failing", f"{name} failed", error)
        case "execution_completed":
            return BackgroundNotice("healthy", f"{name} is done", "Its run is complete.")
    return None
