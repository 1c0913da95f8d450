"""What goes on in one node: turns of a model with its tools, or the call of a function."""
