"""A tool-calling agent of smolagents, with OpenInference's spans."""

from __future__ import annotations

from common import INSTRUCTIONS, MODEL, NAME, PROMPT, run_shell_command, set_up
from openinference.instrumentation.smolagents import SmolagentsInstrumentor

set_up()
SmolagentsInstrumentor().instrument()

from smolagents import OpenAIModel, ToolCallingAgent, tool  # noqa: E402

agent = ToolCallingAgent(
    tools=[tool(run_shell_command)], model=OpenAIModel(MODEL), name=NAME, description=INSTRUCTIONS
)
print(agent.run(PROMPT))
