"""
Request bodies whose processing costs much more than their length suggests. A rule generates each of them.
"""

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
    is_compressed: bool = True
    encoding: str = ""
    """Content-Encoding of the bytes that `make` returns."""

    def build_request(self) -> tuple[dict[str, str], bytes]:
        """Return the headers and the body to send."""
        content = self.make()
        if not self.is_compressed:
            return {"content-type": self.content_type, "content-encoding": self.encoding}, content
        return {"content-type": self.content_type, "content-encoding": "gzip"}, gzip.compress(content, 9)


def make_field(number: int, value: bytes) -> bytes:
    """Return a length-delimited protobuf field."""
    head = bytearray((number << 3 | 2,))
    length = len(value)
    while length > 0x7F:
        head.append(length & 0x7F | 0x80)
        length >>= 7
    head.append(length)
    return bytes(head) + value


def make_item(content: bytes) -> bytes:
    """Return a request with one span, log record or metric."""
    return make_field(1, make_field(2, make_field(2, content)))


def make_nested(depth: int, value: bytes = b"") -> bytes:
    """Return an attribute whose value is a list with this nesting depth."""
    for _ in range(depth):
        value = make_field(5, make_field(1, value))
    return make_field(9, make_field(1, b"input.value") + make_field(2, value))


_SPAN: Final = make_field(1, b"t" * 16) + make_field(2, b"s" * 8)
_TOOL: Final = make_field(5, b"execute_tool x")


def make_wide_tool_span(count: int) -> bytes:
    """Return a tool span whose arguments are a list of ``count`` empty values."""
    values = make_field(5, make_field(1, b"") * count)
    return _SPAN + _TOOL + make_field(9, make_field(1, b"gen_ai.tool.call.arguments") + make_field(2, values))


# Sizes are in millions of messages. Tests that count work use a fraction of them.
CORPUS: Final[dict[str, Callable[[float], Body]]] = {
    "empty resources": lambda size: _make_spans_body(lambda: b"\x0a\x00" * int(size * 4e6)),
    "many more empty resources": lambda size: _make_spans_body(lambda: b"\x0a\x00" * int(size * 30e6)),
    "empty resources, not compressed": lambda size: _make_spans_body(
        lambda: b"\x0a\x00" * int(size * 4e6), is_compressed=False
    ),
    "empty scopes": lambda size: _make_spans_body(lambda: make_field(1, b"\x12\x00" * int(size * 4e6))),
    "empty spans": lambda size: _make_spans_body(
        lambda: make_field(1, make_field(2, b"\x12\x00" * int(size * 4e6)))
    ),
    "empty records": lambda size: Body(
        "/v1/logs", PROTOBUF, lambda: _make_items(b"\x12\x00" * int(size * 2e6))
    ),
    "empty metrics": lambda size: Body(
        "/v1/metrics", PROTOBUF, lambda: _make_items(b"\x12\x00" * int(size * 4e6))
    ),
    "empty data points": lambda size: Body(
        "/v1/metrics", PROTOBUF, lambda: make_item(make_field(5, b"\x0a\x00" * int(size * 4e6)))
    ),
    "empty attributes": lambda size: _make_spans_body(
        lambda: make_item(_SPAN + b"\x4a\x00" * int(size * 4e6))
    ),
    "attributes of a resource": lambda size: _make_spans_body(
        lambda: make_field(1, make_field(1, b"\x0a\x00" * int(size * 4e6)) + b"\x12\x00")
    ),
    "events of a span": lambda size: _make_spans_body(
        lambda: make_item(_SPAN + b"\x5a\x00" * int(size * 4e6))
    ),
    "values in a list": lambda size: _make_spans_body(
        lambda: make_item(make_wide_tool_span(int(size * 4e6)))
    ),
    "spans with a list each": lambda size: _make_spans_body(
        lambda: _make_items(make_field(2, make_wide_tool_span(5_000)) * int(size * 600))
    ),
    "a deep list": lambda size: _make_spans_body(
        lambda: make_item(_SPAN + make_nested(min(20_000, int(size * 2e5))))
    ),
    "a damaged end": lambda size: _make_spans_body(lambda: b"\x0a\x00" * int(size * 4e6) + b"\x0a"),
    "a long text": lambda size: _make_spans_body(
        lambda: make_item(_SPAN + make_field(5, b"a b " * int(size * 8e6)))
    ),
    "times of day": lambda size: _make_spans_body(
        lambda: _make_items(make_field(2, _make_times_of_day()) * int(size * 500))
    ),
    "commands in errors": lambda size: _make_spans_body(
        lambda: _make_items(make_field(2, _make_command_span()) * int(size * 500))
    ),
    "ordinary spans in JSON": lambda size: _make_json_body(lambda: _make_ordinary_spans(int(size * 18_000))),
    "streams of gzip": lambda size: _make_spans_body(
        lambda: gzip.compress(b"") * int(size * 8e5), encoding="gzip"
    ),
    "lists in JSON": lambda size: _make_json_body(lambda: b"[" + b"[]," * int(size * 15e6) + b"[]]"),
    "objects in JSON": lambda size: _make_json_body(lambda: b"[" + b"{}," * int(size * 2e6) + b"{}]"),
    "numbers in JSON": lambda size: _make_json_body(lambda: b"[" + b"1," * int(size * 4e6) + b"1]"),
    "a deep list in JSON": lambda size: _make_json_body(lambda: b"[" * int(size * 4e6)),
    "texts in JSON": lambda size: _make_json_body(lambda: b"[" + b'"\\"[,:{",' * int(size * 8e5) + b'""]'),
}


def _make_spans_body(make: Callable[[], bytes], *, is_compressed: bool = True, encoding: str = "") -> Body:
    return Body("/v1/traces", PROTOBUF, make, is_compressed and not encoding, encoding)


def _make_json_body(make: Callable[[], bytes]) -> Body:
    return Body("/v1/traces", JSON, lambda: b'{"resourceSpans":' + make() + b"}")


def _make_items(content: bytes) -> bytes:
    return make_field(1, make_field(2, content))


def _make_times_of_day() -> bytes:
    times = b"12:12:12 " * 3_600
    return _SPAN + _TOOL + _make_argument(times) + _make_result(times)


def _make_command_span() -> bytes:
    """Return a failed span whose error repeats a program and one of its options."""
    error = make_field(2, b"curl -u a:" * 3_200) + b"\x18\x02"
    return _SPAN + _TOOL + make_field(15, error)


def _make_ordinary_spans(count: int) -> bytes:
    span = (
        b'{"traceId":"%032x","spanId":"%016x","name":"execute_tool search",'
        b'"startTimeUnixNano":"1700000000000000000","endTimeUnixNano":"1700000001000000000"}'
    )
    spans = b",".join(span % (number, number) for number in range(1, count + 1))
    return b'[{"scopeSpans":[{"spans":[' + spans + b"]}]}]"


def _make_argument(content: bytes) -> bytes:
    return make_field(9, make_field(1, b"gen_ai.tool.call.arguments") + make_field(2, make_field(1, content)))


def _make_result(content: bytes) -> bytes:
    return make_field(9, make_field(1, b"gen_ai.tool.call.result") + make_field(2, make_field(1, content)))
