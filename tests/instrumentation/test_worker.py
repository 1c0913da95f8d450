"""The spans and start records of a worker."""

from __future__ import annotations

import asyncio
import unicodedata
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from opentelemetry import trace
from opentelemetry.trace import StatusCode
from prometheus_client import CollectorRegistry

from queenright.instrumentation import InvalidSessionIdError, Telemetry, Verdict, Worker, names
from queenright.instrumentation.fingerprint import fingerprint
from queenright.instrumentation.identity import clean_name
from tests.instrumentation.parts import Clock, Memory, wait_for


@pytest.fixture
def worker(telemetry: Telemetry, registry: CollectorRegistry, clock: Clock) -> Worker:
    ids = iter(["session-1", "incarnation-1"])
    return Worker(
        "bee",
        graph_id="hive",
        framework="plain",
        version="3",
        telemetry=telemetry,
        registry=registry,
        heartbeat_interval=60,
        clock=clock,
        ids=lambda: next(ids),
    )


IDENTITY = {
    names.GEN_AI_AGENT_NAME: "bee",
    names.GEN_AI_CONVERSATION_ID: "session-1",
    names.INCARNATION_ID: "incarnation-1",
    names.GRAPH_ID: "hive",
}


def run_step(worker: Worker) -> None:
    with worker, worker.step("forager") as step:
        with step.llm("gpt", "openai") as llm:
            llm.usage(120, 30)
            llm.finished("stop")
        with step.tool("search", {"q": "clover"}, timeout=30, call_id="call_9") as call:
            call.result("a field")
        step.verdict(Verdict.ACCEPT)
    worker.close()


def test_every_span_and_record_identifies_its_worker(
    worker: Worker, telemetry: Telemetry, memory: Memory
) -> None:
    run_step(worker)
    telemetry.flush()

    assert [record.name for record in memory.records] == [
        names.EVENT_AGENT_STARTED,
        names.EVENT_STEP_STARTED,
        names.EVENT_LLM_STARTED,
        names.EVENT_TOOL_STARTED,
    ]
    assert [span.name for span in memory.spans] == [
        "chat gpt",
        "execute_tool search",
        "step forager",
        "invoke_agent bee",
    ]
    for item in (*memory.spans, *memory.records):
        assert item.attributes.items() >= IDENTITY.items()


def test_spans_are_nested_like_their_blocks(worker: Worker, telemetry: Telemetry, memory: Memory) -> None:
    run_step(worker)
    telemetry.flush()

    def get_parent(name: str) -> Any:
        return memory.find_span(name).parent

    run, step = memory.find_span("invoke_agent bee"), memory.find_span("step forager")
    assert get_parent("invoke_agent bee") is None
    assert get_parent("step forager") == run.get_span_context()
    assert get_parent("chat gpt") == get_parent("execute_tool search") == step.get_span_context()


def test_attributes_equal_the_table(worker: Worker, telemetry: Telemetry, memory: Memory) -> None:
    run_step(worker)
    telemetry.flush()

    step_attributes = {**IDENTITY, names.NODE_ID: "forager", names.STEP_INDEX: 0}
    assert memory.find_span("step forager").attributes == {**step_attributes, names.STEP_VERDICT: "ACCEPT"}
    assert memory.find_span("chat gpt").attributes == {
        **step_attributes,
        names.GEN_AI_OPERATION_NAME: "chat",
        names.GEN_AI_REQUEST_MODEL: "gpt",
        names.GEN_AI_PROVIDER_NAME: "openai",
        names.GEN_AI_USAGE_INPUT_TOKENS: 120,
        names.GEN_AI_USAGE_OUTPUT_TOKENS: 30,
        names.GEN_AI_RESPONSE_FINISH_REASONS: ("stop",),
    }
    assert memory.find_span("execute_tool search").attributes == {
        **step_attributes,
        names.GEN_AI_OPERATION_NAME: "execute_tool",
        names.GEN_AI_TOOL_NAME: "search",
        names.GEN_AI_TOOL_CALL_ID: "call_9",
        names.TOOL_TIMEOUT: 30.0,
        names.TOOL_ARGUMENTS_HASH: fingerprint({"q": "clover"}),
        names.TOOL_RESULT_HASH: fingerprint("a field"),
    }
    assert memory.find_record(names.EVENT_AGENT_STARTED).attributes == {
        **IDENTITY,
        names.GEN_AI_OPERATION_NAME: "invoke_agent",
        names.FRAMEWORK: "plain",
        names.GEN_AI_AGENT_VERSION: "3",
        names.HEARTBEAT_INTERVAL: 60,
        names.TASK_ID: "session-1",
    }


