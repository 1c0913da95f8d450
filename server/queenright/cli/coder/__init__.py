"""The agent that builds agents: its graphs, what it is told, and the tools that it works with."""
