"""The orchestrator's webhook, with a real HTTP server."""

from __future__ import annotations

import hashlib
import hmac
import json
import logging
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
import stamina
from pydantic import SecretStr

from queenright.health.interventions.escalation import Escalation, EscalationAnswer
from queenright.server.serving import serving
from queenright.server.webhooks.orchestrator import (
    ATTEMPTS,
    SIGNATURE,
    OrchestratorError,
    OrchestratorWebhook,
)
from queenright.server.webhooks.post import TIMESTAMP
from tests.server.conftest import demo_settings, looping
from tests.waiting import until

ESCALATION = Escalation(
    escalation_id="e1",
    agent_id="bee",
    session_id="s",
    incarnation_id="i",
    reason="3 nudges brought nothing",
    context={"summary": "stuck in search", "nudges": 3},
    created_at=1000.0,
    deadline=1900.0,
)


class Orchestrator(ThreadingHTTPServer):
    """An HTTP server that responds as configured, and stores the requests."""

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.answers: list[tuple[int, bytes]] = []
        """Responses, as status and body, in order; the last one is repeated."""
        self.requests: list[tuple[dict[str, str], bytes]] = []

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_port}/hook/{TOKEN}"


TOKEN = "T0kenInTheUrl"


class _Handler(BaseHTTPRequestHandler):
    server: Orchestrator

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"]))
        self.server.requests.append((dict(self.headers), body))
        answers = self.server.answers
        status, answer = answers[0] if len(answers) == 1 else answers.pop(0)
        self.send_response(status)
        self.send_header("Content-Length", str(len(answer)))
        self.end_headers()
        self.wfile.write(answer)

    def log_request(self, code: int | str = "-", size: int | str = "-") -> None:
        pass


@pytest.fixture
def orchestrator() -> Iterator[Orchestrator]:
    with Orchestrator() as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
        thread.start()
        yield server
        server.shutdown()
        thread.join()


@pytest.fixture(autouse=True)
def _skip_retry_delay() -> Iterator[None]:
    with stamina.set_testing(True, attempts=ATTEMPTS, cap=True):
        yield


async def call_webhook(url: str, secret: str | None = None) -> EscalationAnswer | None:
    webhook = OrchestratorWebhook(
        SecretStr(url), api="http://queen:8420/", secret=SecretStr(secret) if secret else None
    )
    try:
        return await webhook.ask(ESCALATION)
    finally:
        await webhook.close()


async def test_escalation_has_its_whole_context_and_the_url_for_the_decision(
    orchestrator: Orchestrator,
) -> None:
    """002 §11: an escalation contains all that the orchestrator needs to decide."""
    orchestrator.answers = [(202, b"")]

    assert await call_webhook(orchestrator.url) is None

    [(_, body)] = orchestrator.requests
    escalation = json.loads(body)
    assert escalation == {
        "type": "escalation_triggered",
        "escalation_id": "e1",
        "agent_id": "bee",
        "session_id": "s",
        "incarnation_id": "i",
        "reason": "3 nudges brought nothing",
        "options": ["more_time", "hand_off", "terminate"],
        "context": {"summary": "stuck in search", "nudges": 3},
        "created_at": 1000.0,
        "deadline": 1900.0,
        "answer_url": "http://queen:8420/api/escalations/e1/decision",
    }


async def test_decision_in_the_response_is_returned(orchestrator: Orchestrator) -> None:
    orchestrator.answers = [
        (200, b'{"decision": "more_time", "more_time_seconds": 60, "reason": "slow API"}')
    ]

    answer = await call_webhook(orchestrator.url)

    assert answer == EscalationAnswer(decision="more_time", more_time_seconds=60, reason="slow API")


@pytest.mark.parametrize("body", [b"", b"ok", b"{}", b"[]", b'{"ok": true}', b'{"decision": null}'])
async def test_response_without_a_decision_leaves_the_escalation_open(
    orchestrator: Orchestrator, body: bytes
) -> None:
    orchestrator.answers = [(200, body)]

    assert await call_webhook(orchestrator.url) is None


