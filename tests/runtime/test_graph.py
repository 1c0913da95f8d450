import json
import sys
import zoneinfo
from collections.abc import Iterator
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from queenright.runtime.events import EventType
from queenright.runtime.graphs.graph import EdgeSpec, EntryPointSpec, GraphSpec, NodeSpec

NODE = NodeSpec(id="judge", system_prompt="Judge.")
START = EntryPointSpec(id="e", node_id="judge")


def make_node(node_id: str, **fields: Any) -> NodeSpec:
    return NodeSpec(id=node_id, **{"system_prompt": "Work.", **fields})


def make_chain(*edges: tuple[str, str] | EdgeSpec, **nodes: Any) -> GraphSpec:
    """Return a graph that starts in ``a``, with a node for every name in ``edges``."""
    specs = [e if isinstance(e, EdgeSpec) else EdgeSpec(source=e[0], target=e[1]) for e in edges]
    names = dict.fromkeys(["a", *(name for e in specs for name in (e.source, e.target))])
    return GraphSpec(
        id="g",
        nodes=tuple(nodes.get(name) or make_node(name) for name in names),
        edges=tuple(specs),
        entry_points=(EntryPointSpec(id="e", node_id="a"),),
    )


def list_faults(**fields: Any) -> list[str]:
    """Return the problems of an invalid graph, without the graph's id."""
    fields = {"nodes": [NODE], "entry_points": [START], **fields}
    with pytest.raises(ValidationError) as error_info:
        GraphSpec.model_validate({"id": "g", **fields})
    [error] = error_info.value.errors()
    lines = str(error["msg"]).removeprefix("Value error, ").splitlines()
    assert all(line.startswith("graph 'g': ") for line in lines)
    return [line.removeprefix("graph 'g': ") for line in lines]


@pytest.mark.parametrize(
    ("fields", "fault"),
    [
        ({"trigger_type": "timer"}, "a timer needs interval_seconds or cron"),
        (
            {"trigger_type": "timer", "interval_seconds": 5, "cron": "* * * * *"},
            "a timer takes either interval_seconds or cron, not both",
        ),
        ({"interval_seconds": 5}, "interval_seconds applies to timers, not manual"),
        ({"cron": "* * * * *"}, "cron applies to timers, not manual"),
        (
            {"trigger_type": "timer", "cron": "0 0 * *"},
            "cron '0 0 * *' has 4 fields; it needs minute, hour, day of month, month, day of week",
        ),
        ({"trigger_type": "timer", "cron": "61 * * * *"}, "cron '61 * * * *': Bad minute"),
        ({"trigger_type": "timer", "cron": "0 0 31 2 *"}, "cron '0 0 31 2 *': Bad day-of-month"),
        (
            {"trigger_type": "timer", "cron": "0 0 * * *", "timezone": "Hive/North"},
            "unknown timezone 'Hive/North'; use a name such as 'UTC' or 'Europe/Vienna'",
        ),
        (
            {"trigger_type": "timer", "cron": "0 0 * * *", "timezone": "../../etc/passwd"},
            "unknown timezone '../../etc/passwd'; use a name such as 'UTC' or 'Europe/Vienna'",
        ),
        (
            {"trigger_type": "timer", "interval_seconds": 5, "timezone": "Europe/Vienna"},
            "timezone applies to cron",
        ),
        ({"trigger_type": "event"}, "an event trigger needs event_types"),
        ({"event_types": {EventType.STEP_STARTED}}, "event_types applies to event triggers, not manual"),
        ({"filter_agent": "bee"}, "filter_agent applies to event triggers, not manual"),
        (
            {"isolation_level": "shared", "max_concurrent": 2},
            "max_concurrent 2 requires isolation_level per_run",
        ),
    ],
)
def test_entry_point_problems_are_named(fields: dict[str, Any], fault: str) -> None:
    entry = EntryPointSpec(id="e", node_id="judge", **fields)

    [line] = list_faults(entry_points=[entry])

    assert line.startswith(f"entry point 'e': {fault}")


