from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

GRAFANA = Path(__file__).parents[2] / "grafana"


@pytest.fixture(params=["fleet", "agent"])
def dashboard(request: pytest.FixtureRequest) -> dict[str, Any]:
    """Each committed dashboard in turn."""
    loaded: dict[str, Any] = json.loads((GRAFANA / "dashboards" / f"{request.param}.json").read_text())
    return loaded
