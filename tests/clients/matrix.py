"""
The table of ``python -m tests.clients run``: what the service shows about each client, one feature per row.
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

RunsByScenario = Mapping[str, ObservedRun]
_HANG_FINDINGS: Final = ("stall", "tool_timeout")
_IMMEDIATE_SECONDS: Final = 3.0
"""A wait that is shown within these seconds counts as immediate."""


def _find_only_row(runs: RunsByScenario, scenario: str) -> dict[str, object]:
    return next(iter(runs[scenario].rows.values()), {})


def _render_name(runs: RunsByScenario) -> str:
    name = str(_find_only_row(runs, "healthy").get("agent_id", "not seen"))
    return re.sub(r"/[^/]+@[^/]+/project$", "/USER@HOST/PROJECT", name)


def _render_sessions(runs: RunsByScenario) -> str:
    return f"{len(runs['healthy'].rows)} of one, {len(runs['two_at_once'].rows)} of two at once"


def _render_count(key: str) -> Callable[[RunsByScenario], str]:
    def render(runs: RunsByScenario) -> str:
        value = _find_only_row(runs, "healthy").get(key)
        return "not shown" if value is None else f"{value}"

    return render


def _render_loop(runs: RunsByScenario) -> str:
    return "found" if "doom_loop" in runs["loop"].findings else "not found"


def _render_hang(scenario: str) -> Callable[[RunsByScenario], str]:
    def render(runs: RunsByScenario) -> str:
        return "shown" if any(kind in runs[scenario].findings for kind in _HANG_FINDINGS) else "not shown"

    return render


def _render_wait(runs: RunsByScenario) -> str:
    wait_delay = runs["permission"].wait_delay
    if wait_delay is None:
        return "not shown"
    return "at once" if wait_delay <= _IMMEDIATE_SECONDS else f"after {wait_delay:.0f} s"


def _render_provider(status: int) -> Callable[[RunsByScenario], str]:
    def render(runs: RunsByScenario) -> str:
        observed_run, row = runs[f"provider_{status}"], _find_only_row(runs, f"provider_{status}")
        if not row:
            return "not seen"
        gave_up = ", which ended" if row["ended"] else ""
        return " and ".join(sorted(observed_run.findings)) or f"no finding in one run{gave_up}"

    return render


def _render_nudge(runs: RunsByScenario) -> str:
    return "reaches the model" if runs["nudged"].has_reached_model else "does not reach the model"


def _render_termination(runs: RunsByScenario) -> str:
    return "the run continues to its end" if runs["terminated"].has_finished_script else "ends the run"


def _render_end(runs: RunsByScenario) -> str:
    row = _find_only_row(runs, "healthy")
    return f"ended, {row['state']}" if row.get("ended") else "not ended"


def _render_killed(runs: RunsByScenario) -> str:
    row = _find_only_row(runs, "killed")
    return f"ended, {row['state']}" if row.get("ended") else "shown as a tool that hangs"


ROWS: Final[Mapping[str, tuple[tuple[str, ...], Callable[[RunsByScenario], str]]]] = {
    "name": (("healthy",), _render_name),
    "sessions": (("healthy", "two_at_once"), _render_sessions),
    "steps": (("healthy",), _render_count("steps")),
    "tool calls": (("healthy",), _render_count("tool_calls")),
    "failed calls": (("healthy",), _render_count("errors")),
    "tokens": (("healthy",), _render_count("tokens")),
    "cost (USD)": (("healthy",), _render_count("cost_usd")),
    "loop": (("loop",), _render_loop),
    "hang in the first call, while it hangs": (("hang_first",), _render_hang("hang_first")),
    "hang later, while it hangs": (("hang_later",), _render_hang("hang_later")),
    "wait for a permission": (("permission",), _render_wait),
    "provider answers 429": (("provider_429",), _render_provider(429)),
    "provider answers 500": (("provider_500",), _render_provider(500)),
    "provider answers 529": (("provider_529",), _render_provider(529)),
    "nudge at the next tool call": (("nudged",), _render_nudge),
    "terminate": (("terminated",), _render_termination),
    "ended clean": (("healthy",), _render_end),
    "killed": (("killed",), _render_killed),
}


def render_matrix(runs: Mapping[str, RunsByScenario], versions: Mapping[str, str]) -> str:
    """Return the matrix as a Markdown table; its cells state which scenarios failed or did not run."""
    lines = [
        f"| | {' | '.join(f'{name} {versions[name]}' for name in runs)} |",
        f"| --- |{' --- |' * len(runs)}",
    ]
    for title, (scenario_names, cell) in ROWS.items():
        cells = [_render_cell(scenarios, scenario_names, cell) for scenarios in runs.values()]
        lines.append(f"| {title} | {' | '.join(cells)} |")
    return "\n".join(lines)


def read_matrix(text: str) -> dict[str, dict[str, str]]:
    """Return the cells of the matrix in a document: client -> row -> cell."""
    table = text.partition(BEGIN)[2].partition(END)[0].strip().splitlines()
    header, _, *rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in table]
    clients = [title.partition(" ")[0] for title in header[1:]]
    return {client: {row[0]: row[index] for row in rows} for index, client in enumerate(clients, start=1)}


def _render_cell(
    runs: RunsByScenario, scenario_names: tuple[str, ...], cell: Callable[[RunsByScenario], str]
) -> str:
    if not all(name in runs for name in scenario_names):
        return "not run"
    if any(runs[name].error for name in scenario_names):
        return "run failed"
    return cell(runs)
