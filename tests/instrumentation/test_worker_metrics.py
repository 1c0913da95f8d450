"""The metrics of a worker."""

from __future__ import annotations

import urllib.request
from typing import Any

import pytest
from prometheus_client import CollectorRegistry, Counter, generate_latest
from prometheus_client.openmetrics.exposition import generate_latest as generate_openmetrics
from prometheus_client.parser import text_string_to_metric_families

from queenright.instrumentation import Telemetry, Worker, names, serve_metrics
from queenright.instrumentation.label_limit import MAX_KNOWN_VALUES, LimitCounter
from queenright.instrumentation.metrics import MAX_AGENTS, MAX_LABEL_VALUES, VERDICTS, WorkerFamilies
from tests.instrumentation.parts import Clock

WORKER_METRICS = [
    metric
    for metric in names.METRICS.values()
    if metric.name.startswith("queenright_worker_")
    or metric in (names.TELEMETRY_DROPPED, names.SERIES_LIMITED)
]


class MeasuredWorker:
    """A worker with its own clock and metrics."""

    def __init__(self, telemetry: Telemetry, registry: CollectorRegistry, clock: Clock) -> None:
        self.worker = Worker("bee", version="1", telemetry=telemetry, registry=registry, clock=clock)
        self.clock = clock
        self.registry = registry

    def report_step(self, verdict: str | None, node: str = "forager", result: object = None) -> None:
        with self.worker.step(node) as step:
            if result is not None:
                with step.tool("search", {"q": 1}) as call:
                    call.result(result)
            if verdict:
                step.verdict(verdict)

    def read_metric(self, name: names.MetricName, suffix: str = "", **labels: str) -> float | None:
        return self.registry.get_sample_value(name.name + suffix, {"agent": "bee", **labels})


@pytest.fixture
def measured_worker(telemetry: Telemetry, registry: CollectorRegistry, clock: Clock) -> Any:
    measured_worker = MeasuredWorker(telemetry, registry, clock)
    with measured_worker.worker:
        yield measured_worker


def emit_all_metrics(measured_worker: MeasuredWorker) -> None:
    """Create a series of every metric of a worker."""
    with measured_worker.worker.step("forager") as step:
        with step.llm("gpt", "openai") as llm:
            llm.usage(10, 2)
        with step.tool("search") as call:
            call.error(ValueError("no"))
    measured_worker.worker.checkpoint("c")
    with measured_worker.worker.waiting("backoff"):
        pass
    measured_worker.clock.now += 14
    measured_worker.worker._run.tick()
    for _ in range(20):
        measured_worker.clock.now += 14
        measured_worker.worker._run.tick()


def test_exposed_worker_metrics_and_labels_equal_the_table(measured_worker: MeasuredWorker) -> None:
    emit_all_metrics(measured_worker)

    families = {
        family.name: family
        for family in text_string_to_metric_families(generate_latest(measured_worker.registry).decode())
        if not family.name.endswith("_created")
    }

    assert set(families) == {metric.name.removesuffix("_total") for metric in WORKER_METRICS}
    for metric in WORKER_METRICS:
        family = families[metric.name.removesuffix("_total")]
        assert family.type == metric.kind
        assert family.samples
        for sample in family.samples:
            if not sample.name.endswith("_created"):
                assert set(sample.labels) - {"le"} == set(metric.labels)


@pytest.mark.parametrize("verdict", ["ACCEPT", "RETRY", "CONTINUE", "ESCALATE"])
def test_steps_are_counted_by_verdict(measured_worker: MeasuredWorker, verdict: str) -> None:
    measured_worker.report_step(verdict)

    assert measured_worker.read_metric(names.WORKER_STEPS, node="forager", verdict=verdict.lower()) == 1
    assert measured_worker.read_metric(names.WORKER_STEP_DURATION, "_count", node="forager") == 1


def test_step_without_a_verdict_is_neutral(measured_worker: MeasuredWorker) -> None:
    measured_worker.report_step("RETRY")
    measured_worker.report_step(None)

    assert measured_worker.read_metric(names.WORKER_STEPS, node="forager", verdict="continue") == 1
    assert measured_worker.read_metric(names.WORKER_STEPS_SINCE_ACCEPT) == 1


