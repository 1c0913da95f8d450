"""Bodies that cost much more than they are long, sent to the receiver; each is made by a rule."""

from __future__ import annotations

import gzip
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

PROTOBUF: Final = "application/x-protobuf"
JSON: Final = "application/json"


@dataclass(frozen=True, slots=True)
class Body:
    """A request to the receiver."""

    path: str
    content_type: str
    make: Callable[[], bytes]
    compressed: bool = True
    encoding: str = ""
    """What it is encoded in already."""

    def sent(self) -> tuple[dict[str, str], bytes]:
        """Return its headers and what is sent."""
        content = self.make()
        if not self.compressed:
            return {"content-type": self.content_type, "content-encoding": self.encoding}, content
        return {"content-type": self.content_type, "content-encoding": "gzip"}, gzip.compress(content, 9)


def field(number: int, value: bytes) -> bytes:
    """Return a protobuf field that has a length."""
    head = bytearray((number << 3 | 2,))
    length = len(value)
    while length > 0x7F:
        head.append(length & 0x7F | 0x80)
        length >>= 7
    head.append(length)
    return bytes(head) + value


def item(content: bytes) -> bytes:
    """Return a request with one span, log record or metric."""
    return field(1, field(2, field(2, content)))


def nested(depth: int, value: bytes = b"") -> bytes:
    """Return an attribute whose value is a list in a list, and so on."""
    for _ in range(depth):
        value = field(5, field(1, value))
    return field(9, field(1, b"input.value") + field(2, value))


_SPAN: Final = field(1, b"t" * 16) + field(2, b"s" * 8)
_TOOL: Final = field(5, b"execute_tool x")


def wide(count: int) -> bytes:
    """Return a tool's span whose arguments are a list of so many empty values."""
    values = field(5, field(1, b"") * count)
    return _SPAN + _TOOL + field(9, field(1, b"gen_ai.tool.call.arguments") + field(2, values))


# Sizes are given in millions of messages; tests that count work take a part of them.
CORPUS: Final[dict[str, Callable[[float], Body]]] = {
    "empty resources": lambda m: _spans(lambda: b"\x0a\x00" * int(m * 4e6)),
    "many more empty resources": lambda m: _spans(lambda: b"\x0a\x00" * int(m * 30e6)),
    "empty resources, not compressed": lambda m: _spans(lambda: b"\x0a\x00" * int(m * 4e6), compressed=False),
    "empty scopes": lambda m: _spans(lambda: field(1, b"\x12\x00" * int(m * 4e6))),
    "empty spans": lambda m: _spans(lambda: field(1, field(2, b"\x12\x00" * int(m * 4e6)))),
    "empty records": lambda m: Body("/v1/logs", PROTOBUF, lambda: _items(b"\x12\x00" * int(m * 2e6))),
    "empty metrics": lambda m: Body("/v1/metrics", PROTOBUF, lambda: _items(b"\x12\x00" * int(m * 4e6))),
    "empty data points": lambda m: Body(
        "/v1/metrics", PROTOBUF, lambda: item(field(5, b"\x0a\x00" * int(m * 4e6)))
    ),
    "empty attributes": lambda m: _spans(lambda: item(_SPAN + b"\x4a\x00" * int(m * 4e6))),
    "attributes of a resource": lambda m: _spans(
        lambda: field(1, field(1, b"\x0a\x00" * int(m * 4e6)) + b"\x12\x00")
    ),
    "events of a span": lambda m: _spans(lambda: item(_SPAN + b"\x5a\x00" * int(m * 4e6))),
    "values in a list": lambda m: _spans(lambda: item(wide(int(m * 4e6)))),
    "spans with a list each": lambda m: _spans(lambda: _items(field(2, wide(5_000)) * int(m * 600))),
    "a deep list": lambda m: _spans(lambda: item(_SPAN + nested(min(20_000, int(m * 2e5))))),
    "a damaged end": lambda m: _spans(lambda: b"\x0a\x00" * int(m * 4e6) + b"\x0a"),
    "a long text": lambda m: _spans(lambda: item(_SPAN + field(5, b"a b " * int(m * 8e6)))),
    "times of day": lambda m: _spans(lambda: _items(field(2, _times_of_day()) * int(m * 500))),
    "commands in errors": lambda m: _spans(lambda: _items(field(2, _command()) * int(m * 500))),
    "ordinary spans in JSON": lambda m: _json(lambda: _ordinary_spans(int(m * 18_000))),
    "streams of gzip": lambda m: _spans(lambda: gzip.compress(b"") * int(m * 8e5), encoding="gzip"),
    "lists in JSON": lambda m: _json(lambda: b"[" + b"[]," * int(m * 15e6) + b"[]]"),
    "objects in JSON": lambda m: _json(lambda: b"[" + b"{}," * int(m * 2e6) + b"{}]"),
    "numbers in JSON": lambda m: _json(lambda: b"[" + b"1," * int(m * 4e6) + b"1]"),
    "a deep list in JSON": lambda m: _json(lambda: b"[" * int(m * 4e6)),
    "texts in JSON": lambda m: _json(lambda: b"[" + b'"\\"[,:{",' * int(m * 8e5) + b'""]'),
}


def _spans(make: Callable[[], bytes], *, compressed: bool = True, encoding: str = "") -> Body:
    return Body("/v1/traces", PROTOBUF, make, compressed and not encoding, encoding)


def _json(make: Callable[[], bytes]) -> Body:
    return Body("/v1/traces", JSON, lambda: b'{"resourceSpans":' + make() + b"}")


def _items(content: bytes) -> bytes:
    return field(1, field(2, content))


def _times_of_day() -> bytes:
    text = b"12:12:12 " * 3_600
    return _SPAN + _TOOL + _argument(text) + _result(text)


def _command() -> bytes:
    """Return a failed span whose error mentions a program and its option again and again."""
    error = field(2, b"curl -u a:" * 3_200) + b"\x18\x02"
    return _SPAN + _TOOL + field(15, error)


def _ordinary_spans(count: int) -> bytes:
    span = (
        b'{"traceId":"%032x","spanId":"%016x","name":"execute_tool search",'
        b'"startTimeUnixNano":"1700000000000000000","endTimeUnixNano":"1700000001000000000"}'
    )
    spans = b",".join(span % (number, number) for number in range(1, count + 1))
    return b'[{"scopeSpans":[{"spans":[' + spans + b"]}]}]"


def _argument(text: bytes) -> bytes:
    return field(9, field(1, b"gen_ai.tool.call.arguments") + field(2, field(1, text)))


def _result(text: bytes) -> bytes:
    return field(9, field(1, b"gen_ai.tool.call.result") + field(2, field(1, text)))
