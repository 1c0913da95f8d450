"""An agent of the OpenAI Agents SDK; ``INSTRUMENTATION`` selects the instrumentation."""

from __future__ import annotations

import os

from common import INSTRUCTIONS, MODEL, NAME, PROMPT, run_shell_command, set_up

match os.environ["INSTRUMENTATION"]:
    case "openinference":
        from openinference.instrumentation.openai_agents import OpenAIAgentsInstrumentor

        set_up()
        OpenAIAgentsInstrumentor().instrument()
    case "openllmetry":
        from opentelemetry.instrumentation.openai_agents import OpenAIAgentsInstrumentor

        set_up()
        OpenAIAgentsInstrumentor().instrument()
    case "genai":
        from opentelemetry.instrumentation.genai.openai import OpenAIInstrumentor
        from opentelemetry.instrumentation.genai.openai_agents import OpenAIAgentsInstrumentor

        set_up()
        OpenAIInstrumentor().instrument()
        OpenAIAgentsInstrumentor().instrument(disable_openai_trace_export=True)
    case "v2":
        from opentelemetry.instrumentation.openai_agents import OpenAIAgentsInstrumentor

        set_up()
        OpenAIAgentsInstrumentor().instrument()
    case "logfire":
        import logfire

        logfire.configure(send_to_logfire=False, console=False)
        logfire.instrument_openai_agents()
        set_up(has_provider=True)

from agents import Agent, Runner, function_tool

agent = Agent(name=NAME, instructions=INSTRUCTIONS, model=MODEL, tools=[function_tool(run_shell_command)])
print(Runner.run_sync(agent, PROMPT, max_turns=50).final_output)
