"""The service's own metrics: initial values and formats."""

from __future__ import annotations

import pytest
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.openmetrics.exposition import generate_latest as generate_openmetrics

from queenright.health.detection.health_state import HealthState
from queenright.health.findings import Finding, FindingKind, Severity
from queenright.health.monitoring.monitor import WorkerHealth
from queenright.health.vitals.vital_signs import VitalSigns
from queenright.server.metrics.event_metrics import EventMetrics
from queenright.server.metrics.metrics import (
    OPENMETRICS,
    PROMETHEUS_TEXT,
    ServiceMetrics,
    choose_content_type,
    render_families,
)

PROMETHEUS_2_ACCEPT = (
    "application/openmetrics-text;version=1.0.0;q=0.5,text/plain;version=0.0.4;q=0.2,*/*;q=0.1"
)
PROMETHEUS_3_ACCEPT = (
    "application/openmetrics-text;version=1.0.0;escaping=allow-utf-8;q=0.6,"
    "text/plain;version=0.0.4;q=0.3,*/*;q=0.1"
)


@pytest.mark.parametrize(
    ("accept", "content_type"),
    [
        (PROMETHEUS_2_ACCEPT, OPENMETRICS),
        (PROMETHEUS_3_ACCEPT, OPENMETRICS),
        ("", PROMETHEUS_TEXT),
        ("*/*", PROMETHEUS_TEXT),
        ("text/html, text/plain;q=0.5", PROMETHEUS_TEXT),
        ("application/openmetrics-text; q=0, text/plain", PROMETHEUS_TEXT),
        (";;,=,", PROMETHEUS_TEXT),
    ],
)
def test_scraper_gets_the_format_that_it_requests(accept: str, content_type: str) -> None:
    assert choose_content_type(accept) == content_type


async def test_page_is_cached_for_a_second_in_each_format() -> None:
    metrics = ServiceMetrics(CollectorRegistry(), list)
    text_page, openmetrics_page = await metrics.render(now=10.0), await metrics.render(OPENMETRICS, now=10.0)

    metrics.record_sweep(3, 0.1)

    assert await metrics.render(now=10.9) is text_page
    assert await metrics.render(OPENMETRICS, now=10.9) is openmetrics_page
    assert await metrics.render(now=11.0) != text_page
    assert (await metrics.render(OPENMETRICS, now=11.0)).endswith(b"# EOF\n")


@pytest.mark.parametrize("content_type", [PROMETHEUS_TEXT, OPENMETRICS])
def test_page_escapes_agent_names_like_the_client_library(content_type: str) -> None:
    registry = CollectorRegistry()
    names = ("plain", 'with "quotes"', "with \\ and\nline", "naïve")
    workers = [
        WorkerHealth(
            vitals=VitalSigns(name, "s", 1.0),
            findings=(),
            state=state,
            state_since=number / 3,
            reason="",
        )
        for number, (name, state) in enumerate(zip(names, HealthState, strict=False))
    ]
    ServiceMetrics(registry, lambda: workers)
    library = generate_openmetrics if content_type == OPENMETRICS else generate_latest

    page = render_families(registry.collect(), content_type)

    assert page == library(registry)
    assert page.endswith(b"# EOF\n") is (content_type == OPENMETRICS)


def test_counters_start_at_0() -> None:
    registry = CollectorRegistry()
    ServiceMetrics(registry, list)
    EventMetrics(registry).add_subscribers(["traces"])

    def read_sample(name: str, **labels: str) -> float | None:
        return registry.get_sample_value(name, labels)

    assert read_sample("queenright_health_checks_total", outcome="error") == 0
    assert read_sample("queenright_event_bus_dropped_total", subscriber="traces") == 0
    for kind in FindingKind:
        assert read_sample("queenright_detection_delay_seconds_count", kind=kind.value) == 0


def make_worker(agent: str, *kinds: FindingKind, session: str = "s") -> WorkerHealth:
    """Return a worker with findings of these kinds."""
    findings = tuple(Finding(kind=kind, severity=Severity.HIGH, evidence="e", since=1.0) for kind in kinds)
    state = HealthState.STUCK if kinds else HealthState.HEALTHY
    return WorkerHealth(VitalSigns(agent, session, 1.0), findings, state, 1.0, "")


