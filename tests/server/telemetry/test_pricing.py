"""Costs of sessions, as the client reports them or from the price table. Each call counts once."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterable, Sequence
from decimal import Decimal
from random import Random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from queenright.health.monitoring.monitor import HealthMonitor
from queenright.health.settings import HealthSettings
from queenright.health.vitals.vital_signs import VitalSigns
from queenright.runtime.events import AgentEvent
from queenright.server.telemetry.assembler import Assembler
from queenright.server.telemetry.pricing import Price, TokenCounts, price_call, read_prices
from tests.clients.fixtures import BEGAN, FOLDER, Record, load_fixture
from tests.server.otlp.framework_spans import NOW, decode
from tests.server.telemetry.replay import decode_record, split_record

PRICES = {
    "m": Price(Decimal("0.000003"), Decimal("0.000015"), Decimal("0.0000003")),
    "tiered": Price(Decimal(1), Decimal(1), max_input_tokens=200_000),
}
CLAUDE_CODE = sorted((FOLDER / "claude-code").glob("*.json"))


def compute_vitals(events: Iterable[AgentEvent], now: float = NOW) -> list[VitalSigns]:
    monitor = HealthMonitor(HealthSettings())
    for event in events:
        monitor.apply(event, now)
    return [worker.vitals for worker in monitor.workers()]


def make_priced_call(id_: int, model: str = "m", /, **attributes: Any) -> dict[str, Any]:
    result: dict[str, Any] = {"gen_ai.operation.name": "chat", "gen_ai.request.model": model}
    result |= {"gen_ai.usage.input_tokens": 1_000, "gen_ai.usage.output_tokens": 100}
    return {"id": id_, "name": "chat", "start": id_, "end": id_ + 0.5, "attributes": result | attributes}


@pytest.mark.parametrize(
    ("model", "tokens", "cost"),
    [
        ("m", TokenCounts(1_000, 100), "0.0045"),
        ("m", TokenCounts(1_000, 100, cache_read=500), "0.00315"),
        ("m", TokenCounts(1_000, 100, cache_write=500), None),  # There is no price for writing to the cache.
        ("m", TokenCounts(100, 0, cache_read=500), None),  # The input tokens do not include cached tokens.
        ("m", TokenCounts(0, 0), None),
        ("tiered", TokenCounts(200_000, 0), "200000"),
        ("tiered", TokenCounts(200_001, 0), None),
        ("someone/m", TokenCounts(1_000, 100), None),  # Another provider has a different price.
        ("", TokenCounts(1_000, 100), None),
    ],
)
def test_cost_of_a_call_is_exact_or_unknown(model: str, tokens: TokenCounts, cost: str | None) -> None:
    """B106: the cost of tokens without a price is unknown, not 0."""
    assert price_call(model, tokens, PRICES) == (None if cost is None else Decimal(cost))


def test_price_table_ignores_invalid_prices() -> None:
    """B106: a price of 0 dollars in the table is ignored."""
    chat = {"mode": "chat", "input_cost_per_token": Decimal("1E-6"), "output_cost_per_token": Decimal("2E-6")}
    table = {
        "plain": chat,
        "tiered": chat | {"input_cost_per_token_above_200k_tokens": Decimal("2E-6")},
        "free": chat | {"input_cost_per_token": 0, "output_cost_per_token": Decimal(0)},
        "embedding": chat | {"mode": "embedding"},
        "half": {"mode": "chat", "input_cost_per_token": Decimal("1E-6")},
        "wrong": chat | {"output_cost_per_token": "free"},
        "none": None,
    }
    plain = Price(Decimal("1E-6"), Decimal("2E-6"))

    assert read_prices(table) == {
        "plain": plain,
        "tiered": Price(plain.input, plain.output, max_input_tokens=200_000),
    }


def test_installed_price_table_is_read_without_importing_litellm() -> None:
    """B106: importing litellm takes seconds, and fetches prices from the network."""
    script = (
        "import json, sys; from queenright.server.telemetry.pricing import load_prices; p = load_prices();"
        "print(json.dumps([len(p), str(p['gpt-4o'].input), 'litellm' in sys.modules]))"
    )
    result = subprocess.run([sys.executable, "-c", script], capture_output=True, check=True, timeout=60)
    size, price, is_imported = json.loads(result.stdout)

    assert size > 500
    assert Decimal(price) == Decimal("0.0000025")
    assert not is_imported


def test_framework_session_cost_follows_the_price_table() -> None:
    """B106: cached tokens have a separate price."""
    cached_call = make_priced_call(3, "m", **{"gen_ai.usage.cache_read.input_tokens": 500})
    events = decode(make_priced_call(1), cached_call, memory=Assembler(prices=PRICES)).events
    [vitals] = compute_vitals(events)

    assert vitals.cost_usd == pytest.approx(0.0045 + 0.00315)
    assert vitals.unpriced_tokens == 0


def test_calls_without_a_price_count_in_tokens_but_not_in_dollars() -> None:
    """B106: the cost of tokens without a price is unknown, not 0."""
    [unpriced_vitals] = compute_vitals(
        decode(make_priced_call(1, "unknown"), memory=Assembler(prices=PRICES)).events
    )
    [mixed_vitals] = compute_vitals(
        decode(make_priced_call(1), make_priced_call(3, "unknown"), memory=Assembler(prices=PRICES)).events
    )

    assert (unpriced_vitals.cost_usd, unpriced_vitals.unpriced_tokens) == (None, 1_100)
    assert mixed_vitals.cost_usd == pytest.approx(0.0045)
    assert mixed_vitals.unpriced_tokens == 1_100


@given(st.permutations(["framework", "client"]), st.booleans(), st.integers(1, 3))
def test_call_recorded_by_two_libraries_is_priced_once(
    scopes: Sequence[str], is_nested: bool, times: int
) -> None:
    """B106: a session never costs more than the sum of its calls."""
    spans = {
        "framework": make_priced_call(2) | {"scope": "framework"},
        "client": make_priced_call(2) | {"scope": "client", "id": 3},
    }
    if is_nested:
        spans["client"]["parent"] = 2
    memory, events = Assembler(prices=PRICES), list[AgentEvent]()
    for scope in scopes:
        for _ in range(times):
            events += decode(spans[scope], memory=memory).events

    assert sum(vitals.cost_usd or 0.0 for vitals in compute_vitals(events)) == pytest.approx(0.0045)


@given(path=st.sampled_from(CLAUDE_CODE), seed=st.integers(0, 2**32), share=st.sampled_from([0.5, 0.9, 1.0]))
def test_session_cost_is_the_cost_that_the_client_reports_in_any_order(
    path: Any, seed: int, share: float
) -> None:
    """B106: this holds if spans, log records and hook calls are lost, late or repeated."""
    rng, records, costs = Random(seed), list[Record](), dict[str, float]()
    for record in (
        single_record
        for full_record in load_fixture(path).records
        for single_record in split_record(full_record)
    ):
        if rng.random() > share:
            continue
        delay = 0.0 if record.path.startswith("/hooks/") else rng.uniform(0.0, 10.0)
        records += [Record(record.at + delay, record.path, record.body)] * rng.choice((1, 1, 2))
        if (cost := sum_costs(record)) is not None:
            costs[json.dumps(record.body)] = cost
    records.sort(key=lambda record: record.at)
    # The prices in the table are far higher, but the client's cost is used.
    high_prices = Price(Decimal(1), Decimal(1), Decimal(1), Decimal(1))
    assembler, events = Assembler(prices={"claude-opus-5-5": high_prices}), list[AgentEvent]()
    for record in records:
        batch = decode_record(record, assembler)
        assembler.duplicates.finish_storing(batch.identities, is_stored=True)
        events += batch.events
    final_vitals = compute_vitals(events, BEGAN + 3_600)

    assert sum(vitals.cost_usd or 0.0 for vitals in final_vitals) == pytest.approx(sum(costs.values()))
    assert all(vitals.unpriced_tokens <= vitals.tokens for vitals in final_vitals)
    if share == 1.0:
        assert not any(vitals.unpriced_tokens for vitals in final_vitals)


def sum_costs(record: Record) -> float | None:
    """Return the sum of the costs in a Claude Code log record."""
    if record.path != "/v1/logs":
        return None
    [log] = record.body["resourceLogs"][0]["scopeLogs"][0]["logRecords"]
    attributes = {attribute["key"]: attribute["value"] for attribute in log["attributes"]}
    is_call = attributes.get("event.name", {}).get("stringValue") == "api_request"
    return attributes["cost_usd"].get("doubleValue", 0.0) if is_call and "cost_usd" in attributes else None
