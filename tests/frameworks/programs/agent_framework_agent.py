"""An agent of Microsoft's Agent Framework, with its own spans."""

from __future__ import annotations

from common import INSTRUCTIONS, MODEL, NAME, PROMPT, run_shell_command, set_up

set_up()

import asyncio  # noqa: E402

from agent_framework import Agent  # noqa: E402
from agent_framework.openai import OpenAIChatCompletionClient  # noqa: E402

agent = Agent(OpenAIChatCompletionClient(model=MODEL), INSTRUCTIONS, name=NAME, tools=[run_shell_command])
print(asyncio.run(agent.run(PROMPT)))
