"""The agent that builds agents: its graphs, prompts and tools."""
