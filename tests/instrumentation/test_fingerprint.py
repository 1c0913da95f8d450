"""Which differences between calls and results a fingerprint ignores, and which it does not."""

from __future__ import annotations

import importlib
import json
import re
import subprocess
import sys
import timeit
import uuid
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from queenright.instrumentation.fingerprint import (
    arguments_fingerprint,
    fingerprint,
    result_fingerprint,
    scrub,
)
from tests.instrumentation.growth import is_linear
from tests.isolation import environment

JSON_VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=30),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=10), inner, max_size=4),
    max_leaves=12,
)


def reverse_keys(value: Any) -> Any:
    """Return the same JSON value with the keys of every object in reverse order."""
    if isinstance(value, dict):
        return {key: reverse_keys(value[key]) for key in reversed(value)}
    return [reverse_keys(item) for item in value] if isinstance(value, list) else value


@given(JSON_VALUES)
def test_fingerprint_is_sixteen_hexadecimal_characters(value: Any) -> None:
    assert re.fullmatch(r"[0-9a-f]{16}", fingerprint(value))


@given(JSON_VALUES)
def test_key_order_and_white_space_do_not_matter(value: Any) -> None:
    """B27: equal arguments have equal fingerprints, whatever their notation."""
    assert fingerprint(value) == fingerprint(reverse_keys(value))
    if isinstance(value, dict | list):
        assert fingerprint(json.dumps(value, indent=3)) == fingerprint(json.dumps(reverse_keys(value)))


@given(st.dictionaries(st.sampled_from("abc"), st.integers(), min_size=1), st.integers(1, 9))
def test_changed_number_is_a_different_value(value: dict[str, int], step: int) -> None:
    changed_value = dict(value)
    changed_value[min(value)] += step

    assert fingerprint(changed_value) != fingerprint(value)


@given(st.uuids(), st.uuids(), st.text(alphabet="abc xyz.", max_size=40))
def test_uuids_do_not_hide_a_repeat(first: uuid.UUID, second: uuid.UUID, text: str) -> None:
    """B83: a UUID in the text, with or without dashes, is ignored."""
    assert fingerprint(f"{text} {first}") == fingerprint(f"{text} {second}")
    assert fingerprint({"value": text, "ref": str(first)}) == fingerprint({"value": text, "ref": str(second)})


@pytest.mark.parametrize(
    ("first", "second"),
    [
        ({"tool_call_id": "call_1", "content": "42"}, {"tool_call_id": "call_2", "content": "42"}),
        ({"id": "call_a81Kd02kLp2", "x": 1}, {"id": "call_Zp20d8wqk1S", "x": 1}),
        ({"id": "toolu_01A09q90qw90lq917835lq9"}, {"id": "toolu_01T1x1fJ34qAmk2tNTrN7Up6"}),
        ({"id": "chatcmpl-B9MBs8CjcvOU2jLn4n570S5qMJKcT"}, {"id": "chatcmpl-A1MBs8CjcvOU2jLn4n570S5qMJKcX"}),
        ("[call_17] no rows", "[call_18] no rows"),
        ("call_abcdefGHIJKLmnopQRST failed", "call_zyxwvuGHIJKLmnopQRST failed"),
        ({"timestamp": 1, "rows": 3}, {"timestamp": 2, "rows": 3}),
        ({"createdAt": "yesterday", "rows": 3}, {"createdAt": "today", "rows": 3}),
        ({"elapsed": 0.21, "rows": 3}, {"elapsed": 0.34, "rows": 3}),
        ({"meta": {"requestId": "a"}, "rows": 3}, {"meta": {"requestId": "b"}, "rows": 3}),
        ({"created": 1767225600, "rows": 3}, {"created": 1767225609, "rows": 3}),
        ("2026-01-05T10:00:00Z not found", "2026-01-05T10:00:07Z not found"),
        ("2026-01-05 10:00:00,123 ERROR not found", "2026-01-05 10:01:09,456 ERROR not found"),
        ("Mon, 05 Jan 2026 10:00:00 GMT x", "Mon, 05 Jan 2026 10:00:04 GMT x"),
        ("at Mon Jan  5 10:00:00 2026", "at Mon Jan 15 11:01:00 2026"),
        ("<Order object at 0x7f3a5c0d1e50>", "<Order object at 0x7f3a5c0d2f10>"),
        ("wrote /tmp/tmpab12cd_x/out", "wrote /tmp/tmpzz98ef_y/out"),
        ("3 failed in 0.12s", "3 failed in 1.40s"),
        ("took 35 ms: nothing", "took 36 ms: nothing"),
        ("About 1,230 results (0.45 seconds)", "About 1,230 results (0.52 seconds)"),
        ("--- PASS: TestHive (0.00s)", "--- PASS: TestHive (0.01s)"),
        ("You visited this page 34 seconds ago. Bees", "You visited this page 5 minutes ago. Bees"),
        ("3 links\nBees (an hour ago)", "3 links\nBees (2 hours ago)"),
        ("01ARZ3NDEKTSV4RRFFQ69G5FAV ok", "01BX5ZZKBKACTAV9WEVGEMMVRZ ok"),
        ("trace 4bf92f3577b34da6a3ce929d0e0e4736", "trace 00f067aa0ba902b7a3ce929d0e0e4731"),
        (
            "content='same' name='get' tool_call_id='x9' request_id=77",
            "content='same' name='get' tool_call_id='y4' request_id=78",
        ),
        ('{"result": "same", "ts": 1767225600.5}', '{"ts": 1767225701.25, "result": "same"}'),
        ({"output": '{"request_id": "a1", "rows": []}'}, {"output": '{"rows": [], "request_id": "b2"}'}),
    ],
)
def test_volatile_values_do_not_hide_a_repeat(first: object, second: object) -> None:
    """B83: ids, timestamps, addresses and measured durations around an equal result are ignored."""
    assert fingerprint(first) == fingerprint(second)


