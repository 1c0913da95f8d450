"""
A small demo fleet: agents that read, search and summarise real text files.

Like any other agents, they use only ``queenright.instrumentation`` and send telemetry over OTLP.
"""

from queenright.demo.fleet import DEMO_FRAMEWORK, Fleet

__all__ = ["DEMO_FRAMEWORK", "Fleet"]
