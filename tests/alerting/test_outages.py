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

OUTAGE: Final = "from the tenth minute to the twentieth"
END: Final = 30
UP: Final = "1x31"
UNAVAILABLE: Final = "1x9 0x9 1x12"
FROZEN: Final = "0+60x9 540x10 1260+60x10"
"""Seconds that advance except during the outage and the following minute."""


def service_series(labels: str) -> dict[str, str]:
    return {
        f"queenright_listening{{{labels}}}": UNAVAILABLE,
        f"queenright_judge_last_check_timestamp_seconds{{{labels}}}": FROZEN,
        f"queenright_health_checks_total{{{labels}}}": FROZEN,
        f"queenright_workers_evaluated{{{labels}}}": "3x9 0x9 3x12",
        f"queenright_agents{{{labels}}}": UP,
    }


def ended_service_series(labels: str) -> dict[str, str]:
    return {name: f"{values.partition(' ')[0]} stale" for name, values in service_series(labels).items()} | {
        f"queenright_agents{{{labels}}}": "1x9 stale"
    }


def undelivered_series(labels: str) -> dict[str, str]:
    """Return the series of a notification that was written just before the outage."""
    return {
        f"queenright_outbox_pending{{{labels}}}": "0x8 2x11 0x12",
        f"queenright_outbox_oldest_timestamp_seconds{{{labels}}}": "0x8 540x11 0x12",
    }


A, B = 'job="queenright", instance="a"', 'job="queenright", instance="b"'
PROCESSES: Final = {f"up{{{A}}}": UP, f"up{{{B}}}": UP}
STREAM_UP: Final = {
    f"queenright_cluster_stream_up{{{A}}}": UP,
    f"queenright_cluster_stream_up{{{B}}}": UP,
}
JOB: Final = 'job="queenright"'
OUTAGES: Final[dict[str, tuple[dict[str, str], Firing]]] = {
    "postgresql-one-process": (
        {f"up{{{A}}}": UP, **service_series(A), **undelivered_series(A)},
        {
            ("QueenrightNotListening", A): (11, 22),
            ("QueenrightOutboxStuck", A): (12, 21),
        },
    ),
    "postgresql-cluster": (
        {
            **PROCESSES,
            **STREAM_UP,
            **service_series(A),
            **undelivered_series(A),
            f"queenright_cluster_owner{{{A}}}": UP,
            f"queenright_cluster_owner{{{B}}}": "0x31",
            f"queenright_cluster_backlog{{{A}}}": "0x9 100+100x9 0x12",
        },
        {
            ("QueenrightNotListening", A): (11, 22),
            ("QueenrightOutboxStuck", A): (12, 21),
            ("QueenrightClusterBacklogGrows", JOB): (17, 21),
        },
    ),
    # The answer to a commit of partition 1 was lost, so its service ended.
    "postgresql-partition-that-ended": (
        {
            **PROCESSES,
            **STREAM_UP,
            **service_series(f'{A}, partition="0"'),
            **ended_service_series(f'{A}, partition="1"'),
            f'queenright_cluster_owner{{{A}, partition="0"}}': UP,
            f'queenright_cluster_owner{{{B}, partition="0"}}': "0x31",
            f'queenright_cluster_owner{{{A}, partition="1"}}': "1x9 0x21",
            f'queenright_cluster_owner{{{B}, partition="1"}}': "0x19 1x12",
        },
        {
            ("QueenrightNotListening", f'{A}, partition="0"'): (11, 22),
            ("QueenrightClusterWithoutOwner", f'{JOB}, partition="1"'): (11, 20),
        },
    ),
    "nats": (
        {
            **PROCESSES,
            **service_series(A),
            f"queenright_cluster_owner{{{A}}}": UP,
            f"queenright_cluster_owner{{{B}}}": "0x31",
            f"queenright_cluster_stream_up{{{A}}}": UNAVAILABLE,
            f"queenright_cluster_stream_up{{{B}}}": UNAVAILABLE,
        },
        {("QueenrightClusterStreamDown", JOB): (11, 22)},
    ),
}


def labels_of(alert: tuple[str, str]) -> dict[str, str]:
    name, own = alert
    pairs = (pair.split("=") for pair in own.split(", "))
    return {
        "alertname": name,
        "severity": "critical",
        "source": "monitor",
        **{key: value.strip('"') for key, value in pairs},
    }


def promtool_checks(firing: Firing) -> Iterator[dict[str, Any]]:
    """Yield the alerts that promtool should find in each minute, and no others."""
    for minute in range(END + 1):
        firing_now = [alert for alert, (first, last) in firing.items() if first <= minute <= last]
        yield {
            "eval_time": f"{minute}m",
            "expr": "count by (alertname, job, instance, partition) "
            '(ALERTS{alertstate="firing", severity!="none"})',
            "exp_samples": [
                {"labels": f'{{alertname="{name}", {own}}}', "value": 1} for name, own in firing_now
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
                "name": f"{outage}, {OUTAGE}",
                "interval": "1m",
                "input_series": [{"series": name, "values": values} for name, values in series.items()],
                "promql_expr_test": list(promtool_checks(firing)),
            }
        ],
    }
    file.write_text(yaml.safe_dump(content))
    result = run("promtool", "test", "rules", file)
    assert result.returncode == 0, result.stdout + result.stderr

    for minute in range(END + 1):
        firing_now = [labels_of(alert) for alert, (first, last) in firing.items() if first <= minute <= last]
        sent = [
            one
            for one in firing_now
            if not any(
                is_inhibited_by(rule, other, one)
                for rule in RULES
                for other in firing_now
                if other is not one
            )
        ]
        assert len(sent) == (11 <= minute <= 22)