@pytest.fixture
def no_timezone_database(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setitem(sys.modules, "tzdata", None)
    zoneinfo.reset_tzpath(to=())
    zoneinfo.ZoneInfo.clear_cache()
    yield
    zoneinfo.reset_tzpath()


@pytest.mark.usefixtures("no_timezone_database")
def test_utc_needs_no_timezone_database() -> None:
    timer = EntryPointSpec(id="e", node_id="judge", trigger_type="timer", cron="0 0 * * *")

    assert GraphSpec(id="g", nodes=(NODE,), entry_points=(timer,)).entry_points == (timer,)


@pytest.mark.usefixtures("no_timezone_database")
def test_timezone_without_a_database_names_the_package() -> None:
    timer = {
        "id": "e",
        "node_id": "judge",
        "trigger_type": "timer",
        "cron": "0 0 * * *",
        "timezone": "Europe/Vienna",
    }

    assert all(
        part in str(list_faults(entry_points=[timer])) for part in ("'Europe/Vienna'", "tzdata", "'UTC'")
    )


@pytest.mark.parametrize(
    ("fields", "fault"),
    [
        ({"trigger_type": "timer", "interval_seconds": 0}, "greater than 0"),
        ({"trigger_type": "timer", "interval_seconds": float("inf")}, "finite number"),
        ({"trigger_type": "event", "event_types": {"no_such_event"}}, "no_such_event|Input should be"),
        ({"trigger_type": "cron"}, "trigger_type"),
        ({"isolation_level": "none"}, "isolation_level"),
        ({"max_concurrent": 0}, "greater than or equal to 1"),
        ({"interval": 5}, "interval"),
    ],
)
def test_invalid_entry_point_value_is_refused(fields: dict[str, Any], fault: str) -> None:
    with pytest.raises(ValidationError, match=fault):
        EntryPointSpec(id="e", node_id="judge", **fields)


@pytest.mark.parametrize(
    ("fields", "level"),
    [
        ({}, "per_run"),
        ({"trigger_type": "manual", "isolation_level": None}, "per_run"),
        ({"trigger_type": "timer", "interval_seconds": 5}, "isolated"),
        ({"trigger_type": "event", "event_types": ["step_started"]}, "isolated"),
        ({"trigger_type": "timer", "interval_seconds": 5, "isolation_level": "shared"}, "shared"),
    ],
)
def test_default_isolation_level_depends_on_trigger(fields: dict[str, Any], level: str) -> None:
    entry = EntryPointSpec(id="e", node_id="judge", **fields)

    assert entry.isolation_level == level
    assert EntryPointSpec.model_validate_json(entry.model_dump_json()) == entry


@pytest.mark.parametrize(
    ("fields", "fault"),
    [
        ({}, "an event_loop node needs a system_prompt"),
        (
            {"system_prompt": "x", "function": "f"},
            "function applies to function and router nodes, not event_loop",
        ),
        ({"system_prompt": "x", "routes": {"a": ""}}, "routes applies to routers, not event_loop"),
        ({"node_type": "function"}, "a function node needs a function"),
        (
            {"node_type": "function", "function": "f", "tools": ("t",)},
            "tools applies to nodes with a model, but this one calls function 'f'",
        ),
        (
            {"node_type": "function", "function": "f", "system_prompt": "x"},
            "system_prompt applies to nodes with a model, but this one calls function 'f'",
        ),
        (
            {"node_type": "function", "function": "f", "client_facing": True},
            "client_facing applies to event_loop nodes, not function",
        ),
        ({"system_prompt": "x", "tools": ("t", "t")}, "tool 't' is defined twice"),
        ({"system_prompt": "x", "output_keys": ("o", "o")}, "output key 'o' is defined twice"),
        (
            {"system_prompt": "x", "output_keys": ("o",), "nullable_output_keys": ("p",)},
            "nullable output key 'p' is not in output_keys",
        ),
        (
            {"system_prompt": "x", "tools": ("t",), "final_tools": ("u",)},
            "final tool 'u' is not in tools",
        ),
        (
            {"system_prompt": "x", "conversation_judge": "llm"},
            "conversation_judge 'llm' requires success_criteria",
        ),
    ],
)
def test_node_problems_are_named(fields: dict[str, Any], fault: str) -> None:
    assert list_faults(nodes=[NodeSpec(id="judge", **fields)]) == [f"node 'judge': {fault}"]


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("max_turns", 0),
        ("max_retries", -1),
        ("model_attempts", 0),
        ("max_context_tokens", 199),
        ("max_messages", 1),
        ("tool_timeout_seconds", 0),
    ],
)
def test_limit_that_allows_nothing_is_refused(field: str, value: int) -> None:
    with pytest.raises(ValidationError, match=field):
        NodeSpec.model_validate({"id": "judge", "system_prompt": "x", field: value})


def make_router(**fields: Any) -> NodeSpec:
    return NodeSpec.model_validate(
        {"id": "a", "node_type": "router", "function": "f", "routes": {"left": ""}, **fields}
    )


