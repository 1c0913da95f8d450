"""Agents with sessions in several partitions of a cluster count once."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

import pytest

from queenright.alerting.files import rules_folder
from tests.grafana.committed_dashboards import load
from tests.programs import run
from tools.dashboards.queries import queries

STATES: Final = ("healthy", "degraded", "stuck", "failing")
AGENT_SAMPLES: Final = (
    {"a": "healthy", "b": "healthy", "c": "stuck", "d": "failing"},
    {"b": "healthy", "c": "degraded", "d": "failing", "e": "healthy"},
    {"c": "healthy"},
)
"""The state of each agent in each partition."""
AGENTS_BY_STATE: Final = {"healthy": 3, "degraded": 0, "stuck": 1, "failing": 1}
RULES: Final = rules_folder() / "recording.yml"


def make_agent_series(partitions: list[str]) -> list[dict[str, str]]:
    all_series: dict[str, int] = {}
    for number, (agents, partition) in enumerate(zip(AGENT_SAMPLES, partitions, strict=True)):
        target = f'job="queenright", instance="{number % 2}{partition}'
        for state in STATES:
            all_series[f'queenright_agents{{{target}, state="{state}"}}'] = [*agents.values()].count(state)
            for agent, current in agents.items():
                name = f'queenright_agent_state{{{target}, agent="{agent}", state="{state}"}}'
                all_series[name] = int(current == state)
        for agent, current in agents.items():
            waiting_series = f'queenright_worker_waiting{{{target}, agent="{agent}", reason="user_input"}}'
            all_series[waiting_series] = int(current == "healthy")
            all_series[f'queenright_agent_state_since_timestamp_seconds{{{target}, agent="{agent}"}}'] = 1
            if current != "healthy":
                all_series[f'queenright_agent_unpaged{{{target}, agent="{agent}"}}'] = 1
    return [{"series": name, "values": f"{value}x20"} for name, value in all_series.items()]


def run_query(folder: Path, expr: str, partitions: list[str], expected: Mapping[str, float]) -> str:
    """Return promtool's error output; empty if the query has the expected result."""
    samples = [{"labels": labels, "value": value} for labels, value in expected.items()]
    test: dict[str, Any] = {
        "interval": "15s",
        "input_series": make_agent_series(partitions),
        "promql_expr_test": [{"expr": expr, "eval_time": "2m", "exp_samples": samples}],
    }
    file = folder / "test.json"  # JSON is YAML
    file.write_text(json.dumps({"rule_files": [str(RULES)], "evaluation_interval": "15s", "tests": [test]}))
    result = run("promtool", "test", "rules", str(file))
    return "" if result.returncode == 0 else result.stdout + result.stderr


def list_panel_exprs(board: str, title: str) -> list[str]:
    return [query.expr for query in queries(load(board), variables={}) if query.panel == title]


@pytest.mark.parametrize("title", ["Agents by state", "Agents by state over time"])
def test_agent_of_several_partitions_counts_once_in_its_worst_state(title: str, tmp_path: Path) -> None:
    [expr] = list_panel_exprs("fleet", title)
    expected = {f'{{state="{state}"}}': count for state, count in AGENTS_BY_STATE.items()}

    assert run_query(tmp_path, expr, [f'", partition="{number}"' for number in range(3)], expected) == ""


def test_agent_of_several_partitions_is_one_known_agent(tmp_path: Path) -> None:
    _, expr = list_panel_exprs("monitor", "Workers evaluated")

    assert run_query(tmp_path, expr, [f'", partition="{number}"' for number in range(3)], {"{}": 5}) == ""


def test_unhealthy_agent_of_several_partitions_is_one_of_the_fleet(tmp_path: Path) -> None:
    [expr] = list_panel_exprs("fleet", "Unhealthy share of the fleet")

    assert run_query(tmp_path, expr, [f'", partition="{number}"' for number in range(3)], {"{}": 0.4}) == ""


def test_agent_that_waits_in_several_partitions_counts_once(tmp_path: Path) -> None:
    [expr] = list_panel_exprs("fleet", "Waiting for a user")

    assert run_query(tmp_path, expr, [f'", partition="{number}"' for number in range(3)], {"{}": 4}) == ""
    assert run_query(tmp_path, expr, [f'-{number}"' for number in range(3)], {"{}": 5}) == ""


def test_agents_of_services_without_partitions_are_all_counted(tmp_path: Path) -> None:
    """Two fleets may use the same agent names."""
    [expr] = list_panel_exprs("fleet", "Agents by state")
    expected = {'{state="healthy"}': 5, '{state="degraded"}': 1, '{state="stuck"}': 1, '{state="failing"}': 2}

    assert run_query(tmp_path, expr, [f'-{number}"' for number in range(3)], expected) == ""
