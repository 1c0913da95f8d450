"""
Names of breakers: ``kind:agent:target`` without an empty tail.

``tool_execution:researcher:search``, ``checkpoint_write:researcher``, ``external_api::openai``.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple


class BreakerName(NamedTuple):
    """What a breaker stands before."""

    kind: str
    agent: str = ""
    target: str = ""

    def __str__(self) -> str:
        # A colon in the target needs no care: it is the last part.
        agent = self.agent.replace("%", "%25").replace(":", "%3A")
        if self.target:
            return f"{self.kind}:{agent}:{self.target}"
        return f"{self.kind}:{agent}" if agent else self.kind

    @classmethod
    def parse(cls, name: str) -> BreakerName:
        """
        Read what ``str`` wrote.

        Raises:
            ValueError: It has no kind.
        """
        kind, _, rest = name.partition(":")
        agent, _, target = rest.partition(":")
        if not kind or kind != kind.strip():
            raise ValueError(f"{name!r} is no name of a breaker: it must be kind:agent:target, or begin so")
        return cls(kind, agent.replace("%3A", ":").replace("%25", "%"), target)

    def looked_up_as(self) -> Iterator[str]:
        """Yield the names under which settings for it are looked for, the most special first."""
        yield str(self)
        if self.agent and self.target:
            yield str(BreakerName(self.kind, "", self.target))
            yield str(BreakerName(self.kind, self.agent))
        if self.agent or self.target:
            yield self.kind