@pytest.mark.parametrize(
    ("node", "edge", "expected"),
    [
        (make_node("a"), {"expression": "x > 1"}, ["expression requires when='expression'"]),
        (make_node("a"), {"when": "expression"}, ["requires an expression"]),
        (make_node("a"), {"when": "expression", "expression": "x >"}, ["condition 'x >': invalid syntax"]),
        (
            make_node("a"),
            {"when": "expression", "expression": "__import__('os')"},
            ["unknown function '__import__'"],
        ),
        (make_node("a"), {"route": "left"}, ["route requires when='route', not 'success'"]),
        (
            make_node("a"),
            {"when": "route", "route": "left"},
            ["a route leaves node 'a', which is not a router but event_loop"],
        ),
        (
            make_router(),
            {"when": "route", "route": "up"},
            ["route 'left' has no edge", "node 'a' has no route 'up'; it has: left"],
        ),
        (make_router(), {"when": "success"}, ["route 'left' has no edge"]),
        (
            make_router(routes={}),
            {"when": "route", "route": "up"},
            ["a router needs routes", "no route 'up'; it has: none"],
        ),
        (
            make_router(system_prompt="Choose."),
            {"when": "route", "route": "left"},
            ["a router needs either a system_prompt or a function, not both"],
        ),
    ],
)
def test_edge_and_router_problems_are_named(
    node: NodeSpec, edge: dict[str, Any], expected: list[str]
) -> None:
    faults = list_faults(
        nodes=[node, make_node("b")],
        edges=[{"source": "a", "target": "b", **edge}],
        entry_points=[{"id": "e", "node_id": "a"}],
    )

    assert len(faults) == len(expected)
    for line, part in zip(faults, expected, strict=True):
        assert part in line
        assert line.startswith(("edge 'a-b': ", "node 'a': "))


def test_edge_maps_only_inputs_of_its_target() -> None:
    edges = [{"source": "judge", "target": "b", "input_mapping": {"draft": "report"}}]

    assert all(
        part in str(list_faults(nodes=[NODE, make_node("b", input_keys=("text",))], edges=edges))
        for part in ("'judge-b'", "'draft'", "'b'", "text")
    )


def test_all_graph_problems_are_reported_at_once() -> None:
    faults = list_faults(
        nodes=[{"id": "judge"}, NODE, make_node("island")],
        edges=[
            {"source": "judge", "target": "b"},
            {"source": "c", "target": "judge"},
            {"id": "x", "source": "judge", "target": "judge", "when": "failure"},
            {"id": "x", "source": "judge", "target": "judge", "when": "expression"},
        ],
        entry_points=[START, {"id": "e", "node_id": "queen", "trigger_type": "timer"}],
    )

    assert faults == [
        "node 'judge' is defined twice",
        "edge 'x' is defined twice",
        "entry point 'e' is defined twice",
        "node 'judge': an event_loop node needs a system_prompt",
        "edge 'judge-b' leads to node 'b', which does not exist; nodes: judge, island",
        "edge 'c-judge' leaves node 'c', which does not exist; nodes: judge, island",
        "edge 'x': when='expression' requires an expression",
        "entry point 'e' starts node 'queen', which does not exist; nodes: judge, island",
        "entry point 'e': a timer needs interval_seconds or cron",
        "node 'island' is not reachable from any entry point",
    ]


def test_empty_graph_is_refused() -> None:
    assert len(list_faults(nodes=[], entry_points=[])) == 2


def test_duplicate_edge_is_refused() -> None:
    edge = {"source": "judge", "target": "b"}

    assert all(
        part in str(list_faults(nodes=[NODE, make_node("b")], edges=[edge, edge]))
        for part in ("'judge-b-2'", "'judge-b'")
    )


@pytest.mark.parametrize("invalid_id", ["", "..", "a/b", "../up", "a b", ".hidden", "x" * 101])
def test_ids_that_cannot_be_folder_names_are_refused(invalid_id: str) -> None:
    """B8: an id with a path separator or `..` never reaches the disk."""
    with pytest.raises(ValidationError):
        GraphSpec(id=invalid_id, nodes=(NODE,), entry_points=(START,))
    with pytest.raises(ValidationError):
        make_node(invalid_id)


def test_unnamed_edges_are_named_after_their_target() -> None:
    graph = make_chain(
        ("a", "b"),
        EdgeSpec(source="a", target="b", when="failure"),
        EdgeSpec(id="b-c", source="a", target="c"),
        ("b", "c"),
    )

    assert [edge.id for edge in graph.edges] == ["a-b", "a-b-2", "b-c", "b-c-2"]


