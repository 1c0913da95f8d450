"""An agent of LlamaIndex; ``INSTRUMENTATION`` selects the instrumentation."""

from __future__ import annotations

import asyncio
import os

from common import INSTRUCTIONS, MODEL, NAME, PROMPT, run_shell_command, set_up

match os.environ["INSTRUMENTATION"]:
    case "openinference":
        from openinference.instrumentation.llama_index import LlamaIndexInstrumentor

        set_up()
        LlamaIndexInstrumentor().instrument()

from llama_index.core.agent.workflow import FunctionAgent
from llama_index.llms.openai_like import OpenAILike

model = OpenAILike(
    model=MODEL,
    api_base=os.environ["OPENAI_BASE_URL"],
    api_key=os.environ["OPENAI_API_KEY"],
    is_chat_model=True,
    is_function_calling_model=True,
)
agent = FunctionAgent(
    name=NAME, system_prompt=INSTRUCTIONS, tools=[run_shell_command], llm=model, streaming=False
)


async def main() -> None:
    """Run the agent."""
    print(await agent.run(PROMPT, max_iterations=50))


asyncio.run(main())
