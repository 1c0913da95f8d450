import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from queenright.judge.messages import triage_message
from queenright.judge.quoting import quote, sanitise, unquote
from queenright.judge.rules_model import DISMISS, EMIT, NOTIFY, RulesModel
from queenright.runtime.llm.model import Message, ModelError, ToolCall, ToolSpec

JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=8,
)


def offer_tools(*names: str) -> list[ToolSpec]:
    return [ToolSpec(name, "", {}) for name in names]


@given(st.dictionaries(st.text(), JSON, max_size=4))
def test_quotation_round_trips_and_contains_no_forged_marker(data: dict[str, object]) -> None:
    """B52: data cannot end its own quotation."""
    text = quote("worker", data)

    assert unquote("worker", text) == sanitise(data)
    assert text.count("<") == text.count(">") == 2


@pytest.mark.parametrize(
    "text", ["", "<worker>\nnot json\n</worker>", "<worker>\n[1]\n</worker>", "<other>\n{}\n</other>"]
)
def test_invalid_quotation_is_ignored(text: str) -> None:
    assert unquote("worker", text) is None


async def test_rules_answer_only_as_judge_or_queen() -> None:
    with pytest.raises(ModelError, match="offered are: fly"):
        await RulesModel().complete([Message(role="user", content="hi")], offer_tools("fly"))


@pytest.mark.parametrize(
    ("tool", "expected", "fault"),
    [(EMIT, "hello", "no <worker>"), (NOTIFY, "hello", "no <ticket>"), (EMIT, None, "contains no message")],
)
async def test_conversation_without_a_question_is_an_error(
    tool: str, expected: str | None, fault: str
) -> None:
    messages = [] if expected is None else [Message(role="user", content=expected)]

    with pytest.raises(ModelError, match=fault):
        await RulesModel().complete(messages, offer_tools(tool))


async def test_earlier_checks_in_the_conversation_are_ignored() -> None:
    finding = {"kind": "stall", "severity": "critical", "evidence": "nothing", "since": 0.0}
    earlier_messages = [
        Message(role="user", content=quote("worker", {"agent_id": "old", "findings": [finding]})),
        Message(role="assistant", content="", tool_calls=(ToolCall("1", EMIT, "{}"),)),
        Message(role="tool", content='{"change": "opened"}', tool_call_id="1"),
    ]
    newest = Message(role="user", content=quote("worker", {"agent_id": "new", "findings": []}))

    [call] = (await RulesModel().complete([*earlier_messages, newest], offer_tools(EMIT))).tool_calls

    assert (call.name, json.loads(call.arguments)) == ("set_output", {"health_verdict": "healthy"})


async def test_unknown_worker_is_triaged_by_its_ticket() -> None:
    ticket = {
        "ticket_id": "t",
        "severity": "low",
        "kind": "retry_storm",
        "agent_id": "a",
        "session_id": "s",
        "steps_since_last_accept": 3,
    }
    message = Message(role="user", content=triage_message(ticket, None))

    [call] = (await RulesModel().complete([message], offer_tools(NOTIFY, DISMISS))).tool_calls

    assert call.name == DISMISS
    assert all(part in json.loads(call.arguments)["reason"] for part in ("3 bad steps", "10"))
