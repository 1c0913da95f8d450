"""The tables and limits in docs/otlp.md match the code."""

from __future__ import annotations

import re
from pathlib import Path

from queenright.instrumentation import names
from queenright.instrumentation.conventions import SPAN_NAMES
from queenright.server.otlp.forward import RETRYABLE_STATUSES
from queenright.server.otlp.receiver import MAX_BODY, MAX_INFLATED
from queenright.server.telemetry.dialects import ATTRIBUTES

DOCUMENT_TEXT = (Path(__file__).parents[3] / "docs" / "otlp.md").read_text()
OWN_ATTRIBUTES = {
    value for value in vars(names).values() if isinstance(value, str) and value.startswith("queenright.")
}


def test_every_attribute_is_documented_in_the_order_of_precedence() -> None:
    rows = dict(re.findall(r"^\| `(\w+)` \| (.+?) \|$", DOCUMENT_TEXT, flags=re.MULTILINE))

    assert {field: re.findall(r"`([^`]+)`", row) for field, row in rows.items()} == {
        field: list(names) for field, names in ATTRIBUTES.items() if not set(names) <= OWN_ATTRIBUTES
    }


def test_documented_limits_and_span_names_match_the_code() -> None:
    assert f"{MAX_BODY >> 20} MiB as sent, {MAX_INFLATED >> 20} MiB decompressed" in DOCUMENT_TEXT
    assert all(str(status) in DOCUMENT_TEXT for status in RETRYABLE_STATUSES)
    assert all(f"`{prefix.strip(': ')}" in DOCUMENT_TEXT for prefix, _ in SPAN_NAMES)
