"""The agent: one node with its own tools and those of an MCP server, and fixed rules instead of a model."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from queenright.runtime.agents.agent_spec import AgentSpec
from queenright.runtime.graphs.goal import Goal, SuccessCriterion
from queenright.runtime.graphs.graph import EntryPointSpec, GraphSpec, NodeSpec
from queenright.runtime.llm.model import Message, ModelError, ModelReply, OnText, ToolCall, ToolSpec

PROMPT = """You read the logs of a service and write a digest for the person on call.

List the logs. For each log with errors, read its error groups. If the meaning of a group is unclear, read
the lines around its first line. Then call write_digest once, with the kinds of errors of all logs, the
worst first, and set the outputs: `digest` to the file name that write_digest returns, `errors` to the total
number of errors."""

agent = AgentSpec(
    name="log_digest",
    description="Groups the errors in a folder of log files and writes a digest.",
    credentials=("LOG_FOLDER",),
    graph=GraphSpec(
        id="log_digest",
        nodes=(
            NodeSpec(
                id="digest",
                system_prompt=PROMPT,
                tools=("list_logs", "error_groups", "lines_around", "write_digest"),
                output_keys=("digest", "errors"),
                max_turns=20,
            ),
        ),
        entry_points=(EntryPointSpec(id="digest", node_id="digest"),),
    ),
    goal=Goal(
        id="digest",
        description="A digest is written.",
        success_criteria=(SuccessCriterion(id="written", expression="digest != ''"),),
    ),
)


class Rules:
    """A model that follows the prompt with fixed rules."""

    name = "rules"

    async def complete(
        self, messages: Sequence[Message], tools: Sequence[ToolSpec], on_text: OnText | None = None
    ) -> ModelReply:
        """Return the next tool calls."""
        answers = _collect_tool_results(messages)
        logs = answers.get("list_logs")
        if logs is None:
            return _make_reply("I will list the logs.", ("list_logs", {}))
        failures = [
            answer for results in answers.values() for answer in results if str(answer).startswith("error:")
        ]
        if failures:
            raise ModelError(f"a tool failed: {failures[0]}")
        logs_with_errors = [log for log in logs[0] if log["errors"]]
        groups = answers.get("error_groups", [])
        if len(groups) < len(logs_with_errors):
            return _make_reply("", *(("error_groups", {"log": log["log"]}) for log in logs_with_errors))
        findings = sorted(
            (group for log_groups in groups for group in log_groups), key=lambda group: -group["count"]
        )
        if "write_digest" not in answers:
            rows = [{key: f[key] for key in ("log", "pattern", "count", "first_line")} for f in findings]
            return _make_reply(
                "", ("write_digest", {"headline": _format_headline(findings), "findings": rows})
            )
        total = sum(log["errors"] for log in logs[0])
        return _make_reply("", ("set_output", {"digest": "digest.md", "errors": total}))


def _format_headline(findings: Sequence[Any]) -> str:
    if not findings:
        return "No errors."
    first = findings[0]
    return f"{len(findings)} kinds of errors; look at {first['log']} first, line {first['first_line']}."


def _make_reply(text: str, *calls: tuple[str, Any]) -> ModelReply:
    tool_calls = (
        ToolCall(f"call_{name}_{n}", name, json.dumps(arguments)) for n, (name, arguments) in enumerate(calls)
    )
    return ModelReply(text=text, tool_calls=tuple(tool_calls))


def _collect_tool_results(messages: Sequence[Message]) -> dict[str, list[Any]]:
    """Return the results of each tool, oldest first; results that are not JSON are text."""
    names = {call.id: call.name for message in messages for call in message.tool_calls}
    answers: dict[str, list[Any]] = {}
    for message in messages:
        if message.role == "tool":
            answers.setdefault(names[message.tool_call_id], []).append(_parse_result(message.content))
    return answers


def _parse_result(content: str) -> Any:
    try:
        return json.loads(content)
    except ValueError:
        return content


provider = Rules
