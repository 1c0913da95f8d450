"""B130: after a few invalid answers of a model, the rules replace it."""

from __future__ import annotations

import asyncio
import importlib
import warnings
from collections.abc import Sequence
from typing import Any

import pytest

from queenright.health.tickets.ticket import TicketStatus
from queenright.judge.rules_model import DISMISS, EMIT, NOTIFY, SUMMARY, RulesModel
from queenright.judge.settings import ModelSettings
from queenright.runtime.events import EventType
from queenright.runtime.llm.model import Message
from tests.judge.conftest import JudgedFleet, TalkingModel, reply_with_call
from tests.judge.test_metered_model import MeteredFixture
from tests.waiting import until

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::UserWarning:pydantic")

AGENTS = [f"agent-{n}" for n in range(6)]


class ScriptedModel:
    """A model behind litellm's interface that always calls the same tool."""

    def __init__(self, litellm: Any) -> None:
        self.litellm = litellm
        self.calls = 0
        self.tool = NOTIFY
        self.arguments = "{}"

    def reply(self, request: dict[str, Any]) -> Any:
        self.calls += 1
        function = {"name": self.tool, "arguments": self.arguments}
        call_ = {"id": f"c{self.calls}", "type": "function", "function": function}
        response = request["model_response"]
        response.choices[0].message = self.litellm.Message(content=None, tool_calls=[call_])
        response.usage = self.litellm.Usage(prompt_tokens=10, completion_tokens=3, total_tokens=13)
        return response


@pytest.fixture
def scripted_model(monkeypatch: pytest.MonkeyPatch) -> ScriptedModel:
    monkeypatch.setenv("LITELLM_LOCAL_MODEL_COST_MAP", "True")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        litellm: Any = importlib.import_module("litellm")
    script = ScriptedModel(litellm)

    class Provider(litellm.CustomLLM):  # type: ignore[misc]  # litellm is untyped here
        async def acompletion(self, *_: Any, **request: Any) -> Any:
            return script.reply(request)

    monkeypatch.setattr(
        litellm, "custom_provider_map", [{"provider": "scripted", "custom_handler": Provider()}]
    )
    litellm.utils.custom_llm_setup()
    return script


def use_scripted_model(fleet: JudgedFleet) -> None:
    """Let judge and queen use the scripted model with the fleet's clock."""
    fleet.use_given_models = False
    settings = ModelSettings(model="scripted/one")
    fleet.judge_settings = fleet.judge_settings.model_copy(update={"queen": settings})


async def open_tickets_for(fleet: JudgedFleet, agents: Sequence[str], steps: int = 21) -> None:
    for agent in agents:
        await fleet.report_event(EventType.EXECUTION_STARTED, agent, start_records=True)
    await fleet.pass_time(121)
    for agent in agents:
        await fleet.report_bad_steps(steps, agent)
    async with asyncio.timeout(60):
        while not {*agents} <= {ticket.agent_id for ticket in fleet.tickets.open_tickets()}:
            await fleet.settle()
    await fleet.settle()


async def notify_tickets_for(fleet: JudgedFleet, agents: Sequence[str]) -> None:
    """Wait until the operator was notified of these agents' tickets; litellm uses its own threads."""
    await open_tickets_for(fleet, agents)
    tickets = fleet.tickets
    await until(
        lambda: all(ticket.status is TicketStatus.INTERVENING for ticket in tickets.open_tickets()),
        "the tickets were not passed on",
    )
    await fleet.settle()


