"""Server-sent events, read as they come in. Pure: bytes go in, messages come out."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

_MOST: Final = 8 * 1024 * 1024
"""Bytes of one message; the service sends none that is near."""


@dataclass(frozen=True, slots=True)
class Message:
    """
    One message of a stream.

    Attributes:
        event: Its kind; ``message`` if it does not say.
        data: Its text.
        id: What to come back with; None if it has none of its own.
    """

    event: str
    data: str
    id: str | None = None


class Reader:
    """
    What has come in of one stream.

    Attributes:
        retry: Seconds to wait before coming back, once the stream has said so.
        place: What to come back with: the id that came last, of a message or of none. None before the first.
    """

    def __init__(self) -> None:
        self.retry: float | None = None
        self.place: str | None = None
        self._rest = b""
        self._fields: dict[str, str] = {}
        self._data: list[str] = []
        self._size = 0
        self._begun = False

    def read(self, piece: bytes) -> Iterator[Message]:
        """
        Take what came in, and yield the messages that it completes.

        Raises:
            ValueError: It is no stream of events: a message has no end, or is not UTF-8.
        """
        text = self._rest + piece
        if not self._begun:
            if len(text) < 3 and b"\xef\xbb\xbf".startswith(text):
                self._rest = text
                return
            text, self._begun = text.removeprefix(b"\xef\xbb\xbf"), True
        # A line may end in CR LF, and its halves may come apart.
        held = b""
        if text.endswith(b"\r"):
            text, held = text[:-1], b"\r"
        *lines, rest = text.replace(b"\r\n", b"\n").replace(b"\r", b"\n").split(b"\n")
        self._rest = rest + held
        for line in lines:
            self._size += len(line)
            if (message := self._line(line.decode())) is not None:
                yield message
        if self._size + len(self._rest) > _MOST:
            raise ValueError(f"a message of the stream is longer than {_MOST} bytes")

    def _line(self, line: str) -> Message | None:
        if not line:
            return self._end()
        name, _, value = line.partition(":")
        value = value.removeprefix(" ")
        if name == "data":
            self._data.append(value)
        elif name == "retry" and value.isascii() and value.isdigit():
            self.retry = int(value) / 1000
        elif name == "event" or (name == "id" and "\0" not in value):
            self._fields[name] = value
        return None

    def _end(self) -> Message | None:
        fields, data = self._fields, self._data
        self._fields, self._data, self._size = {}, [], 0
        self.place = fields.get("id", self.place)
        if not data:
            return None
        return Message(fields.get("event") or "message", "\n".join(data), fields.get("id"))
