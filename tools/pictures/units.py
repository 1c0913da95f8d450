"""Numbers as Grafana writes them, by the unit of their panel."""

from __future__ import annotations

import math


def written(value: float, unit: str) -> str:
    """Return ``value`` with three significant digits and its unit."""
    if math.isnan(value):
        return ""
    match unit:
        case "s":
            return _seconds(value)
        case "percentunit":
            return f"{_short(100 * value)}%"
        case "currencyUSD":
            return f"${_short(value)}"
        case "ops":
            return f"{_short(value)} ops/s"
        case _ if unit.startswith("suffix:"):
            return f"{_short(value)} {unit.removeprefix('suffix:')}"
        case "bool_yes_no":
            return "Yes" if value else "No"
        case _:
            return _short(value)


def _seconds(value: float) -> str:
    if value == 0:
        return "0 s"
    for size, name in ((86_400, "day"), (3600, "hour"), (60, "min"), (1, "s"), (1e-3, "ms")):
        if abs(value) >= size:
            return f"{_short(value / size)} {name}"
    return f"{_short(value / 1e-6)} µs"


def _short(value: float) -> str:
    for size, name in ((1e9, " Bil"), (1e6, " Mil"), (1e3, " K")):
        if abs(value) >= size:
            return f"{value / size:.3g}{name}"
    if abs(value - round(value)) < 1e-9:
        return str(round(value))
    if abs(value) >= 100:
        return f"{value:.0f}"
    return f"{value:.3g}" if abs(value) >= 1e-4 else f"{value:.1e}"
