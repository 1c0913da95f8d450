"""Format the cost of model calls."""

from __future__ import annotations

from queenright.instrumentation.counts import format_count


def format_dollars(dollars: float) -> str:
    """
    Format an amount of US dollars; a positive amount below half a cent is ``< $0.01``.

    >>> format_dollars(12.5), format_dollars(0.004), format_dollars(0.0)
    ('$12.50', '< $0.01', '$0.00')
    """
    return "< $0.01" if 0 < dollars < 0.005 else f"${dollars:,.2f}"


def format_spend(dollars: float | None, tokens: int, unpriced_tokens: int) -> str:
    """
    Format the cost of model calls; empty if there were none.

    Args:
        dollars: Cost of the calls with a known price; None if there was none.
        tokens: Input and output tokens of all calls.
        unpriced_tokens: Tokens of calls without a known price.

    >>> format_spend(1.5, 30_000, 0), format_spend(None, 30_000, 30_000), format_spend(1.5, 30_000, 1_000)
    ('$1.50 (30,000 tokens)', '30,000 tokens (no price known)', '$1.50 (30,000 tokens, 1,000 not priced)')
    """
    if dollars is None:
        return f"{format_count(tokens, 'token')} (no price known)" if tokens else ""
    not_priced = f", {unpriced_tokens:,} not priced" if unpriced_tokens else ""
    return f"{format_dollars(dollars)} ({format_count(tokens, 'token')}{not_priced})"
