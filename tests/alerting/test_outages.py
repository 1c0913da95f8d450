"""Ten minutes without PostgreSQL or NATS cause one page, according to promtool."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final

import pytest
import yaml

from queenright.alerting.files import rules_folder
from tests.alerting.test_inhibitions import RULES, is_inhibited_by
from tests.programs import run

Firing = Mapping[tuple[str, str], tuple[int, int]]
"""The firing alerts with their labels as PromQL: the first and the last minute."""

OUTAGE_TIME: Final = "from the tenth minute to the twentieth"
LAST_MINUTE: Final = 30
ALWAYS_UP: Final = "1x31"
UNAVAILABLE_FROM_10: Final = "1x9 0x9 1x12"
FROZEN_FROM_10: Final = "0+60x9 540x10 1260+60x10"
"""Seconds that advance except during the outage and the following minute."""


def make_service_series(labels: str) -> dict[str, str]:
    return {
        f"queenright_listening{{{labels}}}": UNAVAILABLE_FROM_10,
        f"queenright_judge_last_check_timestamp_seconds{{{labels}}}": FROZEN_FROM_10,
        f"queenright_health_checks_total{{{labels}}}": FROZEN_FROM_10,
        f"queenright_workers_evaluated{{{labels}}}": "3x9 0x9 3x12",
        f"queenright_agents{{{labels}}}": ALWAYS_UP,
    }


def make_ended_service_series(labels: str) -> dict[str, str]:
    return {
        name: f"{values.partition(' ')[0]} stale" for name, values in make_service_series(labels).items()
    } | {f"queenright_agents{{{labels}}}": "1x9 stale"}


def make_undelivered_series(labels: str) -> dict[str, str]:
    """Return the series of a notification that was written just before the outage."""
    return {
        f"queenright_outbox_pending{{{labels}}}": "0x8 2x11 0x12",
        f"queenright_outbox_oldest_timestamp_seconds{{{labels}}}": "0x8 540x11 0x12",
    }


PROCESS_A, PROCESS_B = 'job="queenright", instance="a"', 'job="queenright", instance="b"'
PROCESSES: Final = {f"up{{{PROCESS_A}}}": ALWAYS_UP, f"up{{{PROCESS_B}}}": ALWAYS_UP}
STREAM_UP: Final = {
    f"queenright_cluster_stream_up{{{PROCESS_A}}}": ALWAYS_UP,
    f"queenright_cluster_stream_up{{{PROCESS_B}}}": ALWAYS_UP,
}
JOB: Final = 'job="queenright"'
OUTAGES: Final[dict[str, tuple[dict[str, str], Firing]]] = {
    "postgresql-one-process": (
        {
            f"up{{{PROCESS_A}}}": ALWAYS_UP,
            **make_service_series(PROCESS_A),
            **make_undelivered_series(PROCESS_A),
        },
        {
            ("QueenrightNotListening", PROCESS_A): (11, 22),
            ("QueenrightOutboxStuck", PROCESS_A): (12, 21),
        },
    ),
    "postgresql-cluster": (
        {
            **PROCESSES,
            **STREAM_UP,
            **make_service_series(PROCESS_A),
            **make_undelivered_series(PROCESS_A),
            f"queenright_cluster_owner{{{PROCESS_A}}}": ALWAYS_UP,
            f"queenright_cluster_owner{{{PROCESS_B}}}": "0x31",
            f"queenright_cluster_backlog{{{PROCESS_A}}}": "0x9 100+100x9 0x12",
        },
        {
            ("QueenrightNotListening", PROCESS_A): (11, 22),
            ("QueenrightOutboxStuck", PROCESS_A): (12, 21),
            ("QueenrightClusterBacklogGrows", JOB): (17, 21),
        },
    ),
    # The answer to a commit of partition 1 was lost, so its service ended.
    "postgresql-partition-that-ended": (
        {
            **PROCESSES,
            **STREAM_UP,
            **make_service_series(f'{PROCESS_A}, partition="0"'),
            **make_ended_service_series(f'{PROCESS_A}, partition="1"'),
            f'queenright_cluster_owner{{{PROCESS_A}, partition="0"}}': ALWAYS_UP,
            f'queenright_cluster_owner{{{PROCESS_B}, partition="0"}}': "0x31",
            f'queenright_cluster_owner{{{PROCESS_A}, partition="1"}}': "1x9 0x21",
            f'queenright_cluster_owner{{{PROCESS_B}, partition="1"}}': "0x19 1x12",
        },
        {
            ("QueenrightNotListening", f'{PROCESS_A}, partition="0"'): (11, 22),
            ("QueenrightClusterWithoutOwner", f'{JOB}, partition="1"'): (11, 20),
        },
    ),
    "nats": (
        {
            **PROCESSES,
            **make_service_series(PROCESS_A),
            f"queenright_cluster_owner{{{PROCESS_A}}}": ALWAYS_UP,
            f"queenright_cluster_owner{{{PROCESS_B}}}": "0x31",
            f"queenright_cluster_stream_up{{{PROCESS_A}}}": UNAVAILABLE_FROM_10,
            f"queenright_cluster_stream_up{{{PROCESS_B}}}": UNAVAILABLE_FROM_10,
        },
        {("QueenrightClusterStreamDown", JOB): (11, 22)},
    ),
}


def parse_labels(alert: tuple[str, str]) -> dict[str, str]:
    name, own_labels = alert
    pairs = (pair.split("=") for pair in own_labels.split(", "))
    return {
        "alertname": name,
        "severity": "critical",
        "source": "monitor",
        **{key: value.strip('"') for key, value in pairs},
    }


def make_promtool_checks(firing: Firing) -> Iterator[dict[str, Any]]:
    """Yield the alerts that promtool should find in each minute, and no others."""
    for minute in range(LAST_MINUTE + 1):
        firing_alerts = [alert for alert, (first, last) in firing.items() if first <= minute <= last]
        yield {
            "eval_time": f"{minute}m",
            "expr": "count by (alertname, job, instance, partition) "
            '(ALERTS{alertstate="firing", severity!="none"})',
            "exp_samples": [
                {"labels": f'{{alertname="{name}", {own_labels}}}', "value": 1}
                for name, own_labels in firing_alerts
            ],
        }


@pytest.mark.parametrize("outage", OUTAGES)
def test_ten_minutes_without_postgresql_or_nats_are_one_page(outage: str, tmp_path: Path) -> None:
    """B119: of all alerts about the monitor, one is sent, from the start of the outage until its end."""
    series, firing = OUTAGES[outage]
    file = tmp_path / "outage.yml"
    content = {
        "rule_files": [str(rules_folder() / "monitor.yml")],
        "evaluation_interval": "30s",
        "tests": [
            {
                "name": f"{outage}, {OUTAGE_TIME}",
                "interval": "1m",
                "input_series": [{"series": name, "values": values} for name, values in series.items()],
                "promql_expr_test": list(make_promtool_checks(firing)),
            }
        ],
    }
    file.write_text(yaml.safe_dump(content))
    result = run("promtool", "test", "rules", file)
    assert result.returncode == 0, result.stdout + result.stderr

    for minute in range(LAST_MINUTE + 1):
        firing_alerts = [
            parse_labels(alert) for alert, (first, last) in firing.items() if first <= minute <= last
        ]
        sent_alerts = [
            alert
            for alert in firing_alerts
            if not any(
                is_inhibited_by(rule, other, alert)
                for rule in RULES
                for other in firing_alerts
                if other is not alert
            )
        ]
        assert len(sent_alerts) == (11 <= minute <= 22)
