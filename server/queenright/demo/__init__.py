"""
A small demo fleet: agents that read, search and summarise real text files.

Like any other agents, they use only ``queenright.instrumentation`` and send telemetry over OTLP. Another
agent runs in the service and asks its user a question. A hook client acts like a coding agent that asks for
a permission.
"""

from queenright.demo.fleet import DEMO_AGENTS, DEMO_FRAMEWORK, Fleet
from queenright.demo.hook_client import HOOK_AGENT, HookClient
from queenright.demo.model import DEMO_PRICES

__all__ = ["DEMO_AGENTS", "DEMO_FRAMEWORK", "DEMO_PRICES", "HOOK_AGENT", "Fleet", "HookClient"]
