"""
The judge as a job that only reads a real Prometheus, which scrapes real agents in their own process.

Of three agents, one loops, one waits for its user, and one is healthy. They send no telemetry.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from typer.testing import CliRunner, Result

from queenright.cli.app import app
from queenright.health.findings import FindingKind, Severity
from queenright.health.settings import HealthSettings
from queenright.health.tickets.ticket import TicketStatus
from queenright.judge.quoting import unquote
from queenright.judge.rules_model import RulesModel
from queenright.judge.settings import JudgeSettings
from queenright.judge.stack.http import StackAddress, StackUnavailableError
from queenright.judge.stack.prometheus import Prometheus
from queenright.judge.stack.tempo import Tempo
from queenright.judge.stack.tools import QUERY_METRICS, CallLimit, stack_tools
from queenright.judge.stack_job import CheckResult, StackJudge
from queenright.server.ops.programs import find_program
from queenright.server.ops.sockets import find_free_port
from queenright.server.serving import RunningService
from tests.end_to_end.conftest import AGENTS
from tests.judge.conftest import TalkingModel
from tests.judge.conftest import reply_with_call as tool_call
from tests.judge.stack_parts import make_loop_trace, serve_answers

LOOPING_AGENT, WAITING_AGENT, HEALTHY_AGENT = "looping_agent", "waiting_agent", "healthy_agent"

FAST_SETTINGS: dict[str, Any] = {
    "judge": {"start_grace_seconds": 1, "triage_timeout_seconds": 10},
    "stall": {"unknown_seconds": 5, "idle_seconds": 5, "llm_seconds": 5, "tool_seconds": 5},
    "tickets": {"hold_seconds": 0},
}
SETTINGS = HealthSettings.model_validate(FAST_SETTINGS)


class Stack:
    """A Prometheus that scrapes three agents in one process every half second."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._client = httpx.Client(trust_env=False)
        self._recover, self._stop = folder / "recover", folder / "stop"
        port_file = folder / "port"
        self.agents = subprocess.Popen(
            [sys.executable, AGENTS / "metrics_only.py", port_file, self._recover, self._stop]
        )
        until(port_file.exists, "the agents serve their metrics")
        self._config = config = folder / "prometheus.yml"
        self._targets = f"    static_configs: [{{targets: ['127.0.0.1:{port_file.read_text()}']}}]\n"
        self._write_config(self._targets)
        port = find_free_port("127.0.0.1", 0, what="Prometheus", option="")
        self.url = f"http://127.0.0.1:{port}"
        program = find_program("prometheus")
        assert program is not None, "this test needs the prometheus program: `make test` fetches it"
        with (folder / "prometheus.log").open("wb") as log:
            self.prometheus = subprocess.Popen(
                [
                    program,
                    f"--config.file={config}",
                    f"--storage.tsdb.path={folder / 'data'}",
                    f"--web.listen-address=127.0.0.1:{port}",
                ],
                stdout=log,
                stderr=log,
            )
        until(
            lambda: self.query_value("count(queenright_worker_info offset 2s)") == 3, "all three are scraped"
        )

    def _write_config(self, targets: str) -> None:
        self._config.write_text(
            "global: {scrape_interval: 500ms, scrape_timeout: 500ms}\n"
            f"scrape_configs:\n  - job_name: workers\n{targets}"
        )

    def remove_targets(self) -> None:
        self._write_config("")
        self.prometheus.send_signal(signal.SIGHUP)
        until(lambda: self.is_empty("up or queenright_worker_info"), "nothing is scraped")

    def restore_targets(self) -> None:
        self._write_config(self._targets)
        self.prometheus.send_signal(signal.SIGHUP)
        until(lambda: self.query_value("count(queenright_worker_info)") == 3, "all three are scraped again")

    def is_empty(self, promql: str) -> bool:
        """Return whether a query has an empty result; without a response, return False."""
        try:
            response = self._client.get(f"{self.url}/api/v1/query", params={"query": promql}).json()
        except (httpx.HTTPError, ValueError):
            return False
        return response["status"] == "success" and not response["data"]["result"]

    def query_value(self, promql: str) -> float:
        """Return the current value of a query; 0 if it is empty."""
        try:
            response = self._client.get(f"{self.url}/api/v1/query", params={"query": promql}).json()
        except (httpx.HTTPError, ValueError):
            return 0.0  # Prometheus is not ready yet
        result = response["data"]["result"]
        return float(result[0]["value"][1]) if result else 0.0

    def recover(self) -> None:
        self._recover.touch()
        until(
            lambda: self.query_value(f"queenright_worker_steps_since_accept{{agent='{LOOPING_AGENT}'}}") == 0,
            "the looping agent recovers",
        )

    def kill(self) -> None:
        self.agents.send_signal(signal.SIGKILL)
        self.agents.wait()

    def close(self) -> None:
        self._client.close()
        self.agents.kill()
        self.prometheus.terminate()
        self.agents.wait()
        self.prometheus.wait()


