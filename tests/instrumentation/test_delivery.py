"""Delivery is bounded, in order, and never on the agent's thread."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from typing import Any

import pytest
from prometheus_client import CollectorRegistry

from queenright.instrumentation import Telemetry, Worker, names
from queenright.instrumentation import delivery as delivery_module
from queenright.instrumentation.delivery import BATCH, SILENT_FAILURES, Delivery, SendResult
from queenright.instrumentation.drop_counter import DROPPED, Signal
from queenright.instrumentation.error_guard import warn_once
from queenright.instrumentation.spans import LightSpan
from tests.instrumentation.parts import Memory, wait_for


class FlakyExporter(Memory):
    """A sender with a fixed answer that records the thread of each call."""

    def __init__(self, answer: SendResult = SendResult.DELIVERED) -> None:
        super().__init__()
        self.answer = answer
        self.call_count = 0
        self.threads: set[int] = set()

    def send(self, signal: Signal, batch: Sequence[Any]) -> SendResult:
        self.call_count += 1
        self.threads.add(threading.get_ident())
        if self.answer is SendResult.DELIVERED:
            super().send(signal, batch)
        return self.answer


@pytest.fixture
def warnings(caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch) -> Callable[[], list[str]]:
    monkeypatch.setattr(delivery_module, "warn_once", type(warn_once)())
    # The exporter of another test may still retry. It must not use up the one warning.
    monkeypatch.setattr(warn_once, "has_warned", True)
    return lambda: [record.getMessage() for record in caplog.records if record.levelname == "WARNING"]


class HangingExporter:
    """A sender whose deliveries never return."""

    destination = "hanging"

    def __init__(self) -> None:
        self.send_started = threading.Event()
        self.send_allowed = threading.Event()

    def send(self, signal: Signal, batch: Sequence[Any]) -> SendResult:
        self.send_started.set()
        self.send_allowed.wait(30)
        return SendResult.RETRY

    def close(self) -> None:
        """Do nothing."""


def test_queued_items_are_sent_by_another_thread() -> None:
    sender = FlakyExporter()
    delivery = Delivery(lambda: sender, interval=0.01)

    delivery.put_span("a")

    assert wait_for(lambda: sender.spans == ["a"])
    assert threading.get_ident() not in sender.threads
    delivery.close()


def test_start_never_arrives_after_its_end(registry: CollectorRegistry) -> None:
    memory = Memory()
    telemetry = Telemetry(connect=lambda: memory, interval=0.0005)
    with Worker("bee", telemetry=telemetry, registry=registry) as worker:
        for _ in range(300):
            with worker.step("forager") as step, step.tool("search"):
                pass
    telemetry.close()

    started_ids: set[int] = set()
    for item in memory.order:
        if isinstance(item, LightSpan):
            assert item.get_span_context().span_id in started_ids
        else:
            started_ids.add(item.span.span_id)
    assert len(memory.spans) == 601


def test_busy_agent_does_not_shorten_the_backoff() -> None:
    sender = FlakyExporter(SendResult.RETRY)
    delivery = Delivery(lambda: sender, interval=60.0)
    for number in range(BATCH + 1):
        delivery.put_span(number)
    assert wait_for(lambda: delivery._failures == 1)

    for number in range(100):
        delivery.put_span(number)
        time.sleep(0.001)

    assert sender.call_count == 1
    delivery.close()


def test_full_queue_drops_the_oldest_and_counts_it() -> None:
    """B76: queues are bounded."""
    before = DROPPED.get_count("spans")
    sender = HangingExporter()
    delivery = Delivery(lambda: sender, interval=0.01, capacity=100)
    delivery.put_record("blocks the thread")
    assert sender.send_started.wait(5)

    for number in range(130):
        delivery.put_span(number)

    assert DROPPED.get_count("spans") - before == 30
    assert next(iter(delivery._spans.items)) == 30
    sender.send_allowed.set()
    delivery.close(0.5)


def test_undelivered_items_are_sent_when_the_service_is_back() -> None:
    """B76: everything that fits in the queue is delivered later."""
    sender = FlakyExporter(SendResult.RETRY)
    delivery = Delivery(lambda: sender, interval=0.01)
    for number in range(BATCH + 10):
        delivery.put_span(number)
    assert wait_for(lambda: sender.call_count >= 2)

    sender.answer = SendResult.DELIVERED

    assert wait_for(lambda: len(sender.spans) == BATCH + 10)
    assert sender.spans == list(range(BATCH + 10))
    delivery.close()


def test_rejected_items_are_counted_and_not_retried() -> None:
    before = DROPPED.get_count("logs")
    sender = FlakyExporter(SendResult.REJECTED)
    delivery = Delivery(lambda: sender, interval=0.01)

    delivery.put_record("bad")
    delivery.flush(5)
    requests = sender.call_count
    delivery.flush(5)

    assert DROPPED.get_count("logs") - before == 1
    assert sender.call_count == requests == 1
    delivery.close()


def test_unavailable_service_is_retried_with_backoff() -> None:
    delivery = Delivery(lambda: FlakyExporter(SendResult.RETRY), interval=0.5)

    pauses = []
    for failures in (0, 1, 3, 50):
        delivery._failures = failures
        pauses.append(delivery._get_pause())

    assert pauses[0] == 0.5
    assert 0.5 <= pauses[1] <= 1.0
    assert 2.0 <= pauses[2] <= 4.0
    assert 15.0 <= pauses[3] <= 30.0


def test_close_respects_the_timeout_and_counts_dropped_items() -> None:
    """B81: the agent's exit is not delayed."""
    before = DROPPED.get_count("spans")
    sender = HangingExporter()
    delivery = Delivery(lambda: sender, interval=0.01)
    delivery.put_record("blocks the thread")
    assert sender.send_started.wait(5)
    for number in range(5):
        delivery.put_span(number)

    start = time.monotonic()
    delivery.close(0.4)

    assert time.monotonic() - start < 2.0
    assert DROPPED.get_count("spans") - before == 5
    sender.send_allowed.set()


