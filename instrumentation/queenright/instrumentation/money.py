"""What model calls cost, in words."""

from __future__ import annotations


def money(dollars: float) -> str:
    """
    Return an amount of US dollars as people write it; what is less than a cent is not nothing.

    >>> money(12.5), money(0.004), money(0.0)
    ('$12.50', '< $0.01', '$0.00')
    """
    return "< $0.01" if 0 < dollars < 0.005 else f"${dollars:,.2f}"


def spent(dollars: float | None, tokens: int, unpriced: int) -> str:
    """
    Return what was spent in words; empty if no model was called.

    Args:
        dollars: What calls with a known price cost; None if there was none.
        tokens: Read and written, of all calls.
        unpriced: Those of calls without a known price.

    >>> spent(1.5, 30_000, 0), spent(None, 30_000, 30_000), spent(1.5, 30_000, 1_000)
    ('$1.50 (30,000 tokens)', '30,000 tokens (no price known)', '$1.50 (30,000 tokens, 1,000 not priced)')
    """
    if dollars is None:
        return f"{tokens:,} tokens (no price known)" if tokens else ""
    return f"{money(dollars)} ({tokens:,} tokens{f', {unpriced:,} not priced' if unpriced else ''})"