def test_edge_between_longest_ids_has_a_valid_id() -> None:
    a, b = "a" * 100, "b" * 100

    graph = GraphSpec(
        id="g",
        nodes=(make_node(a), make_node(b)),
        edges=(EdgeSpec(source=a, target=b),),
        entry_points=(EntryPointSpec(id="e", node_id=a),),
    )

    assert GraphSpec.model_validate_json(graph.model_dump_json()) == graph


def test_graph_round_trips_through_json() -> None:
    graph = make_chain(
        EdgeSpec(source="a", target="b", when="route", route="left", input_mapping={"text": "report"}),
        EdgeSpec(source="b", target="c", when="expression", expression="score > 3", priority=2),
        a=make_router(),
        b=make_node("b", output_keys=("score",), max_messages=10, input_keys=("text",)),
    )

    assert GraphSpec.model_validate(json.loads(graph.model_dump_json())) == graph


def test_node_is_found_by_its_id() -> None:
    graph = GraphSpec(id="g", nodes=(NODE,), entry_points=(START,))

    assert graph.node("judge") is NODE
    with pytest.raises(KeyError):
        graph.node("queen")


def test_edges_are_evaluated_by_descending_priority() -> None:
    graph = make_chain(
        EdgeSpec(source="a", target="b"),
        EdgeSpec(source="a", target="c", priority=5),
        EdgeSpec(source="a", target="d"),
        EdgeSpec(source="c", target="d", priority=9),
    )

    assert [edge.target for edge in graph.edges_from("a")] == ["c", "b", "d"]
    assert graph.edges_from("d") == ()


def test_node_reaches_itself_only_through_a_cycle() -> None:
    graph = make_chain(("a", "b"), ("b", "c"), EdgeSpec(source="c", target="b", when="failure"))

    assert graph.find_reachable_nodes("a") == {"b", "c"}
    assert graph.find_reachable_nodes("b") == {"b", "c"}
    assert make_chain().find_reachable_nodes("a") == frozenset()


@pytest.mark.parametrize(
    ("edges", "expected"),
    [
        ([("a", "a")], "'a' -> 'a'"),
        ([("a", "b"), ("b", "c"), ("c", "b")], "'b' -> 'c' -> 'b'"),
        ([EdgeSpec(source="a", target="a", when="always")], "'a' -> 'a'"),
    ],
)
def test_cycle_without_an_exit_is_refused_and_its_nodes_are_named(
    edges: list[tuple[str, str] | EdgeSpec], expected: str
) -> None:
    with pytest.raises(
        ValidationError, match=f"nodes form an endless cycle: {expected}; give one of them an edge"
    ):
        make_chain(*edges)


@pytest.mark.parametrize(
    "edges",
    [
        [("a", "b"), ("b", "a"), ("b", "c")],
        [EdgeSpec(source="a", target="a", when="failure")],
        [("a", "b"), EdgeSpec(source="b", target="a", when="expression", expression="score < 3")],
    ],
)
def test_cycle_that_can_end_is_accepted(edges: list[tuple[str, str] | EdgeSpec]) -> None:
    assert "a" in make_chain(*edges).find_reachable_nodes("a")


def test_visit_limit_ends_a_cycle() -> None:
    assert make_chain(("a", "a"), a=make_node("a", max_node_visits=3)).find_reachable_nodes("a") == {"a"}


def test_router_that_only_loops_back_is_not_an_exit() -> None:
    with pytest.raises(ValidationError, match="'a' -> 'b' -> 'a'"):
        make_chain(EdgeSpec(source="a", target="b", when="route", route="left"), ("b", "a"), a=make_router())


@given(
    pairs=st.sets(st.tuples(st.sampled_from("abcde"), st.sampled_from("abcde")), max_size=12),
)
def test_accepted_graph_can_always_end(pairs: set[tuple[str, str]]) -> None:
    """Since all edges are taken on success, a graph is endless if some node cannot reach an end."""
    try:
        graph = make_chain(*sorted(pairs))
    except ValidationError as error:
        text = str(error)
        assert "nodes form an endless cycle" in text or "is not reachable from any entry point" in text
        return
    final_nodes = {node.id for node in graph.nodes if not graph.edges_from(node.id)}

    assert all(
        node.id in final_nodes or graph.find_reachable_nodes(node.id) & final_nodes for node in graph.nodes
    )


def test_graph_may_be_long() -> None:
    names = [f"n{k}" for k in range(400)]
    edges = [EdgeSpec(source=a, target=b) for a, b in pairwise(names)]

    graph = GraphSpec(
        id="g",
        nodes=tuple(make_node(name) for name in names),
        edges=tuple(edges),
        entry_points=(EntryPointSpec(id="e", node_id="n0"),),
    )

    assert len(graph.find_reachable_nodes("n0")) == 399
