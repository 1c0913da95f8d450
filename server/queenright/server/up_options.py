"""Options and default settings of `queenright up`."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from queenright.server.settings import AgentsSettings

DEMO_DEFAULTS: Final[dict[str, Any]] = {
    "health_monitoring": {
        "judge": {"interval_seconds": 5, "start_grace_seconds": 4, "triage_timeout_seconds": 10},
        "stall": {"idle_seconds": 20, "llm_seconds": 20, "tool_seconds": 20, "unknown_seconds": 30},
        "tickets": {"hold_seconds": 5},
        "health_check": {"interval_seconds": 5},
        "intervention": {"quiet_seconds": 20},
        # The demo agents get into trouble on purpose.
        "rules": {"bad_steps": {"error_budget": 0.5}},
    },
}
"""Intervals of the demo, where minutes become seconds. Explicit settings take precedence."""


UP_DEFAULTS: Final[dict[str, Any]] = {
    "health_monitoring": DEMO_DEFAULTS["health_monitoring"]
    | {
        "intervention": {
            **DEMO_DEFAULTS["health_monitoring"]["intervention"],
            "permission": {"wait_seconds": 1800},
        },
        # Only the expensive demo agent reaches this limit.
        "spending": {"run_usd": 2, "brake": "approval"},
    }
}
"""Defaults of `queenright up` with the demo: its intervals, and limits that need a person's decision."""


def get_example_roots(folder: Path = Path()) -> dict[str, Any]:
    """Return defaults that add the ``examples`` folder of a checkout to the agent roots; {} without one."""
    examples = folder / "examples"
    if not examples.is_dir():
        return {}
    return {"agents": {"roots": [*AgentsSettings().roots, examples]}}


@dataclass(frozen=True, slots=True, kw_only=True)
class UpOptions:
    """What `queenright up` starts in addition to the service. Port 0 takes any free port."""

    demo: bool = True
    fast: bool = True
    """Scrape every second and group alerts for one second."""
    model: str | None = None
    files: Path = Path()
    prometheus_port: int = 9090
    alertmanager_port: int = 9093
    receiver_port: int = 8421
    slack_url_file: Path | None = None
    pagerduty_key_file: Path | None = None