def until(condition: Callable[[], bool], description: str, *, seconds: float = 60) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > deadline:
            pytest.fail(f"did not happen within {seconds:.0f} s: {description}")
        time.sleep(0.05)


@pytest.fixture
def stack(tmp_path: Path) -> Iterator[Stack]:
    """Yield a stack for tests in which the agents change."""
    with contextlib.closing(Stack(tmp_path)) as new_stack:
        yield new_stack


@pytest.fixture(scope="module")
def unchanging_stack(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stack]:
    """Yield a stack for tests that do not change the agents."""
    with contextlib.closing(Stack(tmp_path_factory.mktemp("steady"))) as new_stack:
        yield new_stack


def make_judge(url: str, storage: Path, **options: Any) -> StackJudge:
    arguments: dict[str, Any] = {"tempo": None, "settings": SETTINGS, "judge": JudgeSettings(), **options}
    return StackJudge(prometheus=Prometheus(StackAddress.parse(url)), storage=storage, **arguments)


async def run_judge(judge: StackJudge) -> CheckResult:
    await judge.open()
    try:
        return await judge.check()
    finally:
        await judge.close()


async def test_looping_worker_is_distinguished_from_waiting_and_healthy(stack: Stack, tmp_path: Path) -> None:
    first = await run_judge(make_judge(stack.url, tmp_path / "state"))
    second = await run_judge(make_judge(stack.url, tmp_path / "state"))

    assert {health.vitals.agent_id for health in first.workers} == {
        LOOPING_AGENT,
        WAITING_AGENT,
        HEALTHY_AGENT,
    }
    [ticket] = first.tickets
    assert ticket.agent_id == LOOPING_AGENT
    assert ticket.session_id.startswith("workers/127.0.0.1:")
    assert ticket.kind is FindingKind.RETRY_STORM
    assert ticket.severity is Severity.CRITICAL
    assert ticket.status is TicketStatus.INTERVENING
    assert LOOPING_AGENT in ticket.analysis
    assert [(row.ticket_id, row.occurrences) for row in second.tickets] == [(ticket.ticket_id, 2)]

    stack.recover()
    third = await run_judge(make_judge(stack.url, tmp_path / "state"))
    assert third.tickets == ()
    assert [(row.ticket_id, row.status) for row in third.closed_tickets] == [
        (ticket.ticket_id, TicketStatus.RESOLVED)
    ]

    stack.kill()
    silence = (
        "time() - last_over_time("
        f"queenright_worker_last_activity_timestamp_seconds{{agent='{HEALTHY_AGENT}'}}[1h])"
    )
    until(lambda: stack.query_value(silence) > 6, "no metrics arrive")
    fourth = await run_judge(make_judge(stack.url, tmp_path / "state"))
    assert (fourth.tickets, fourth.down) == ((), 3), "an ended process is not a page; no agent was unhealthy"


