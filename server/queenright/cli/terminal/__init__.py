"""Agents that run in this terminal: one run, or a shell session."""