def test_agents_with_an_open_finding_are_counted_by_kind() -> None:
    registry = CollectorRegistry()
    workers: list[WorkerHealth] = []
    ServiceMetrics(registry, lambda: workers)

    def read_counts() -> dict[FindingKind, float | None]:
        name = "queenright_agents_with_finding"
        return {kind: registry.get_sample_value(name, {"kind": kind.value}) for kind in FindingKind}

    assert set(read_counts().values()) == {0}

    workers += [
        make_worker("a", FindingKind.PROVIDER_FAILURE, FindingKind.STALL),
        make_worker("a", FindingKind.PROVIDER_FAILURE, session="t"),  # a second session of the same agent
        make_worker("b", FindingKind.PROVIDER_FAILURE),
        make_worker("well"),
        make_worker("gone", FindingKind.PROVIDER_FAILURE),
        make_worker("tried-on"),
    ]
    workers[4].vitals.ended_at = 2.0
    workers[5].shadow = workers[2].findings

    nonzero_counts = {kind: number for kind, number in read_counts().items() if number}
    assert nonzero_counts == {FindingKind.PROVIDER_FAILURE: 2, FindingKind.STALL: 1}


def test_agents_in_trouble_without_a_page_are_counted() -> None:
    """B104: agents that a ticket pages about do not count as fleet trouble."""
    registry = CollectorRegistry()
    workers = [
        make_worker("paged", FindingKind.PROVIDER_FAILURE),
        make_worker("late", FindingKind.PROVIDER_FAILURE),
        make_worker("late", FindingKind.STALL, session="t"),  # a second session of the same agent
        make_worker("slow", FindingKind.TOKEN_SPIKE),
        make_worker("lacks", FindingKind.MCP_SERVER_MISSING),
        make_worker("well"),
        make_worker("gone", FindingKind.STALL),
    ]
    for worker in workers[:3]:
        worker.state = HealthState.FAILING
    for worker in workers[3:5]:
        worker.state = HealthState.DEGRADED
    workers[6].vitals.ended_at = 2.0
    ServiceMetrics(registry, lambda: workers, list_paged=lambda: {"paged", "well", "somebody"})

    assert registry.get_sample_value("queenright_unpaged_agents") == 2  # These agents are late and slow.
    agent_labels = {
        agent: registry.get_sample_value("queenright_agent_unpaged", {"agent": agent})
        for agent in ("paged", "late", "slow", "lacks", "well", "gone")
    }
    assert agent_labels == {"paged": 0, "late": 1, "slow": 1, "lacks": None, "well": None, "gone": None}


def test_degraded_agents_are_counted_by_finding_kind() -> None:
    """An agent that lacks an MCP server and is also stuck, in any session, is in trouble."""
    registry = CollectorRegistry()
    missing_server = FindingKind.MCP_SERVER_MISSING
    workers = [
        make_worker("a", missing_server),
        make_worker("a", missing_server, session="t"),
        make_worker("b", missing_server),
        make_worker("b", FindingKind.TOKEN_SPIKE, session="t"),
        make_worker("stuck", missing_server),
        make_worker("well"),
    ]
    for agent_worker in workers[:4]:
        agent_worker.state = HealthState.DEGRADED
    ServiceMetrics(registry, lambda: workers)

    name = "queenright_degraded_agents_with_one_kind"
    counts = {kind: registry.get_sample_value(name, {"kind": kind.value}) for kind in FindingKind}
    assert {kind: number for kind, number in counts.items() if number != 0} == {missing_server: 1}


async def test_agents_that_are_omitted_on_purpose_do_not_count_as_limited() -> None:
    registry = CollectorRegistry()
    workers = [make_worker("a")]
    metrics = ServiceMetrics(registry, lambda: workers)

    def list_omitted() -> float | None:
        return registry.get_sample_value("queenright_series_left_out", {"metric": "queenright_agent_state"})

    assert list_omitted() == 0

    workers += [make_worker(f"b{number}") for number in range(1000)]
    pages = [(await metrics.render(now=moment)).decode() for moment in (10.0, 20.0)]

    for page in pages:
        limit_lines = [
            line for line in page.splitlines() if line.startswith("queenright_series_limited_total{")
        ]
        assert limit_lines
        assert all(line.endswith(" 0.0") for line in limit_lines)
        assert 'queenright_series_left_out{metric="queenright_agent_state"} 1001.0' in page
        assert 'queenright_series_left_out{metric="queenright_circuit_breaker_state"} 0.0' in page
    workers.clear()
    assert list_omitted() == 0