def test_bad_steps_are_counted_since_the_last_accept(measured_worker: MeasuredWorker) -> None:
    """B9: ACCEPT, RETRY, CONTINUE, CONTINUE counts 1."""
    for verdict in ("RETRY", "ACCEPT", "RETRY", "CONTINUE", "CONTINUE"):
        measured_worker.report_step(verdict)

    assert measured_worker.read_metric(names.WORKER_STEPS_SINCE_ACCEPT) == 1


def test_bad_steps_reset_at_another_node(measured_worker: MeasuredWorker) -> None:
    """B13: the count resets on a new node visit."""
    for node in ("forager", "forager", "dancer"):
        measured_worker.report_step("ESCALATE", node)

    assert measured_worker.read_metric(names.WORKER_STEPS_SINCE_ACCEPT) == 1


def test_propagating_error_is_one_bad_step(measured_worker: MeasuredWorker) -> None:
    """B12: steps that fail without a verdict count."""
    with pytest.raises(KeyError), measured_worker.worker.step("forager") as step, step.tool("search"):
        raise KeyError

    assert measured_worker.read_metric(names.WORKER_STEPS, node="forager", verdict="error") == 1
    assert measured_worker.read_metric(names.WORKER_STEPS_SINCE_ACCEPT) == 1
    assert measured_worker.read_metric(names.WORKER_ERRORS, error_type="KeyError") == 1


def test_accept_checkpoint_and_new_result_are_the_only_progress(measured_worker: MeasuredWorker) -> None:
    """B22: a worker that only sends heartbeats or repeats itself makes no progress."""

    def is_progress(act: Any) -> bool:
        measured_worker.clock.now += 10
        act()
        return measured_worker.read_metric(names.WORKER_LAST_PROGRESS) == measured_worker.clock.now

    assert is_progress(lambda: measured_worker.report_step("ACCEPT"))
    assert not is_progress(lambda: measured_worker.report_step("CONTINUE"))
    assert is_progress(lambda: measured_worker.report_step("RETRY", result="a field"))
    assert not is_progress(lambda: measured_worker.report_step("RETRY", result="a field"))
    assert is_progress(lambda: measured_worker.worker.checkpoint("c"))
    assert not is_progress(measured_worker.worker.heartbeat)
    assert measured_worker.read_metric(names.WORKER_LAST_HEARTBEAT) == measured_worker.clock.now


