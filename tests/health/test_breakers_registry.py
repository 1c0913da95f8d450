"""The registry of breakers: names, settings by name, parents, and maximum size."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from queenright.health.breakers import (
    BreakerChange,
    BreakerNotFoundError,
    BreakerRegistry,
    BreakerState,
    CircuitOpenError,
)
from queenright.health.breakers.registry import BreakerName
from queenright.health.settings import BreakerSettings, CircuitBreakerSettings, HealthSettings

CLOSED, OPEN, HALF_OPEN = BreakerState


class RegistryBench:
    """A registry, its clock, and the changes that it reported."""

    def __init__(self, overrides: dict[str, Any] | None = None, **options: Any) -> None:
        self.now = 0.0
        self.changes: list[BreakerChange] = []
        self.registry = BreakerRegistry(
            CircuitBreakerSettings.model_validate({"overrides": overrides or {}}),
            clock=lambda: 1_000 + self.now,
            monotonic=lambda: self.now,
            on_change=self.changes.append,
            **options,
        )

    def trip(self, *name_parts: str, **options: Any) -> None:
        while (breaker := self.registry.get(*name_parts, **options)).state is not OPEN:
            breaker.admit().record_failure("x")


@pytest.mark.parametrize(
    ("name_parts", "name"),
    [
        (("tool_execution", "bee", "search"), "tool_execution:bee:search"),
        (("checkpoint_write", "bee"), "checkpoint_write:bee"),
        (("external_api", "", "api.example.com"), "external_api::api.example.com"),
        (("recovery",), "recovery"),
        (("external_api", "a:b", "ollama/llama3:8b"), "external_api:a%3Ab:ollama/llama3:8b"),
    ],
)
def test_breaker_name_has_kind_agent_and_target(name_parts: tuple[str, ...], name: str) -> None:
    service = RegistryBench()

    breaker = service.registry.get(*name_parts)

    assert breaker.name == name
    assert service.registry.get(*name_parts) is breaker
    status = service.registry.status(name)
    assert (status.kind, status.agent_id, status.target) == (*name_parts, "", "")[:3]


@given(st.text("ab:%3A", min_size=0), st.text())
def test_breaker_name_round_trips(agent: str, target: str) -> None:
    name = BreakerName("tool_execution", agent, target)

    assert BreakerName.parse(str(name)) == name


@pytest.mark.parametrize("kind", ["", "a:b"])
def test_invalid_kind_is_refused(kind: str) -> None:
    with pytest.raises(ValueError, match="kind must be a word without a colon"):
        RegistryBench().registry.get(kind)


def test_most_special_settings_count() -> None:
    service = RegistryBench(
        {
            "tool_execution": {"failure_threshold": 5},
            "tool_execution:bee": {"failure_threshold": 6},
            "tool_execution::search": {"failure_threshold": 7},
            "tool_execution:bee:search": {"failure_threshold": 8},
        }
    )

    thresholds = [
        service.registry.get(*words).status.threshold
        for words in (
            ("tool_execution", "bee", "search"),
            ("tool_execution", "ant", "search"),
            ("tool_execution", "bee", "read"),
            ("tool_execution", "ant", "read"),
            ("recovery", "bee"),
        )
    ]

    assert thresholds == [8, 7, 6, 5, 3]


def test_breaker_settings_of_the_requirements_are_valid_as_written() -> None:
    block = {
        "circuit_breaker": {
            "default": {"failure_threshold": 3, "recovery_timeout_seconds": 60, "half_open_requests": 1},
            "overrides": {
                "tool_execution": {"failure_threshold": 5, "recovery_timeout_seconds": 30},
                "checkpoint_write": {"failure_threshold": 3, "recovery_timeout_seconds": 120},
            },
        }
    }
    registry = BreakerRegistry(HealthSettings.model_validate(block).circuit_breaker)

    assert registry.policy("tool_execution:bee:search").recovery_timeout_seconds == 30
    assert registry.policy("checkpoint_write:bee").recovery_timeout_seconds == 120
    assert registry.policy("external_api:bee:gpt") == BreakerSettings()


def test_call_needs_permission_of_all_parents_and_reports_to_all() -> None:
    service = RegistryBench()
    host = "external_api::api.example.com"

    def call_endpoint(name: str) -> Any:
        return service.registry.get("external_api", "bee", name, parents=[host])

    for name in ("one", "two", "three"):
        call_endpoint(name).admit().record_failure("no route")

    assert service.registry.status(host).state is OPEN
    assert [status.failures for status in service.registry.all()] == [3, 1, 1, 1]
    with pytest.raises(CircuitOpenError, match=r"'external_api::api\.example\.com' is open"):
        call_endpoint("four").admit()
    assert service.registry.status("external_api:bee:four").failures == 0


def test_refusal_by_a_parent_uses_no_probe_of_its_child() -> None:
    service = RegistryBench({"external_api::host": {"recovery_timeout_seconds": 600}})
    service.trip("external_api", "bee", "one", parents=["external_api::host"])
    service.now += 60

    with pytest.raises(CircuitOpenError, match="host"):
        service.registry.get("external_api", "bee", "one", parents=["external_api::host"]).admit()

    assert service.registry.status("external_api:bee:one").state is OPEN
    # The registry remembers the parents of a breaker.
    assert service.registry.get("external_api", "bee", "one").parents


def test_breaker_cannot_be_its_own_parent() -> None:
    with pytest.raises(ValueError, match="'recovery:bee' cannot be its own parent"):
        RegistryBench().registry.get("recovery", "bee", parents=["recovery:bee"])


def test_b73_reset_by_name_closes_and_unknown_name_gets_suggestions() -> None:
    """B73: an operator resets a breaker by name."""
    service = RegistryBench()
    service.trip("tool_execution", "bee", "search")

    with pytest.raises(BreakerNotFoundError, match="did you mean 'tool_execution:bee:search'"):
        service.registry.reset("tool_execution:bee:serch", "anna")
    status = service.registry.reset("tool_execution:bee:search", "anna", "password=hunter2hunter2")

    assert (status.state, status.failures) == (CLOSED, 0)
    assert service.changes[-1].status.reason.startswith("reset by anna: password=")
    assert "hunter2" not in service.changes[-1].status.reason
    with pytest.raises(BreakerNotFoundError, match="list them: queenright breakers"):
        RegistryBench().registry.status("what")


def test_b73_uncalled_open_breaker_becomes_half_open() -> None:
    """B73: an open breaker becomes half-open when its timeout is over, even without a call."""
    service = RegistryBench({"recovery": {"recovery_timeout_seconds": 100}})
    assert service.registry.next_deadline() is None
    service.trip("recovery", "bee")
    service.trip("tool_execution", "bee", "search")

    assert service.registry.next_deadline() == 60
    assert service.registry.half_open_if_due() == 0
    service.now += 60
    assert service.registry.half_open_if_due() == 1

    assert service.registry.status("tool_execution:bee:search").state is HALF_OPEN
    assert service.registry.next_deadline() == 40


def test_full_registry_forgets_idle_closed_breakers_first() -> None:
    service = RegistryBench(capacity=4)
    service.trip("recovery", "open")
    service.registry.get("recovery", "counted").admit().record_failure("x")
    service.registry.get("recovery", "old")
    service.registry.get("recovery", "young")
    service.registry.get("recovery", "old")

    service.registry.get("recovery", "new")

    assert sorted(status.agent_id for status in service.registry.all()) == ["counted", "new", "old", "open"]


def test_open_breakers_are_bounded_and_forgotten_ones_published() -> None:
    service = RegistryBench(capacity=10)

    for n in range(30):
        service.trip("recovery", f"bee{n}")

    assert len(service.registry.all()) == 10
    assert service.registry.status("recovery:bee29").state is OPEN
    closing_changes = [change for change in service.changes if change.status.state is CLOSED]
    assert [change.status.agent_id for change in closing_changes] == [f"bee{n}" for n in range(20)]
    assert "10 " in closing_changes[0].status.reason
    service.now += 60
    assert service.registry.half_open_if_due() == 10


def test_breakers_that_are_not_closed_are_listed_first() -> None:
    service = RegistryBench()
    service.registry.get("recovery", "ant")
    service.trip("recovery", "wasp")

    assert [status.name for status in service.registry.all()] == ["recovery:wasp", "recovery:ant"]


@given(
    st.lists(
        st.tuples(st.sampled_from(["bee", "wasp", "", "ant"]), st.sampled_from("abcdef"), st.booleans())
    ),
    st.integers(1, 8),
)
def test_paged_breaker_lists_of_agents_equal_the_whole_list(
    calls: list[tuple[str, str, bool]], size: int
) -> None:
    service = RegistryBench(capacity=5)
    breakers = []
    for agent, target, should_trip in calls:
        breakers.append(service.registry.get("tool_execution", agent, target))
        if should_trip:
            service.trip("tool_execution", agent, target)
    for breaker in breakers:  # dropped breakers return when they change
        if breaker.state is CLOSED:
            while breaker.state is CLOSED:
                breaker.admit().record_failure("x")
            break
    statuses = {status.name: status for status in service.registry.all()}

    for agent in ("bee", "wasp", "", "ant", "nobody"):
        agent_statuses = {status.name: status for status in service.registry.of_agent(agent)}
        assert agent_statuses == {
            name: status for name, status in statuses.items() if status.agent_id == agent
        }
    for only_open in (False, True):
        listed_statuses, after = [], ""
        while page := service.registry.page(size, after=after, only_open=only_open):
            assert len(page) <= size
            listed_statuses += page
            after = page[-1].name
        expected_statuses = [
            status for status in statuses.values() if not only_open or status.state is not CLOSED
        ]
        assert listed_statuses == sorted(expected_statuses, key=lambda status: status.name)
