"""The services of docker-compose.yml and compose/cluster.yaml start, and an alert arrives."""

from __future__ import annotations

import contextlib
import json
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.packaging import test_kubernetes, test_kubernetes_cluster
from tests.packaging.stack import NO_START_GRACE, Stack, create_stack, read_services
from tests.packaging.test_compose import COMPOSE, prepare
from tests.waiting import until

CLUSTER = COMPOSE.parent / "compose" / "cluster.yaml"
WITHOUT_PROGRAM = {"grafana", "otel-collector", "probe", "tempo", "tempo-volume"}
# A server that stands in for Slack and the dead man's switch.
RECEIVER = """\
import http.server

class Handler(http.server.BaseHTTPRequestHandler):
    def do_POST(self):
        body = self.rfile.read(int(self.headers["Content-Length"]))
        print(self.path, body.decode(), flush=True)
        self.send_response(200)
        self.end_headers()
        self.wfile.write(b"ok")

http.server.ThreadingHTTPServer(("", 8080), Handler).serve_forever()
"""
AGENT = """\
import sys
from queenright.instrumentation import Worker

with Worker(sys.argv[1]) as worker:
    for _ in range(25):
        with worker.step("researcher") as step:
            with step.tool("search", {"q": "hive"}) as call:
                call.result("nothing")
            step.verdict("RETRY")
    sys.stdin.read()
"""


@pytest.fixture
def secrets(tmp_path: Path) -> Path:
    """Return the secrets that `make compose` prepares for a user with Slack and a dead man's switch."""
    folder = tmp_path / "secrets"
    prepare(folder)
    (folder / "slack_api_url").write_text("http://receiver.example:8080/slack")
    (folder / "deadman_url").write_text("http://receiver.example:8080/deadman")
    prepare(folder)
    return folder


def add_receiver(services: dict[str, dict[str, Any]]) -> dict[str, dict[str, Any]]:
    """Return the services with the receiver, and without a start grace."""
    for service in services.values():
        if service["image"].startswith("queenright:"):
            service["environment"] |= NO_START_GRACE
    receiver = {
        "image": "python:0",
        "command": ["-c", RECEIVER],
        "networks": {"default": {"aliases": ["receiver.example"]}},
        "secrets": {},
    }
    return services | {"receiver": receiver}


@pytest.fixture
def single(tmp_path: Path, secrets: Path) -> Iterator[Stack]:
    with create_stack(tmp_path, add_receiver(read_services(secrets, COMPOSE))) as new_stack:
        yield new_stack


@pytest.fixture
def cluster(tmp_path: Path, secrets: Path) -> Iterator[Stack]:
    with create_stack(tmp_path, add_receiver(read_services(secrets, COMPOSE, CLUSTER))) as new_stack:
        yield new_stack


@contextlib.contextmanager
def run_looping_agent(stack: Stack, secrets: Path, name: str) -> Iterator[None]:
    """Run an agent that repeats a call, in the namespaces of the receiver."""
    receiver = stack.services["receiver"]
    # The agent sends to the service directly, because no collector runs here that would add the token.
    token = (secrets / "queenright_token").read_text()
    variables = {
        "OTEL_EXPORTER_OTLP_ENDPOINT": "http://queenright:4318",
        "OTEL_EXPORTER_OTLP_HEADERS": f"Authorization=Bearer%20{token}",
        "QUEENRIGHT_URL": "http://queenright:8420",
        "QUEENRIGHT_TOKEN": token,
    }
    settings = [f"{key}={value}" for key, value in variables.items()]
    command = receiver.namespace_command("env", *settings, "python", "-c", AGENT, name)
    with subprocess.Popen(command, stdin=subprocess.PIPE) as process:
        try:
            yield
        finally:
            process.communicate()


def read_bodies(stack: Stack, path: str) -> list[Any]:
    """Return the bodies posted to a path of the receiver."""
    lines = [line.partition(" ") for line in stack.services["receiver"].log.read_text().splitlines()]
    return [json.loads(body) for request_path, _, body in lines if request_path == path]


def list_slack_messages(stack: Stack, agent: str) -> list[Any]:
    """Return the bodies of the messages to Slack about an agent."""
    return [body for body in read_bodies(stack, "/slack") if agent in json.dumps(body)]


def list_probe_urls() -> set[str]:
    """Return the URLs that the probes in the Kubernetes files request; the pods run the same command."""
    containers = (test_kubernetes.CONTAINER, test_kubernetes_cluster.CONTAINER)
    ports = {port["name"]: port["containerPort"] for port in test_kubernetes.CONTAINER["ports"]}
    http_probes = [
        container[f"{kind}Probe"]["httpGet"] for container in containers for kind in ("liveness", "readiness")
    ]
    return {f"http://127.0.0.1:{ports[get['port']]}{get['path']}" for get in http_probes}


async def test_services_start_in_order_and_a_ticket_reaches_slack(single: Stack, secrets: Path) -> None:
    await single.start_all()
    with run_looping_agent(single, secrets, "looping_agent"):
        await until(
            lambda: list_slack_messages(single, "looping_agent"),
            "Slack has a message about the agent",
            seconds=120,
        )
    await until(lambda: read_bodies(single, "/deadman"), "Prometheus' watchdog pings the dead man's switch")
    responses = {url: single.services["queenright"].has_response(url) for url in list_probe_urls()}
    codes = {name: service.stop() for name, service in single.services.items() if name != "receiver"}

    assert set(read_services(secrets, COMPOSE)) - set(single.services) == WITHOUT_PROGRAM
    assert len(list_slack_messages(single, "looping_agent")) == 1
    assert responses == dict.fromkeys(responses, True)
    assert codes == dict.fromkeys(codes, 0)
    assert "Traceback" not in single.services["queenright"].log.read_text()


async def test_second_process_takes_over_and_notifies(cluster: Stack, secrets: Path) -> None:
    await cluster.start_all()
    with run_looping_agent(cluster, secrets, "first_agent"):
        await until(lambda: list_slack_messages(cluster, "first_agent"), "Slack has a message", seconds=120)
    cluster.services["queenright"].kill()
    with run_looping_agent(cluster, secrets, "second_agent"):
        await until(lambda: list_slack_messages(cluster, "second_agent"), "Slack has a message", seconds=120)

    assert set(read_services(secrets, COMPOSE, CLUSTER)) - set(cluster.services) == WITHOUT_PROGRAM
    assert [len(list_slack_messages(cluster, name)) for name in ("first_agent", "second_agent")] == [1, 1]
