"""What the other tests of this folder require of the story."""

from __future__ import annotations

import httpx
import pytest
from prometheus_client.openmetrics.parser import text_string_to_metric_families

from queenright.instrumentation import names
from tools.story.recording import Story

HISTOGRAMS = [
    names.WORKER_STEP_DURATION,
    names.WORKER_TOOL_DURATION,
    names.LLM_REQUEST_DURATION,
    names.TRIAGE_DURATION,
    names.TIME_TO_INTERVENTION,
]
"""Histograms with exemplars."""

CLUSTER_METRICS = frozenset(name for name in names.METRICS if name.startswith("queenright_cluster_"))
"""Metrics that the story's service does not have, because it is a single process."""


def test_prometheus_has_every_metric(story: Story) -> None:
    names_in_prometheus = story.prometheus.get("/label/__name__/values").json()["data"]

    suffixes = {"histogram": "_bucket"}
    expected = {f"{metric.name}{suffixes.get(metric.kind, '')}" for metric in names.METRICS.values()}

    assert sorted(expected - CLUSTER_METRICS - set(names_in_prometheus)) == []


@pytest.mark.parametrize("metric", HISTOGRAMS, ids=str)
def test_duration_exemplar_has_a_trace(story: Story, metric: names.MetricName) -> None:
    exemplars = [
        exemplar for series in story.exemplars(f"{metric}_bucket") for exemplar in series["exemplars"]
    ]

    assert exemplars
    assert all(len(exemplar["labels"]["trace_id"]) == 32 for exemplar in exemplars)


def test_openmetrics_is_served_only_on_request(story: Story) -> None:
    with httpx.Client(base_url=story.service_url, trust_env=False) as http:
        text_response = http.get("/metrics")
        openmetrics_response = http.get(
            "/metrics", headers={"Accept": "application/openmetrics-text;version=1.0.0"}
        )

    assert text_response.headers["content-type"].startswith("text/plain; version=0.0.4")
    assert "# EOF" not in text_response.text
    assert openmetrics_response.headers["content-type"].startswith(
        "application/openmetrics-text; version=1.0.0"
    )
    parsed = text_string_to_metric_families(openmetrics_response.text)  # type: ignore[no-untyped-call]
    families = {family.name for family in parsed}
    assert "queenright_agents" in families


def test_single_event_is_an_increase(story: Story) -> None:
    """A counter whose first sample is 1 would show no increase, so each starts at 0."""
    increases = story.query('increase(queenright_triage_total{decision="dismiss"}[1h])')

    assert [float(series["value"][1]) > 0 for series in increases] == [True]
