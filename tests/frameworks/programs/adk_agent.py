"""An agent of Google's ADK, with its own spans."""

from __future__ import annotations

import asyncio
import uuid

from common import INSTRUCTIONS, NAME, PROMPT, run_shell_command, set_up

set_up()

from google.adk.agents import Agent  # noqa: E402
from google.adk.runners import InMemoryRunner  # noqa: E402

agent = Agent(name=NAME, model="gemini-3-flash", instruction=INSTRUCTIONS, tools=[run_shell_command])
asyncio.run(InMemoryRunner(agent=agent, app_name="files").run_debug(PROMPT, session_id=str(uuid.uuid4())))
