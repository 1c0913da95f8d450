"""An agent of Agno, with OpenInference's spans."""

from __future__ import annotations

from common import INSTRUCTIONS, MODEL, NAME, PROMPT, run_shell_command, set_up
from openinference.instrumentation.agno import AgnoInstrumentor

set_up()
AgnoInstrumentor().instrument()

from agno.agent import Agent  # noqa: E402
from agno.models.openai import OpenAIChat  # noqa: E402

agent = Agent(
    name=NAME,
    instructions=INSTRUCTIONS,
    model=OpenAIChat(id=MODEL),
    tools=[run_shell_command],
    telemetry=False,
)
print(agent.run(PROMPT).content)
