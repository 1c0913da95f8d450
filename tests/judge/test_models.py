import asyncio
import importlib
import json
import subprocess
import sys
import warnings
from collections.abc import Iterator
from typing import Any

import pytest
from prometheus_client import CollectorRegistry

from queenright.judge.metered_model import MeteredModel
from queenright.judge.metrics import JudgeMetrics
from queenright.judge.models import ModelUnavailableError, load_model
from queenright.judge.rules_model import EMIT, SUMMARY, RulesModel
from queenright.judge.settings import JudgeSettings, ModelSettings
from queenright.runtime.llm.model import Message, ModelError, ToolCall, ToolSpec
from tests.judge.conftest import JudgedFleet

CONVERSATION = [Message(role="system", content="Judge."), Message(role="user", content="How is it?")]
TOOLS = [ToolSpec("look", "Look.", {"type": "object", "properties": {"place": {"type": "string"}}})]

# litellm's own modules use deprecated parts of pydantic and the standard library.
ignore_deprecations = pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::UserWarning:pydantic")


class TickingClock:
    """A clock that advances one second per call."""

    now = 0.0

    def __call__(self) -> float:
        self.now += 1.0
        return self.now


@pytest.fixture
def registry() -> CollectorRegistry:
    return CollectorRegistry()


@pytest.fixture
def metrics(registry: CollectorRegistry) -> JudgeMetrics:
    return JudgeMetrics(registry, dict)


@pytest.fixture
def provider(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """Return a scripted model behind litellm's interface for providers."""
    monkeypatch.setenv("LITELLM_LOCAL_MODEL_COST_MAP", "True")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        litellm: Any = importlib.import_module("litellm")

    class ScriptedProvider(litellm.CustomLLM):  # type: ignore[misc]  # litellm is untyped here
        def __init__(self) -> None:
            super().__init__()
            self.requests: list[dict[str, Any]] = []
            self.replies: list[Any] = []

        async def acompletion(self, *_: Any, **request: Any) -> Any:
            self.requests.append(request)
            reply = self.replies.pop(0)
            if isinstance(reply, Exception):
                raise reply
            response = request["model_response"]
            response.choices[0].message = litellm.Message(**reply)
            response.usage = litellm.Usage(prompt_tokens=120, completion_tokens=30, total_tokens=150)
            return response

    scripted_provider = ScriptedProvider()
    monkeypatch.setattr(
        litellm, "custom_provider_map", [{"provider": "scripted", "custom_handler": scripted_provider}]
    )
    litellm.utils.custom_llm_setup()
    return scripted_provider


def ask(metrics: JudgeMetrics, **settings: Any) -> Any:
    model = load_model(
        ModelSettings(model="scripted/one", **settings), "queen", metrics=metrics, monotonic=TickingClock()
    )
    return model.complete(CONVERSATION, TOOLS)


def make_tool_call(name: str, arguments: str) -> dict[str, Any]:
    function = {"name": name, "arguments": arguments}
    return {"content": None, "tool_calls": [{"id": "c1", "type": "function", "function": function}]}


@ignore_deprecations
async def test_litellm_reply_has_text_and_cost(
    provider: Any, metrics: JudgeMetrics, registry: CollectorRegistry
) -> None:
    provider.replies = [make_tool_call("look", '{"place": "hive"}')]

    reply = await ask(metrics)

    assert reply.tool_calls == (ToolCall("c1", "look", '{"place": "hive"}'),)
    assert (reply.text, reply.input_tokens, reply.output_tokens) == ("", 120, 30)
    labels = {"role": "queen", "model": "scripted/one"}
    assert registry.get_sample_value("queenright_llm_tokens_total", labels) == 150
    assert registry.get_sample_value("queenright_llm_request_duration_seconds_sum", labels) == 1.0


@ignore_deprecations
async def test_model_receives_the_conversation_and_the_tools(provider: Any, metrics: JudgeMetrics) -> None:
    provider.replies = [{"content": "fine"}]
    model = load_model(ModelSettings(model="scripted/one"), "judge", metrics=metrics)
    conversation = [
        *CONVERSATION,
        Message(role="assistant", content="", tool_calls=(ToolCall("c0", "look", "{}"),)),
        Message(role="tool", content="seen", tool_call_id="c0"),
    ]

    reply = await model.complete(conversation, TOOLS)
    [request] = provider.requests

    assert reply.text == "fine"
    assert [message["role"] for message in request["messages"]] == ["system", "user", "assistant", "tool"]
    assert request["messages"][2]["tool_calls"][0]["function"] == {"name": "look", "arguments": "{}"}
    assert request["messages"][3]["tool_call_id"] == "c0"
    assert request["optional_params"]["tools"][0]["function"]["name"] == "look"


@ignore_deprecations
async def test_provider_failure_is_not_an_answer_and_its_message_contains_no_key(
    provider: Any, metrics: JudgeMetrics, registry: CollectorRegistry
) -> None:
    """B51: the failed request is counted with its duration."""
    key = "sk-" + "a1B2" * 10
    provider.replies = [RuntimeError(f"Incorrect API key provided: {key}")]

    with pytest.raises(ModelError, match=r"scripted/one: .*Incorrect API key") as error_info:
        await ask(metrics)

    assert key not in str(error_info.value)
    labels = {"role": "queen", "model": "scripted/one"}
    assert registry.get_sample_value("queenright_llm_request_duration_seconds_count", labels) == 1


@ignore_deprecations
async def test_judge_and_queen_run_on_a_litellm_model(provider: Any, fleet: JudgedFleet) -> None:
    """With another model, graphs and tools stay the same."""
    texts = dict.fromkeys(("cause", "judge_reasoning", "suggested_action", "evidence_snippet"), "word")
    draft = json.dumps({"severity": "high", **texts})
    provider.replies = [
        make_tool_call(SUMMARY, "{}"),
        make_tool_call(EMIT, json.dumps({"ticket_json": draft})),
        make_tool_call("set_output", '{"health_verdict": "ticket"}'),
    ]
    fleet.judge_model = load_model(
        ModelSettings(model="scripted/one"), "judge", metrics=JudgeMetrics(CollectorRegistry(), dict)
    )
    await fleet.start()
    await fleet.start_worker()
    await fleet.report_bad_steps(12)
    async with asyncio.timeout(60):
        while not fleet.tickets.open_tickets():
            await fleet.settle()

    [ticket] = fleet.tickets.open_tickets()

    assert (ticket.cause, ticket.severity.value) == ("word", "high")


async def test_rules_are_the_default_model(metrics: JudgeMetrics, registry: CollectorRegistry) -> None:
    model = load_model(JudgeSettings().judge, "judge", metrics=metrics)

    assert isinstance(model, MeteredModel)
    assert model.name == RulesModel().name == "queenright/rules"
    with pytest.raises(ModelError):
        await model.complete(CONVERSATION, TOOLS)
    labels = {"role": "judge", "model": "queenright/rules"}
    assert registry.get_sample_value("queenright_llm_request_duration_seconds_count", labels) == 1


def test_litellm_model_without_litellm_is_rejected_at_startup(
    metrics: JudgeMetrics, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)

    with pytest.raises(
        ModelUnavailableError,
        match=r"cannot load the judge's model: .*'gpt-5' needs litellm: install queenright\[llm\]",
    ):
        load_model(ModelSettings(model="gpt-5"), "judge", metrics=metrics)


def test_importing_the_package_does_not_import_litellm() -> None:
    code = "import sys, queenright.judge; sys.exit('litellm' in sys.modules)"

    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
