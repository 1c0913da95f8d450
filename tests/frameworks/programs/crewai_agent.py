"""A crew of CrewAI with one agent and one task; ``INSTRUMENTATION`` selects the instrumentation."""

from __future__ import annotations

import os

from common import INSTRUCTIONS, MODEL, NAME, PROMPT, SHOWS_CONTENT, run_shell_command, set_up

match os.environ["INSTRUMENTATION"]:
    case "openinference":
        from openinference.instrumentation.crewai import CrewAIInstrumentor
        from openinference.instrumentation.openai import OpenAIInstrumentor

        set_up()
        CrewAIInstrumentor().instrument(skip_dep_check=True)
        OpenAIInstrumentor().instrument()
    case "openlit":
        import openlit

        set_up()
        openlit.init(disable_metrics=True, capture_message_content=SHOWS_CONTENT)

from crewai import Agent, Crew, Task
from crewai.tools import tool

agent = Agent(
    role=NAME,
    goal=INSTRUCTIONS,
    backstory="A clerk.",
    llm=MODEL,
    tools=[tool(run_shell_command)],
    max_iter=50,
)
task = Task(description=PROMPT, expected_output="A number.", agent=agent)
print(Crew(agents=[agent], tasks=[task]).kickoff())
