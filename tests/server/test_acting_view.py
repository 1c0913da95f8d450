"""What the status page says of acting."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from playwright.async_api import Page, expect

from queenright.health.interventions.record import Outcome
from queenright.health.interventions.target import Target
from queenright.runtime.events import ALERT_CLASS, AgentEvent, EventType
from queenright.server.acting_view import ACTED, worth_a_line
from queenright.server.settings import Settings
from queenright.server.up import Running
from queenright.server.view import event_line
from tests.server.conftest import demo_settings, looping
from tests.server.test_status_page import page

__all__ = ["page"]

SAID: list[tuple[EventType, dict[str, Any], str]] = [
    (EventType.NUDGE_SENT, {"attempt": 2, "delivery": "injected", "by": "ladder"}, "bee: nudge 2, into its"),
    (EventType.NUDGE_SENT, {"attempt": 1, "delivery": "queued", "by": "ada"}, "to be fetched, by ada"),
    (
        EventType.NUDGE_SENT,
        {"attempt": 1, "delivery": "queued", "by": "ladder", "message": "REMINDER:\n" + "report " * 50},
        "by ladder. REMINDER: report report",
    ),
    (EventType.ESCALATION_TRIGGERED, {"reason": "silent"}, "bee: the orchestrator is asked. silent"),
    (
        EventType.ESCALATION_DECIDED,
        {"decision": "more_time", "by": "queen", "reason": None},
        "bee: more time, decided by queen.",
    ),
    (
        EventType.AGENT_TERMINATED,
        {"by": "ada", "reason": "loops", "checkpoint_id": "cp"},
        "bee: terminated by ada, its state is in cp. loops",
    ),
    (EventType.AGENT_TERMINATED, {"by": "ada", "reason": "loops"}, "bee: terminated by ada. loops"),
    (
        EventType.RECOVERY_INITIATED,
        {"attempt": 1, "from_checkpoint": None},
        "1 begins, from the start of its",
    ),
    (EventType.RECOVERY_COMPLETED, {"new_session_id": "s2"}, "bee: recovered as session s2"),
    (
        EventType.RECOVERY_FAILED,
        {"reason": "crash", "exhausted": True},
        "failed; a person has to look. crash",
    ),
    (EventType.RECOVERY_FAILED, {"reason": "crash", "exhausted": False}, "bee: recovery failed. crash"),
    (
        EventType.CIRCUIT_BREAKER_STATE_CHANGED,
        {"name": "external_api:bee", "from": "open", "to": "half_open", "reason": ""},
        "breaker external_api:bee: open → half open.",
    ),
    (
        EventType.INTERVENTION_RECORDED,
        {"kind": "nudge", "outcome": "refused", "by": "ada", "detail": "it waits"},
        "bee: nudge by ada: refused. it waits",
    ),
    (
        EventType.INTERVENTION_RECORDED,
        {"kind": "terminate", "outcome": "dry_run", "by": "ladder", "detail": ""},
        "bee: terminate by ladder: would have been done (dry run).",
    ),
    (
        EventType.EMERGENCY_STOP_CHANGED,
        {"on": True, "by": "ada", "reason": "x"},
        "emergency stop on: nothing",
    ),
    (
        EventType.EMERGENCY_STOP_CHANGED,
        {"on": False, "by": "ada", "reason": "x"},
        "emergency stop off, by ada",
    ),
]


@pytest.fixture
def settings(tmp_path: Path) -> Settings:
    """Nobody decides but the test: the queen would, at once."""
    return demo_settings(tmp_path / "storage", orchestrator="none")


@pytest.mark.parametrize(("kind", "data", "said"), SAID)
def test_each_thing_that_was_done_has_a_sentence_in_the_feed(
    kind: EventType, data: dict[str, Any], said: str
) -> None:
    line = event_line(AgentEvent(type=kind, time=0.0, agent_id="bee", data=data))

    assert said in line["text"]
    assert line["kind"]


def test_every_event_of_acting_is_tried_above() -> None:
    assert {kind for kind, _, _ in SAID} == ACTED
    assert ACTED <= ALERT_CLASS


def test_a_line_says_once_who_it_is_about() -> None:
    target = Target(agent_id="bee", session_id="s", incarnation_id="i")
    detail = f"nobody can reach worker {target}: it fetches no instructions"
    said = {"kind": "nudge", "outcome": "unreachable", "by": "ladder", "detail": detail}

    line = event_line(
        AgentEvent(
            type=EventType.INTERVENTION_RECORDED,
            time=0.0,
            agent_id="bee",
            session_id="s",
            incarnation_id="i",
            data=said,
        )
    )

    assert line["text"] == ("bee: nudge by ladder: not done. nobody can reach it: it fetches no instructions")


@pytest.mark.parametrize(
    ("kind", "attempt", "shown"), [("nudge", 1, True), ("nudge", 2, False), ("terminate", 2, True)]
)
def test_that_a_worker_takes_no_nudges_is_said_once(kind: str, attempt: int, shown: bool) -> None:
    data = {"kind": kind, "outcome": "unreachable", "attempt": attempt}
    event = AgentEvent(type=EventType.INTERVENTION_RECORDED, time=0.0, data=data)

    assert worth_a_line(event) is shown


@pytest.mark.parametrize("outcome", list(Outcome))
def test_a_record_has_a_line_unless_an_event_of_its_own_tells_of_it(outcome: Outcome) -> None:
    event = AgentEvent(type=EventType.INTERVENTION_RECORDED, time=0.0, data={"outcome": outcome.value})

    assert worth_a_line(event) is (outcome not in (Outcome.DONE, Outcome.QUEUED))


async def test_the_page_shows_what_is_being_done(running: Running, page: Page) -> None:
    """002 §11: the page shows interventions, escalations and breakers as they are now."""
    service = running.service
    breaker = service.breakers.get("tool_execution", "looper", "search")
    await page.goto(running.url)
    await expect(page.get_by_text("Being done about it")).to_be_visible()

    await service.ingest(list(looping(service.clock(), times=3)))
    await service.health.escalate_to_orchestrator("looper", "it looks odd", by="ada")
    for _ in range(10):
        try:
            breaker.call(lambda: 1 // 0)
        except Exception:
            continue

    await expect(page.get_by_text("it looks odd").first).to_be_visible()
    await expect(page.get_by_text("queenright escalations decide")).to_be_visible()
    await expect(page.get_by_text("orchestrator asked")).to_be_visible()
    tripped = page.locator("article").filter(has_text="tool_execution:looper:search")
    await expect(tripped).to_contain_text("open")
    await expect(tripped).to_contain_text("tried again in")


async def test_the_page_says_first_that_acting_is_frozen(running: Running, page: Page) -> None:
    await page.goto(running.url)

    await running.service.health.emergency_stop(True, by="ada", reason="the <provider> is down")

    await expect(page.locator("p.fault")).to_contain_text("by ada: the <provider> is down")