def test_exit_with_undelivered_records_warns_once(warnings: Callable[[], list[str]]) -> None:
    delivery = Delivery(lambda: FlakyExporter(SendResult.RETRY), interval=0.01)
    for number in range(3):
        delivery.put_span(number)

    delivery.close(5)

    [message] = warnings()
    assert message.startswith("Queenright lost 3 telemetry records at exit: memory did not accept them.")


def test_exit_during_a_delivery_counts_its_records_as_lost(warnings: Callable[[], list[str]]) -> None:
    sender = HangingExporter()
    delivery = Delivery(lambda: sender, interval=0.01)
    delivery.put_span("blocks the thread")
    assert sender.send_started.wait(5)
    delivery.put_span("waits")

    delivery.close(0.1)

    [message] = warnings()
    assert message.startswith("Queenright lost 2 telemetry records at exit: ")
    sender.send_allowed.set()


def test_exit_without_loss_logs_nothing(warnings: Callable[[], list[str]]) -> None:
    delivery = Delivery(FlakyExporter, interval=0.01)
    delivery.put_span("end")

    delivery.close(5)

    assert not warnings()


def test_lasting_failure_warns_before_the_exit(warnings: Callable[[], list[str]]) -> None:
    delivery = Delivery(lambda: FlakyExporter(SendResult.RETRY), interval=0.001)
    delivery.put_span("a")
    assert wait_for(lambda: delivery._failures > SILENT_FAILURES)

    delivery.close(5)

    [message] = warnings()
    assert message.startswith("Queenright cannot deliver telemetry to memory; ")


class SlowExporter(Memory):
    """A sender whose first delivery blocks until it is released."""

    def __init__(self) -> None:
        super().__init__()
        self.send_started = threading.Event()
        self.send_allowed = threading.Event()

    def send(self, signal: Signal, batch: Sequence[Any]) -> SendResult:
        self.send_started.set()
        self.send_allowed.wait(60)
        return super().send(signal, batch)


def test_close_delivers_items_queued_during_a_delivery() -> None:
    """Otherwise a slow service would never receive the end of a run."""
    sender = SlowExporter()
    delivery = Delivery(lambda: sender, interval=0.01)
    delivery.put_span("first")
    assert sender.send_started.wait(60)
    delivery.put_span("the run's end")
    closing = threading.Thread(target=delivery.close, args=(60,))
    closing.start()
    assert wait_for(lambda: delivery._is_closed)

    sender.send_allowed.set()
    closing.join()

    assert sender.spans == ["first", "the run's end"]


def test_end_of_run_reaches_a_restarting_service() -> None:
    """A worker that ended cleanly must not look like a crash."""
    sender = FlakyExporter()
    delivery = Delivery(lambda: sender, interval=0.01)
    delivery.put_span("begin")
    assert wait_for(lambda: sender.spans == ["begin"])
    sender.answer = SendResult.RETRY
    delivery.put_span("end")
    closing = threading.Thread(target=delivery.close, kwargs={"timeout": 60.0})
    closing.start()
    requests = sender.call_count
    assert wait_for(lambda: sender.call_count > requests + 2), "it is tried again"

    sender.answer = SendResult.DELIVERED
    closing.join(60)

    assert sender.spans == ["begin", "end"]


def test_close_does_not_wait_for_a_service_that_was_never_reachable() -> None:
    """B81: without a receiver, the agent's exit is not delayed."""
    sender = FlakyExporter(SendResult.RETRY)
    delivery = Delivery(lambda: sender, interval=60.0)
    delivery.put_span("a")

    delivery.close(timeout=60.0)

    assert sender.call_count == 1


def test_failing_sender_constructor_does_not_affect_the_agent() -> None:
    """B81: the error does not reach the agent."""

    def connect() -> Memory:
        raise ImportError("no exporter here")

    delivery = Delivery(connect, interval=0.01)
    delivery.put_span(1)

    assert not delivery.flush(5)
    delivery.close(0.5)


@pytest.mark.parametrize("disabled", ["true", "TRUE "])
def test_disabled_sdk_is_silent(
    monkeypatch: pytest.MonkeyPatch, registry: CollectorRegistry, disabled: str
) -> None:
    monkeypatch.setenv("OTEL_SDK_DISABLED", disabled)
    memory = Memory()
    telemetry = Telemetry(connect=lambda: memory)

    with Worker("bee", telemetry=telemetry, registry=registry) as worker, worker.step("forager"):
        steps = registry.get_sample_value(names.WORKER_STEPS_SINCE_ACCEPT.name, {"agent": "bee"})

    telemetry.close()
    assert memory.order == []
    assert steps == 0
