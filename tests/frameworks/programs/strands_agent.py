"""An agent of Strands, with its own spans."""

from __future__ import annotations

from common import INSTRUCTIONS, MODEL, NAME, PROMPT, run_shell_command, set_up

set_up()

from strands import Agent, tool  # noqa: E402
from strands.models.openai import OpenAIModel  # noqa: E402

agent = Agent(
    OpenAIModel(model_id=MODEL), name=NAME, system_prompt=INSTRUCTIONS, tools=[tool(run_shell_command)]
)
print(agent(PROMPT))
