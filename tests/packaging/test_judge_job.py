"""The files that run the judge as a job in containers have valid commands and settings."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import Any

import typer
import yaml

from queenright.cli.app import app
from queenright.server.settings import load_settings

ROOT = Path(__file__).parents[2]


def parse_command(words: list[str]) -> dict[str, Any]:
    """Parse a command without running it, and return its options by name."""
    command: Any = typer.main.get_command(app)
    name, *words = words
    while words and words[0] in getattr(command, "commands", {}):
        name, *words = words
        command = command.commands[name]
    options: dict[str, Any] = command.make_context(name, words).params
    return options


def test_cron_job_runs_a_known_command() -> None:
    volume, job = yaml.safe_load_all((ROOT / "compose" / "judge-cronjob.yaml").read_text())
    pod = job["spec"]["jobTemplate"]["spec"]["template"]["spec"]
    [container] = pod["containers"]
    [script] = container["args"]
    line = script.replace("\\\n", " ").splitlines()[0]

    options = parse_command(shlex.split(line))

    assert options["prometheus"] == "http://prometheus.monitoring:9090"
    assert str(options["state"]) in [mount["mountPath"] for mount in container["volumeMounts"]]
    assert pod["volumes"][0]["persistentVolumeClaim"]["claimName"] == volume["metadata"]["name"]
    assert job["spec"]["concurrencyPolicy"] == "Forbid"


def test_compose_file_runs_a_known_command() -> None:
    compose = yaml.safe_load((ROOT / "compose" / "judge-job.yaml").read_text())
    judge = compose["services"]["judge"]

    options = parse_command(judge["command"])

    assert options["interval"] == 120
    assert str(options["state"]).startswith("/var/lib/queenright/")
    assert judge["volumes"] == ["judge-state:/var/lib/queenright"]


def test_compose_service_uses_the_stack_next_to_it() -> None:
    judging = load_settings(ROOT / "compose" / "queenright.yaml").judging

    assert judging.model_dump(mode="json")["prometheus_url"] == "http://prometheus:9090"
    assert judging.model_dump(mode="json")["tempo_url"] == "http://tempo:3200"
