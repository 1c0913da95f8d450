"""Who ended a call: a person or the agent itself, or the provider and what lies between."""

from __future__ import annotations

import pytest

from queenright.health.vital_facts import was_called_off


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
    ],
)
def test_call_that_somebody_stopped_is_nobodys_failure(error: str) -> None:
    assert was_called_off(error)


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
    ],
)
def test_call_that_the_provider_or_the_network_ended_is_a_failure(error: str) -> None:
    assert not was_called_off(error)
