"""Small agents in folders, for tests that load and run them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

MODEL_FREE: dict[str, Any] = {
    "name": "adder",
    "graph": {
        "nodes": [
            {
                "id": "add",
                "node_type": "function",
                "function": "add",
                "input_keys": ["a", "b"],
                "output_keys": ["sum"],
            }
        ],
        "entry_points": [{"id": "start", "node_id": "add"}],
    },
}

TALKER: dict[str, Any] = {
    "name": "talker",
    "model": "scripted:replies.json",
    "graph": {
        "nodes": [{"id": "work", "system_prompt": "Work.", "tools": ["double"], "output_keys": ["answer"]}],
        "entry_points": [{"id": "start", "node_id": "work"}],
    },
}

TALKS: list[dict[str, Any]] = [
    {"tool_calls": [{"name": "double", "arguments": {"number": 21}}]},
    {"tool_calls": [{"name": "set_output", "arguments": {"answer": "42"}}]},
]

CHATTER: dict[str, Any] = {
    "name": "chatter",
    "model": "scripted:replies.json",
    "graph": {
        "nodes": [
            {"id": "chat", "system_prompt": "Chat.", "client_facing": True, "output_keys": ["name"]},
        ],
        "entry_points": [{"id": "start", "node_id": "chat"}],
    },
}

CHATS: list[dict[str, Any]] = [
    {"text": "Hello, who are you?"},
    {"text": "Thank you.", "tool_calls": [{"name": "set_output", "arguments": {"name": "Ada"}}]},
]


KEEPER: dict[str, Any] = {
    "name": "keeper",
    "model": "scripted:replies.json",
    "graph": {
        "nodes": [
            {
                "id": "keep",
                "system_prompt": "Keep agents.",
                "tools": ["load_agent", "start_agent", "list_agents", "get_user_presence"],
                "output_keys": ["answer"],
            }
        ],
        "entry_points": [{"id": "start", "node_id": "keep"}],
    },
}

KEEPS: list[dict[str, Any]] = [
    {"tool_calls": [{"name": "load_agent", "arguments": {"agent_path": "adder"}}]},
    {
        "tool_calls": [
            {"name": "start_agent", "arguments": {"graph_id": "adder", "input_data": {"a": 1, "b": 2}}}
        ]
    },
    {"tool_calls": [{"name": "set_output", "arguments": {"answer": "started"}}]},
]


def write_agent(
    path: Path, spec: dict[str, Any], replies: list[dict[str, Any]] | None = None, **files: str
) -> Path:
    """Write an agent: its ``agent.json``, its script, and ``{name}.py`` for each of ``files``."""
    path.mkdir(parents=True, exist_ok=True)
    (path / "agent.json").write_text(json.dumps(spec), encoding="utf-8")
    if replies is not None:
        (path / "replies.json").write_text(json.dumps({"replies": replies}), encoding="utf-8")
    for name, text in files.items():
        (path / f"{name}.py").write_text(text, encoding="utf-8")
    return path


def adder(path: Path, functions: str = "def add(a, b):\n    return a + b\n") -> Path:
    return write_agent(path, MODEL_FREE, functions=functions)


def talker(path: Path) -> Path:
    tools = 'def double(number: int) -> str:\n    """Double a number."""\n    return str(2 * number)\n'
    return write_agent(path, TALKER, TALKS, tools=tools)


def chatter(path: Path) -> Path:
    return write_agent(path, CHATTER, CHATS)


def looping_agent(path: Path) -> Path:
    """Write an agent that repeats one tool call with the same result."""
    talker(path)
    return write_agent(path, TALKER, TALKS[:1] * 30)


def keeper(path: Path) -> Path:
    """Write an agent that loads ``adder`` from the folder next to it and starts a run of it."""
    return write_agent(path, KEEPER, KEEPS)
