"""Instructions of the service to a worker, over real HTTP."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import pytest
from opentelemetry import context
from prometheus_client import CollectorRegistry

from queenright.instrumentation import Nudge, Telemetry, Termination, Worker, names
from tests.instrumentation.mailbox import Mailbox
from tests.instrumentation.parts import Memory, Otlp, Script, wait_for
from tests.instrumentation.test_agent_isolation import AGENT, check_output, get_closed_port_url


@pytest.fixture
def mailbox() -> Iterator[Mailbox]:
    mailbox = Mailbox()
    yield mailbox
    mailbox.stop()


WorkerFactory = Callable[..., Worker]


@pytest.fixture
def make_worker(
    mailbox: Mailbox, telemetry: Telemetry, registry: CollectorRegistry
) -> Iterator[WorkerFactory]:
    """Return a factory of workers of session ``s`` and incarnation ``i`` that poll the mailbox."""
    workers: list[Worker] = []

    def make(**arguments: Any) -> Worker:
        defaults: dict[str, Any] = {
            "session_id": "s",
            "incarnation_id": "i",
            "telemetry": telemetry,
            "registry": registry,
            "control_endpoint": mailbox.url,
        }
        worker = Worker("a bee/1", **(defaults | arguments))
        worker.start()
        workers.append(worker)
        return worker

    yield make
    for worker in workers:
        worker.close()


def take_instructions(worker: Worker, instructions: list[Any]) -> list[Any]:
    """Add the waiting instructions to ``taken``, and return it."""
    instructions += worker.instructions()
    return instructions


def test_nudge_reaches_the_agents_function_and_is_answered(
    mailbox: Mailbox, make_worker: WorkerFactory
) -> None:
    """002 §11: a nudge reaches the agent's context."""
    received_nudges: list[tuple[Nudge, str]] = []
    make_worker(on_nudge=lambda nudge: received_nudges.append((nudge, threading.current_thread().name)))

    mailbox.add_instruction("nudge", "n1", "Save your progress.", expires_at=4e9)

    assert mailbox.wait_for_answers() == [
        {"instruction_id": "n1", "outcome": "done", "session_id": "s", "incarnation_id": "i"}
    ]
    [(nudge, thread)] = received_nudges
    assert nudge == Nudge(message="Save your progress.", instruction_id="n1", expires_at=4e9)
    assert thread == "queenright-nudges"
    assert mailbox.polls[0] == {
        "agent": "a bee/1",
        "session_id": "s",
        "incarnation_id": "i",
        "wait": "25",
    }


def test_termination_is_answered_with_its_checkpoint(mailbox: Mailbox, make_worker: WorkerFactory) -> None:
    """002 §11: the agent saves its state before it stops."""

    def stop(reason: str) -> str:
        return f"checkpoint because of {reason}"

    make_worker(on_terminate=stop)

    mailbox.add_instruction("terminate", "t1", "a loop")

    [answer] = mailbox.wait_for_answers()
    assert (answer["outcome"], answer["checkpoint_id"]) == ("done", "checkpoint because of a loop")


def test_repeated_instruction_is_delivered_once(mailbox: Mailbox, make_worker: WorkerFactory) -> None:
    received_messages: list[str] = []
    mailbox.answer_status = 503
    make_worker(on_nudge=lambda nudge: received_messages.append(nudge.instruction_id))

    mailbox.add_instruction("nudge", "n1", "Go on.")
    mailbox.wait_for_polls(2)
    mailbox.answer_status = 204

    assert [answer["instruction_id"] for answer in mailbox.wait_for_answers()] == ["n1"]
    assert received_messages == ["n1"]


def test_stale_or_foreign_instruction_is_not_delivered(mailbox: Mailbox, make_worker: WorkerFactory) -> None:
    """B67: the worker discards the instruction even if the service delivers it."""
    received_messages: list[str] = []
    make_worker(on_nudge=lambda nudge: received_messages.append(nudge.instruction_id))

    mailbox.add_instruction("nudge", "old", "Go on.", expires_at=time.time() - 1)
    mailbox.add_instruction("nudge", "other", "Go on.", incarnation_id="i2")
    mailbox.add_instruction("nudge", "mine", "Go on.", incarnation_id="i")

    answers = {answer["instruction_id"]: answer for answer in mailbox.wait_for_answers(2)}
    assert received_messages == ["mine"]
    assert answers.keys() == {"old", "mine"}
    assert (answers["old"]["outcome"], answers["old"]["detail"]) == ("refused", "the instruction has expired")


