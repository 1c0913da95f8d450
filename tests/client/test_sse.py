"""Parsing of server-sent events."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from queenright.client.asynchronous.stream import SseMessage, SseParser

STREAM = (
    b"\xef\xbb\xbfretry: 1500\nid: before\n\n"
    b": the service is there\n\n"
    b'event: execution_started\r\nid: e1\r\ndata: {"a":\r\ndata: 1}\r\n\r\n'
    b"data: plain\rid\r\r"
    b"event: delta\ndata:b\xc3\xa4r\nsomething: else\n\n"
    b"data: never ended"
)
MESSAGES = [
    SseMessage("execution_started", '{"a":\n1}', "e1"),
    SseMessage("message", "plain", ""),
    SseMessage("delta", "bär", None),
]


def parse(*pieces: bytes) -> tuple[list[SseMessage], SseParser]:
    parser = SseParser()
    return [message for piece in pieces for message in parser.feed(piece)], parser


@given(cuts=st.lists(st.integers(0, len(STREAM)), max_size=8))
def test_stream_is_parsed_equally_at_any_chunk_boundary(cuts: list[int]) -> None:
    boundaries = [0, *sorted(cuts), len(STREAM)]

    messages, parser = parse(*(STREAM[start:end] for start, end in pairwise(boundaries)))

    assert messages == MESSAGES
    assert parser.retry == 1.5


def test_id_without_a_message_is_the_resume_point() -> None:
    messages, parser = parse(b"id: e7\n\n", b"data: a delta\n\n")

    assert messages == [SseMessage("message", "a delta", None)]
    assert parser.last_id == "e7"


def test_id_with_a_nul_and_non_numeric_retry_are_ignored() -> None:
    messages, parser = parse(b"retry: soon\nid: a\0b\ndata: x\n\n")

    assert messages == [SseMessage("message", "x", None)]
    assert (parser.retry, parser.last_id) == (None, None)


def test_endless_message_is_refused_before_it_fills_memory() -> None:
    parser = SseParser()

    for _ in range(83):
        list(parser.feed(b"x" * 100_000))

    with pytest.raises(ValueError, match="longer than 8388608 bytes"):
        list(parser.feed(b"x" * 100_000))