def test_start_record_has_the_ids_of_its_span(worker: Worker, telemetry: Telemetry, memory: Memory) -> None:
    run_step(worker)
    telemetry.flush()

    start_record = memory.find_record(names.EVENT_TOOL_STARTED)

    assert start_record.span == memory.find_span("execute_tool search").get_span_context()
    assert start_record.attributes[names.TOOL_TIMEOUT] == 30.0


def test_hung_tool_is_reported_while_it_hangs(worker: Worker, telemetry: Telemetry, memory: Memory) -> None:
    """B19: an open call is reported before it ends."""
    with worker, worker.step("forager") as step, step.tool("search", timeout=2400):
        telemetry.flush()

        assert memory.find_record(names.EVENT_TOOL_STARTED).attributes[names.GEN_AI_TOOL_NAME] == "search"
        assert memory.spans == []


def test_exception_is_recorded_and_propagates_unchanged(
    worker: Worker, telemetry: Telemetry, memory: Memory
) -> None:
    """B81: the agent's own exceptions are unchanged."""
    error = KeyError("password=hunter2")

    with pytest.raises(KeyError) as error_info, worker, worker.step("forager") as step, step.tool("search"):
        raise error

    telemetry.flush()
    assert error_info.value is error
    assert error.__cause__ is None
    assert error.__context__ is None
    for span in memory.spans:
        assert span.attributes[names.ERROR_TYPE] == "KeyError"
        assert span.status.status_code is StatusCode.ERROR
        assert "hunter2" not in str(span.status.description)


@pytest.mark.parametrize(("error", "outcome"), [(ValueError("no"), "error"), (TimeoutError(), "timeout")])
def test_tool_error_that_the_agent_handles_does_not_fail_the_step(
    worker: Worker,
    telemetry: Telemetry,
    memory: Memory,
    registry: CollectorRegistry,
    error: Exception,
    outcome: str,
) -> None:
    with worker:
        with worker.step("forager") as step, step.tool("search") as call:
            call.error(error)
        calls = registry.get_sample_value(
            "queenright_worker_tool_calls_total", {"agent": "bee", "tool": "search", "outcome": outcome}
        )

    telemetry.flush()
    assert calls == 1
    assert memory.find_span("execute_tool search").attributes[names.ERROR_TYPE] == type(error).__name__
    assert names.ERROR_TYPE not in memory.find_span("step forager").attributes


def test_equal_failures_are_equal_results(worker: Worker, telemetry: Telemetry, memory: Memory) -> None:
    """B26: a loop is detected even if every call fails."""
    with worker, worker.step("forager") as step:
        for text in ("no row in 0.3 s", "no row in 0.4 s", "no table in 0.1 s"):
            with step.tool("search", {"q": 1}) as call:
                call.error(text)

    telemetry.flush()
    hashes = [span.attributes[names.TOOL_RESULT_HASH] for span in memory.spans[:3]]
    assert hashes[0] == hashes[1] != hashes[2]


async def test_async_blocks_are_reported_too(worker: Worker, telemetry: Telemetry, memory: Memory) -> None:
    async with worker, worker.step("forager") as step:
        async with step.llm("gpt") as llm:
            llm.usage(1, 2)
        async with step.tool("search") as call:
            await asyncio.sleep(0)
            call.result(1)

    telemetry.flush()
    assert {span.name for span in memory.spans} >= {"step forager", "execute_tool search", "chat gpt"}


async def test_cancelled_step_is_reported_as_cancelled(
    worker: Worker, telemetry: Telemetry, memory: Memory
) -> None:
    async def hang() -> None:
        async with worker, worker.step("forager"):
            await asyncio.Event().wait()

    task = asyncio.create_task(hang())
    await asyncio.sleep(0)
    task.cancel()

    with pytest.raises(asyncio.CancelledError):
        await task
    telemetry.flush()
    assert memory.find_span("step forager").attributes[names.ERROR_TYPE] == "CancelledError"


