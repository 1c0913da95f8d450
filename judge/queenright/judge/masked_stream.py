"""
Mask secrets in a text that arrives in pieces.

Only text whose mask cannot change any more is passed on: whole words, and where a word may name a secret
("password", "token"), whole sentences.
"""

from __future__ import annotations

import re
from typing import Final

from queenright.instrumentation.redaction import cut_before_hidden
from queenright.judge.quoting import sanitise
from queenright.runtime.llm.model import OnText

_NAME: Final = re.compile(r"(?i)pass|pwd|secret|credential|key|token|sig|auth|cookie|bearer|basic")
"""What precedes a secret of several words, or one that only the words before it tell."""
_BLOCK: Final = re.compile(r"(?i)curl|mysql|mariadb|-----|<|lt;")
"""What may enclose a secret over several sentences."""
_WORDS: Final = re.compile(r".*\s", re.DOTALL)
_SENTENCE_END: Final = re.compile(r"[.!?][)\"'*_`]*\s|(?<![\s:=,(\[{\\>*_~-])[ \t]*\n")


class MaskedStream:
    """
    Passes text on, masked, as far as no later piece can change how it is masked.

    Args:
        on_text: Receives the masked pieces.
    """

    def __init__(self, on_text: OnText) -> None:
        self._on_text = on_text
        self._text = ""
        self._released = 0
        """How much of the text was passed on."""
        self._shown = ""
        self._is_broken = False
        """What was passed on is masked otherwise now; nothing more is."""

    def add(self, piece: str) -> None:
        """Add a piece of the text."""
        # A control character could hide a name.
        self._text += "".join(c for c in piece if c.isprintable() or c.isspace())
        end = self._find_end()
        if end <= self._released or self._is_broken:
            return
        masked = str(sanitise(self._text[:end]))
        self._released = end
        if not masked.startswith(self._shown):
            self._is_broken = True
            return
        if more := masked[len(self._shown) :]:
            self._shown = masked
            self._on_text(more)

    def finish(self, text: str) -> None:
        """Pass on the rest of ``text``, the whole masked text."""
        if not self._is_broken and text.startswith(self._shown) and text != self._shown:
            self._on_text(text[len(self._shown) :])

    def _find_end(self) -> int:
        """Return how much of the text can be passed on."""
        text, end = self._text, self._released
        block = _BLOCK.search(text, end)
        limit = block.start() if block else len(text)
        while name := _NAME.search(text, end, limit):
            sentence = _SENTENCE_END.search(text, name.end(), limit)
            if sentence is None:
                limit = name.start()
                break
            end = sentence.end()
        words = _WORDS.match(text, end, limit)
        return cut_before_hidden(text, words.end() if words else end)