@pytest.mark.parametrize("ahead", [-3600.0, 3600.0])
def test_wrong_clock_does_not_change_instruction_age(
    mailbox: Mailbox, make_worker: WorkerFactory, ahead: float
) -> None:
    """B67: the service's clock decides whether an instruction is stale."""
    received_nudges: list[Nudge] = []
    make_worker(on_nudge=received_nudges.append, clock=lambda: time.time() + ahead)

    mailbox.add_instruction("nudge", "old", "Go on.", expires_at=time.time() - 60)
    mailbox.add_instruction("nudge", "new", "Go on.", expires_at=time.time() + 60)

    mailbox.wait_for_answers(2)
    assert [nudge.instruction_id for nudge in received_nudges] == ["new"]
    assert received_nudges[0].expires_at - ahead == pytest.approx(time.time() + 60, abs=20)


def test_callback_that_raises_is_a_failed_answer_with_secrets_masked(
    mailbox: Mailbox, make_worker: WorkerFactory
) -> None:
    def raise_error(nudge: Nudge) -> None:
        raise RuntimeError("no context; api_key=abcdef123456")

    make_worker(on_nudge=raise_error)

    mailbox.add_instruction("nudge", "n1", "Go on.")

    [answer] = mailbox.wait_for_answers()
    assert answer["outcome"] == "failed"
    assert answer["detail"] == "RuntimeError: no context; api_key=[redacted]"


def test_sys_exit_in_on_terminate_counts_as_a_stop(mailbox: Mailbox, make_worker: WorkerFactory) -> None:
    def leave(reason: str) -> str:
        raise SystemExit(0)

    make_worker(on_terminate=leave)

    mailbox.add_instruction("terminate", "t1", "over")

    assert [answer["outcome"] for answer in mailbox.wait_for_answers()] == ["done"]


def test_hanging_nudge_does_not_delay_a_termination(mailbox: Mailbox, make_worker: WorkerFactory) -> None:
    nudge_release = threading.Event()
    make_worker(on_nudge=lambda nudge: nudge_release.wait(20), on_terminate=lambda reason: "c1")

    mailbox.add_instruction("nudge", "n1", "Go on.")
    mailbox.add_instruction("terminate", "t1", "over")

    first = mailbox.wait_for_answers()
    nudge_release.set()
    assert [answer["instruction_id"] for answer in first] == ["t1"]
    assert {answer["instruction_id"] for answer in mailbox.wait_for_answers(2)} == {"t1", "n1"}


def test_instruction_without_callback_is_refused(mailbox: Mailbox, make_worker: WorkerFactory) -> None:
    make_worker(on_nudge=lambda nudge: None)

    mailbox.add_instruction("terminate", "t1", "over")

    [answer] = mailbox.wait_for_answers()
    assert (answer["outcome"], "on_terminate" in answer["detail"]) == ("refused", True)


def test_instructions_can_be_polled_manually(mailbox: Mailbox, make_worker: WorkerFactory) -> None:
    worker = make_worker(control=True)
    assert worker.instructions() == []

    mailbox.add_instruction("nudge", "n1", "Go on.")
    instructions: list[Any] = []
    assert wait_for(lambda: bool(take_instructions(worker, instructions)))

    assert [type(instruction) for instruction in instructions] == [Nudge]
    assert [answer["outcome"] for answer in mailbox.wait_for_answers()] == ["done"]
    assert worker.instructions() == []


def test_polled_termination_is_confirmed_by_the_end_of_the_run(
    mailbox: Mailbox, make_worker: WorkerFactory
) -> None:
    worker = make_worker(control=True)
    mailbox.add_instruction("terminate", "t1", "over")
    instructions: list[Any] = []
    assert wait_for(lambda: bool(take_instructions(worker, instructions)))
    mailbox.wait_for_polls(len(mailbox.polls) + 1)
    answers_before_end = list(mailbox.answers)

    worker.checkpoint("c7")
    worker.close()

    assert isinstance(instructions[0], Termination)
    assert instructions[0].reason == "over"
    assert answers_before_end == []
    [answer] = mailbox.wait_for_answers()
    assert (answer["outcome"], answer["checkpoint_id"]) == ("done", "c7")