def test_spans_inside_a_block_become_children(worker: Worker, telemetry: Telemetry, memory: Memory) -> None:
    with worker, worker.step("forager") as step, step.tool("search"):
        inner_context = trace.get_current_span().get_span_context()
    after = trace.get_current_span().get_span_context()

    telemetry.flush()
    assert inner_context == memory.find_span("execute_tool search").get_span_context()
    assert not after.is_valid


def test_wait_is_reported_at_start_and_end(
    worker: Worker, telemetry: Telemetry, memory: Memory, registry: CollectorRegistry
) -> None:
    """B17: a worker reports that it waits for its user."""
    labels = {"agent": "bee", "reason": "user_input"}
    with worker:
        with worker.waiting("user_input"):
            during = registry.get_sample_value("queenright_worker_waiting", labels)
        after = registry.get_sample_value("queenright_worker_waiting", labels)

    telemetry.flush()
    reasons = [
        record.attributes[names.WAITING_REASON]
        for record in memory.records
        if record.name == names.EVENT_WAITING
    ]
    assert reasons == ["user_input", ""]
    assert (during, after) == (1, 0)


def test_innermost_wait_is_shown(worker: Worker, telemetry: Telemetry, memory: Memory) -> None:
    with worker, worker.waiting("children"), worker.waiting("backoff"):
        pass

    telemetry.flush()
    reasons = [
        record.attributes[names.WAITING_REASON]
        for record in memory.records
        if record.name == names.EVENT_WAITING
    ]
    assert reasons == ["children", "backoff", "children", ""]


def test_checkpoints_and_heartbeats_are_reported(
    worker: Worker, telemetry: Telemetry, memory: Memory
) -> None:
    with worker:
        worker.checkpoint("c-1")
        with worker.step("forager") as step, step.tool("search"):
            worker.heartbeat("3 of 7; api_key=abcdef")

    telemetry.flush()
    assert memory.find_record(names.EVENT_CHECKPOINT).attributes[names.CHECKPOINT_ID] == "c-1"
    heartbeat = memory.find_record(names.EVENT_HEARTBEAT).attributes
    assert heartbeat[names.HEARTBEAT_INTERVAL] == 60
    assert heartbeat[names.HEARTBEAT_PHASE] == "tool"
    assert heartbeat[names.HEARTBEAT_PROGRESS] == "3 of 7; api_key=[redacted]"


def test_heartbeat_contains_all_fields(
    worker: Worker, telemetry: Telemetry, memory: Memory, clock: Clock
) -> None:
    """002 §11: a heartbeat has task, phase, last tool call, tokens, errors and progress."""
    with worker:
        worker.heartbeat()
        with worker.step("forager") as step, step.llm("gpt") as llm:
            llm.usage(100, 20)
        clock.now += 5
        call_time = clock.now
        with worker.step("forager") as step, step.tool("search") as call:
            call.error("no field")
        clock.now += 5
        with worker.step("forager") as step, step.llm("gpt") as llm:
            llm.usage(7, 3)
            worker.heartbeat("half way")
        worker.heartbeat()

    telemetry.flush()
    first, second, third = (
        record.attributes for record in memory.records if record.name == names.EVENT_HEARTBEAT
    )
    assert first == {
        **IDENTITY,
        names.HEARTBEAT_INTERVAL: 60,
        names.HEARTBEAT_PHASE: "idle",
        names.HEARTBEAT_TOKEN_COUNT: 0,
        names.HEARTBEAT_ERROR_COUNT: 0,
        names.TASK_ID: "session-1",
    }
    assert second == first | {
        names.HEARTBEAT_PHASE: "llm",
        names.HEARTBEAT_TOKEN_COUNT: 120,
        names.HEARTBEAT_ERROR_COUNT: 1,
        names.HEARTBEAT_LAST_TOOL_CALL: call_time,
        names.HEARTBEAT_PROGRESS: "half way",
    }
    assert third == second | {names.HEARTBEAT_PHASE: "idle", names.HEARTBEAT_TOKEN_COUNT: 130}


