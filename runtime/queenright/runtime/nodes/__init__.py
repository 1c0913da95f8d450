"""Execution of one node: turns of a model with its tools, or a function call."""
