"""An incremental parser of server-sent events, without I/O."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

_MAX_BYTES: Final = 8 * 1024 * 1024
"""Maximum size of a message; the service's are far smaller."""


@dataclass(frozen=True, slots=True)
class SseMessage:
    """
    A message of an event stream.

    Attributes:
        event: Event type; ``message`` by default.
        data: Text of the message.
        id: Id of the message; None if it has none.
    """

    event: str
    data: str
    id: str | None = None


class SseParser:
    """
    An incremental parser for one stream.

    Attributes:
        retry: Seconds to wait before reconnecting, if the stream has sent a value.
        last_id: The last id that arrived, to reconnect with. None before the first.
    """

    def __init__(self) -> None:
        self.retry: float | None = None
        self.last_id: str | None = None
        self._buffer = b""
        self._fields: dict[str, str] = {}
        self._data: list[str] = []
        self._size = 0
        self._has_started = False

    def feed(self, chunk: bytes) -> Iterator[SseMessage]:
        """
        Parse a chunk, and yield the messages that it completes.

        Raises:
            ValueError: A message is too long or not UTF-8.
        """
        text = self._buffer + chunk
        if not self._has_started:
            if len(text) < 3 and b"\xef\xbb\xbf".startswith(text):
                self._buffer = text
                return
            text, self._has_started = text.removeprefix(b"\xef\xbb\xbf"), True
        # CR LF may be split between two chunks.
        pending_cr = b""
        if text.endswith(b"\r"):
            text, pending_cr = text[:-1], b"\r"
        *lines, rest = text.replace(b"\r\n", b"\n").replace(b"\r", b"\n").split(b"\n")
        self._buffer = rest + pending_cr
        for line in lines:
            self._size += len(line)
            if (message := self._handle_line(line.decode())) is not None:
                yield message
        if self._size + len(self._buffer) > _MAX_BYTES:
            raise ValueError(f"a message of the stream is longer than {_MAX_BYTES} bytes")

    def _handle_line(self, line: str) -> SseMessage | None:
        if not line:
            return self._complete()
        name, _, value = line.partition(":")
        value = value.removeprefix(" ")
        if name == "data":
            self._data.append(value)
        elif name == "retry" and value.isascii() and value.isdigit():
            self.retry = int(value) / 1000
        elif name == "event" or (name == "id" and "\0" not in value):
            self._fields[name] = value
        return None

    def _complete(self) -> SseMessage | None:
        fields, data = self._fields, self._data
        self._fields, self._data, self._size = {}, [], 0
        self.last_id = fields.get("id", self.last_id)
        if not data:
            return None
        return SseMessage(fields.get("event") or "message", "\n".join(data), fields.get("id"))
