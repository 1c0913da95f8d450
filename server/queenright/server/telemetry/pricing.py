"""Compute the cost of model calls in US dollars from a local table. An unknown cost is None, never 0."""

from __future__ import annotations

import functools
import importlib.util
import json
import logging
import re
from collections.abc import Mapping
from dataclasses import dataclass
from decimal import Decimal
from pathlib import Path
from typing import Any, Final

_log = logging.getLogger(__name__)

_PRICE_FILE: Final = "model_prices_and_context_window_backup.json"
"""The price table of the installed litellm."""
_PRICED_MODES: Final = ("chat", "completion", "responses")
_TIER_PATTERN: Final = re.compile(r"^input_cost_per_token_above_(\d+)k_tokens$")


@dataclass(frozen=True, slots=True)
class Price:
    """Prices of one model, in US dollars per token."""

    input: Decimal
    output: Decimal
    cache_read: Decimal | None = None
    cache_write: Decimal | None = None
    max_input_tokens: int | None = None
    """Maximum input tokens at these prices; None if unlimited."""


@dataclass(frozen=True, slots=True)
class TokenCounts:
    """Tokens of a call. Input tokens include cache tokens."""

    input: int
    output: int
    cache_read: int = 0
    cache_write: int = 0


Prices = Mapping[str, Price]


def price_call(model: str, tokens: TokenCounts, prices: Prices) -> Decimal | None:
    """Return the cost of a call; None if the table lacks a price for any of its tokens."""
    price = prices.get(model)
    uncached_tokens = tokens.input - tokens.cache_read - tokens.cache_write
    if price is None or uncached_tokens < 0 or not (tokens.input or tokens.output):
        return None
    if price.max_input_tokens is not None and tokens.input > price.max_input_tokens:
        return None
    cost = uncached_tokens * price.input + tokens.output * price.output
    for count, price_per_token in (
        (tokens.cache_read, price.cache_read),
        (tokens.cache_write, price.cache_write),
    ):
        if count and price_per_token is None:
            return None
        cost += count * (price_per_token or 0)
    return cost


def read_prices(table: Mapping[str, Any]) -> dict[str, Price]:
    """Return the prices in litellm's table, without models at 0 dollars, because 0 means unknown there."""
    return {name: price for name, entry in table.items() if (price := _parse_price(entry)) is not None}


@functools.cache
def load_prices() -> Prices:
    """
    Return the prices of the installed litellm, without importing it; {} without litellm. Blocks.

    The table is read once per process, because parsing thousands of models takes 0.1 s.
    """
    spec = importlib.util.find_spec("litellm")
    if spec is None or spec.origin is None:
        return {}
    file = Path(spec.origin).with_name(_PRICE_FILE)
    try:
        return read_prices(json.loads(file.read_text("utf-8"), parse_float=Decimal))
    except (OSError, ValueError) as error:
        _log.warning("cannot read litellm's price table %s, so model calls have no cost: %s", file, error)
        return {}


def _parse_price(entry: Any) -> Price | None:
    if not isinstance(entry, Mapping) or entry.get("mode") not in _PRICED_MODES:
        return None
    input_price, output_price = (
        _parse_dollars(entry, "input_cost_per_token"),
        _parse_dollars(entry, "output_cost_per_token"),
    )
    if input_price is None or output_price is None or not (input_price or output_price):
        return None
    tiers = [int(match[1]) * 1_000 for key in entry if (match := _TIER_PATTERN.match(key))]
    return Price(
        input_price,
        output_price,
        _parse_dollars(entry, "cache_read_input_token_cost"),
        _parse_dollars(entry, "cache_creation_input_token_cost"),
        min(tiers, default=None),
    )


def _parse_dollars(entry: Mapping[str, Any], key: str) -> Decimal | None:
    value = entry.get(key)
    if isinstance(value, bool) or not isinstance(value, int | Decimal) or value < 0:
        return None
    return Decimal(value)
