"""An unavailable, slow or faulty service does not affect the agent."""

from __future__ import annotations

import json
import re
import socket

import pytest

from tests.instrumentation.parts import Otlp, Script

AGENT = """
import atexit, json, time

end_time = [0.0]
# Registered first, so run last: it measures how long the other exit handlers take.
atexit.register(lambda: print(json.dumps({"exit": time.monotonic() - end_time[0]}), flush=True))

from queenright.instrumentation import Worker

caught = None
slowest = 0.0
try:
    with Worker("bee", heartbeat_interval=0.05) as worker:
        for number in range(300):
            start = time.monotonic()
            with worker.step("forager") as step:
                with step.llm("gpt", "openai") as llm:
                    llm.usage(10, 2)
                with step.tool("search", {"q": number}) as call:
                    call.result("x" * 1000)
                step.verdict("CONTINUE")
            slowest = max(slowest, time.monotonic() - start)
            if number % 100 == 0:
                time.sleep(0.4)
        raise LookupError("the agent's own error")
except LookupError as error:
    caught = str(error)
end_time[0] = time.monotonic()
print(json.dumps({"caught": caught, "slowest": slowest}), flush=True)
"""


def get_closed_port_url() -> str:
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        return f"http://127.0.0.1:{sock.getsockname()[1]}"


def check_output(stdout: str, stderr: str) -> None:
    output = [json.loads(line) for line in stdout.splitlines()]
    assert output[0]["caught"] == "the agent's own error"
    assert output[0]["slowest"] < 0.5
    assert output[-1]["exit"] < 3.0
    assert len(stderr.splitlines()) <= 1
    assert stderr.startswith("Queenright") or not stderr


def test_unavailable_service_does_not_affect_the_agent(run_script: Script) -> None:
    """B81: a closed port causes one line on stderr, and nothing else."""
    url = get_closed_port_url()

    result = run_script(AGENT, OTEL_EXPORTER_OTLP_ENDPOINT=url)

    assert result.returncode == 0
    check_output(result.stdout, result.stderr)
    assert re.match(rf"Queenright lost 1,8\d\d telemetry records at exit: {url} \(", result.stderr)


def test_unresponsive_service_does_not_affect_the_agent(run_script: Script, otlp: Otlp) -> None:
    """B81: a service that hangs delays neither the work nor the exit."""
    otlp.responses_allowed.clear()

    result = run_script(AGENT, OTEL_EXPORTER_OTLP_ENDPOINT=otlp.url)

    assert result.returncode == 0
    check_output(result.stdout, result.stderr)


@pytest.mark.parametrize("status", [404, 503])
def test_invalid_responses_do_not_affect_the_agent(run_script: Script, otlp: Otlp, status: int) -> None:
    """B81: error responses have no effect on the agent."""
    otlp.status = status

    result = run_script(AGENT, OTEL_EXPORTER_OTLP_ENDPOINT=otlp.url)

    assert result.returncode == 0
    check_output(result.stdout, result.stderr)


def test_invalid_url_does_not_affect_the_agent(run_script: Script) -> None:
    """B81: an invalid URL has no effect on the agent."""
    result = run_script(AGENT, OTEL_EXPORTER_OTLP_ENDPOINT="not a url")

    assert result.returncode == 0
    check_output(result.stdout, result.stderr)


def test_failing_logging_handler_does_not_affect_the_agent(run_script: Script) -> None:
    """B81: a logging handler that raises on our own messages does not break the agent."""
    result = run_script(
        "import logging\n"
        "class Bad(logging.Handler):\n"
        "    def emit(self, record): raise RuntimeError('bad handler')\n"
        "logging.getLogger().addHandler(Bad())\n" + AGENT,
        OTEL_EXPORTER_OTLP_ENDPOINT=get_closed_port_url(),
    )

    assert result.returncode == 0
    check_output(result.stdout, result.stderr)


def test_exporters_of_the_application_still_log(run_script: Script) -> None:
    result = run_script(
        """
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from queenright.instrumentation import Worker, flush
with Worker("bee"):
    flush()
provider = TracerProvider(shutdown_on_exit=False)
provider.add_span_processor(SimpleSpanProcessor(OTLPSpanExporter(timeout=0.3)))
provider.get_tracer("app").start_span("x").end()
""",
        OTEL_EXPORTER_OTLP_ENDPOINT=get_closed_port_url(),
    )

    assert "spans" in result.stderr


def test_import_is_light(run_script: Script) -> None:
    result = run_script(
        "import sys, queenright.instrumentation\n"
        "heavy = {'requests', 'google.protobuf', 'grpc', 'fastapi', 'sqlalchemy', 'httpx', 'litellm'}\n"
        "print(sorted(heavy & set(sys.modules)))"
    )

    assert result.stdout.strip() == "[]"


def test_muted_telemetry_imports_no_exporter(run_script: Script) -> None:
    """A process that takes over workers must not spend a second on imports."""
    result = run_script(
        "import sys\n"
        "from queenright.instrumentation.telemetry import Telemetry\n"
        "Telemetry.muted().close()\n"
        "print('requests' in sys.modules)"
    )

    assert result.stdout.strip() == "False"
