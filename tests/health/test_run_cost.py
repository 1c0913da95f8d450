"""The cost of a run since its condition began."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from queenright.health.store.event_log import append_events
from queenright.health.store.store import Store
from queenright.health.tickets.ticket_transaction import spending_since, total_spending
from queenright.instrumentation.money import format_dollars, format_spend
from queenright.runtime.events import AgentEvent, EventType


@pytest.fixture
async def store(database_url: str) -> AsyncIterator[Store]:
    store = Store.open(database_url)
    yield store
    await store.close()


def make_call(at: float, session: str = "s1", agent: str = "bee", **data: Any) -> AgentEvent:
    return AgentEvent(
        type=EventType.LLM_CALL_COMPLETED, time=at, agent_id=agent, session_id=session, data=data
    )


async def test_run_cost_counts_calls_since_the_condition_began(store: Store) -> None:
    """B106."""
    other_calls = [make_call(20, session="s2", cost_usd=9.0), make_call(20, agent="wasp", cost_usd=9.0)]
    before = make_call(9, input_tokens=500, cost_usd=5.0)
    own_calls = [
        make_call(10, input_tokens=10, output_tokens=5, cost_usd=0.5),
        make_call(30, input_tokens=20),
    ]

    def append_calls(conn: Any) -> dict[str, Any]:
        append_events(conn, [before, *other_calls, *own_calls])
        return spending_since(conn, "bee", "s1", 10.0)

    assert await store.transact(append_calls) == {
        "spent_usd": 0.5,
        "spent_tokens": 35,
        "spent_unpriced_tokens": 20,
    }


async def test_run_without_model_calls_has_no_known_cost(store: Store) -> None:
    cost = await store.read(lambda conn: spending_since(conn, "bee", "s1", 0.0))

    assert cost == {"spent_usd": None, "spent_tokens": 0, "spent_unpriced_tokens": 0}
    assert format_spend(None, 0, 0) == ""


def test_amendment_sets_a_price_and_is_not_a_call() -> None:
    """B106."""
    calls: list[dict[str, Any]] = [
        {"input_tokens": 100},
        {"amends": True, "cost_usd": 0.2, "priced_tokens": 100},
    ]

    assert total_spending(calls) == {"spent_usd": 0.2, "spent_tokens": 100, "spent_unpriced_tokens": 0}


CALLS = st.fixed_dictionaries(
    {}, optional={"input_tokens": st.integers(0, 10**6), "cost_usd": st.none() | st.floats(0, 100)}
)


@given(st.lists(CALLS, max_size=20))
def test_unpriced_calls_are_not_zero_and_amendments_not_double(calls: list[dict[str, Any]]) -> None:
    """B106."""
    spending = total_spending(calls)

    costs = [data["cost_usd"] for data in calls if data.get("cost_usd") is not None]
    assert (spending["spent_usd"] is None) is (not costs)
    assert (spending["spent_usd"] or 0.0) == pytest.approx(sum(costs))
    assert spending["spent_tokens"] == sum(data.get("input_tokens", 0) for data in calls)
    assert spending["spent_unpriced_tokens"] == sum(
        data.get("input_tokens", 0) for data in calls if data.get("cost_usd") is None
    )


@pytest.mark.parametrize(
    ("dollars", "tokens", "unpriced", "text"),
    [
        (1.5, 30_000, 0, "$1.50 (30,000 tokens)"),
        (None, 30_000, 30_000, "30,000 tokens (no price known)"),
        (0.001, 30_000, 1_000, "< $0.01 (30,000 tokens, 1,000 not priced)"),
        (0.0, 10, 0, "$0.00 (10 tokens)"),
    ],
)
def test_run_cost_is_formatted(dollars: float | None, tokens: int, unpriced: int, text: str) -> None:
    assert format_spend(dollars, tokens, unpriced) == text


def test_amount_below_a_cent_is_not_nothing() -> None:
    assert [format_dollars(0), format_dollars(0.004), format_dollars(0.006), format_dollars(1234.5)] == [
        "$0.00",
        "< $0.01",
        "$0.01",
        "$1,234.50",
    ]
