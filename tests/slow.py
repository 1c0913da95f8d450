"""
What `make test` leaves to `make test-slow`, with the seconds that each takes on two busy cores.

Each has a quicker test of the same fact in `make test`: the bundled programs instead of the newest ones, a
simulated day instead of a week, some of the recorded frameworks instead of all.

``python -m tests.slow`` prints the table of CONTRIBUTING.md.
"""

from __future__ import annotations

from typing import Final

import pytest

FILES: Final = {
    "alerting/test_cluster.py": 48,
    "chaos/test_alerts_under_fire.py": 43,
    "end_to_end/test_alertmanager_away.py": 83,
    "end_to_end/test_symptoms.py": 114,
    "packaging/test_image.py": 380,
    "simulation/test_week.py": 99,
}

TESTS: Final = {
    "end_to_end/test_page.py::test_looping_agent_is_one_page_and_one_resolve[links1-looping_pydantic_ai.py-pydantic_researcher]": 43,  # noqa: E501
    "end_to_end/test_shared_cause.py::test_forty_workers_of_one_cause_are_one_page_that_resolves_when_calls_succeed[tool]": 14,  # noqa: E501
}
"""Single tests: a second framework and a second kind of call, in the whole service."""

FRAMEWORKS: Final = frozenset(
    {"crewai-openinference", "langgraph-openinference", "openai-agents-v2", "pydantic-ai", "vercel-ai-sdk"}
)
"""The recorded frameworks that `make test` replays."""

OTHER_FRAMEWORKS_SECONDS: Final = 330

_REPLAYED: Final = "frameworks/test_frameworks.py"


def is_slow(file: str, item: pytest.Item) -> bool:
    """Return whether a test is left to `make test-slow`."""
    parameters = getattr(getattr(item, "callspec", None), "params", {})
    if "newest" in parameters.values() or file in FILES or item.nodeid.removeprefix("tests/") in TESTS:
        return True
    return file == _REPLAYED and parameters.get("name", "langgraph-openinference") not in FRAMEWORKS


def render_table() -> str:
    """Return the Markdown table of what is slow, longest first."""
    rows = {f"`{file}`": seconds for file, seconds in FILES.items()}
    rows |= {f"`{test.partition('::')[0]}`, one more case": seconds for test, seconds in TESTS.items()}
    rows[f"`{_REPLAYED}`, all but {len(FRAMEWORKS)} frameworks"] = OTHER_FRAMEWORKS_SECONDS
    lines = [f"| {what} | {seconds} |" for what, seconds in sorted(rows.items(), key=lambda row: -row[1])]
    return "\n".join(["| slow tests | seconds |", "| --- | --- |", *lines])


if __name__ == "__main__":
    print(render_table())
