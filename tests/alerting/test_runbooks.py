"""Every alert has a runbook, the runbooks are correct, and their commands work."""

from __future__ import annotations

import re
import shlex
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
import typer
from promql_parser import parse
from pydantic import BaseModel

from queenright.alerting.files import alertmanager_folder, read_runbook, runbooks_folder
from queenright.alerting.rules import Alert, rule_groups
from queenright.alerting.rules.burn import SPEEDS
from queenright.cli.app import app
from queenright.health.objectives import LATE_SHARE, compute_burn_threshold
from queenright.health.settings import HealthSettings
from queenright.instrumentation import names
from queenright.server.ops.child_processes import Child
from queenright.server.settings import Settings
from tests.ports import reserve_port
from tests.programs import program, run

ROOT = Path(__file__).parents[2]
ALERTS = [rule for group in rule_groups(HealthSettings()) for rule in group.rules if isinstance(rule, Alert)]
NAMES = sorted({alert.name for alert in ALERTS} | {names.ALERT_INTERVENTION})
SYMPTOM_ALERTS = sorted({alert.name for alert in ALERTS if alert.source == names.SOURCE_RULES})
UNITS = {"s": 1.0, "min": 60.0, "h": 3600.0, "%": 0.01, "": 1.0}
EXAMPLE = {"agent": "bee", "breaker": "tool_execution:bee:search", "cluster": "default"}


def load_runbook(name: str) -> str:
    text = read_runbook(name)
    assert text is not None, f"{name} has no runbook"
    return text


def read_section(name: str, heading: str) -> str:
    return load_runbook(name).split(f"## {heading}\n", 1)[1].split("\n## ", 1)[0]


def list_shell_lines(text: str) -> list[str]:
    blocks = "\n".join(re.findall(r"```sh\n(.*?)```", text, re.DOTALL))
    return [line for line in blocks.splitlines() if line]


def list_inline_code(text: str) -> list[str]:
    return re.findall(r"`(queenright [^`]+)`", text)


def check_command(line: str) -> None:
    """Parse a command line with its options and arguments, without running it."""
    command: Any = typer.main.get_command(app)
    command_name, *words = shlex.split(line)
    while words and words[0] in getattr(command, "commands", {}):
        command_name, *words = words
        command = command.commands[command_name]
    assert not (words and getattr(command, "commands", None) and not words[0].startswith("-")), line
    if words or not getattr(command, "invoke_without_command", False):
        command.make_context(command_name, words)


def read_default(path: str) -> object:
    """Return the default at a dotted path of queenright.yaml; raise KeyError if there is none."""
    value: object = Settings.model_construct(**{n: f.default for n, f in Settings.model_fields.items()})
    for part in path.split("."):
        if not isinstance(value, BaseModel) or part not in type(value).model_fields:
            raise KeyError(path)
        value = getattr(value, part)
    return value


def test_every_alert_has_a_runbook_and_every_runbook_an_alert() -> None:
    assert sorted(path.stem for path in runbooks_folder().glob("*")) == NAMES


@pytest.mark.parametrize("name", NAMES)
def test_runbook_has_all_sections(name: str) -> None:
    text = load_runbook(name)
    headings = re.findall(r"^## (.+)$", text, re.MULTILINE)
    assert text.startswith(f"# {name}\n")
    assert headings[:3] == ["Meaning", "What you see", "First three commands"]
    assert headings[-3:] == ["False alarm?", "Silence", "Escalate"]
    assert headings[3:-3] in ([], ["Then"])
    assert all(read_section(name, heading).strip() for heading in headings)


@pytest.mark.parametrize("name", NAMES)
def test_runbook_starts_with_three_commands(name: str) -> None:
    first = read_section(name, "First three commands")
    assert len(list_shell_lines(first)) == 3
    assert len(set(list_shell_lines(first))) == 3
    assert re.findall(r"^(\d)\. ", first, re.MULTILINE) == ["1", "2", "3"]


def test_runbook_sections_are_unique() -> None:
    """A text that fits every alert does not help."""
    for heading in ("Meaning", "False alarm?", "Escalate", "First three commands"):
        sections = [read_section(name, heading) for name in NAMES]
        assert len(set(sections)) == len(sections), heading


@pytest.mark.parametrize("name", NAMES)
def test_queenright_commands_in_runbooks_exist(name: str) -> None:
    text = load_runbook(name)
    for line in [*list_shell_lines(text), *list_inline_code(text)]:
        if line.startswith("queenright "):
            check_command(line)


