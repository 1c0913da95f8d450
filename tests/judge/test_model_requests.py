"""What goes over the wire when judge and queen think by a model behind litellm."""

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
    async with openai_server(HEALTHY, HEALTHY, HEALTHY) as serving:
        monkeypatch.setenv("OPENAI_API_BASE", serving.url)
        yield serving


def think_by(fleet: JudgedFleet, **settings: Any) -> None:
    """Have the judge think by the server's model."""
    fleet.judge_model = load_model(
        ModelSettings(model="openai/gpt-4o-mini", **settings),
        "judge",
        metrics=JudgeMetrics(CollectorRegistry(), dict),
        monotonic=fleet.time,
        sleep=fleet.time.sleep,
    )


async def judged(fleet: JudgedFleet, server: OpenAIServer, agent: str, session: str) -> Request:
    """Let a worker show something, and return what the model was asked about it."""
    before = len(server.requests)
    await fleet.begin(agent, session)
    await fleet.bad_steps(12, agent, session)
    async with asyncio.timeout(60):
        while len(fleet.of(_CHECKED)) == 0 or len(server.requests) == before:
            await fleet.settle()
        await fleet.settle()
    return server.requests[before]


def start_of(request: Request) -> str:
    """What stands before the conversation, as it is sent."""
    return json.dumps([request.body["tools"], request.body["messages"][0]])


async def test_two_checks_of_different_workers_begin_with_the_same_bytes(
    fleet: JudgedFleet, server: OpenAIServer
) -> None:
    think_by(fleet)
    await fleet.start()

    one, other = [await judged(fleet, server, *worker) for worker in WORKERS]

    assert start_of(one) == start_of(other)
    assert other.body["messages"][: len(one.body["messages"])] == one.body["messages"]
    assert len(other.body["messages"]) > len(one.body["messages"]) > 1
    assert "bee_one" in json.dumps(one.body["messages"][1])
    assert not any(name in start_of(one) for pair in WORKERS for name in pair)


async def test_another_process_at_another_time_begins_with_the_same_bytes(
    fleet: JudgedFleet, server: OpenAIServer, tmp_path: Path
) -> None:
    think_by(fleet)
    await fleet.start()
    one = await judged(fleet, server, *WORKERS[0])
    time = FakeTime()
    time.now += 86_400
    (tmp_path / "later").mkdir()  # nobody else is waiting
    later = JudgedFleet(tmp_path / "later", time, HealthSettings())
    think_by(later)
    await later.start()
    other = await judged(later, server, *WORKERS[1])
    await later.stop()

    assert start_of(one) == start_of(other)
    assert (one.body["tool_choice"], other.body["tool_choice"]) == ("required", "required")


async def test_hung_provider_is_given_up_in_its_time_and_its_connection_closed(
    fleet: JudgedFleet, server: OpenAIServer
) -> None:
    """B51: the check ends as unknown; the rules' ticket is there, because they bind."""
    server.replies = [Stream(held=True)]
    think_by(fleet, timeout_seconds=30)
    await fleet.start()
    await fleet.begin()
    await fleet.bad_steps(16)
    async with asyncio.timeout(60):
        await server.held.wait()

    await fleet.pass_time(30)

    async with asyncio.timeout(60):
        await server.gone.wait()
    assert fleet.metric("queenright_judge_checks_total", outcome="unknown") == 1
    assert (await fleet.ticket()).severity.value == "high"
    assert len(server.requests) == 1


# -- tools in other providers' words --------------------------------------------------------------


async def nothing(*_: object) -> str:
    return ""


TOOLS: Any = [
    summary_tool(nothing),
    emit_tool(nothing),
    notify_tool(nothing),
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
    """What an argument may be, and which must be there, survives the translation."""
    tools = to_openai_tools([tool.spec for tool in TOOLS])

    result = litellm.utils.get_optional_params(
        model=model, custom_llm_provider=provider, tools=tools, tool_choice="required", drop_params=True
    )

    text = json.dumps(result)
    assert result.get("tool_choice") == choice
    assert '["ticket_id", "analysis", "urgency"]' in text
    assert '["low", "medium", "high", "critical"]' in text
    assert text.index("get_worker_health_summary") < text.index("notify_operator")
    if provider == "gemini":
        assert "$ref" not in text