@pytest.mark.parametrize(
    ("first", "second"),
    [
        ("37 % done", "38 % done"),
        ("page 3 of 9", "page 4 of 9"),
        ("12 rows", "13 rows"),
        ({"id": 7}, {"id": 8}),
        ({"id": "A7"}, {"id": "A8"}),
        ({"order_id": "W1234567"}, {"order_id": "W1234568"}),
        ({"user_id": 10_000_001}, {"user_id": 10_000_002}),
        ({"date": "2026-01-05"}, {"date": "2026-01-06"}),
        ({"start": "2026-01-05T10:00:00"}, {"start": "2026-01-05T11:00:00"}),
        ({"time": "10:00"}, {"time": "11:00"}),
        ({"seconds": 5}, {"seconds": 10}),
        ({"duration": 5}, {"duration": 10}),
        ({"progress": 0.25}, {"progress": 0.26}),
        (
            "commit 9fceb02d0ae598e95dc970b74767f19372d61af8",
            "commit 1fceb02d0ae598e95dc970b74767f19372d61af9",
        ),
        ({"path": "run_tests.py"}, {"path": "run_lint.py"}),
        ("step_2 of plan", "step_3 of plan"),
        ("journalctl --since '10 minutes ago'", "journalctl --since '30 minutes ago'"),
        ('git log --since="2 weeks ago"', 'git log --since="3 weeks ago"'),
        ({"since": "2 hours ago"}, {"since": "4 hours ago"}),
        ("wait (5 s)", "wait (10 s)"),
        ({"phone": "4915112345678901"}, {"phone": "4915112345678902"}),
        ({"a": "1"}, {"a": 1}),
        ([1, 2], [2, 1]),
        ([], {}),
        (True, 1),
        ("a" * 200_000 + "b" + "a" * 200_000, "a" * 200_000 + "c" + "a" * 200_000),
        (list(range(50_000)), [*range(49_999), 7]),
        (b"\x00\x01", b"\x00\x02"),
        ({1, 2}, {1, 3}),
    ],
)
def test_relevant_changes_differ(first: object, second: object) -> None:
    """B83: a meaningful change of a number or a text makes a different call or result."""
    assert fingerprint(first) != fingerprint(second)


