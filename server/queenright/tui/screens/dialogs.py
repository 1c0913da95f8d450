"""Small screens on top of others: a question to be answered, a list of what can be done."""

from __future__ import annotations

import math
from typing import ClassVar, Final

from rich.text import Text
from textual.app import ComposeResult
from textual.binding import BindingType
from textual.containers import Vertical
from textual.events import Mount
from textual.screen import ModalScreen
from textual.widgets import Input, Static

from queenright.tui.commands import help_lines
from queenright.tui.styles import DIM, colour, styled

QUIET_SECONDS: Final = 0.03
"""Keys that follow each other faster are of one burst: nobody types so fast, a paste and a script do."""


class Deliberate:
    """
    A dialog that takes no key of the burst that opened it: those were meant for something else.

    What answers it must come after it was shown, and after a pause.
    """

    ANSWERS: ClassVar[frozenset[str]] = frozenset({"enter"})
    """Keys that answer it."""

    def __init__(self) -> None:
        super().__init__()
        self._shown_at = math.inf
        self.is_settled = False
        """Whether a key was meant for it."""

    def shown(self, at: float) -> None:
        """Note when it was shown, on the clock of messages."""
        self._shown_at = at

    def takes(self, key: str, at: float, before: float) -> bool:
        """Return whether it takes a key that came at ``at``, after one that came at ``before``."""
        is_deliberate = at > self._shown_at and at - before >= QUIET_SECONDS
        self.is_settled = self.is_settled or is_deliberate
        return is_deliberate if key in self.ANSWERS else self.is_settled


class Ask(Deliberate, ModalScreen[str | None]):
    """
    A question whose answer is typed; None if it is left with Esc.

    Args:
        title: What it is about.
        text: What follows from an answer.
        hint: What an answer is like.
        needed: Whether an empty answer is none.
    """

    BINDINGS: ClassVar[list[BindingType]] = [("escape", "leave", "Cancel")]

    def __init__(self, title: str, text: str, hint: str, *, needed: bool) -> None:
        super().__init__()
        self._title, self._text, self._hint, self._needed = title, text, hint, needed

    def compose(self) -> ComposeResult:
        """Lay it out."""
        with Vertical(classes="box"):
            yield Static(styled(self._title, "bold"))
            yield Static(Text(self._text))
            yield Input(placeholder=self._hint)
            yield Static(styled("Enter answers · Esc cancels", DIM))

    def on_mount(self, event: Mount) -> None:
        """Take keys that come from now on."""
        self.shown(event.time)

    def on_input_submitted(self, event: Input.Submitted) -> None:
        """Take the answer."""
        event.stop()
        if self.is_settled and (event.value.strip() or not self._needed):
            self.dismiss(event.value.strip())

    def action_leave(self) -> None:
        """Leave it without an answer."""
        self.dismiss(None)


class Confirm(Deliberate, ModalScreen[bool]):
    """A question that is answered with y; any other way out is a no."""

    ANSWERS: ClassVar[frozenset[str]] = frozenset({"y"})
    BINDINGS: ClassVar[list[BindingType]] = [
        ("y", "answer(True)", "Yes"),
        ("n", "answer(False)", "No"),
        ("escape", "answer(False)", "No"),
    ]

    def __init__(self, title: str, text: str) -> None:
        super().__init__()
        self._title, self._text = title, text

    def compose(self) -> ComposeResult:
        """Lay it out."""
        with Vertical(classes="box danger"):
            yield Static(styled(self._title, f"bold {colour('failing')}"))
            yield Static(Text(self._text))
            yield Static(styled("y yes · n or Esc no", DIM))

    def on_mount(self, event: Mount) -> None:
        """Take keys that come from now on."""
        self.shown(event.time)

    def action_answer(self, yes: bool) -> None:
        """Take the answer."""
        if self.is_settled or not yes:
            self.dismiss(yes)


_KEYS = (
    ("1 2 3 4  Tab", "fleet, tickets, circuit breakers, feed"),
    ("↑ ↓ j k  Enter", "move; open what the cursor is on"),
    ("Ctrl+Q", "talk with the queen about the ticket; again: back"),
    ("n  t", "nudge, or terminate, the worker"),
    ("a", "take the ticket: nobody is reminded of it"),
    ("r", "reset the circuit breaker"),
    ("/", "a command"),
    ("Esc", "dismiss a notice; stop typing; back"),
    ("q Ctrl+C", "leave"),
)


class Help(ModalScreen[None]):
    """All keys and commands."""

    BINDINGS: ClassVar[list[BindingType]] = [("escape", "leave", "Back"), ("enter", "leave", "Back")]

    def compose(self) -> ComposeResult:
        """Lay it out."""
        keys = "\n".join(f"{keys:<16}{what}" for keys, what in _KEYS)
        with Vertical(classes="box wide"):
            yield Static(styled("Keys", "bold"))
            yield Static(Text(keys))
            yield Static(styled("Commands, and // for words that begin with a slash", "bold"))
            yield Static(Text("\n".join(help_lines())))
            yield Static(styled("Esc goes back", DIM))

    def action_leave(self) -> None:
        """Leave it."""
        self.dismiss()
