"""An agent of pydantic-ai, with its own spans."""

from __future__ import annotations

from common import INSTRUCTIONS, MODEL, NAME, PROMPT, SHOWS_CONTENT, run_shell_command, set_up

set_up()

from pydantic_ai import Agent, InstrumentationSettings  # noqa: E402
from pydantic_ai.models.openai import OpenAIChatModel  # noqa: E402

Agent.instrument_all(InstrumentationSettings(include_content=SHOWS_CONTENT))
agent = Agent(OpenAIChatModel(MODEL), name=NAME, instructions=INSTRUCTIONS, tools=[run_shell_command])
print(agent.run_sync(PROMPT).output)
