"""
The table of ``python -m tests.clients run``: what the service shows about each client, one question per row.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Final

from tests.clients.live import ObservedRun
from tests.isolation import ROOT

DOCUMENT: Final = ROOT / "docs" / "coding-agents.md"
BEGIN: Final = "<!-- matrix: python -m tests.clients run -->"
END: Final = "<!-- end of matrix -->"

Scenarios = Mapping[str, ObservedRun]
_HANGS: Final = ("stall", "tool_timeout")
_AT_ONCE: Final = 3.0
"""A wait reported within these seconds counts as immediate."""


def _only_row(found: Scenarios, scenario: str) -> dict[str, object]:
    return next(iter(found[scenario].rows.values()), {})


def _name(found: Scenarios) -> str:
    name = str(_only_row(found, "healthy").get("agent_id", "not seen"))
    return re.sub(r"/[^/]+@[^/]+/project$", "/USER@HOST/PROJECT", name)


def _session(found: Scenarios) -> str:
    return f"{len(found['healthy'].rows)} of one, {len(found['two_at_once'].rows)} of two at once"


def _count(key: str) -> Callable[[Scenarios], str]:
    def count(found: Scenarios) -> str:
        value = _only_row(found, "healthy").get(key)
        return "not shown" if value is None else f"{value}"

    return count


def _loop(found: Scenarios) -> str:
    return "found" if "doom_loop" in found["loop"].findings else "not found"


def _hang(scenario: str) -> Callable[[Scenarios], str]:
    def hang(found: Scenarios) -> str:
        return "shown" if any(kind in found[scenario].findings for kind in _HANGS) else "not shown"

    return hang


def _wait(found: Scenarios) -> str:
    waited = found["permission"].waited
    if waited is None:
        return "not shown"
    return "at once" if waited <= _AT_ONCE else f"after {waited:.0f} s"


def _provider(status: int) -> Callable[[Scenarios], str]:
    def provider(found: Scenarios) -> str:
        watched, row = found[f"provider_{status}"], _only_row(found, f"provider_{status}")
        if not row:
            return "not seen"
        gave_up = ", which ended" if row["ended"] else ""
        return " and ".join(sorted(watched.findings)) or f"no finding in one run{gave_up}"

    return provider


def _nudge(found: Scenarios) -> str:
    return "reaches the model" if found["nudged"].has_reached_model else "does not reach the model"


def _terminate(found: Scenarios) -> str:
    return "the run continues to its end" if found["terminated"].is_script_over else "ends the run"


def _ended(found: Scenarios) -> str:
    row = _only_row(found, "healthy")
    return f"ended, {row['state']}" if row.get("ended") else "not ended"


def _killed(found: Scenarios) -> str:
    row = _only_row(found, "killed")
    return f"ended, {row['state']}" if row.get("ended") else "shown as a tool that hangs"


ROWS: Final[Mapping[str, tuple[tuple[str, ...], Callable[[Scenarios], str]]]] = {
    "name": (("healthy",), _name),
    "sessions": (("healthy", "two_at_once"), _session),
    "steps": (("healthy",), _count("steps")),
    "tool calls": (("healthy",), _count("tool_calls")),
    "failed calls": (("healthy",), _count("errors")),
    "tokens": (("healthy",), _count("tokens")),
    "cost (USD)": (("healthy",), _count("cost_usd")),
    "loop": (("loop",), _loop),
    "hang in the first call, while it hangs": (("hang_first",), _hang("hang_first")),
    "hang later, while it hangs": (("hang_later",), _hang("hang_later")),
    "wait for a permission": (("permission",), _wait),
    "provider answers 429": (("provider_429",), _provider(429)),
    "provider answers 500": (("provider_500",), _provider(500)),
    "provider answers 529": (("provider_529",), _provider(529)),
    "nudge at the next tool call": (("nudged",), _nudge),
    "terminate": (("terminated",), _terminate),
    "ended clean": (("healthy",), _ended),
    "killed": (("killed",), _killed),
}


def render_matrix(found: Mapping[str, Scenarios], versions: Mapping[str, str]) -> str:
    """Return the matrix as a Markdown table; cells of scenarios that failed or did not run say so."""
    lines = [
        f"| | {' | '.join(f'{name} {versions[name]}' for name in found)} |",
        f"| --- |{' --- |' * len(found)}",
    ]
    for title, (needed, cell) in ROWS.items():
        cells = [_cell(scenarios, needed, cell) for scenarios in found.values()]
        lines.append(f"| {title} | {' | '.join(cells)} |")
    return "\n".join(lines)


def read_matrix(text: str) -> dict[str, dict[str, str]]:
    """Return the cells of the matrix in a document: client -> row -> cell."""
    table = text.partition(BEGIN)[2].partition(END)[0].strip().splitlines()
    head, _, *rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in table]
    clients = [title.partition(" ")[0] for title in head[1:]]
    return {client: {row[0]: row[index] for row in rows} for index, client in enumerate(clients, start=1)}


def _cell(found: Scenarios, needed: tuple[str, ...], cell: Callable[[Scenarios], str]) -> str:
    if not all(name in found for name in needed):
        return "not run"
    if any(found[name].error for name in needed):
        return "run failed"
    return cell(found)