def test_unknown_command_is_detected() -> None:
    check_command("queenright breakers reset NAME")
    for line in ("queenright mend", "queenright breakers shut NAME", "queenright list --wrong"):
        with pytest.raises((Exception, AssertionError)):
            check_command(line)


@pytest.mark.parametrize("name", NAMES)
def test_external_commands_use_known_paths_and_metrics(name: str) -> None:
    """curl for Queenright's API, Prometheus and Alertmanager; promtool with valid PromQL."""
    for line in list_shell_lines(load_runbook(name)):
        command_name, *words = shlex.split(line)
        if command_name == "curl":
            path = re.sub(r"^http://127\.0\.0\.1:(\d+)", "", words[-1]).partition("?")[0]
            port = re.findall(r"127\.0\.0\.1:(\d+)", words[-1])[0]
            assert path in KNOWN_METRICS[port], line
        elif command_name == "promtool":
            assert words[:3] == ["query", "instant", "http://127.0.0.1:9090"]
            parse(words[3])
            for metric in re.findall(r"\bqueenright_\w+", words[3].replace(".*", "")):
                assert metric.endswith("_") or _is_known(metric), line
        else:
            assert command_name in {"queenright", "amtool", "date"}, line


KNOWN_METRICS = {
    "8420": {
        "/healthz",
        "/readyz",
        "/api/agents/NAME/health",
        "/api/breakers",
        "/api/notifications",
        "/api/recoveries",
    },
    "9090": {"/-/ready", "/api/v1/targets"},
    "9093": {"/-/ready"},
}


def _is_known(metric: str) -> bool:
    base_name = re.sub(r"_(bucket|sum|count)$", "", metric)
    return metric in names.METRICS or (
        base_name in names.METRICS and names.METRICS[base_name].kind == "histogram"
    )


def test_paths_in_runbooks_are_served() -> None:
    server_source = "\n".join(path.read_text() for path in (ROOT / "server/queenright/server").rglob("*.py"))
    for path in KNOWN_METRICS["8420"]:
        # Routers of the API have its prefix.
        pattern = path.removeprefix("/api").replace("/NAME", r"/\{agent_id:agent\}")
        assert re.search(rf'(?:\.get\(\s*|prefix=)"(?:/api)?{pattern}"', server_source), path


@pytest.mark.parametrize("name", NAMES)
def test_runbook_settings_exist_with_their_defaults(name: str) -> None:
    """``block.setting`` (10 min): a following setting without a block is in the same block."""
    block = ""
    mentions = re.findall(
        r"`((?:[a-z_]+\.)*[a-z_]+)(?:: [^`]*)?`(?: \((\d+(?:\.\d+)?|\d+,\d+)(?: (min|s|h|%))?\))?",
        load_runbook(name),
    )
    for path, number, unit in mentions:
        is_full_path = path.partition(".")[0] in Settings.model_fields
        if not is_full_path and not number:
            continue
        full_path = path if is_full_path else _complete_path(block, path)
        value = read_default(full_path)
        block = full_path.rpartition(".")[0]
        if number:
            assert float(str(value)) == pytest.approx(float(number.replace(",", "")) * UNITS[unit]), full_path


@pytest.mark.parametrize(
    ("name", "budget"),
    [
        ("QueenrightBadStepsBurn", HealthSettings().rules.bad_steps.error_budget),
        ("QueenrightSlowInterventionsBurn", LATE_SHARE),
    ],
)
def test_burn_runbooks_list_the_firing_shares(name: str, budget: float) -> None:
    rows = re.findall(
        r"^\| `(\w+)` \| (\w+) \| ([\d.]+) % \w+ \| (\w+) \|$", read_section(name, "Meaning"), re.M
    )
    assert rows == [
        (speed.long, speed.short, f"{100 * compute_burn_threshold(budget, speed.factor):.3g}", speed.severity)
        for speed in SPEEDS
    ]


def _complete_path(block: str, path: str) -> str:
    while block:
        try:
            read_default(f"{block}.{path}")
        except KeyError:
            block = block.rpartition(".")[0]
        else:
            return f"{block}.{path}"
    raise KeyError(f"no setting {path!r} in the block of the preceding one")


