"""B130: a model that answers with invalid arguments is set aside for the rules after a few attempts."""

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
from tests.judge.conftest import JudgedFleet, TalkingModel, call
from tests.judge.test_metered_model import Desk
from tests.waiting import until

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::UserWarning:pydantic")

AGENTS = [f"agent-{n}" for n in range(6)]


class Scripted:
    """A model behind litellm's own interface that calls one tool for ever."""

    def __init__(self, litellm: Any) -> None:
        self.litellm = litellm
        self.calls = 0
        self.tool = NOTIFY
        self.arguments = "{}"

    def reply(self, asked: dict[str, Any]) -> Any:
        self.calls += 1
        function = {"name": self.tool, "arguments": self.arguments}
        call_ = {"id": f"c{self.calls}", "type": "function", "function": function}
        response = asked["model_response"]
        response.choices[0].message = self.litellm.Message(content=None, tool_calls=[call_])
        response.usage = self.litellm.Usage(prompt_tokens=10, completion_tokens=3, total_tokens=13)
        return response


@pytest.fixture
def scripted(monkeypatch: pytest.MonkeyPatch) -> Scripted:
    monkeypatch.setenv("LITELLM_LOCAL_MODEL_COST_MAP", "True")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        litellm: Any = importlib.import_module("litellm")
    script = Scripted(litellm)

    class Provider(litellm.CustomLLM):  # type: ignore[misc]  # litellm is untyped here
        async def acompletion(self, *_: Any, **asked: Any) -> Any:
            return script.reply(asked)

    monkeypatch.setattr(
        litellm, "custom_provider_map", [{"provider": "scripted", "custom_handler": Provider()}]
    )
    litellm.utils.custom_llm_setup()
    return script


def think_by_script(fleet: JudgedFleet) -> None:
    """Have judge and queen think by the scripted model, on the hive's clock."""
    fleet.given_models = False
    settings = ModelSettings(model="scripted/one")
    fleet.judge_settings = fleet.judge_settings.model_copy(update={"queen": settings})


async def tickets_of(fleet: JudgedFleet, agents: Sequence[str], steps: int = 21) -> None:
    for agent in agents:
        await fleet.worker(EventType.EXECUTION_STARTED, agent, start_records=True)
    await fleet.pass_time(121)
    for agent in agents:
        await fleet.bad_steps(steps, agent)
    async with asyncio.timeout(60):
        while not {*agents} <= {ticket.agent_id for ticket in fleet.tickets.open_tickets()}:
            await fleet.settle()
    await fleet.settle()


async def tickets_passed_on(fleet: JudgedFleet, agents: Sequence[str]) -> None:
    """Wait until the tickets of these agents are with the operator; litellm has threads of its own."""
    await tickets_of(fleet, agents)
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
async def test_queen_model_with_invalid_arguments_is_asked_three_times_for_six_tickets(
    fleet: JudgedFleet, scripted: Scripted, caplog: pytest.LogCaptureFixture, tool: str, arguments: str
) -> None:
    """B130: nothing waits for the bypass time; the log and the metric say that the rules answer."""
    scripted.tool, scripted.arguments = tool, arguments
    think_by_script(fleet)
    await fleet.start()

    await tickets_passed_on(fleet, AGENTS)

    tickets = fleet.tickets.open_tickets()
    assert {ticket.status for ticket in tickets} == {TicketStatus.INTERVENING}
    assert not any(ticket.untriaged for ticket in tickets)
    assert scripted.calls == 3
    assert fleet.metric("queenright_llm_fallbacks_total", role="queen", reason="invalid") >= 6
    assert "scripted/one" in caplog.text
    [replacement] = fleet.judging.replacements()
    assert "scripted/one" in replacement


async def test_queen_model_with_invalid_arguments_is_tried_again_after_its_rest(
    fleet: JudgedFleet, scripted: Scripted
) -> None:
    """B130: one more call after each rest, until it answers validly."""
    think_by_script(fleet)
    await fleet.start()
    await tickets_passed_on(fleet, ["first"])
    before = scripted.calls
    await fleet.pass_time(301)

    await tickets_passed_on(fleet, ["second"])
    tried = scripted.calls
    await tickets_passed_on(fleet, ["third"])

    assert (before, tried, scripted.calls) == (3, 4, 4)


async def test_critical_page_is_sent_when_a_visit_ends_without_a_decision(fleet: JudgedFleet) -> None:
    """B130: a model that only looks decides nothing; what binds is passed on at once."""
    model = TalkingModel(lambda messages, tools: call(SUMMARY))
    fleet.queen_model = model
    await fleet.start()
    began = fleet.time.now

    await tickets_of(fleet, ["agent"])

    [ticket] = fleet.tickets.open_tickets()
    assert (ticket.status, ticket.untriaged) == (TicketStatus.INTERVENING, True)
    assert "gave no valid decision" in ticket.analysis
    assert fleet.time.now - began < 130
    assert len(model.shown) <= 8


async def test_model_that_only_queries_is_replaced_by_the_rules(fleet: JudgedFleet) -> None:
    """B130: a visit without a decision counts as an invalid answer."""
    model = TalkingModel(lambda messages, tools: call(SUMMARY))
    desk = Desk(model, stand_in=RulesModel(), time=fleet.time)
    fleet.queen_model = desk.model
    await fleet.start()

    await tickets_of(fleet, AGENTS)

    assert desk.model.fallback_reason == "invalid"
    assert len(model.shown) <= 3 * 8


async def test_judge_model_with_invalid_tickets_is_set_aside(fleet: JudgedFleet) -> None:
    """B130: the judge's model, too; the rules' tickets stand from the first."""
    model = TalkingModel(lambda messages, tools: call(EMIT, ticket_json="{}"))
    desk = Desk(model, stand_in=RulesModel(), time=fleet.time)
    fleet.judge_model = desk.model
    await fleet.start()

    await tickets_of(fleet, AGENTS)

    assert {ticket.severity.value for ticket in fleet.tickets.open_tickets()} == {"critical"}
    assert desk.model.fallback_reason == "invalid"
    assert len(model.shown) <= 4


async def test_failing_queen_model_is_replaced_by_the_rules_within_seconds(fleet: JudgedFleet) -> None:
    """B130: one critical ticket, and a model that fails at once, three times."""

    def failing(messages: Sequence[Message], tools: object) -> Any:
        raise ConnectionError("refused")

    desk = Desk(TalkingModel(failing), stand_in=RulesModel(), time=fleet.time)
    fleet.queen_model = desk.model
    await fleet.start()
    await tickets_of(fleet, ["agent"])

    await fleet.pass_time(5)

    [ticket] = fleet.tickets.open_tickets()
    assert (ticket.status, ticket.untriaged) == (TicketStatus.INTERVENING, False)
