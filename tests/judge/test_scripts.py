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


def read_script(name: str) -> str:
    """Return a script from the page."""
    match = re.search(rf"`{name}`.*?\n```json\n(.*?)^```", PAGE, re.MULTILINE | re.DOTALL)
    assert match is not None, f"docs/models.md has no script {name}"
    return match[1]


async def test_documented_scripts_judge_and_triage(fleet: JudgedFleet, tmp_path: Path) -> None:
    models = {}
    for role in ("judge", "queen"):
        file = tmp_path / f"{role}.json"
        file.write_text(read_script(file.name))
        models[role] = ModelSettings(model=f"scripted:{file}")
    fleet.use_given_models = False
    fleet.judge_settings = JudgeSettings(judge=models["judge"], queen=models["queen"])
    await fleet.start()

    for number, agent in enumerate(("one", "two"), start=1):
        await fleet.start_worker(agent, agent)
        await fleet.report_bad_steps(12, agent, agent)
        async with asyncio.timeout(60):
            while len(fleet.list_events(EventType.TICKET_TRIAGED)) < number:
                await fleet.tick()

    first, second = sorted(await fleet.tickets.history(10), key=lambda ticket: ticket.agent_id)
    assert (first.status, second.status) == (TicketStatus.INTERVENING, TicketStatus.DISMISSED)
    assert (first.severity.value, second.severity.value) == ("high", "medium")
    assert first.cause == "It retries the same step."
    assert all(
        fleet.get_metric("queenright_llm_fallbacks_total", role=role, reason=reason) == 0
        for role in ("judge", "queen")
        for reason in ("error", "invalid", "timeout", "budget")
    )
