"""Modal dialogs: prompt, confirmation, help."""

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

from queenright.tui.commands import make_help_lines
from queenright.tui.styles import DIM, get_colour, style_text

BURST_SECONDS: Final = 0.03
"""Keys with a shorter interval come from a paste or a script, not from typing."""


class GuardedDialog:
    """
    A dialog that ignores the remaining keys of the burst that opened it.

    A key that answers it must come after the dialog was shown, and after a pause.
    """

    ANSWER_KEYS: ClassVar[frozenset[str]] = frozenset({"enter"})
    """Keys that answer the dialog."""

    def __init__(self) -> None:
        super().__init__()
        self._shown_at = math.inf
        self.is_settled = False
        """Whether a key was pressed deliberately since the dialog was shown."""

    def mark_shown(self, at: float) -> None:
        """Set when the dialog was shown, on the clock of Textual's messages."""
        self._shown_at = at

    def accepts_key(self, key: str, at: float, previous_at: float) -> bool:
        """Return whether the dialog handles a key pressed at ``at``, after the key at ``previous_at``."""
        is_deliberate = at > self._shown_at and at - previous_at >= BURST_SECONDS
        self.is_settled = self.is_settled or is_deliberate
        return is_deliberate if key in self.ANSWER_KEYS else self.is_settled


class PromptDialog(GuardedDialog, ModalScreen[str | None]):
    """
    Asks for a line of text; the result is None after Esc.

    Args:
        title: Title.
        text: Explanation.
        hint: Placeholder of the input.
        is_required: Whether the answer must not be empty.
    """

    BINDINGS: ClassVar[list[BindingType]] = [("escape", "leave", "Cancel")]

    def __init__(self, title: str, text: str, hint: str, *, is_required: bool) -> None:
        super().__init__()
        self._title, self._text, self._hint, self._is_required = title, text, hint, is_required

    def compose(self) -> ComposeResult:
        """Compose the dialog."""
        with Vertical(classes="box"):
            yield Static(style_text(self._title, "bold"))
            yield Static(Text(self._text))
            yield Input(placeholder=self._hint)
            yield Static(style_text("Enter: submit · Esc: cancel", DIM))

    def on_mount(self, event: Mount) -> None:
        """Accept keys from now on."""
        self.mark_shown(event.time)

    def on_input_submitted(self, event: Input.Submitted) -> None:
        """Close with the answer."""
        event.stop()
        if self.is_settled and (event.value.strip() or not self._is_required):
            self.dismiss(event.value.strip())

    def action_leave(self) -> None:
        """Close without an answer."""
        self.dismiss(None)


class ConfirmDialog(GuardedDialog, ModalScreen[bool]):
    """A yes-or-no question; only y means yes."""

    ANSWER_KEYS: ClassVar[frozenset[str]] = frozenset({"y"})
    BINDINGS: ClassVar[list[BindingType]] = [
        ("y", "answer(True)", "Yes"),
        ("n", "answer(False)", "No"),
        ("escape", "answer(False)", "No"),
    ]

    def __init__(self, title: str, text: str) -> None:
        super().__init__()
        self._title, self._text = title, text

    def compose(self) -> ComposeResult:
        """Compose the dialog."""
        with Vertical(classes="box danger"):
            yield Static(style_text(self._title, f"bold {get_colour('failing')}"))
            yield Static(Text(self._text))
            yield Static(style_text("y: yes · n or Esc: no", DIM))

    def on_mount(self, event: Mount) -> None:
        """Accept keys from now on."""
        self.mark_shown(event.time)

    def action_answer(self, yes: bool) -> None:
        """Close with the answer."""
        if self.is_settled or not yes:
            self.dismiss(yes)


_KEYS = (
    ("1 2 3 4 5  Tab", "needs you, fleet, tickets, circuit breakers, timeline"),
    ("↑ ↓ j k  Enter", "move; open the selected row"),
    ("Ctrl+Q", "chat with the queen about the ticket; again: back"),
    ("a d m h r t", "answer what needs you; the keys are below it"),
    ("n  t  f", "nudge the worker; terminate it; filter the fleet"),
    ("a  r", "acknowledge the ticket; reset the circuit breaker"),
    ("/  Esc", "command line; dismiss a notice, clear the filter, back"),
    ("q Ctrl+C", "quit"),
)


class HelpDialog(ModalScreen[None]):
    """Lists all keys and commands."""

    BINDINGS: ClassVar[list[BindingType]] = [("escape", "leave", "Back"), ("enter", "leave", "Back")]

    def compose(self) -> ComposeResult:
        """Compose the dialog."""
        keys = "\n".join(f"{keys:<16}{description}" for keys, description in _KEYS)
        with Vertical(classes="box wide"):
            yield Static(style_text("Keys", "bold"))
            yield Static(Text(keys))
            yield Static(style_text("Commands; start a message with // for a slash", "bold"))
            yield Static(Text("\n".join(make_help_lines())))
            yield Static(style_text("Esc: back", DIM))

    def action_leave(self) -> None:
        """Close the dialog."""
        self.dismiss()