@pytest.mark.parametrize(
    ("tool", "arguments"),
    [
        (NOTIFY, "{}"),
        (NOTIFY, '{"ticket_id": "another", "analysis": "It repeats itself.", "urgency": "high"}'),
        (DISMISS, '{"ticket_id": 7}'),
        ("set_output", '{"nothing_that_is_asked": 1}'),
        (SUMMARY, '{"last_n_steps": "many"}'),
    ],
)
async def test_queen_model_with_invalid_arguments_gets_three_calls_for_six_tickets(
    fleet: JudgedFleet,
    scripted_model: ScriptedModel,
    caplog: pytest.LogCaptureFixture,
    tool: str,
    arguments: str,
) -> None:
    """B130: no ticket waits for the bypass timeout; log and metric show that the rules replace the model."""
    scripted_model.tool, scripted_model.arguments = tool, arguments
    use_scripted_model(fleet)
    await fleet.start()

    await notify_tickets_for(fleet, AGENTS)

    tickets = fleet.tickets.open_tickets()
    assert {ticket.status for ticket in tickets} == {TicketStatus.INTERVENING}
    assert not any(ticket.untriaged for ticket in tickets)
    assert scripted_model.calls == 3
    assert fleet.get_metric("queenright_llm_fallbacks_total", role="queen", reason="invalid") >= 6
    assert "scripted/one" in caplog.text
    [replacement] = fleet.judging.replacements()
    assert "scripted/one" in replacement


async def test_queen_model_with_invalid_arguments_is_called_again_after_its_rest(
    fleet: JudgedFleet, scripted_model: ScriptedModel
) -> None:
    """B130: the model gets one more call after each rest, until an answer is valid."""
    use_scripted_model(fleet)
    await fleet.start()
    await notify_tickets_for(fleet, ["first"])
    calls_before_rest = scripted_model.calls
    await fleet.pass_time(301)

    await notify_tickets_for(fleet, ["second"])
    calls_after_rest = scripted_model.calls
    await notify_tickets_for(fleet, ["third"])

    assert (calls_before_rest, calls_after_rest, scripted_model.calls) == (3, 4, 4)


async def test_critical_page_is_sent_when_a_visit_ends_without_a_decision(fleet: JudgedFleet) -> None:
    """B130: a model that only makes queries decides nothing; binding tickets are passed on at once."""
    model = TalkingModel(lambda messages, tools: reply_with_call(SUMMARY))
    fleet.queen_model = model
    await fleet.start()
    started_at = fleet.time.now

    await open_tickets_for(fleet, ["agent"])

    [ticket] = fleet.tickets.open_tickets()
    assert (ticket.status, ticket.untriaged) == (TicketStatus.INTERVENING, True)
    assert "gave no valid decision" in ticket.analysis
    assert fleet.time.now - started_at < 130
    assert len(model.conversations) <= 8


async def test_model_that_only_queries_is_replaced_by_the_rules(fleet: JudgedFleet) -> None:
    """B130: a visit without a decision counts as an invalid answer."""
    model = TalkingModel(lambda messages, tools: reply_with_call(SUMMARY))
    metered_model = MeteredFixture(model, stand_in=RulesModel(), time=fleet.time)
    fleet.queen_model = metered_model.model
    await fleet.start()

    await open_tickets_for(fleet, AGENTS)

    assert metered_model.model.fallback_reason == "invalid"
    assert len(model.conversations) <= 3 * 8


async def test_judge_model_with_invalid_tickets_is_replaced_by_the_rules(fleet: JudgedFleet) -> None:
    """B130: this applies to the judge's model, too; the rules write the tickets from the start."""
    model = TalkingModel(lambda messages, tools: reply_with_call(EMIT, ticket_json="{}"))
    metered_model = MeteredFixture(model, stand_in=RulesModel(), time=fleet.time)
    fleet.judge_model = metered_model.model
    await fleet.start()

    await open_tickets_for(fleet, AGENTS)

    assert {ticket.severity.value for ticket in fleet.tickets.open_tickets()} == {"critical"}
    assert metered_model.model.fallback_reason == "invalid"
    assert len(model.conversations) <= 4


async def test_failing_queen_model_is_replaced_by_the_rules_within_seconds(fleet: JudgedFleet) -> None:
    """B130: a model fails at once for three calls about one critical ticket."""

    def raise_error(messages: Sequence[Message], tools: object) -> Any:
        raise ConnectionError("refused")

    metered_model = MeteredFixture(TalkingModel(raise_error), stand_in=RulesModel(), time=fleet.time)
    fleet.queen_model = metered_model.model
    await fleet.start()
    await open_tickets_for(fleet, ["agent"])

    await fleet.pass_time(5)

    [ticket] = fleet.tickets.open_tickets()
    assert (ticket.status, ticket.untriaged) == (TicketStatus.INTERVENING, False)
