"""
Text that was truncated within an emoji. JavaScript sends half a surrogate pair, which UTF-8 cannot encode.
"""

from __future__ import annotations

import json

import httpx
import pytest
from hypothesis import given
from hypothesis import strategies as st

from queenright.server.http.json_limits import replace_lone_surrogates
from queenright.server.serving import RunningService
from tests.server.test_hooks import HOOK_PATH


@given(st.text(st.one_of(st.characters(), st.sampled_from('\\"\ud83d\ude00u'))))
def test_valid_text_is_unchanged(sample: str) -> None:
    full_text = sample.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
    for ensure_ascii in (True, False):
        body = json.dumps({"a": [sample]}, ensure_ascii=ensure_ascii).encode("utf-8", "surrogatepass")

        if ensure_ascii or sample == sample.encode("utf-8", "replace").decode():
            assert json.loads(replace_lone_surrogates(body))["a"][0].replace(
                "\ufffd", ""
            ) == full_text.replace("\ufffd", "")


async def test_hook_call_with_half_a_surrogate_pair_is_accepted(
    running: RunningService, http: httpx.AsyncClient
) -> None:
    """B90: only that half is lost."""
    body = b'{"hook_event_name":"PreToolUse","session_id":"s","tool_use_id":"t","tool_name":"cut \\ud83d"}'
    async with httpx.AsyncClient(base_url=running.otlp_url, trust_env=False) as client:
        response = await client.post(HOOK_PATH, content=body)

    assert (response.status_code, response.json()) == (200, {})
    [agent] = (await http.get("/api/agents")).json()["agents"]
    assert agent["session_id"] == "s"


@pytest.mark.parametrize("surrogate", [b"\\ud83d", b"\\uDE00"])
async def test_span_with_half_a_surrogate_pair_is_accepted(running: RunningService, surrogate: bytes) -> None:
    """B90: the whole request is accepted."""
    span = {"traceId": "0" * 31 + "1", "spanId": "0" * 15 + "1", "name": "chat HALF", "kind": 1}
    span |= {"startTimeUnixNano": "1", "endTimeUnixNano": "2"}
    body = json.dumps({"resourceSpans": [{"scopeSpans": [{"spans": [span]}]}]}).encode()
    async with httpx.AsyncClient(base_url=running.otlp_url, trust_env=False) as client:
        response = await client.post(
            "/v1/traces",
            content=body.replace(b"HALF", surrogate),
            headers={"content-type": "application/json"},
        )

    assert response.status_code == 200, response.text