@pytest.mark.parametrize(
    ("first", "second"),
    [
        ({"tool_call_id": "call_1", "q": "bees"}, {"tool_call_id": "call_2", "q": "bees"}),
        ({"toolUseId": "a81k", "q": "bees"}, {"toolUseId": "b17x", "q": "bees"}),
        ('{"nonce": "a81k", "q": "bees"}', '{"nonce": "b17x", "q": "bees"}'),
        ({"idempotency_key": "a", "q": "bees"}, {"idempotency_key": "b", "q": "bees"}),
        ({"timestamp": 1767225600, "q": "bees"}, {"timestamp": 1767225609, "q": "bees"}),
        ("python /tmp/tmpab12cd_x/run.py", "python /tmp/tmpzz98ef_y/run.py"),
    ],
)
def test_ids_and_times_of_the_call_do_not_change_the_arguments(first: object, second: object) -> None:
    assert arguments_fingerprint(first) == arguments_fingerprint(second)


@given(st.uuids(), st.uuids())
def test_ids_in_arguments_differ(first: uuid.UUID, second: uuid.UUID) -> None:
    assume(first != second)
    for form in (str, lambda key: key, lambda key: key.hex[:24]):
        for key in ("invoice", "message_id", "run_id", "event_id", "uuid", "trace_id"):
            assert arguments_fingerprint({key: form(first)}) != arguments_fingerprint({key: form(second)})
        assert arguments_fingerprint(f"rm {form(first)}") != arguments_fingerprint(f"rm {form(second)}")


@pytest.mark.parametrize(
    ("first", "second"),
    [
        ({"channel": "C1", "ts": "1512085950.000216"}, {"channel": "C1", "ts": "1512085951.000216"}),
        ({"request_id": 17, "decision": "yes"}, {"request_id": 18, "decision": "yes"}),
        ({"request_id": "REQ-17", "decision": "yes"}, {"request_id": "REQ-18", "decision": "yes"}),
        ({"video": "a", "timestamp": 12.5}, {"video": "a", "timestamp": 13.5}),
        ("journalctl --since '2026-01-05 10:00:01'", "journalctl --since '2026-01-05 11:00:01'"),
    ],
)
def test_ids_and_times_chosen_by_the_caller_differ(first: object, second: object) -> None:
    assert arguments_fingerprint(first) != arguments_fingerprint(second)


def test_fingerprint_is_the_same_in_every_process() -> None:
    value = {"q": "hive", "tags": {"b", "a"}, "n": [1, None, 2.5]}
    code = f"from queenright.instrumentation.fingerprint import fingerprint; print(fingerprint({value!r}))"

    fingerprints = {
        subprocess.run(
            [sys.executable, "-c", code],
            env=environment(PYTHONHASHSEED=seed),
            capture_output=True,
            text=True,
            check=True,
        ).stdout.strip()
        for seed in ("1", "2")
    }

    assert fingerprints == {fingerprint(value)}


def test_values_that_are_not_json_have_a_fingerprint() -> None:
    class HostileValue:
        def __repr__(self) -> str:
            raise RuntimeError("no")

    endless: list[object] = []
    endless.append(endless)

    assert (
        len({fingerprint(value) for value in (HostileValue(), endless, "\ud800", {1: "a", "b": 2}, object())})
        == 5
    )
    assert fingerprint(object()) == fingerprint(object())


def test_only_the_ends_of_a_long_text_are_scrubbed() -> None:
    text = f"{uuid.uuid4()} " * 4_000

    scrubbed_text = scrub(text)

    assert len(text) * 0.7 < len(scrubbed_text) < len(text)


# -- failures -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "text",
    [
        "Error: HTTP 404",
        "Error 404: no such page",
        "Error: request failed with status 503",
        "Error: [Errno 111] x",
    ],
)
@pytest.mark.parametrize("has_failed", [True, False])
def test_failure_with_a_code_is_equal_for_other_arguments(text: str, has_failed: bool) -> None:
    first, second = ({"url": f"https://example.org/{page}"} for page in "ab")

    assert result_fingerprint(text, first, has_failed=has_failed) == result_fingerprint(
        text, second, has_failed=has_failed
    )


@pytest.mark.parametrize("has_failed", [True, False])
@pytest.mark.parametrize(
    ("text", "other"),
    [("Error: HTTP 404", "Error: HTTP 500"), ("Error: [Errno 2] x", "Error: [Errno 13] x")],
)
def test_failures_with_different_codes_are_different(text: str, other: str, has_failed: bool) -> None:
    arguments = {"url": "https://example.org"}

    assert result_fingerprint(text, arguments, has_failed=has_failed) != result_fingerprint(
        other, arguments, has_failed=has_failed
    )