async def test_model_gets_only_suspects_and_cannot_dismiss_binding_findings(
    unchanging_stack: Stack, tmp_path: Path
) -> None:
    judge_model = TalkingModel(lambda messages, tools: tool_call("set_output", health_verdict="healthy"))
    queen_model = TalkingModel(
        lambda messages, tools: tool_call(
            "dismiss_ticket",
            ticket_id=(unquote("ticket", messages[-1].content) or {})["ticket_id"],
            reason="the logs say that it is fine",
        )
    )

    check = await run_judge(
        make_judge(unchanging_stack.url, tmp_path / "state", models=(judge_model, queen_model))
    )

    [ticket] = check.tickets
    assert ticket.severity is Severity.CRITICAL
    assert ticket.status is TicketStatus.INTERVENING
    assert len(judge_model.conversations) == 1, "no other agent needs a model"
    worker = unquote("worker", judge_model.conversations[0][-1].content)
    assert worker is not None
    assert worker["agent_id"] == LOOPING_AGENT
    assert worker["recent_verdicts"] is None
    assert worker["steps_since_last_accept"] >= 25


async def test_failing_model_leaves_minor_findings_unknown(unchanging_stack: Stack, tmp_path: Path) -> None:
    bands = {"bands": {"warning": 5, "medium": 10, "high": 100_000, "critical": 1_000_000}}
    failing_model = TalkingModel(lambda messages, tools: (_ for _ in ()).throw(RuntimeError("no key")))
    lenient_settings = HealthSettings.model_validate(
        FAST_SETTINGS | bands | {"stall": {"unknown_seconds": 3}}
    )
    until(
        lambda: (
            unchanging_stack.query_value(
                f"time() - queenright_worker_last_progress_timestamp_seconds{{agent='{LOOPING_AGENT}'}}"
            )
            > 4
        ),
        "the looping agent makes no progress",
    )

    loops = lenient_settings.model_copy(
        update={"loops": lenient_settings.loops.model_copy(update={"consecutive": 1_000})}
    )
    check = await run_judge(
        make_judge(
            unchanging_stack.url, tmp_path / "state", settings=loops, models=(failing_model, failing_model)
        )
    )

    assert check.tickets == ()
    assert check.unknown == 1


async def test_model_queries_of_prometheus_are_limited(unchanging_stack: Stack, tmp_path: Path) -> None:
    def keep_querying(messages: Any, tools: Any) -> Any:
        return tool_call(
            "query_metrics", promql=f"queenright_worker_steps_since_accept{{agent='{LOOPING_AGENT}'}}"
        )

    querying_model = TalkingModel(keep_querying)

    check = await run_judge(
        make_judge(unchanging_stack.url, tmp_path / "state", models=(querying_model, RulesModel()))
    )

    [ticket] = check.tickets
    assert ticket.severity is Severity.CRITICAL, (
        "a model that only queries decides nothing, so the rules apply"
    )
    answers = [message.content for message in querying_model.conversations[-1] if message.role == "tool"]
    metrics = unquote("metrics", answers[0])
    assert metrics is not None
    assert metrics["series"][0]["points"][0][1] >= 25
    assert [unquote("metrics", response) is not None for response in answers[:6]] == [True] * 5 + [False]
    assert "decide with the data that you have" in answers[5]


async def test_trace_shows_the_loop_and_its_node(unchanging_stack: Stack, tmp_path: Path) -> None:
    begin = time.time() - 30

    def answer_tempo(path: str, params: dict[str, str]) -> tuple[int, Any]:
        if path == "/api/search":
            assert params["q"] == f'{{ span.gen_ai.agent.name = "{LOOPING_AGENT}" }}'
            traces = [
                {"traceID": f"{number}af7651916cd43dd8448eb211c80319c", "startTimeUnixNano": f"{number}000"}
                for number in (1, 3, 2)
            ]
            return 200, {"traces": traces}
        return 200, make_loop_trace(LOOPING_AGENT, begin=begin, calls=11)

    async with serve_answers(answer_tempo) as (server, url):
        client = Tempo(StackAddress.parse(url))
        check = await run_judge(make_judge(unchanging_stack.url, tmp_path / "state", tempo=client))

    [ticket] = check.tickets
    assert [path for path, _ in server.requests] == [
        "/api/search",
        "/api/traces/3af7651916cd43dd8448eb211c80319c",
    ]
    assert ticket.node_id == "search_node"
    assert FindingKind.DOOM_LOOP in ticket.active_kinds
    assert ticket.worker_trace_id == "3af7651916cd43dd8448eb211c80319c"


