"""The decision table of turns."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from queenright.instrumentation.verdict import Verdict
from queenright.runtime.graphs.graph import NodeSpec
from queenright.runtime.nodes.cursor import NodeCursor
from queenright.runtime.nodes.turn_verdict import NextAction, assess_turn

JUDGE = "judge"
BLOCK = "block"


def make_node(**fields: Any) -> NodeSpec:
    return NodeSpec(id="n", system_prompt="Be a bee.", **({"output_keys": ("a", "b")} | fields))


def make_turn(**fields: Any) -> NodeCursor:
    return NodeCursor(visit_id="v", iteration=1, awaiting="verdict", **fields)


def describe_action(action: NextAction) -> str:
    if action.question is not None and action.verdict is Verdict.CONTINUE:
        return BLOCK
    return JUDGE if action.verdict is None else action.verdict.value


WITHOUT_USER: dict[str, Any] = {}
WITH_USER = {"client_facing": True}
BOTH = {"a": 1, "b": 2}
OUTPUTS_SET = {"calls": ["set_output"], "outputs_set": True}

TABLE = [
    # without a user
    (WITHOUT_USER, {"calls": ["look"]}, "CONTINUE"),
    (WITHOUT_USER, {"calls": ["look"], "text": "Looking."}, "CONTINUE"),
    (WITHOUT_USER, {"calls": ["fly"]}, "CONTINUE"),
    (WITHOUT_USER, {**OUTPUTS_SET, "outputs": BOTH}, JUDGE),
    (WITHOUT_USER, {**OUTPUTS_SET, "outputs": {"a": 1}}, "CONTINUE"),
    (WITHOUT_USER, {**OUTPUTS_SET, "outputs": {"a": 1}, "text": "Half."}, "CONTINUE"),
    (WITHOUT_USER, {"calls": ["set_output"]}, "CONTINUE"),
    (WITHOUT_USER, {"calls": ["look", "set_output"], "outputs_set": True, "outputs": BOTH}, JUDGE),
    (WITHOUT_USER, {"calls": ["look"], "outputs": BOTH}, "CONTINUE"),
    (WITHOUT_USER, {"text": "Done.", "outputs": BOTH}, JUDGE),
    (WITHOUT_USER, {"text": "Well."}, "RETRY"),
    (WITHOUT_USER, {"text": ""}, "RETRY"),
    (WITHOUT_USER, {"text": "Well.", "outputs": {"a": 1}}, "RETRY"),
    (WITHOUT_USER, {"calls": ["ask_user"]}, "CONTINUE"),
    # A successful final tool ends the visit even if outputs are missing.
    # A failed or pending final tool does not.
    ({"tools": ("emit",), "final_tools": ("emit",)}, {"calls": ["emit"], "succeeded": ["emit"]}, JUDGE),
    ({"tools": ("emit",), "final_tools": ("emit",)}, {"calls": ["emit"]}, "CONTINUE"),
    (
        {"tools": ("emit", "look"), "final_tools": ("emit",)},
        {"calls": ["look"], "succeeded": ["look"]},
        "CONTINUE",
    ),
    # optional outputs
    ({"nullable_output_keys": ("b",)}, {**OUTPUTS_SET, "outputs": {"a": 1}}, JUDGE),
    ({"nullable_output_keys": ("a", "b")}, {"text": "Nothing to say."}, JUDGE),
    ({"nullable_output_keys": ("a", "b")}, {"calls": ["look"]}, "CONTINUE"),
    # without outputs, text is the answer
    ({"output_keys": ()}, {"text": "Hello."}, JUDGE),
    ({"output_keys": ()}, {"text": " \n"}, "RETRY"),
    ({"output_keys": ()}, {"calls": ["look"], "text": "Looking."}, "CONTINUE"),
    # with a user
    (WITH_USER, {"calls": ["ask_user"], "asked": ["Which?"]}, BLOCK),
    (WITH_USER, {"calls": ["look", "ask_user"], "asked": ["Which?"]}, BLOCK),
    (WITH_USER, {"calls": ["ask_user"]}, "CONTINUE"),
    (WITH_USER, {"calls": ["look"], "text": "Looking."}, "CONTINUE"),
    (WITH_USER, {"text": "Hello, what shall I do?"}, BLOCK),
    (WITH_USER, {"text": "And now?", "user_interaction_count": 3}, BLOCK),
    (WITH_USER, {**OUTPUTS_SET, "outputs": {"a": 1}, "text": "Half."}, BLOCK),
    (WITH_USER, {**OUTPUTS_SET, "outputs": {"a": 1}}, "CONTINUE"),
    (WITH_USER, {**OUTPUTS_SET, "outputs": BOTH}, BLOCK),
    (WITH_USER, {**OUTPUTS_SET, "outputs": BOTH, "text": "Here."}, BLOCK),
    (WITH_USER, {**OUTPUTS_SET, "outputs": BOTH, "user_interaction_count": 1}, JUDGE),
    (WITH_USER, {"text": "Bye.", "outputs": BOTH, "user_interaction_count": 1}, JUDGE),
    (WITH_USER, {"text": ""}, "RETRY"),
    # A chat has no outputs, and continues until its own judge ends it.
    ({**WITH_USER, "output_keys": ()}, {"text": "Hi.", "user_interaction_count": 9}, BLOCK),
    ({**WITH_USER, "output_keys": (), "conversation_judge": "llm"}, {"text": "Hi."}, BLOCK),
]


@pytest.mark.parametrize(("node", "turn", "expected"), TABLE)
def test_assess_turn_returns_next_action(node: dict[str, Any], turn: dict[str, Any], expected: str) -> None:
    assert describe_action(assess_turn(make_node(**node), make_turn(**turn))) == expected


def test_chat_judge_ends_visit_or_waits_for_user() -> None:
    chat = make_node(client_facing=True, output_keys=(), conversation_judge="llm")

    action = assess_turn(chat, make_turn(text="Hi.", user_interaction_count=1))

    assert action == NextAction(None, question="Hi.")


def test_retry_feedback_names_missing_outputs() -> None:
    action = assess_turn(make_node(), make_turn(text="Well.", outputs={"a": 1}))

    assert "without setting b" in action.feedback
    assert action.error.endswith("b")


def test_outputs_are_shown_to_user_if_model_said_nothing() -> None:
    action = assess_turn(
        make_node(client_facing=True), make_turn(calls=["set_output"], outputs_set=True, outputs=BOTH)
    )

    assert action.question == "a: 1\nb: 2"


def test_node_of_automatic_run_ends_without_user() -> None:
    action = assess_turn(
        make_node(client_facing=True),
        make_turn(calls=["set_output"], outputs_set=True, outputs=BOTH, text="Mended."),
        started_by_user=False,
    )

    assert action == NextAction(None)


@pytest.mark.parametrize(
    "outputs",
    [
        {"output_keys": ()},
        {"nullable_output_keys": ("a", "b")},
        {"output_keys": (), "conversation_judge": "llm"},
    ],
)
def test_text_ends_node_of_automatic_run_without_user(outputs: dict[str, Any]) -> None:
    node = make_node(client_facing=True, **outputs)

    assert describe_action(assess_turn(node, make_turn(text="Mended."), started_by_user=False)) == JUDGE
    assert describe_action(assess_turn(node, make_turn(text="Mended."))) == BLOCK
    turn = make_turn(calls=["ask_user"], asked=["Which?"])
    assert describe_action(assess_turn(node, turn, started_by_user=False)) == BLOCK


def test_automatic_run_waits_for_user_who_has_answered() -> None:
    node = make_node(client_facing=True, output_keys=())
    turn = make_turn(text="And now?", user_interaction_count=1)

    assert describe_action(assess_turn(node, turn, started_by_user=False)) == BLOCK


def test_multiple_questions_are_joined() -> None:
    action = assess_turn(
        make_node(client_facing=True), make_turn(calls=["ask_user", "ask_user"], asked=["One?", "Two?"])
    )

    assert action.question == "One?\nTwo?"


NAMES = st.sampled_from(["look", "set_output", "ask_user"])


@given(
    client_facing=st.booleans(),
    calls=st.lists(NAMES, max_size=3),
    outputs=st.dictionaries(st.sampled_from(["a", "b"]), st.integers()),
    outputs_set=st.booleans(),
    text=st.sampled_from(["", "Words."]),
    interaction_count=st.integers(0, 2),
)
def test_visit_ends_only_with_outputs_and_waits_only_for_users(
    client_facing: bool,
    calls: list[str],
    outputs: dict[str, int],
    outputs_set: bool,
    text: str,
    interaction_count: int,
) -> None:
    node = make_node(client_facing=client_facing)
    turn = make_turn(
        calls=calls,
        outputs=outputs,
        outputs_set=outputs_set,
        text=text,
        user_interaction_count=interaction_count,
    )

    action = assess_turn(node, turn)

    if action.verdict is None:
        assert outputs.keys() == {"a", "b"}
        assert interaction_count > 0 or not client_facing or "look" in calls
    if not client_facing:
        assert action.question is None
    if action.verdict is Verdict.RETRY:
        assert action.feedback
        assert action.error
        assert not calls
