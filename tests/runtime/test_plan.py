from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from queenright.runtime.graphs.conditions import ConditionError
from queenright.runtime.graphs.graph import EdgeSpec, EntryPointSpec, GraphSpec, NodeSpec
from queenright.runtime.plan import find_ready_nodes, select_edges
from queenright.runtime.storage.session_state import PendingNode


def make_graph(*edges: EdgeSpec, nodes: str = "abcde") -> GraphSpec:
    """Return an unvalidated graph, because plans must work for any graph."""
    return GraphSpec.model_construct(
        id="g",
        nodes=tuple(NodeSpec(id=n, system_prompt="x") for n in nodes),
        edges=tuple(e.model_copy(update={"id": e.id or f"{e.source}-{e.target}"}) for e in edges),
        entry_points=(EntryPointSpec(id="e", node_id="a"),),
    )


def make_edge(source: str, target: str, **options: Any) -> EdgeSpec:
    return EdgeSpec(source=source, target=target, **options)


def find_targets(g: GraphSpec, node: str = "a", **options: Any) -> list[str]:
    state: dict[str, Any] = {"has_succeeded": True, "route": "", "memory": {}, **options}
    return [e.target for e in select_edges(g, node, **state)]


@pytest.mark.parametrize(
    ("when", "has_succeeded", "is_taken"),
    [
        ("always", True, True),
        ("always", False, True),
        ("success", True, True),
        ("success", False, False),
        ("failure", True, False),
        ("failure", False, True),
    ],
)
def test_edge_condition_depends_on_the_outcome_of_its_node(
    when: Any, has_succeeded: bool, is_taken: bool
) -> None:
    assert (
        bool(find_targets(make_graph(make_edge("a", "b", when=when)), has_succeeded=has_succeeded))
        is is_taken
    )


def test_edges_of_equal_priority_run_in_parallel() -> None:
    assert find_targets(make_graph(make_edge("a", "b"), make_edge("a", "c"))) == ["b", "c"]


def test_lower_priority_edge_is_used_when_no_higher_one_holds() -> None:
    g = make_graph(
        make_edge("a", "b", when="expression", expression="score > 5", priority=1),
        make_edge("a", "c", when="always"),
    )

    assert find_targets(g, memory={"score": 6}) == ["b"]
    assert find_targets(g, memory={"score": 5}) == ["c"]


def test_expression_edge_is_not_taken_after_failure() -> None:
    assert (
        find_targets(
            make_graph(make_edge("a", "b", when="expression", expression="missing > 5")), has_succeeded=False
        )
        == []
    )


def test_expression_over_missing_key_is_an_error() -> None:
    with pytest.raises(ConditionError, match="missing"):
        find_targets(make_graph(make_edge("a", "b", when="expression", expression="missing > 5")))


def test_router_takes_the_edge_of_its_route() -> None:
    g = make_graph(
        make_edge("a", "b", when="route", route="left"), make_edge("a", "c", when="route", route="right")
    )

    assert find_targets(g, route="right") == ["c"]


def find_ready(g: GraphSpec, waiting_nodes: str, running: str = "") -> str:
    nodes = [PendingNode(node_id=n, visit=1) for n in waiting_nodes]
    return "".join(n.node_id for n in find_ready_nodes(g, nodes, set(running)))


def test_branches_of_different_length_join_where_they_meet() -> None:
    g = make_graph(
        make_edge("a", "b"),
        make_edge("a", "c"),
        make_edge("b", "e"),
        make_edge("c", "d"),
        make_edge("d", "e"),
    )

    assert find_ready(g, "bc") == "bc"
    assert find_ready(g, "e", running="c") == ""
    assert find_ready(g, "ed") == "d"
    assert find_ready(g, "e") == "e"


def test_nodes_that_can_only_wait_for_each_other_start_together() -> None:
    g = make_graph(make_edge("a", "b"), make_edge("a", "c"), make_edge("b", "a"), make_edge("c", "a"))

    assert find_ready(g, "bc") == "bc"
    assert find_ready(g, "b", running="c") == ""


def test_node_is_not_started_twice_at_a_time() -> None:
    assert find_ready(make_graph(make_edge("a", "a")), "a", running="a") == ""


@given(
    edges=st.lists(st.tuples(st.sampled_from("abcde"), st.sampled_from("abcde")), max_size=12),
    waiting_nodes=st.lists(st.sampled_from("abcde"), min_size=1, max_size=5, unique=True),
)
def test_some_node_can_always_start(edges: list[tuple[str, str]], waiting_nodes: list[str]) -> None:
    """No graph can deadlock."""
    assert find_ready(make_graph(*(make_edge(s, t) for s, t in edges)), "".join(waiting_nodes))
