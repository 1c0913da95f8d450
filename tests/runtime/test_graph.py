from typing import Any

import pytest
from pydantic import ValidationError

from queenright.runtime.events import EventType
from queenright.runtime.graph import EntryPointSpec, GraphSpec, NodeSpec

NODE = NodeSpec(id="judge", system_prompt="Judge.")


@pytest.mark.parametrize(
    ("fields", "fault"),
    [
        ({"trigger_type": "timer"}, "entry point 'e': a timer needs interval_seconds"),
        ({"interval_seconds": 5}, "entry point 'e': interval_seconds is for timers, not manual"),
        ({"trigger_type": "event"}, "entry point 'e': an event trigger needs event_types"),
        ({"event_types": {EventType.STEP_STARTED}}, "entry point 'e': event_types is for events, not manual"),
        ({"trigger_type": "timer", "interval_seconds": 0}, "greater than 0"),
        ({"trigger_type": "event", "event_types": {"no_such_event"}}, "no_such_event|Input should be"),
        ({"trigger_type": "cron"}, "trigger_type"),
        ({"isolation_level": "shared"}, "isolation_level"),
        ({"interval": 5}, "interval"),
    ],
)
def test_what_is_wrong_with_an_entry_point_is_said_by_name(fields: dict[str, Any], fault: str) -> None:
    with pytest.raises(ValidationError, match=fault):
        EntryPointSpec(id="e", node_id="judge", **fields)


def test_an_entry_point_that_starts_a_missing_node_is_refused() -> None:
    with pytest.raises(ValidationError, match="entry point 'e' starts node 'queen'; there are: judge"):
        GraphSpec(id="g", nodes=(NODE,), entry_points=(EntryPointSpec(id="e", node_id="queen"),))


def test_ids_that_are_there_twice_are_refused() -> None:
    entry = EntryPointSpec(id="e", node_id="judge")

    with pytest.raises(ValidationError, match="node 'judge' is there twice"):
        GraphSpec(id="g", nodes=(NODE, NODE), entry_points=(entry,))
    with pytest.raises(ValidationError, match="entry point 'e' is there twice"):
        GraphSpec(id="g", nodes=(NODE,), entry_points=(entry, entry))


@pytest.mark.parametrize("bad", ["", "..", "a/b", "../up", "a b", ".hidden", "x" * 101])
def test_ids_that_cannot_be_folder_names_are_refused(bad: str) -> None:
    """B8: a path separator or `..` never reaches the disk."""
    with pytest.raises(ValidationError):
        GraphSpec(id=bad, nodes=(NODE,), entry_points=(EntryPointSpec(id="e", node_id="judge"),))


def test_a_node_is_found_by_its_id() -> None:
    graph = GraphSpec(id="g", nodes=(NODE,), entry_points=(EntryPointSpec(id="e", node_id="judge"),))

    assert graph.node("judge") is NODE
    with pytest.raises(KeyError):
        graph.node("queen")
