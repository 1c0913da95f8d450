"""A graph and a session's data as text."""

from __future__ import annotations

from queenright.api.loaded_agents import Edge, NodeDetail
from queenright.tui.screens.talk import make_graph_lines, make_memory_lines
from tests.tui.canned import row


def node_detail(
    name: str, *edges: tuple[str, str], running: int = 0, waiting_for_user: int = 0
) -> NodeDetail:
    edges_out = [
        Edge.model_validate(row(Edge, target=target, when=when, expression="n > 3", route=""))
        for target, when in edges
    ]
    state = {"node_id": name, "running": running, "waiting_for_user": waiting_for_user}
    return NodeDetail.model_validate(row(NodeDetail, **state, edges_out=edges_out))


def test_graph_line_has_state_and_edges() -> None:
    nodes = [
        node_detail("ask", ("search", "success"), ("ask", "failure"), running=1, waiting_for_user=1),
        node_detail("search", ("write", "expression"), running=1),
        node_detail("write"),
    ]

    assert make_graph_lines(nodes) == [
        "? ask     waiting for input   → search, ask on failure",
        "▶ search  working             → write if n > 3",
        "○ write   idle",
    ]


def test_value_is_shown_as_json_and_long_values_are_truncated() -> None:
    lines = make_memory_lines({"topic": "doors", "pages": list(range(500)), "ü": {"a": None}})

    assert lines[0] == 'topic  "doors"'
    assert len(lines[1]) < 320
    assert lines[2] == 'ü      {"a": null}'


def test_empty_input_gives_empty_output() -> None:
    assert (make_graph_lines([]), make_memory_lines({})) == ([], [])
