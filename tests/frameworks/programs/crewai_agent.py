"""A crew of CrewAI with one agent and one task, with OpenInference's spans."""

from __future__ import annotations

from common import INSTRUCTIONS, MODEL, NAME, PROMPT, run_shell_command, set_up
from openinference.instrumentation.crewai import CrewAIInstrumentor
from openinference.instrumentation.openai import OpenAIInstrumentor

set_up()
CrewAIInstrumentor().instrument(skip_dep_check=True)
OpenAIInstrumentor().instrument()

from crewai import Agent, Crew, Task  # noqa: E402
from crewai.tools import tool  # noqa: E402

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
