"""
The required contents of health dashboards (IMPL-REQ-003 §8): five components, with a panel or link per line.

Actions are links into Queenright's console, which asks for confirmation.
"""

from __future__ import annotations

import re
from typing import NamedTuple

import pytest

from queenright.instrumentation import names
from queenright.instrumentation.names import MetricName
from tests.grafana.committed_dashboards import get_column_properties, get_panel, list_links, list_panels, load


class ComponentPanel(NamedTuple):
    """The panel that shows a line: the metrics that it reads, and the target of its links."""

    board: str
    title: str
    metrics: tuple[MetricName | str, ...] = ()
    link_targets: tuple[str, ...] = ()
    column: str = ""


AGENT_PAGE = 'agents/${__data.fields["agent"]:percentencode}'
BREAKER_PAGE = 'console/operate/breakers?search=${__data.fields["breaker"]:percentencode}'

COMPONENTS: dict[str, dict[str, ComponentPanel]] = {
    "Agent Grid View": {
        "All active agents": ComponentPanel("fleet", "Agents", (names.AGENT_STATE,), column="Agent"),
        "Health state indicator": ComponentPanel("fleet", "Agents", (names.AGENT_STATE,), column="State"),
        "Time in current state": ComponentPanel(
            "fleet", "Agents", (names.AGENT_STATE_SINCE,), column="In this state for"
        ),
        "Last heartbeat": ComponentPanel(
            "fleet",
            "Agents",
            ("agent_instance:queenright_worker_last_heartbeat_timestamp_seconds:last",),
            column="Since heartbeat",
        ),
        "Quick actions": ComponentPanel(
            "fleet", "Agents", link_targets=(AGENT_PAGE,), column="Quick actions"
        ),
    },
    "Agent Detail View": {
        "Full health metrics": ComponentPanel(
            "agent", "Current state", (names.AGENT_STATE, names.WORKER_STEPS_SINCE_ACCEPT)
        ),
        "Heartbeat history": ComponentPanel(
            "agent",
            "Time since last heartbeat",
            ("agent_instance:queenright_worker_last_heartbeat_timestamp_seconds:last",),
        ),
        "State transition timeline": ComponentPanel("agent", "Health state", (names.AGENT_STATE,)),
        "Intervention history": ComponentPanel(
            "agent", "Current state", link_targets=(AGENT_PAGE,), column="Interventions and quick actions"
        ),
        "Circuit breaker status": ComponentPanel(
            "agent", "Circuit breakers", (names.CIRCUIT_BREAKER_STATE,), (BREAKER_PAGE,)
        ),
    },
    "Circuit Breaker Panel": {
        "All breakers with state": ComponentPanel(
            "breakers", "Breakers", (names.CIRCUIT_BREAKER_STATE,), column="State"
        ),
        "Failure counts": ComponentPanel(
            "breakers", "Breakers", (names.CIRCUIT_BREAKER_FAILURES,), column="Consecutive failures"
        ),
        "Time until HALF_OPEN": ComponentPanel(
            "breakers", "Breakers", (names.CIRCUIT_BREAKER_HALF_OPEN,), column="Next trial in"
        ),
        "Manual reset buttons": ComponentPanel(
            "breakers", "Breakers", link_targets=(BREAKER_PAGE,), column="Quick action"
        ),
    },
    "Recovery Status": {
        "Active recovery attempts": ComponentPanel(
            "interventions", "Active recoveries", (names.RECOVERIES_ACTIVE,), ("recoveries",)
        ),
        "Recent recovery history": ComponentPanel(
            "interventions", "Recoveries by outcome", (names.RECOVERIES,), ("recoveries",)
        ),
        "Success/failure rates": ComponentPanel(
            "interventions", "Recovery success rate", (names.RECOVERIES,)
        ),
        "Manual recovery trigger": ComponentPanel(
            "interventions", "Recoveries by outcome, total", link_targets=("recoveries",)
        ),
    },
    "Alerts Feed": {
        "Recent health events": ComponentPanel(
            "interventions", "Health events", (names.STATE_TRANSITIONS,), ("",)
        ),
        "Intervention notifications": ComponentPanel(
            "interventions", "Interventions by kind", (names.INTERVENTIONS,)
        ),
        "Circuit breaker trips": ComponentPanel(
            "breakers", "State changes", (names.CIRCUIT_BREAKER_TRANSITIONS,)
        ),
        "Recovery outcomes": ComponentPanel(
            "interventions", "Recoveries by outcome, total", (names.RECOVERIES,)
        ),
    },
}

LINES = [(component, line) for component, lines in COMPONENTS.items() for line in lines]


@pytest.mark.parametrize(("component", "line"), LINES, ids=lambda value: value.replace(" ", "_"))
def test_each_line_of_each_component_is_shown(component: str, line: str) -> None:
    component_panel = COMPONENTS[component][line]
    panel = get_panel(load(component_panel.board), component_panel.title)

    text = " ".join(target["expr"] for target in panel["targets"])
    assert all(re.search(rf"{metric}\b", text) for metric in component_panel.metrics)
    for path in component_panel.link_targets:
        assert f"${{console:raw}}/{path}" in [link["url"] for link in list_links(panel)]
    if component_panel.column:
        organize = panel["transformations"][-1]["options"]
        assert component_panel.column in organize["renameByName"].values()
        if component_panel.link_targets:
            links = get_column_properties(panel, component_panel.column)["links"]
            assert [link["url"] for link in links] == [f"${{console:raw}}/{component_panel.link_targets[0]}"]


def test_feed_counts_every_kind_of_its_events() -> None:
    [target] = get_panel(load("interventions"), "Events by type, total")["targets"]
    kinds = re.search(r'type=~"([^"]+)"', target["expr"])
    assert kinds is not None

    for event in (
        "health_state_changed",
        "nudge_sent",
        "escalation_triggered",
        "agent_terminated",
        "circuit_breaker_state_changed",
        "recovery_completed",
        "recovery_failed",
        "notification_failed",
    ):
        assert re.fullmatch(kinds[1], event)


def test_console_link_opens_in_a_new_tab() -> None:
    for board in map(load, ("fleet", "agent", "breakers", "interventions")):
        for item in list_panels(board):
            for link in list_links(item):
                if link["url"].startswith("${console:raw}"):
                    assert link["targetBlank"]
