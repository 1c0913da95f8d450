"""
Names of circuit breakers: ``kind:agent:target`` without an empty tail.

``tool_execution:researcher:search``, ``checkpoint_write:researcher``, ``external_api::openai``.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple


class BreakerName(NamedTuple):
    """The name of a circuit breaker, by what it protects."""

    kind: str
    agent: str = ""
    target: str = ""

    def __str__(self) -> str:
        # The target is the last part, so its colons need no escape.
        agent = self.agent.replace("%", "%25").replace(":", "%3A")
        if self.target:
            return f"{self.kind}:{agent}:{self.target}"
        return f"{self.kind}:{agent}" if agent else self.kind

    @classmethod
    def parse(cls, name: str) -> BreakerName:
        """
        Parse a name.

        Raises:
            ValueError: It has no kind.
        """
        kind, _, rest = name.partition(":")
        agent, _, target = rest.partition(":")
        if not kind or kind != kind.strip():
            raise ValueError(f"{name!r} is not the name of a breaker; write kind:agent:target or kind")
        return cls(kind, agent.replace("%3A", ":").replace("%25", "%"), target)

    def setting_keys(self) -> Iterator[str]:
        """Yield the names under which its settings are looked up, the most specific first."""
        yield str(self)
        if self.agent and self.target:
            yield str(BreakerName(self.kind, "", self.target))
            yield str(BreakerName(self.kind, self.agent))
        if self.agent or self.target:
            yield self.kind
