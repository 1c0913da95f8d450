"""What is said in numbers of interventions, recoveries and circuit breakers."""

from __future__ import annotations

from dataclasses import dataclass

import pytest
from prometheus_client import CollectorRegistry

from queenright.health.interventions.record import Intervention, Outcome
from queenright.health.interventions.target import ActionKind
from queenright.runtime.events import AgentEvent, EventType
from queenright.server.acting_metrics import BREAKER_LIMIT
from queenright.server.metrics import ServiceMetrics

STATES = ("closed", "open", "half_open")


@dataclass
class Breaker:
    name: str
    state: str = "closed"


class Page:
    """The metrics of a service with these breakers, and what they say."""

    def __init__(self) -> None:
        self.breakers: list[Breaker] = []
        self.registry = CollectorRegistry()
        self.metrics = ServiceMetrics(self.registry, list, breakers=lambda: self.breakers)

    def value(self, name: str, **labels: str) -> float | None:
        return self.registry.get_sample_value(f"queenright_{name}", labels)

    def say(self, kind: EventType, /, **data: object) -> None:
        self.metrics.published([AgentEvent(type=kind, time=1.0, agent_id="bee", session_id="s", data=data)])

    def acted(
        self, kind: ActionKind, outcome: Outcome, *, since: float | None = None, at: float = 100.0
    ) -> None:
        done = Intervention(
            intervention_id="i",
            agent_id="bee",
            session_id="s",
            incarnation_id="one",
            kind=kind,
            outcome=outcome,
            by="ladder",
            reason="stuck",
            trouble_since=since,
            created_at=at,
        )
        self.say(EventType.INTERVENTION_RECORDED, **done.model_dump(mode="json"))


@pytest.fixture
def page() -> Page:
    return Page()


def test_every_intervention_is_counted_by_kind_and_outcome_from_0_on(page: Page) -> None:
    for kind in ActionKind:
        assert page.value("interventions_total", kind=kind.value, outcome="refused") == 0

    page.acted(ActionKind.NUDGE, Outcome.QUEUED)
    page.acted(ActionKind.NUDGE, Outcome.QUEUED)
    page.acted(ActionKind.TERMINATE, Outcome.REFUSED)

    assert page.value("interventions_total", kind="nudge", outcome="queued") == 2
    assert page.value("interventions_total", kind="terminate", outcome="refused") == 1


def test_the_time_to_intervention_is_that_of_the_first_thing_done_about_a_trouble(page: Page) -> None:
    page.acted(ActionKind.NUDGE, Outcome.UNREACHABLE, since=40.0, at=100.0)
    page.acted(ActionKind.NUDGE, Outcome.DONE, since=40.0, at=130.0)
    page.acted(ActionKind.ESCALATE, Outcome.DONE, since=40.0, at=900.0)
    page.acted(ActionKind.NUDGE, Outcome.DONE, since=2000.0, at=2010.0)

    assert page.value("time_to_intervention_seconds_count", kind="nudge") == 2
    assert page.value("time_to_intervention_seconds_sum", kind="nudge") == 100
    assert page.value("time_to_intervention_seconds_count", kind="escalate") == 0


@pytest.mark.parametrize("outcome", [Outcome.REFUSED, Outcome.DRY_RUN, Outcome.FAILED, Outcome.UNREACHABLE])
def test_what_reached_nobody_is_no_time_to_intervention(page: Page, outcome: Outcome) -> None:
    page.acted(ActionKind.NUDGE, outcome, since=40.0)

    assert page.value("time_to_intervention_seconds_count", kind="nudge") == 0


def test_recoveries_are_counted_by_what_became_of_them(page: Page) -> None:
    page.say(EventType.RECOVERY_INITIATED, recovery_id="r")
    page.say(EventType.RECOVERY_COMPLETED, recovery_id="r")
    page.say(EventType.RECOVERY_FAILED, recovery_id="q", exhausted=False)
    page.say(EventType.RECOVERY_FAILED, recovery_id="q", exhausted=True)

    outcomes = ("initiated", "completed", "failed", "exhausted")
    assert [page.value("recoveries_total", outcome=outcome) for outcome in outcomes] == [1, 1, 1, 1]


def test_a_breaker_has_one_series_a_state_and_its_changes_begin_at_0(page: Page) -> None:
    page.breakers = [Breaker("tool_execution:bee", "half_open")]

    states = {s: page.value("circuit_breaker_state", breaker="tool_execution:bee", state=s) for s in STATES}
    before = page.value("circuit_breaker_transitions_total", breaker="tool_execution:bee", to="open")
    page.say(
        EventType.CIRCUIT_BREAKER_STATE_CHANGED, name="tool_execution:bee", to="open", **{"from": "half_open"}
    )

    assert states == {"closed": 0, "open": 0, "half_open": 1}
    assert before == 0
    assert page.value("circuit_breaker_transitions_total", breaker="tool_execution:bee", to="open") == 1


def test_past_the_limit_only_breakers_that_are_not_closed_have_series(page: Page) -> None:
    page.breakers = [Breaker(f"external_api:a{n}") for n in range(BREAKER_LIMIT)]
    page.breakers.append(Breaker("external_api:z", "open"))

    [family] = [f for f in page.registry.collect() if f.name == "queenright_circuit_breaker_state"]

    assert {sample.labels["breaker"] for sample in family.samples} == {"external_api:z"}
    limited = page.value("series_limited_total", metric="queenright_circuit_breaker_state")
    assert limited is not None
    assert limited >= BREAKER_LIMIT


def test_changes_of_breakers_beyond_the_limit_are_counted_as_other(page: Page) -> None:
    for n in range(BREAKER_LIMIT + 5):
        page.say(
            EventType.CIRCUIT_BREAKER_STATE_CHANGED,
            name=f"external_api:a{n}",
            to="open",
            **{"from": "closed"},
        )

    assert page.value("circuit_breaker_transitions_total", breaker="other", to="open") == 5
    assert page.value("series_limited_total", metric="queenright_circuit_breaker_transitions_total") == 5
