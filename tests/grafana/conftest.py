from __future__ import annotations

import json
from typing import Any

import pytest

from tests.grafana.committed_dashboards import FOLDER, NAMES


@pytest.fixture(params=NAMES)
def dashboard(request: pytest.FixtureRequest) -> dict[str, Any]:
    """Yield each committed dashboard."""
    board: dict[str, Any] = json.loads((FOLDER / f"{request.param}.json").read_text(encoding="utf-8"))
    return board