def test_untaken_instruction_is_answered_at_the_end(mailbox: Mailbox, make_worker: WorkerFactory) -> None:
    worker = make_worker(control=True)
    mailbox.add_instruction("nudge", "n1", "Go on.")
    count = len(mailbox.wait_for_polls())
    mailbox.wait_for_polls(count + 1)

    worker.close()

    [answer] = mailbox.wait_for_answers()
    assert answer["outcome"] == "refused"


def test_run_reports_control_support(
    make_worker: WorkerFactory, telemetry: Telemetry, memory: Memory
) -> None:
    make_worker(control=True, task_id="forage")
    telemetry.flush()

    attributes = memory.find_record(names.EVENT_AGENT_STARTED).attributes
    assert attributes[names.CONTROL] is True
    assert attributes[names.TASK_ID] == "forage"


def test_worker_without_control_does_not_poll(
    mailbox: Mailbox, make_worker: WorkerFactory, telemetry: Telemetry, memory: Memory
) -> None:
    worker = make_worker()
    telemetry.flush()

    assert names.CONTROL not in memory.find_record(names.EVENT_AGENT_STARTED).attributes
    assert worker.instructions() == []
    assert mailbox.polls == []


def test_worker_fetches_instructions_from_a_service_that_answers_later(
    mailbox: Mailbox, make_worker: WorkerFactory
) -> None:
    mailbox.status = 503
    received_messages: list[str] = []
    make_worker(on_nudge=lambda nudge: received_messages.append(nudge.message))
    mailbox.wait_for_polls(2)

    mailbox.status = 200
    mailbox.add_instruction("nudge", "n1", "Go on.")

    assert mailbox.wait_for_answers()
    assert received_messages == ["Go on."]


@pytest.mark.parametrize(
    "body", [b"\xff\xfe", b"[1, 2]", b'{"instructions": 3}', b"[" * 5000, b"x" * (1 << 21)]
)
def test_invalid_responses_are_polled_with_backoff(
    mailbox: Mailbox, make_worker: WorkerFactory, body: bytes
) -> None:
    mailbox.body = body
    received_messages: list[str] = []
    make_worker(on_nudge=lambda nudge: received_messages.append(nudge.message))
    start = time.monotonic()

    mailbox.wait_for_polls(3)

    assert received_messages == []
    assert time.monotonic() - start > 1.0


def test_immediate_empty_response_does_not_cause_a_busy_loop(
    mailbox: Mailbox, make_worker: WorkerFactory
) -> None:
    mailbox.body = b'{"instructions": []}'
    make_worker(on_nudge=lambda nudge: None)
    start = time.monotonic()

    mailbox.wait_for_polls(2)

    assert time.monotonic() - start > 1.5


@pytest.mark.parametrize("name", ["on_nudge", "on_terminate"])
def test_async_function_is_refused(name: str) -> None:
    async def ignore_nudge(_: object) -> None:
        """Do nothing; the worker refuses an async function."""

    make: WorkerFactory = partial(Worker, "bee")
    with pytest.raises(TypeError, match="call_soon_threadsafe"):
        make(**{name: ignore_nudge})


FORK = """
import os, time
from queenright.instrumentation import Worker

messages = []
def on_nudge(nudge):
    messages.append(nudge.message)

worker = Worker("bee", session_id="s", incarnation_id="i", on_nudge=on_nudge)
{before}
child = os.fork()
if child == 0:
    with worker.step("s"):
        pass
    deadline = time.monotonic() + 10
    while not messages and time.monotonic() < deadline:
        time.sleep(0.05)
    print("child", messages, flush=True)
    time.sleep(0.5)
    os._exit(0)
{parent}
"""


def test_child_polls_if_parent_never_started(mailbox: Mailbox, run_script: Script) -> None:
    mailbox.add_instruction("nudge", "n1", "Go on.")

    result = run_script(
        FORK.format(before="", parent="os.waitpid(child, 0)"),
        QUEENRIGHT_ENDPOINT=mailbox.url,
        OTEL_SDK_DISABLED="true",
    )

    assert result.stdout == "child ['Go on.']\n", result.stderr
    assert [answer["outcome"] for answer in mailbox.wait_for_answers()] == ["done"]


