"""
An agent of LangChain's `create_agent`, which is a LangGraph graph. ``INSTRUMENTATION`` selects its spans.
"""

from __future__ import annotations

import os

from common import INSTRUCTIONS, MODEL, NAME, PROMPT, run_shell_command, set_up

match os.environ["INSTRUMENTATION"]:
    case "openinference":
        from openinference.instrumentation.langchain import LangChainInstrumentor

        set_up()
        LangChainInstrumentor().instrument()
    case "openllmetry":
        from opentelemetry.instrumentation.langchain import LangchainInstrumentor

        set_up()
        LangchainInstrumentor().instrument()
    case "genai":
        from opentelemetry.instrumentation.genai.langchain import LangChainInstrumentor

        set_up()
        LangChainInstrumentor().instrument()
    case "langsmith":
        set_up()

from langchain.agents import create_agent
from langchain_openai import ChatOpenAI

agent = create_agent(ChatOpenAI(model=MODEL), [run_shell_command], system_prompt=INSTRUCTIONS, name=NAME)
limits = {"recursion_limit": 100}
print(agent.invoke({"messages": [{"role": "user", "content": PROMPT}]}, limits)["messages"][-1].content)