def test_propagated_error_counts_once(worker: Worker) -> None:
    with pytest.raises(LookupError), worker, worker.step("forager") as step, step.tool("search"):
        raise LookupError("no field")

    assert worker.facts()["error_count"] == 1


def test_output_counts_are_reported(worker: Worker, telemetry: Telemetry, memory: Memory) -> None:
    with worker:
        worker.output(files_changed=3, tests_failed=0)

    telemetry.flush()
    assert memory.find_record(names.EVENT_OUTPUT).attributes == {
        **IDENTITY,
        names.OUTPUT_FILES_CHANGED: 3,
        names.OUTPUT_TESTS_FAILED: 0,
    }


def test_resources_and_circuit_breakers_are_reported(
    worker: Worker, telemetry: Telemetry, memory: Memory
) -> None:
    with worker:
        worker.resource("memory", used=900, limit=1000)
        worker.circuit_breaker("maps", "open")

    telemetry.flush()
    assert memory.find_record(names.EVENT_RESOURCE).attributes == {
        **IDENTITY,
        names.RESOURCE_NAME: "memory",
        names.RESOURCE_USED: 900.0,
        names.RESOURCE_LIMIT: 1000.0,
    }
    assert memory.find_record(names.EVENT_BREAKER).attributes == {
        **IDENTITY,
        names.BREAKER_NAME: "maps",
        names.BREAKER_STATE: "open",
    }


@pytest.mark.parametrize(("used_amount", "limit"), [(1, 0), (-1, 5), ("a lot", 5), (float("nan"), 5)])
def test_resource_without_amounts_is_not_reported_and_raises_nothing(
    worker: Worker, telemetry: Telemetry, memory: Memory, used_amount: Any, limit: Any
) -> None:
    with worker:
        worker.resource("memory", used=used_amount, limit=limit)

    telemetry.flush()
    assert [record for record in memory.records if record.name == names.EVENT_RESOURCE] == []


@pytest.mark.parametrize("count", [-1, "many", float("nan")])
def test_invalid_count_is_ignored(worker: Worker, telemetry: Telemetry, memory: Memory, count: Any) -> None:
    with worker:
        worker.output(tests_passed=count)

    telemetry.flush()
    assert [record for record in memory.records if record.name == names.EVENT_OUTPUT] == []


def test_streamed_answer_is_activity(
    worker: Worker, telemetry: Telemetry, memory: Memory, clock: Clock, registry: CollectorRegistry
) -> None:
    with worker, worker.step("forager") as step, step.llm("gpt") as llm:
        for _ in range(100):
            clock.now += 0.1
            llm.delta()
        last_activity = registry.get_sample_value(
            "queenright_worker_last_activity_timestamp_seconds", {"agent": "bee"}
        )

    telemetry.flush()
    assert sum(record.name == names.EVENT_LLM_DELTA for record in memory.records) in (1, 2)
    assert last_activity == pytest.approx(clock.now, abs=5.1)


def test_content_stays_in_the_process(worker: Worker, telemetry: Telemetry, memory: Memory) -> None:
    with worker, worker.step("forager") as step:
        with step.tool("search", {"q": "my diary"}) as call:
            call.result("dear diary")
        step.verdict("RETRY", "the diary again")

    telemetry.flush()
    assert "diary" not in str([(item.name, item.attributes) for item in memory.order])