def test_stall_is_counted_once_by_its_phase(measured_worker: MeasuredWorker) -> None:
    """B21: a tool may be silent until its declared timeout."""
    with measured_worker.worker.step("forager") as step, step.tool("search", timeout=2400):
        for _ in range(2399 // 30):
            measured_worker.clock.now += 30
            measured_worker.worker._run.tick()
        before = measured_worker.read_metric(names.WORKER_STALLS, phase="tool")
        for _ in range(5):
            measured_worker.clock.now += 30
            measured_worker.worker._run.tick()

        assert before == 0
        assert measured_worker.read_metric(names.WORKER_STALLS, phase="tool") == 1


def test_wait_or_clock_jump_is_not_a_stall(measured_worker: MeasuredWorker) -> None:
    """B23: no stall is counted when the host sleeps for eight hours."""
    measured_worker.clock.now += 8 * 3600
    measured_worker.worker._run.tick()
    measured_worker.clock.now -= 3600
    measured_worker.worker._run.tick()
    with measured_worker.worker.waiting("user_input"):
        for _ in range(100):
            measured_worker.clock.now += 30
            measured_worker.worker._run.tick()

    assert measured_worker.read_metric(names.WORKER_STALLS, phase="idle") == 0


def test_durations_have_trace_exemplars(measured_worker: MeasuredWorker) -> None:
    measured_worker.report_step("ACCEPT", result=1)

    text = generate_openmetrics(measured_worker.registry).decode()  # type: ignore[no-untyped-call]

    trace_id = measured_worker.worker._run.trace_id
    assert len(trace_id) == 32
    assert text.count(f'# {{trace_id="{trace_id}"}}') == 2


def test_worker_series_are_removed_when_it_ends(measured_worker: MeasuredWorker) -> None:
    """B78: unloading a worker removes its series."""
    emit_all_metrics(measured_worker)
    assert b'agent="bee"' in generate_latest(measured_worker.registry)

    measured_worker.worker.close()

    assert b'agent="bee"' not in generate_latest(measured_worker.registry)


def test_worker_series_remain_while_another_run_lives(
    measured_worker: MeasuredWorker, telemetry: Telemetry, registry: CollectorRegistry
) -> None:
    for _ in range(3):
        measured_worker.report_step("RETRY")
    with Worker("bee", telemetry=telemetry, registry=registry) as second_worker:
        with second_worker.step("forager") as step:
            step.verdict("ACCEPT")
        worst_count = measured_worker.read_metric(names.WORKER_STEPS_SINCE_ACCEPT)

    assert worst_count == 3, "the worst run is shown"
    assert measured_worker.read_metric(names.WORKER_STEPS_SINCE_ACCEPT) == 3


def count_folded_values(registry: CollectorRegistry) -> dict[str, float]:
    """Return how many label values were folded, by metric."""
    [family] = [
        limited_family
        for limited_family in registry.collect()
        if limited_family.name == "queenright_series_limited"
    ]
    return {
        sample.labels["metric"]: sample.value for sample in family.samples if sample.name.endswith("_total")
    }


def test_folded_label_values_are_counted_once(measured_worker: MeasuredWorker) -> None:
    bounded_metrics = (names.WORKER_STEPS, names.WORKER_TOOL_CALLS, names.WORKER_TOKENS, names.WORKER_ERRORS)
    zero_counts = dict.fromkeys((names.WORKER_INFO.name, *map(str, bounded_metrics)), 0.0)
    assert count_folded_values(measured_worker.registry) == zero_counts

    for number in range(MAX_LABEL_VALUES + 7):
        measured_worker.report_step("ACCEPT", f"node-{number}")
    measured_worker.report_step(
        "ACCEPT", f"node-{MAX_LABEL_VALUES}"
    )  # Folded again: the value was counted before.

    assert measured_worker.read_metric(names.WORKER_STEPS, node="other", verdict="accept") == 8
    assert count_folded_values(measured_worker.registry) == {**zero_counts, names.WORKER_STEPS.name: 7}
    assert (
        measured_worker.registry.get_sample_value("queenright_telemetry_dropped_total", {"signal": "series"})
        is None
    )
    assert generate_latest(measured_worker.registry).count(b"queenright_worker_steps_total{") == len(
        VERDICTS
    ) * (MAX_LABEL_VALUES + 1)


def test_agents_beyond_the_limit_are_folded_and_counted_once(registry: CollectorRegistry) -> None:
    families = WorkerFamilies.of(registry)
    for number in range(MAX_AGENTS):
        families.acquire(f"a{number}")

    assert count_folded_values(registry)[names.WORKER_INFO.name] == 0
    assert [families.acquire(name).agent for name in ("b", "c", "b")] == ["other"] * 3
    assert count_folded_values(registry)[names.WORKER_INFO.name] == 2


def test_two_folding_metrics_in_one_registry_share_the_counter(registry: CollectorRegistry) -> None:
    """This happens if workers run in the service's process."""
    service = LimitCounter(registry, [names.CIRCUIT_BREAKER_TRANSITIONS])
    families = WorkerFamilies.of(registry)

    service.fold(names.CIRCUIT_BREAKER_TRANSITIONS, "a")
    families.limit_counter.fold(names.WORKER_STEPS, "bee", "a")

    folded_counts = {name: number for name, number in count_folded_values(registry).items() if number}
    assert folded_counts == {names.CIRCUIT_BREAKER_TRANSITIONS.name: 1, names.WORKER_STEPS.name: 1}


def test_remembered_folded_values_are_bounded(registry: CollectorRegistry) -> None:
    limit_counter = LimitCounter(registry, [names.WORKER_STEPS])

    for number in range(MAX_KNOWN_VALUES + 5):
        limit_counter.fold(names.WORKER_STEPS, "bee", f"node-{number}")

    assert count_folded_values(registry) == {names.WORKER_STEPS.name: MAX_KNOWN_VALUES + 5}
    assert len(limit_counter._seen_hashes) <= MAX_KNOWN_VALUES


def test_application_metric_of_the_same_name_is_kept(telemetry: Telemetry) -> None:
    """B81: a registry that refuses our metrics does not affect the agent."""
    registry = CollectorRegistry()
    Counter("queenright_worker_steps_total", "mine", registry=registry)

    with Worker("bee", telemetry=telemetry, registry=registry) as worker, worker.step("forager"):
        pass

    assert registry.get_sample_value("queenright_worker_steps_total") == 0


def test_metrics_are_served(measured_worker: MeasuredWorker) -> None:
    measured_worker.report_step("ACCEPT")
    port = serve_metrics(0, registry=measured_worker.registry)

    with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=5) as response:
        assert b"queenright_worker_steps_total{" in response.read()
