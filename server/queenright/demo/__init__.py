"""
A small fleet to watch: agents that read, search and summarise real text files.

They are agents like any others: they know ``queenright.instrumentation`` and
nothing else of Queenright, and send their telemetry over OTLP.
"""

from queenright.demo.fleet import DEMO_FRAMEWORK, Fleet

__all__ = ["DEMO_FRAMEWORK", "Fleet"]