@pytest.mark.parametrize(
    "answer",
    [b'{"decision": "kill"}', b'{"decision": "terminate", "soon": 1}', b'{"decision": 3}'],
)
async def test_invalid_decision_is_rejected_and_not_requested_again(
    orchestrator: Orchestrator, answer: bytes
) -> None:
    orchestrator.answers = [(200, answer)]

    with pytest.raises(OrchestratorError, match="its answer is invalid: "):
        await call_webhook(orchestrator.url)

    assert len(orchestrator.requests) == 1


@pytest.mark.parametrize("status", [429, 500, 503])
async def test_transient_failures_are_retried(orchestrator: Orchestrator, status: int) -> None:
    orchestrator.answers = [(status, b"busy"), (status, b""), (200, b'{"decision": "terminate"}')]

    answer = await call_webhook(orchestrator.url)

    assert answer == EscalationAnswer(decision="terminate")
    assert len({body for _, body in orchestrator.requests}) == 1


@pytest.mark.parametrize("status", [301, 400, 401, 404])
async def test_permanent_error_is_raised_without_a_retry(orchestrator: Orchestrator, status: int) -> None:
    orchestrator.answers = [(status, b"no such hook")]

    with pytest.raises(OrchestratorError, match=f"it answered {status} no such hook"):
        await call_webhook(orchestrator.url)

    assert len(orchestrator.requests) == 1


async def test_endless_response_is_read_only_up_to_a_limit(orchestrator: Orchestrator) -> None:
    orchestrator.answers = [(200, b" " * (1 << 20))]

    with pytest.raises(OrchestratorError, match="longer than 65536 bytes"):
        await call_webhook(orchestrator.url)


async def test_requests_are_signed_with_the_secret(orchestrator: Orchestrator) -> None:
    orchestrator.answers = [(200, b"")]

    await call_webhook(orchestrator.url, secret="honey")

    [(headers, body)] = orchestrator.requests
    expected_signature = hmac.new(
        b"honey", headers[TIMESTAMP].encode() + b"." + body, hashlib.sha256
    ).hexdigest()
    assert headers[SIGNATURE] == f"sha256={expected_signature}"


@pytest.mark.parametrize("failure", ["refused", "unreachable", "bad"])
async def test_url_and_secret_are_in_no_error_log_or_repr(
    orchestrator: Orchestrator, failure: str, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    caplog.set_level(logging.WARNING, logger="httpx")  # As `queenright serve` sets it.
    orchestrator.answers = [(500, b"down")]
    url = {
        "refused": orchestrator.url,
        "unreachable": f"http://127.0.0.1:9/{TOKEN}",
        "bad": f"ftp://u:{TOKEN}@127.0.0.1/{TOKEN}",
    }[failure]
    webhook = OrchestratorWebhook(SecretStr(url), secret=SecretStr("honeypot"))

    with pytest.raises(OrchestratorError) as error:
        await webhook.ask(ESCALATION)
    await webhook.close()

    assert error.value.__cause__ is None
    for output in (str(error.value), repr(webhook), caplog.text):
        assert TOKEN not in output
        assert "honeypot" not in output
    assert "127.0.0.1" in str(error.value)


async def test_orchestrator_url_is_called_and_its_decision_applied(
    orchestrator: Orchestrator, tmp_path: Path
) -> None:
    """002 §11: an escalation reaches the orchestrator, and its decision is carried out."""
    orchestrator.answers = [(200, b'{"decision": "more_time", "more_time_seconds": 60, "reason": "slow"}')]
    settings = demo_settings(tmp_path / "storage", orchestrator="webhook", webhook_url=orchestrator.url)

    async with serving(settings) as running:
        service = running.service
        await service.ingest(list(looping(service.clock(), times=3)))
        await service.health.escalate_to_orchestrator("looper", "it looks odd", by="ada")
        await until(lambda: not service.interventions.ledger.pending, "the decision is applied")
        [decided_escalation] = await service.health.escalations()

    escalation = json.loads(orchestrator.requests[0][1])
    assert (escalation["agent_id"], escalation["reason"]) == ("looper", "it looks odd")
    assert escalation["context"]
    assert escalation["answer_url"].startswith("http")
    assert (
        decided_escalation.decision,
        decided_escalation.decided_by,
        decided_escalation.decision_reason,
    ) == (
        "more_time",
        "orchestrator",
        "slow",
    )
