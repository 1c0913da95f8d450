"""The system prompts: texts beside this module, filled with the thresholds in force."""

from __future__ import annotations

from importlib import resources
from string import Template

from queenright.health.settings import HealthSettings
from queenright.judge import escalation_policy, policy


def judge_prompt(settings: HealthSettings) -> str:
    """Return the judge's system prompt."""
    bands = settings.bands
    return _template("judge.md").substitute(
        warning=bands.warning,
        medium=bands.medium,
        high=bands.high,
        critical=bands.critical,
        below_medium=bands.medium - 1,
        below_high=bands.high - 1,
        below_critical=bands.critical - 1,
        stall_minutes=f"{settings.stall.idle_seconds / 60:g}",
    )


def queen_prompt() -> str:
    """Return the queen's system prompt."""
    return _template("queen.md").substitute(
        dismiss_below=policy.DISMISS_LOW_BELOW,
        intervene_steps=policy.INTERVENE_STEPS,
        intervene_minutes=f"{policy.INTERVENE_STALL_MINUTES:g}",
    )


def escalation_prompt() -> str:
    """Return the queen's system prompt where she is the orchestrator."""
    return _template("escalation.md").substitute(more_times=escalation_policy.MORE_TIMES)


def _template(name: str) -> Template:
    folder = resources.files("queenright.judge") / "prompts"
    return Template((folder / name).read_text(encoding="utf-8"))