async def test_unavailable_tempo_loses_evidence_and_no_ticket(
    unchanging_stack: Stack, tmp_path: Path
) -> None:
    unavailable = Tempo(StackAddress.parse("http://127.0.0.1:1"))

    check = await run_judge(make_judge(unchanging_stack.url, tmp_path / "state", tempo=unavailable))

    assert [ticket.agent_id for ticket in check.tickets] == [LOOPING_AGENT]


async def test_unreachable_prometheus_is_not_a_healthy_fleet(tmp_path: Path) -> None:
    with pytest.raises(StackUnavailableError, match="cannot be reached"):
        await run_judge(make_judge("http://127.0.0.1:1", tmp_path / "state"))


# -- command ---------------------------------------------------------------------------------------


def judge_command(folder: Path, *arguments: str) -> list[str]:
    config = folder / "queenright.yaml"
    config.write_text(json.dumps({"health_monitoring": FAST_SETTINGS}))
    return [sys.executable, "-m", "queenright.cli.app", "judge", *arguments, "--config", str(config)]


def run_once(folder: Path, *arguments: str) -> Result:
    _, _, _, _, *words = judge_command(folder, "once", *arguments)
    return CliRunner().invoke(app, ["judge", *words])


def test_exit_code_reflects_the_result(unchanging_stack: Stack, tmp_path: Path) -> None:
    prometheus_options = (
        "--prometheus",
        unchanging_stack.url.replace("http://", "http://ada:hunter2hunter2@"),
    )

    result = run_once(tmp_path, *prometheus_options, "--json")
    no_worker = run_once(tmp_path, *prometheus_options, "--selector", '{job="other"}')
    healthy = run_once(tmp_path, *prometheus_options, "--selector", f'{{agent="{HEALTHY_AGENT}"}}')
    no_selector = run_once(tmp_path, *prometheus_options, "--selector", "{job=")
    no_model = run_once(tmp_path, *prometheus_options, "--model", "scripted:nowhere.json")
    unreachable = run_once(tmp_path, "--prometheus", "http://ada:hunter2hunter2@127.0.0.1:1")

    results = (result, no_worker, healthy, no_selector, no_model, unreachable)
    assert [result_row.exit_code for result_row in results] == [1, 3, 0, 2, 2, 3], [
        result_row.stderr for result_row in results
    ]
    [line] = result.stdout.splitlines()
    assert json.loads(line)["agent_id"] == LOOPING_AGENT
    assert "1 worker, 0 tickets" in healthy.stdout
    assert "no workers found" in no_worker.stderr
    assert "--selector" in no_selector.stderr
    assert "http://127.0.0.1:1: " in unreachable.stderr
    assert "--prometheus URL" in unreachable.stderr
    assert not any("hunter2" in result_row.stdout + result_row.stderr for result_row in results)


def test_missing_url_is_a_usage_error(tmp_path: Path) -> None:
    result = run_once(tmp_path)

    assert result.exit_code == 2
    assert "--prometheus URL" in result.stderr