@pytest.mark.parametrize("name", NAMES)
def test_runbook_references_exist(name: str) -> None:
    text = load_runbook(name)
    for path in re.findall(r"`(docs/[^`]+)`", text):
        assert (ROOT / path).is_file(), path
    for target in re.findall(r"\]\(([^)]+)\)", text):
        assert (runbooks_folder() / target).is_file(), target
    for other in re.findall(r"\bQueenright[A-Z]\w+", text):
        assert other in NAMES, other


@pytest.mark.parametrize("name", SYMPTOM_ALERTS)
def test_symptom_runbook_states_that_it_does_not_page(name: str) -> None:
    assert re.search(r"pages no one", read_section(name, "What you see"))


@pytest.mark.parametrize("alert", ALERTS, ids=lambda alert: f"{alert.name}-{alert.severity}")
def test_runbook_states_whether_it_pages(alert: Alert) -> None:
    if alert.source == names.SOURCE_MONITOR and alert.severity in ("critical", "warning"):
        word = "page" if alert.severity == "critical" else "message in Slack"
        assert word in read_section(alert.name, "What you see")


@pytest.fixture(scope="module")
def port() -> Iterator[int]:
    with reserve_port() as port:
        yield port


@pytest.fixture
async def alertmanager(tmp_path: Path, port: int) -> AsyncIterator[httpx.AsyncClient]:
    """Yield a real Alertmanager without receivers."""
    config = tmp_path / "alertmanager.yml"
    config.write_text("route: {receiver: nobody}\nreceivers: [{name: nobody}]\n")
    child = await Child.start(
        "Alertmanager",
        [
            program("alertmanager"),
            f"--config.file={config}",
            f"--storage.path={tmp_path / 'data'}",
            f"--web.listen-address=127.0.0.1:{port}",
            "--cluster.listen-address=",
        ],
        tmp_path / "alertmanager.log",
    )
    try:
        await child.wait_ready(f"http://127.0.0.1:{port}/-/ready")
        async with httpx.AsyncClient(base_url=f"http://127.0.0.1:{port}/api/v2") as client:
            yield client
    finally:
        await child.stop()


async def test_runbook_silence_matches_only_its_alert(alertmanager: httpx.AsyncClient, port: int) -> None:
    """amtool itself parses each command; the silence is compared with posted alerts."""
    alerts = {name: _list_labels(name) for name in NAMES}
    posted_alerts = [{"labels": labels} for labels in alerts.values()]
    (await alertmanager.post("/alerts", json=posted_alerts)).raise_for_status()
    for name in NAMES:
        lines = [
            line for line in list_shell_lines(read_section(name, "Silence")) if line.startswith("amtool ")
        ]
        if name == "QueenrightWatchdog":
            assert lines == []
            continue
        [line] = lines
        command = re.sub(
            r"\b(\w+)=(?:NAME|WINDOW)\b",
            lambda match: f"{match[1]}={alerts[name][match[1]]}",  # noqa: B023  # runs within this iteration
            line,
        )
        words = shlex.split(command.replace("127.0.0.1:9093", f"127.0.0.1:{port}"))
        result = run("amtool", *words[1:])
        assert result.returncode == 0, f"{line}: {result.stderr}"
        silence = result.stdout.strip()
        body = (await alertmanager.get("/alerts")).json()
        silenced_names = [
            listed_alert["labels"]["alertname"]
            for listed_alert in body
            if listed_alert["status"]["silencedBy"] == [silence]
        ]
        assert silenced_names == [name], line
        (await alertmanager.delete(f"/silence/{silence}")).raise_for_status()


def _list_labels(name: str) -> dict[str, str]:
    """Return the labels that the alert has and its runbook mentions."""
    mentions = re.findall(r"\b(\w+)=(?:NAME|WINDOW)\b", read_section(name, "Silence"))
    return {"alertname": name} | {label: EXAMPLE.get(label, f"some-{label}") for label in mentions}


@pytest.mark.parametrize("alert", ALERTS, ids=lambda alert: f"{alert.name}-{alert.severity}")
def test_silence_labels_are_on_the_alert(alert: Alert) -> None:
    for label in set(_list_labels(alert.name)) - {"alertname"}:
        assert label in alert.labels or f"$labels.{label} " in alert.summary + alert.description, label


def test_amtool_commands_name_the_alertmanager() -> None:
    assert alertmanager_folder().is_dir()
    for name in NAMES:
        for line in list_shell_lines(load_runbook(name)):
            if line.startswith("amtool "):
                assert "--alertmanager.url=http://127.0.0.1:9093" in line
