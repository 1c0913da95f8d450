"""The judge and queen scripts in docs/models.md work as documented."""

from __future__ import annotations

import asyncio
import re
from pathlib import Path

from queenright.health.tickets.ticket import TicketStatus
from queenright.judge.settings import JudgeSettings, ModelSettings
from queenright.runtime.events import EventType
from tests.judge.conftest import JudgedFleet

PAGE = (Path(__file__).parents[2] / "docs" / "models.md").read_text("utf-8")


def script_of(name: str) -> str:
    """The text of a file as the page shows it."""
    match = re.search(rf"`{name}`.*?\n```json\n(.*?)^```", PAGE, re.MULTILINE | re.DOTALL)
    assert match is not None, f"docs/models.md shows no {name}"
    return match[1]


async def test_documented_scripts_judge_and_triage(fleet: JudgedFleet, tmp_path: Path) -> None:
    models = {}
    for role in ("judge", "queen"):
        file = tmp_path / f"{role}.json"
        file.write_text(script_of(file.name))
        models[role] = ModelSettings(model=f"scripted:{file}")
    fleet.given_models = False
    fleet.judge_settings = JudgeSettings(judge=models["judge"], queen=models["queen"])
    await fleet.start()

    for number, agent in enumerate(("one", "two"), start=1):
        await fleet.begin(agent, agent)
        await fleet.bad_steps(12, agent, agent)
        async with asyncio.timeout(60):
            while len(fleet.of(EventType.TICKET_TRIAGED)) < number:
                await fleet.tick()

    tickets, result = sorted(await fleet.tickets.history(10), key=lambda one: one.agent_id)
    assert (tickets.status, result.status) == (TicketStatus.INTERVENING, TicketStatus.DISMISSED)
    assert (tickets.severity.value, result.severity.value) == ("high", "medium")
    assert tickets.cause == "It retries the same step."
    assert all(
        fleet.metric("queenright_llm_fallbacks_total", role=role, reason=reason) == 0
        for role in ("judge", "queen")
        for reason in ("error", "invalid", "timeout", "budget")
    )