def test_lost_targets_close_no_ticket(stack: Stack, tmp_path: Path) -> None:
    options = ("--prometheus", stack.url, "--state", str(tmp_path / "state"), "--json")
    selector = ("--selector", f'{{instance=~".+",job="workers",agent="{LOOPING_AGENT}"}}')
    results = [run_once(tmp_path, *options, *selector)]
    stack.remove_targets()
    results += [run_once(tmp_path, *options, *selector), run_once(tmp_path, *options, "--allow-empty")]
    stack.restore_targets()
    results += [run_once(tmp_path, *options, *selector)]
    other_selection = run_once(tmp_path, *options, "--selector", f'{{agent="{HEALTHY_AGENT}"}}')

    assert [result.exit_code for result in results] == [1, 3, 3, 1], [result.stderr for result in results]
    tickets = [[json.loads(line)["ticket_id"] for line in result.stdout.splitlines()] for result in results]
    assert len({ticket for [ticket] in tickets}) == 1
    assert "there are tickets, but no worker has metrics" in results[1].stderr
    assert "1 without metrics" in results[1].stderr
    assert other_selection.exit_code == 1, "an existing agent outside the selection has not ended"

    target = json.loads(results[0].stdout)["session_id"]
    stack.remove_targets()
    gone_result = run_once(tmp_path, *options, "--gone", target)
    assert "0 tickets, 0 dismissed, 1 closed" in gone_result.stderr


def test_run_reports_an_empty_fleet_and_continues(stack: Stack, tmp_path: Path) -> None:
    def count_lines(text: str) -> int:
        return (tmp_path / "stderr.txt").read_text().count(text)

    with (tmp_path / "stdout.txt").open("w+") as log_file, (tmp_path / "stderr.txt").open("w+") as error_file:
        command = judge_command(tmp_path, "run", "--prometheus", stack.url, "--interval", "1")
        process = subprocess.Popen(command, stdout=log_file, stderr=error_file, cwd=tmp_path)
        try:
            until(lambda: "critical" in (tmp_path / "stdout.txt").read_text(), "the ticket is printed")
            stack.remove_targets()
            until(lambda: count_lines("no worker has metrics") >= 2, "the empty fleet is printed")
            stack.restore_targets()
            stack.recover()
            until(
                lambda: "resolved" in (tmp_path / "stdout.txt").read_text(),
                "the end of the ticket is printed",
            )
        finally:
            process.send_signal(signal.SIGTERM)
            assert process.wait(timeout=20) == 0
    assert "worker_gone" not in (tmp_path / "stdout.txt").read_text()


@pytest.fixture
def alertmanager(tmp_path: Path) -> Iterator[str]:
    program = find_program("alertmanager")
    assert program is not None, "this test needs the alertmanager program: `make test` fetches it"
    config = tmp_path / "alertmanager.yml"
    config.write_text("route: {receiver: nobody}\nreceivers: [{name: nobody}]\n")
    port = find_free_port("127.0.0.1", 0, what="Alertmanager", option="")
    url = f"http://127.0.0.1:{port}"
    with (tmp_path / "alertmanager.log").open("wb") as log:
        process = subprocess.Popen(
            [
                program,
                f"--config.file={config}",
                f"--storage.path={tmp_path / 'alerts'}",
                f"--web.listen-address=127.0.0.1:{port}",
                "--cluster.listen-address=",
            ],
            stdout=log,
            stderr=log,
        )
    try:
        until(lambda: is_ready(url), "Alertmanager is ready")
        yield url
    finally:
        process.terminate()
        process.wait()


def is_ready(url: str) -> bool:
    try:
        return httpx.get(f"{url}/-/ready").status_code == 200
    except httpx.HTTPError:
        return False


def list_active_alerts(url: str) -> list[tuple[str, str, str]]:
    alerts = httpx.get(f"{url}/api/v2/alerts").json()
    return [
        (alert["labels"]["agent"], alert["labels"]["cause"], alert["labels"]["severity"]) for alert in alerts
    ]


def test_run_sends_a_ticket_and_its_end_to_alertmanager(
    stack: Stack, alertmanager: str, tmp_path: Path
) -> None:
    arguments = ("--prometheus", stack.url, "--alertmanager", alertmanager, "--interval", "1")
    with (tmp_path / "stdout.txt").open("w+") as log_file:
        process = subprocess.Popen(
            judge_command(tmp_path, "run", *arguments), stdout=log_file, cwd=tmp_path, env=os.environ
        )
        try:
            until(
                lambda: list_active_alerts(alertmanager) == [(LOOPING_AGENT, "retry_storm", "critical")],
                "the alert fires",
            )
            stack.recover()
            until(lambda: list_active_alerts(alertmanager) == [], "the alert is resolved")
        finally:
            process.send_signal(signal.SIGTERM)
            assert process.wait(timeout=20) == 0
        log_file.seek(0)
        output = log_file.read()

    assert output.index("intervening") < output.index("resolved")
    assert output.count("critical") == 2, "each change is printed once, however many checks run"


