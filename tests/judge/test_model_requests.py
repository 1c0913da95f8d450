"""The requests that judge and queen send when they use a model through litellm."""

import asyncio
import importlib
import json
import warnings
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from prometheus_client import CollectorRegistry

from queenright.health.settings import HealthSettings
from queenright.judge.metrics import JudgeMetrics
from queenright.judge.models import load_model
from queenright.judge.monitoring_tools import emit_tool, notify_tool, summary_tool
from queenright.judge.settings import ModelSettings
from queenright.runtime.events import EventType
from queenright.runtime.llm.litellm_provider import to_openai_tools
from tests.judge.conftest import FakeTime, JudgedFleet
from tests.runtime.openai_server import Answer, OpenAIServer, Request, Stream, openai_server

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::UserWarning:pydantic")

HEALTHY = Answer(tool_calls=[("c1", "set_output", '{"health_verdict": "healthy: it moves"}')])
_CHECKED = EventType.JUDGE_CHECKED
WORKERS = [("bee_one", "session_1"), ("bee_two", "session_2")]


@pytest.fixture(scope="module", autouse=True)
def litellm() -> Any:
    with warnings.catch_warnings(), pytest.MonkeyPatch.context() as patch:
        patch.setenv("LITELLM_LOCAL_MODEL_COST_MAP", "True")
        warnings.simplefilter("ignore")
        return importlib.import_module("litellm")


@pytest.fixture
async def server(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[OpenAIServer]:
    monkeypatch.setenv("OPENAI_API_KEY", "bees-keep-this-one")
    async with openai_server(HEALTHY, HEALTHY, HEALTHY) as model_server:
        monkeypatch.setenv("OPENAI_API_BASE", model_server.url)
        yield model_server


def use_server_model(fleet: JudgedFleet, **settings: Any) -> None:
    """Let the judge use the server's model."""
    fleet.judge_model = load_model(
        ModelSettings(model="openai/gpt-4o-mini", **settings),
        "judge",
        metrics=JudgeMetrics(CollectorRegistry(), dict),
        monotonic=fleet.time,
        sleep=fleet.time.sleep,
    )


async def request_check(fleet: JudgedFleet, server: OpenAIServer, agent: str, session: str) -> Request:
    """Let a worker have bad steps, and return the judge's request about it."""
    before = len(server.requests)
    await fleet.start_worker(agent, session)
    await fleet.report_bad_steps(12, agent, session)
    async with asyncio.timeout(60):
        while len(fleet.list_events(_CHECKED)) == 0 or len(server.requests) == before:
            await fleet.settle()
        await fleet.settle()
    return server.requests[before]


def get_prefix(request: Request) -> str:
    """Return the part of a request before the conversation."""
    return json.dumps([request.body["tools"], request.body["messages"][0]])


async def test_requests_about_two_workers_have_the_same_prefix(
    fleet: JudgedFleet, server: OpenAIServer
) -> None:
    use_server_model(fleet)
    await fleet.start()

    first, second = [await request_check(fleet, server, *worker) for worker in WORKERS]

    assert get_prefix(first) == get_prefix(second)
    assert second.body["messages"][: len(first.body["messages"])] == first.body["messages"]
    assert len(second.body["messages"]) > len(first.body["messages"]) > 1
    assert "bee_one" in json.dumps(first.body["messages"][1])
    assert not any(name in get_prefix(first) for pair in WORKERS for name in pair)


async def test_requests_of_another_process_have_the_same_prefix(
    fleet: JudgedFleet, server: OpenAIServer, tmp_path: Path
) -> None:
    use_server_model(fleet)
    await fleet.start()
    first = await request_check(fleet, server, *WORKERS[0])
    time = FakeTime()
    time.now += 86_400
    (tmp_path / "later").mkdir()  # a separate folder, so that no other worker waits
    later_fleet = JudgedFleet(tmp_path / "later", time, HealthSettings())
    use_server_model(later_fleet)
    await later_fleet.start()
    second = await request_check(later_fleet, server, *WORKERS[1])
    await later_fleet.stop()

    assert get_prefix(first) == get_prefix(second)
    assert (first.body["tool_choice"], second.body["tool_choice"]) == ("required", "required")


async def test_hung_provider_is_given_up_at_the_time_limit_and_its_connection_closed(
    fleet: JudgedFleet, server: OpenAIServer
) -> None:
    """B51: the check ends as unknown, and the rules write the binding ticket."""
    server.replies = [Stream(is_held=True)]
    use_server_model(fleet, timeout_seconds=30)
    await fleet.start()
    await fleet.start_worker()
    await fleet.report_bad_steps(16)
    async with asyncio.timeout(60):
        await server.reply_held.wait()

    await fleet.pass_time(30)

    async with asyncio.timeout(60):
        await server.client_disconnected.wait()
    assert fleet.get_metric("queenright_judge_checks_total", outcome="unknown") == 1
    assert (await fleet.get_ticket()).severity.value == "high"
    assert len(server.requests) == 1


# -- tools for other providers --------------------------------------------------------------------


async def do_nothing(*_: object) -> str:
    return ""


TOOLS: Any = [
    summary_tool(do_nothing),
    emit_tool(do_nothing),
    notify_tool(do_nothing),
]


@pytest.mark.parametrize(
    ("provider", "model", "choice"),
    [
        ("openai", "gpt-5-mini", "required"),
        ("anthropic", "claude-sonnet-4-5", {"type": "any"}),
        ("bedrock", "anthropic.claude-sonnet-4-5-20250929-v1:0", {"any": {}}),
        ("gemini", "gemini-2.5-pro", {"functionCallingConfig": {"mode": "ANY"}}),
        ("mistral", "mistral-large-latest", "any"),
        ("ollama_chat", "qwen3", None),
    ],
)
def test_tool_schemas_are_valid_for_every_provider(
    litellm: Any, provider: str, model: str, choice: object
) -> None:
    """The types and required names of arguments survive the translation."""
    tools = to_openai_tools([tool.spec for tool in TOOLS])

    parameters = litellm.utils.get_optional_params(
        model=model, custom_llm_provider=provider, tools=tools, tool_choice="required", drop_params=True
    )

    text = json.dumps(parameters)
    assert parameters.get("tool_choice") == choice
    assert '["ticket_id", "analysis", "urgency"]' in text
    assert '["low", "medium", "high", "critical"]' in text
    assert text.index("get_worker_health_summary") < text.index("notify_operator")
    if provider == "gemini":
        assert "$ref" not in text
