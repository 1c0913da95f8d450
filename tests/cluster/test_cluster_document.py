"""Runs the commands in docs/cluster.md with a new database and the nats-server that they start."""

from __future__ import annotations

import contextlib
import os
import re
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest
import yaml

from queenright.health.cluster.cluster_lease import LEASE_SECONDS
from queenright.server.otlp.protobuf_split import MAX_PIECE
from queenright.server.settings import ClusterSettings, load_settings
from tests.databases import Postgres
from tests.ports import reserve_port

PAGE = (Path(__file__).parents[2] / "docs" / "cluster.md").read_text("utf-8")
BLOCKS = re.findall(r"```sh\n(.*?)```", PAGE.split("## Start two processes")[1].split("\n## ")[0], re.DOTALL)
DATABASE = "postgresql://queenright:PASSWORD@127.0.0.1/queenright"


@contextlib.contextmanager
def reserve_ports(count: int) -> Iterator[list[str]]:
    with contextlib.ExitStack() as stack:
        yield [str(stack.enter_context(reserve_port(f"port {number}"))) for number in range(count)]


def wait_for(port: str) -> None:
    deadline = time.monotonic() + 60
    while True:
        with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", int(port)), 1):
            return
        assert time.monotonic() < deadline, f"nothing listens on port {port}"
        time.sleep(0.05)


@pytest.fixture
def database(postgres: Postgres) -> Iterator[str]:
    """Return the URL of a database without tables, because the first owner creates them."""
    url = postgres.empty()
    yield url
    postgres.drop(url)


def test_two_processes_start_as_documented(tmp_path: Path, database: str) -> None:
    nats_command, first_command, second_command, status_command = BLOCKS
    # Use ports that no other test uses. These programs are not on PATH here.
    programs = {"PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"}
    if "NATS_BIN" in os.environ:
        nats_command = nats_command.replace("nats-server", os.environ["NATS_BIN"], 1)
    first_command = first_command.rstrip() + " --port 8420 --otlp-port 4318\n"
    with reserve_ports(5) as ports, contextlib.ExitStack() as stack:
        port_map = dict(zip(("4222", "8420", "4318", "8421", "4319"), ports, strict=True))

        def replace_placeholders(block: str) -> str:
            block = block.replace(DATABASE, database)
            return re.sub(r"\b(4222|8420|4318|8421|4319)\b", lambda match: port_map[match[0]], block)

        def start(block: str, port: str) -> subprocess.Popen[bytes]:
            log = stack.enter_context((tmp_path / f"{port}.log").open("wb"))
            process = subprocess.Popen(
                [
                    "sh",
                    "-ec",
                    re.sub(r"(?m)^(queenright|nats-server|/)", r"exec \1", replace_placeholders(block)),
                ],
                cwd=tmp_path,
                env=os.environ | programs,
                stdout=log,
                stderr=log,
            )
            stack.callback(process.wait, 60)
            stack.callback(process.send_signal, signal.SIGTERM)
            wait_for(port_map[port])
            return process

        start(nats_command, "4222")
        start(first_command, "8420")
        start(second_command, "8421")
        deadline = time.monotonic() + 60
        while True:
            environment = os.environ | programs | {"QUEENRIGHT_URL": f"http://127.0.0.1:{port_map['8420']}"}
            result = subprocess.run(
                ["sh", "-ec", replace_placeholders(status_command)],
                cwd=tmp_path,
                env=environment,
                capture_output=True,
                text=True,
                check=True,
            )
            roles = [line.split()[0] for line in result.stdout.splitlines()]
            if sorted(roles) == ["0", "0", "owner", "owner", "standby", "standby"]:
                break
            assert time.monotonic() < deadline, result.stdout
            time.sleep(0.1)
        series = [read_metric_names_of_port(port_map[port]) for port in ("8420", "8421")]

    owner, standby = sorted(series, key=len, reverse=True)
    assert "queenright_agents" in owner
    # Process metrics differ between processes, so rules and dashboards that sum over processes count nothing
    # twice.
    process_metrics = set(re.findall(r"`(queenright_\w+_total)`", PAGE))
    assert {name for name in standby if not name.startswith("queenright_cluster_")} <= process_metrics


def test_settings_of_the_page_are_valid(tmp_path: Path) -> None:
    settings, scrape = re.findall(r"```yaml\n(.*?)```", PAGE, re.DOTALL)
    (tmp_path / "queenright.yaml").write_text(settings)

    cluster = load_settings(tmp_path / "queenright.yaml").cluster

    assert cluster.nats is not None
    assert cluster.replicas == len(cluster.nats.split(","))
    [job] = yaml.safe_load(scrape)["scrape_configs"]
    assert (job["job_name"], len(job["static_configs"][0]["targets"])) == ("queenright", 2)


def test_defaults_on_the_page_are_those_of_the_settings() -> None:
    cluster = ClusterSettings()

    assert f"| `cluster.replicas` ({cluster.replicas}) |" in PAGE
    assert f"| `cluster.max_backlog_bytes` ({cluster.max_backlog_bytes >> 30} GiB) |" in PAGE
    assert f"pieces of at most {MAX_PIECE >> 10} KiB" in PAGE
    assert f"older than {LEASE_SECONDS:g} s ends" in PAGE


def read_metric_names_of_port(port: str) -> set[str]:
    exposition = httpx.get(f"http://127.0.0.1:{port}/metrics", trust_env=False).text
    return set(re.findall(r"^# TYPE (\S+)", exposition, re.MULTILINE))