def test_child_polls_after_parent_exits(mailbox: Mailbox, run_script: Script) -> None:
    def send_nudge() -> None:
        # The parent may poll once before it exits; the child polls once.
        mailbox.wait_for_polls(2, seconds=4.0)
        mailbox.add_instruction("nudge", "n1", "Go on.")

    sender = threading.Thread(target=send_nudge)
    sender.start()
    result = run_script(
        FORK.format(before="worker.start()", parent="os._exit(0)"),
        QUEENRIGHT_ENDPOINT=mailbox.url,
        OTEL_SDK_DISABLED="true",
    )
    sender.join()

    assert result.stdout == "child ['Go on.']\n", result.stderr
    assert [answer["outcome"] for answer in mailbox.wait_for_answers()] == ["done"]


def test_parent_polls_while_it_is_alive(mailbox: Mailbox, run_script: Script) -> None:
    mailbox.add_instruction("nudge", "n1", "Go on.")

    result = run_script(
        FORK.replace("+ 10", "+ 2").format(
            before="worker.start()", parent="os.waitpid(child, 0); print('parent', messages)"
        ),
        QUEENRIGHT_ENDPOINT=mailbox.url,
        OTEL_SDK_DISABLED="true",
    )

    assert result.stdout.splitlines()[-1] == "parent ['Go on.']"


def make_agent_source(nudge: str) -> str:
    return AGENT.replace("heartbeat_interval=0.05", f"heartbeat_interval=0.05, on_nudge={nudge}")


@pytest.mark.parametrize("invalid_url", ["away", "hangs", "garbage", "error", "not an address"])
def test_unavailable_control_service_does_not_affect_the_agent(
    mailbox: Mailbox, otlp: Otlp, run_script: Script, invalid_url: str
) -> None:
    """B81: neither the work nor the exit waits for the service, which causes at most one line on stderr."""
    mailbox.is_hanging = invalid_url == "hangs"
    mailbox.body = b"\x00garbage\r\n\r\n" * 1000 if invalid_url == "garbage" else None
    mailbox.status = 500 if invalid_url == "error" else 200
    endpoint = {"away": get_closed_port_url(), "not an address": "not an address"}.get(
        invalid_url, mailbox.url
    )

    result = run_script(
        make_agent_source("print"), OTEL_EXPORTER_OTLP_ENDPOINT=otlp.url, QUEENRIGHT_ENDPOINT=endpoint
    )

    assert result.returncode == 0
    check_output(result.stdout, result.stderr)


def test_function_that_raises_is_one_line_on_stderr(mailbox: Mailbox, otlp: Otlp, run_script: Script) -> None:
    """B81: the agent continues, and the service is informed of the failure."""
    mailbox.add_instruction("nudge", "n1", "Go on.")
    mailbox.add_instruction("nudge", "n2", "Go on, please.")

    result = run_script(
        make_agent_source("lambda nudge: 1 / 0"),
        OTEL_EXPORTER_OTLP_ENDPOINT=otlp.url,
        QUEENRIGHT_ENDPOINT=mailbox.url,
    )

    check_output(result.stdout, result.stderr)
    assert len(result.stderr.splitlines()) == 1
    assert "ZeroDivisionError" in result.stderr
    assert {answer["outcome"] for answer in mailbox.wait_for_answers(2)} == {"failed"}


def test_termination_answer_is_sent_before_the_process_ends(mailbox: Mailbox, run_script: Script) -> None:
    mailbox.add_instruction("terminate", "t1", "a loop")

    run_script(
        """
import time
from queenright.instrumentation import Worker

with Worker("bee", session_id="s", incarnation_id="i", control=True) as worker:
    while not worker.instructions():
        time.sleep(0.05)
    worker.checkpoint("c9")
""",
        QUEENRIGHT_ENDPOINT=mailbox.url,
        OTEL_SDK_DISABLED="true",
    )

    [answer] = mailbox.wait_for_answers()
    assert (answer["outcome"], answer["checkpoint_id"]) == ("done", "c9")


def test_control_requests_are_not_traced(mailbox: Mailbox, make_worker: WorkerFactory) -> None:
    """An application that instruments ``requests`` traces only its own calls, also in callbacks."""
    traced_requests: list[Any] = []
    make_worker(
        on_nudge=lambda nudge: traced_requests.append(
            context.get_value(context._SUPPRESS_INSTRUMENTATION_KEY)
        )
    )

    mailbox.add_instruction("nudge", "n1", "Go on.")

    assert mailbox.wait_for_answers()
    assert traced_requests == [None]