@pytest.mark.parametrize(
    ("text", "other"),
    [
        ("Failed after 3 attempts", "Failed after 4 attempts"),
        ("Error: attempt 3/5 failed", "Error: attempt 4/5 failed"),
        ("Error: retry 2 of 5", "Error: retry 3 of 5"),
        ("Error: (attempt 1) cannot connect", "Error: (attempt 2) cannot connect"),
        ("Failed: 3rd attempt", "Failed: 4th attempt"),
        ("Request failed, took 1.23s", "Request failed, took 4.1s"),
        ("Error at 2026-01-01T10:00:00Z: down", "Error at 2026-01-01T10:00:05Z: down"),
        ("Request failed (request id: req_abc12345)", "Request failed (request id: req_zzz99345)"),
        ("Error: retry after 12 seconds", "Error: retry after 9 seconds"),
    ],
)
def test_attempts_and_times_do_not_distinguish_failures(text: str, other: str) -> None:
    first, second = ({"url": f"https://example.org/{page}"} for page in "ab")

    assert result_fingerprint(text, first, has_failed=True) == result_fingerprint(
        other, second, has_failed=True
    )


# -- the work is bounded (B127) -------------------------------------------------------------------

MODULE = importlib.import_module("queenright.instrumentation.fingerprint")


def test_texts_of_a_container_are_searched_up_to_a_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    """B127: 4 MB of texts in one list of a span would block the receiver for a second."""
    search: Callable[[str], str] = MODULE._scrub
    searched_lengths: list[int] = []

    def count(text: str) -> str:
        searched_lengths.append(len(text))
        return search(text)

    monkeypatch.setattr(MODULE, "_scrub", count)
    texts = ["12:12:12 " * 3_000 for _ in range(100)]

    first, second = fingerprint(texts), fingerprint([*texts[:-1], "x"])

    assert sum(searched_lengths) <= 2 * MODULE._MAX_TEXT
    assert first != second


def test_remainder_of_nested_containers_is_written_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """B127: the remainder is not written again for each enclosing list."""
    dump: Callable[[object], str] = MODULE._dump
    written_values: list[str] = []

    def count(value: object) -> str:
        written_values.append(dump(value))
        return written_values[-1]

    monkeypatch.setattr(MODULE, "_dump", count)
    value: object = ["x" * 10] * 10_000
    for _ in range(20):
        value = [value, 1, 2]

    fingerprint(value)

    assert sum(map(len, written_values)) < 200_000


def test_generated_ids_in_the_searched_part_of_a_long_list_are_ignored() -> None:
    """The list is longer than the part that is searched for ids."""
    remaining_numbers = list(range(10_000))

    assert fingerprint([{"request_id": "a1"}, *remaining_numbers]) == fingerprint(
        [{"request_id": "b2"}, *remaining_numbers]
    )
    assert fingerprint([*remaining_numbers, 1]) != fingerprint([*remaining_numbers, 2])


@pytest.mark.parametrize(
    "unit",
    ["authorization:", "12\u0663", ":a", "=1", "=0x", "1-", "call_", "12:12:12 ", "<", "https://", '"', "\\"],
)
@pytest.mark.parametrize("end", ["", "1"])
def test_work_for_crafted_texts_grows_linearly(unit: str, end: str) -> None:
    """B127: the work does not grow with the square of the length."""
    assert is_linear(fingerprint, lambda size: ("1 " + unit * size)[: size - 1] + end)


@pytest.mark.parametrize("unit", ["attempt ", "attempt 1/", "1 of ", "1/1 ", "1", "retry = "])
def test_work_for_a_crafted_reported_failure_grows_linearly(unit: str) -> None:
    """B127: the work does not grow with the square of the length."""
    assert is_linear(
        lambda text: result_fingerprint(text, {"q": "bees"}, has_failed=True),
        lambda size: ("1 " + unit * size)[:size],
    )


@pytest.mark.parametrize("unit", ["1,", "1 ", "1.", "1", "Error ", "\n"])
def test_work_for_a_crafted_failure_is_bounded(unit: str) -> None:
    text = ("Traceback (most recent call last):\n" + unit * 4_096)[:4_000]

    assert min(timeit.repeat(lambda: result_fingerprint(text, {"q": "bees"}), number=1, repeat=5)) < 0.1