def test_content_is_captured_only_if_enabled(
    telemetry: Telemetry, registry: CollectorRegistry, memory: Memory, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(names.CAPTURE_CONTENT_ENV, "true")

    with Worker("bee", telemetry=telemetry, registry=registry) as worker, worker.step("forager") as step:
        with step.tool("search", {"q": "clover"}) as call:
            call.result("a field, token=abcdef")
        step.verdict("RETRY", "again")

    telemetry.flush()
    tool = memory.find_span("execute_tool search").attributes
    assert tool[names.GEN_AI_TOOL_CALL_ARGUMENTS] == "{'q': 'clover'}"
    assert tool[names.GEN_AI_TOOL_CALL_RESULT] == "a field, token=[redacted]"
    assert memory.find_span("step forager").attributes[names.STEP_FEEDBACK] == "again"


@pytest.mark.parametrize(
    "session_id", ["", ".", "..", "a/b", "a\\b", "../../etc", "a\nb", "a\x00", "x" * 201]
)
def test_session_id_that_is_not_a_directory_name_is_refused(session_id: str) -> None:
    """B8: path separators and '..' are refused with a clear error."""
    with pytest.raises(InvalidSessionIdError, match="Session id") as error_info:
        Worker("bee", session_id=session_id)

    assert error_info.value.session_id == session_id


@pytest.mark.parametrize("arguments", [{"agent": ""}, {"agent": "bee", "heartbeat_interval": 0}])
def test_invalid_constructor_arguments_raise(arguments: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=r"agent name|heartbeat_interval"):
        Worker(**arguments)


def test_misuse_after_start_loses_only_that_call(
    worker: Worker, telemetry: Telemetry, memory: Memory
) -> None:
    """B81: no exception of ours reaches the agent."""

    class HostileError(Exception):
        def __str__(self) -> str:
            raise RuntimeError("no text")

    with worker:
        with worker.step(None) as step:  # type: ignore[arg-type]
            step.verdict("SPLENDID")
            with step.tool("\ud800", timeout="soon") as call:  # type: ignore[arg-type]
                call.result(object())
            with step.llm(7) as llm:  # type: ignore[arg-type]
                llm.usage("many", None)  # type: ignore[arg-type]
            with pytest.raises(HostileError), step.tool("search"):
                raise HostileError
        with worker.waiting("godot"):
            worker.checkpoint(None)  # type: ignore[arg-type]

    telemetry.flush()
    assert memory.find_span("step None").end_time is not None
    assert memory.find_span("execute_tool ?").attributes[names.TOOL_RESULT_HASH]
    assert memory.find_span("chat 7").end_time is not None
    assert memory.find_span("invoke_agent bee").end_time is not None


def test_step_starts_an_unstarted_worker(worker: Worker, telemetry: Telemetry, memory: Memory) -> None:
    with worker.step("forager"):
        pass
    worker.close()
    worker.close()

    telemetry.flush()
    assert [span.name for span in memory.spans] == ["step forager", "invoke_agent bee"]


def test_heartbeats_are_automatic(telemetry: Telemetry, registry: CollectorRegistry, memory: Memory) -> None:
    with Worker("bee", telemetry=telemetry, registry=registry, heartbeat_interval=0.1):
        assert wait_for(lambda: sum(record.name == names.EVENT_HEARTBEAT for record in memory.records) >= 3)


RAW = "deep\nresearch\x1b[31m\u2028agent\x00 "


def test_name_with_control_characters_is_cleaned_everywhere(
    telemetry: Telemetry, registry: CollectorRegistry, memory: Memory
) -> None:
    worker = Worker(RAW, telemetry=telemetry, registry=registry)
    worker.start()
    samples = [sample for family in registry.collect() for sample in family.samples]
    run_step(worker)
    telemetry.flush()

    name = clean_name(RAW)
    assert name == "deep research agent"
    assert worker.agent == name
    assert {span.attributes[names.GEN_AI_AGENT_NAME] for span in memory.spans if span.attributes} == {name}
    assert {sample.labels["agent"] for sample in samples if "agent" in sample.labels} == {name}


@pytest.mark.parametrize(
    "name", ["", " ", "\n", "\x00\u2029\t", "\u200b", "\ufeff\u2060", "\u2800\u3164", ".", "..", " .. "]
)
def test_blank_or_dot_agent_name_is_rejected(name: str) -> None:
    with pytest.raises(ValueError, match="needs a non-empty agent name"):
        Worker(name)


def test_invisible_characters_do_not_change_a_name() -> None:
    assert clean_name("\ufeffbo\u200bm\u2060") == "bom"
    assert [clean_name(name) for name in ("...", ".env", "\u0645\u06cc\u200c\u062e")] == [
        "...",
        ".env",
        "\u0645\u06cc\u200c\u062e",
    ]


@given(st.text())
def test_cleaning_a_clean_name_changes_nothing(name: str) -> None:
    cleaned_name = clean_name(name)

    assert clean_name(cleaned_name) == cleaned_name
    assert len(cleaned_name) <= 200
    assert not any(unicodedata.category(character) in ("Cc", "Cs", "Zl", "Zp") for character in cleaned_name)
