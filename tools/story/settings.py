"""The story's settings: what takes a fleet minutes takes seconds here."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final

from queenright.server.settings import Settings, load_settings
from tools.story.provider import JUDGE, QUEEN

HEALTH: Final[dict[str, Any]] = {
    "stall": {"idle_seconds": 4, "llm_seconds": 4, "tool_seconds": 4, "unknown_seconds": 4},
    "health_check": {
        "interval_seconds": 2,
        "checkpoint_stale_threshold_seconds": 9,
    },
    "judge": {
        "interval_seconds": 2,
        "start_grace_seconds": 0.5,
        "triage_timeout_seconds": 20,
    },
    "tickets": {"hold_seconds": 1},
    "intervention": {
        "quiet_seconds": 0,
        "nudge": {"max_attempts": 1, "interval_seconds": 1.5},
        "escalation": {"timeout_seconds": 2, "orchestrator": "none"},
        "storm": {"workers": 50, "max_actions": 500},
    },
    "circuit_breaker": {
        "default": {"recovery_timeout_seconds": 2},
        # This breaker stays open until the end.
        "overrides": {"tool_execution:typesetter": {"recovery_timeout_seconds": 120}},
    },
    # One in shadow mode.
    "detectors": {"error_rate": "shadow"},
    "recovery": {"backoff_seconds": [0.3], "max_attempts_per_task": 2},
}

MODEL: Final = {"timeout_seconds": 5}

CONSTANTS: Final = {
    "queenright.judge.metered_model.FAILURES_UNTIL_RULES": 1,
    "queenright.judge.metered_model.RULES_SECONDS": 1,
    "queenright.judge.judge.BYPASS_SECONDS": 20,
    "queenright.health.recovery.recovery_service.WATCH_SECONDS": 2,
}
"""Constants that no setting changes, shortened likewise."""


def make_settings(storage: Path, alertmanager: str, step_logs: Path) -> Settings:
    """Return the settings; ``alertmanager`` is its URL, ``step_logs`` the folder of a step log."""
    return load_settings(
        storage=storage,
        http={"port": 0},
        otlp={"port": 0},
        health_monitoring=HEALTH,
        judging={
            "judge": {"model": f"openai/{JUDGE}", **MODEL},
            "queen": {"model": f"openai/{QUEEN}", **MODEL},
            "budget": {"dollars_per_day": 0.55, "tokens_per_day": 4_000_000},
        },
        alerting={"alertmanager_urls": [alertmanager]},
        step_logs=[str(step_logs)],
    )