def test_run_notifies_an_undecided_ticket_after_the_bypass_time(
    unchanging_stack: Stack, alertmanager: str, tmp_path: Path
) -> None:
    no_key = ("--model", "openai/gpt-5-mini", "--interval", "3600")
    arguments = ("--prometheus", unchanging_stack.url, "--alertmanager", alertmanager, *no_key)
    env = {name: query_value for name, query_value in os.environ.items() if name != "OPENAI_API_KEY"}
    with (tmp_path / "stdout.txt").open("w+") as log_file:
        command = judge_command(tmp_path, "run", *arguments)
        process = subprocess.Popen(command, stdout=log_file, cwd=tmp_path, env=env)
        try:
            until(
                lambda: list_active_alerts(alertmanager) == [(LOOPING_AGENT, "retry_storm", "critical")],
                "the alert fires",
                seconds=180,  # after the import of litellm, which takes a minute on a busy machine
            )
            until(lambda: "intervening" in (tmp_path / "stdout.txt").read_text(), "the ticket is printed")
        finally:
            process.send_signal(signal.SIGTERM)
            assert process.wait(timeout=20) == 0
    assert (tmp_path / "stdout.txt").read_text().startswith("critical open")


def test_second_once_resolves_the_first_alert(stack: Stack, alertmanager: str, tmp_path: Path) -> None:
    arguments = (
        "--prometheus", stack.url, "--alertmanager", alertmanager, "--state", str(tmp_path / "state"),
    )  # fmt: skip

    codes = [run_once(tmp_path, *arguments).exit_code, run_once(tmp_path, *arguments).exit_code]
    alerts_before = list_active_alerts(alertmanager)
    stack.recover()
    codes.append(run_once(tmp_path, *arguments).exit_code)

    assert codes == [1, 1, 0]
    assert alerts_before == [(LOOPING_AGENT, "retry_storm", "critical")]
    assert list_active_alerts(alertmanager) == []


def test_undelivered_ticket_is_not_a_success(unchanging_stack: Stack, tmp_path: Path) -> None:
    result = run_once(tmp_path, "--prometheus", unchanging_stack.url, "--alertmanager", "http://127.0.0.1:1")

    assert result.exit_code == 3
    assert "http://127.0.0.1:1: " in result.stderr


# -- with the service ------------------------------------------------------------------------------


async def test_up_connects_judge_and_queen_to_its_prometheus(running: RunningService) -> None:
    judging = running.service.settings.judging
    assert judging.prometheus_url is not None
    assert judging.prometheus_url.get_secret_value() == running.prometheus_url
    prometheus = Prometheus(StackAddress.parse(running.prometheus_url or ""))
    call_limit = CallLimit(time.time, limit=1_000)
    tools = {
        tool.name: tool for tool in stack_tools(prometheus=prometheus, clock=time.time, limit=call_limit)
    }
    query = {"promql": "count by (__name__) ({__name__=~'queenright_agents|up'})", "range_minutes": 5}

    try:
        async with asyncio.timeout(60):
            while not (response := await tools[QUERY_METRICS].call(json.dumps(query))).content.count(
                "points"
            ):
                assert not response.failed, response.content
                await asyncio.sleep(0.5)
        failed_call = await tools[QUERY_METRICS].call('{"promql": "rate(up)"}')
    finally:
        await prometheus.aclose()

    quoted_data = unquote("metrics", response.content)
    assert quoted_data is not None
    assert 1 <= quoted_data["series_in_all"] <= 2
    assert len(quoted_data["series"][0]["points"]) <= 60
    assert failed_call.failed
    assert "expected type range vector" in failed_call.content
