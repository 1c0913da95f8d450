"""A loop around Anthropic's client, without a framework, with OpenLLMetry's spans."""

from __future__ import annotations

from common import INSTRUCTIONS, PROMPT, run_shell_command, set_up
from opentelemetry.instrumentation.anthropic import AnthropicInstrumentor

set_up()
AnthropicInstrumentor().instrument()

import anthropic  # noqa: E402

TOOL = {
    "name": "Bash",
    "description": "Run a command in a shell and return its output.",
    "input_schema": {"type": "object", "properties": {"command": {"type": "string"}}},
}
client = anthropic.Anthropic()
messages = [{"role": "user", "content": PROMPT}]
while True:
    with client.messages.stream(
        model="claude-fable-5", max_tokens=1000, system=INSTRUCTIONS, tools=[TOOL], messages=messages
    ) as stream:
        answer = stream.get_final_message()
    messages.append({"role": "assistant", "content": answer.content})
    calls = [block for block in answer.content if block.type == "tool_use"]
    if not calls:
        break
    results = [
        {"type": "tool_result", "tool_use_id": call.id, "content": run_shell_command(call.input["command"])}
        for call in calls
    ]
    messages.append({"role": "user", "content": results})
print(answer.content[0].text)
