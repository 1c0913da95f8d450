"""Tool calls in the messages of model calls, in the formats of various libraries."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from queenright.instrumentation import fingerprint
from queenright.server.telemetry.messages import (
    MAX_CALLS,
    MAX_LENGTH,
    CallResult,
    RequestedCall,
    find_tool_calls,
)

ARGUMENTS = {"q": "hive"}
RESULT = "three results"
NAMED_CALL = {"id": "c-1", "name": "search"}
ANSWER = {"role": "assistant", "content": "There are three."}

SHAPES: dict[str, Any] = {
    "GenAI conventions": [
        {"role": "user", "parts": [{"type": "text", "content": "look"}]},
        {
            "role": "assistant",
            "parts": [{"type": "tool_call", "id": "c-1", "name": "search", "arguments": ARGUMENTS}],
        },
        {"role": "tool", "parts": [{"type": "tool_call_response", "id": "c-1", "response": RESULT}]},
    ],
    "OpenAI, chat": {
        "messages": [
            {"role": "user", "content": "look"},
            {
                "role": "assistant",
                "content": None,
                "tool_calls": [
                    {
                        "id": "c-1",
                        "type": "function",
                        "function": {"name": "search", "arguments": json.dumps(ARGUMENTS)},
                    }
                ],
            },
            {"role": "tool", "tool_call_id": "c-1", "content": RESULT},
        ]
    },
    "OpenAI, responses": {
        "input": [
            {"role": "user", "content": "look"},
            {"type": "function_call", "call_id": "c-1", "name": "search", "arguments": json.dumps(ARGUMENTS)},
            {"type": "function_call_output", "call_id": "c-1", "output": RESULT},
        ]
    },
    "Anthropic": [
        {"role": "user", "content": "look"},
        {
            "role": "assistant",
            "content": [{"type": "tool_use", "id": "c-1", "name": "search", "input": ARGUMENTS}],
        },
        {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "c-1", "content": RESULT}]},
    ],
    "Gemini": {
        "contents": [
            {"role": "user", "parts": [{"text": "look"}]},
            {
                "role": "model",
                "parts": [{"functionCall": {"id": "c-1", "name": "search", "args": ARGUMENTS}}],
            },
            {"role": "user", "parts": [{"functionResponse": {"id": "c-1", "response": {"output": RESULT}}}]},
        ]
    },
}
CALL = RequestedCall("c-1", "search", fingerprint(ARGUMENTS))


@pytest.mark.parametrize("shape", SHAPES)
def test_call_and_result_are_read_from_every_message_format(shape: str) -> None:
    """B84: each library's messages give one call and one result."""
    calls, results = find_tool_calls(json.dumps(SHAPES[shape]))

    assert calls == [CALL]
    assert results == [CallResult("c-1", fingerprint(RESULT), False)]


@pytest.mark.parametrize("shape", SHAPES)
def test_result_before_a_model_answer_is_not_new(shape: str) -> None:
    """B84: each model call contains the whole conversation."""
    message = SHAPES[shape]
    messages = message if isinstance(message, list) else next(iter(message.values()))

    calls, results = find_tool_calls(json.dumps([*messages, ANSWER]))

    assert (calls, results) == ([CALL], [])


def test_result_marked_as_an_error_has_failed() -> None:
    """B89: some providers mark failed results."""
    messages = [
        {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "c-1", "is_error": True}]}
    ]

    assert find_tool_calls(json.dumps(messages))[1] == [CallResult("c-1", None, True)]


@pytest.mark.parametrize(
    "content", ["", "no JSON", "[" * 2_000, "7", json.dumps(SHAPES["Anthropic"]) + " " * MAX_LENGTH]
)
def test_unreadable_messages_contain_no_calls(content: str) -> None:
    assert find_tool_calls(content) == ([], [])


def test_number_of_calls_in_one_model_response_is_bounded() -> None:
    tool_calls = [
        {"type": "tool_use", "id": f"c-{index}", "name": "search", "input": {}} for index in range(1_000)
    ]

    assert len(find_tool_calls(json.dumps([{"role": "assistant", "content": tool_calls}]))[0]) == MAX_CALLS


WORDS = st.sampled_from(
    [
        "role",
        "type",
        "parts",
        "content",
        "messages",
        "tool_calls",
        "tool_call",
        "tool_result",
        "functionCall",
        "functionResponse",
        "name",
        "id",
        "tool",
        "assistant",
        "arguments",
        "response",
    ]
)
JSON = st.recursive(
    st.none() | st.booleans() | st.integers(0, 9) | WORDS,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(WORDS, inner, max_size=4),
    max_leaves=20,
)


@given(JSON)
def test_any_messages_are_read_without_an_error(messages: Any) -> None:
    """B48: text from a model or a tool is treated as data."""
    calls, results = find_tool_calls(json.dumps(messages))

    assert all(isinstance(item.id, str) and item.tool for item in calls)
    assert all(isinstance(item.id, str) for item in results)
