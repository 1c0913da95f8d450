"""
Calls that a person or the agent cancelled are distinguished from calls that the provider or network ended.
"""

from __future__ import annotations

import pytest

from queenright.health.vitals.vital_facts import is_cancelled_call, is_stopped_by_user


@pytest.mark.parametrize(
    "error",
    [
        "APIUserAbortError Request was aborted.",
        "AbortError The operation was aborted",
        "CancelledError",
        "CancelledError ",
        "KeyboardInterrupt",
        "error Request interrupted by user",
        "turn_aborted interrupted",
        "interrupted [Request interrupted by user for tool use]",
        "499 Request was cancelled by the user",
        "AbortError aborted after 512 tokens",
        "error request cancelled by user after 431 tokens",
    ],
)
def test_cancelled_call_is_not_a_failure(error: str) -> None:
    assert is_cancelled_call(error)


@pytest.mark.parametrize(
    "error",
    [
        "503 upstream request canceled",
        "APIError stream aborted by peer",
        "Timeout Request timed out and was cancelled",
        "APIConnectionError Connection aborted.",
        "500 Internal server error, request aborted",
        "502 the operation was aborted by the gateway",
        "overloaded_error",
        "the order was cancelled",
        "InternalServerError the operation was aborted",
        "error Response cancelled by the provider",
        "error The request was cancelled due to server shutdown",
        "CANCELLED context canceled",
        "Cancelled backend unavailable",
        "aborted ECONNRESET",
    ],
)
def test_call_that_the_provider_or_the_network_ended_is_a_failure(error: str) -> None:
    assert not is_cancelled_call(error)


@pytest.mark.parametrize(
    "error",
    [
        "The user doesn't want to proceed with this tool use. The tool use was rejected",
        "User rejected the tool call",
        "Tool call was cancelled by the user",
        "aborted by user",
    ],
)
def test_tool_call_stopped_by_a_person_is_not_a_failure(error: str) -> None:
    assert is_stopped_by_user({"error_type": "error", "error": error})


@pytest.mark.parametrize(
    "error",
    [
        "assert 'order cancelled by the user' == 'ok'",
        "admission webhook: rejected by the operator",
        "user rejected your answer: it is wrong",
        "FAILED test_orders.py: cancelled by user",
    ],
)
def test_result_that_quotes_a_person_is_a_failure(error: str) -> None:
    assert not is_stopped_by_user({"error_type": "error", "error": error})
