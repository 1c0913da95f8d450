"""Preconditions of the story for the other tests."""

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
"""The story's service is a single process and lacks these."""


def test_prometheus_has_every_metric(story: Story) -> None:
    known = story.prometheus.get("/label/__name__/values").json()["data"]

    suffixes = {"histogram": "_bucket"}
    expected = {f"{m.name}{suffixes.get(m.kind, '')}" for m in names.METRICS.values()}

    assert sorted(expected - CLUSTER_METRICS - set(known)) == []


@pytest.mark.parametrize("metric", HISTOGRAMS, ids=str)
def test_duration_exemplar_has_a_trace(story: Story, metric: names.MetricName) -> None:
    found = [exemplar for series in story.exemplars(f"{metric}_bucket") for exemplar in series["exemplars"]]

    assert found
    assert all(len(one["labels"]["trace_id"]) == 32 for one in found)


def test_openmetrics_is_served_only_on_request(story: Story) -> None:
    with httpx.Client(base_url=story.service_url, trust_env=False) as http:
        plain = http.get("/metrics")
        open_ = http.get("/metrics", headers={"Accept": "application/openmetrics-text;version=1.0.0"})

    assert plain.headers["content-type"].startswith("text/plain; version=0.0.4")
    assert "# EOF" not in plain.text
    assert open_.headers["content-type"].startswith("application/openmetrics-text; version=1.0.0")
    parsed = text_string_to_metric_families(open_.text)  # type: ignore[no-untyped-call]
    families = {family.name for family in parsed}
    assert "queenright_agents" in families


def test_single_event_is_an_increase(story: Story) -> None:
    """A counter whose first sample is 1 would show no increase, so each starts at 0."""
    once = story.query('increase(queenright_triage_total{decision="dismiss"}[1h])')

    assert [float(series["value"][1]) > 0 for series in once] == [True]
