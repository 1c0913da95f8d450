import pytest
from hypothesis import given
from hypothesis import strategies as st

from queenright.runtime.memory import MemoryAccessError, SharedMemory

json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=8,
)


@given(st.dictionaries(st.text(), json_values, max_size=4))
def test_shared_memory_round_trips(values: dict[str, object]) -> None:
    assert SharedMemory(values).read_all() == values


def test_values_are_copied() -> None:
    value = {"seen": [1]}
    memory = SharedMemory(value)

    value["seen"].append(2)
    memory.read_all()["seen"].append(3)

    assert memory.read_all() == {"seen": [1]}


@pytest.mark.parametrize("value", [object(), {1, 2}, b"x", float("nan")])
def test_value_that_is_not_json_is_rejected(value: object) -> None:
    with pytest.raises(MemoryAccessError, match=r"'bad' cannot be stored: .* is not JSON"):
        SharedMemory({"kept": 2, "bad": value})


def test_view_shows_only_requested_and_set_values() -> None:
    memory = SharedMemory({"a": 1, "b": 2})

    assert memory.view(("b", "c")) == {"b": 2}


def test_repr_does_not_contain_the_values() -> None:
    assert "hunter2" not in repr(SharedMemory({"password": "hunter2"}))
