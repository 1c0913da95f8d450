"""CLI commands, one module per group. Heavy imports happen when a command runs."""
