"""
A small demo fleet: agents that read, search and summarise real text files.

Like any other agents, they use only ``queenright.instrumentation`` and send telemetry over OTLP. One more
runs in the service, and asks its user.
"""

from queenright.demo.fleet import DEMO_AGENTS, DEMO_FRAMEWORK, Fleet
from queenright.demo.model import DEMO_PRICE, SCRIPTED_MODEL

__all__ = ["DEMO_AGENTS", "DEMO_FRAMEWORK", "DEMO_PRICE", "SCRIPTED_MODEL", "Fleet"]
