"""The defaults of actions in docs/interventions.md equal the settings."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from queenright.health.action_kind import ActionKind
from queenright.health.settings import HealthSettings

PAGE = Path(__file__).parents[2] / "docs" / "interventions.md"
ROWS = re.findall(
    r"^\| ([^|]+) \| [^|]+ \| `([\w.]+)` \| `([^`]+)` \| (?:`dry_run: ([^`]+)` )?\|$",
    PAGE.read_text(encoding="utf-8").partition("## Defaults")[2].partition("\n## ")[0],
    re.MULTILINE,
)


@pytest.mark.parametrize(("action", "setting", "default", "dry_run"), ROWS)
def test_documented_action_defaults_equal_the_settings(
    action: str, setting: str, default: str, dry_run: str
) -> None:
    """The table of defaults has the values of the settings."""
    value: Any = HealthSettings()
    for name in setting.split("."):
        value = getattr(value, name)

    documented = default if isinstance(value, str) else json.loads(default)
    assert documented == value, action
    if dry_run:
        kinds: Any = True if dry_run == "true" else dry_run.strip("[]").split(", ")
        HealthSettings.model_validate({"intervention": {"dry_run": kinds}})


def test_every_kind_of_action_is_in_the_table() -> None:
    """The kinds are those that `dry_run` accepts."""
    documented_kinds = {action.split(",")[0].split()[0] for action, *_ in ROWS}

    assert {kind.value for kind in ActionKind} <= documented_kinds
    assert len(ROWS) == 11
