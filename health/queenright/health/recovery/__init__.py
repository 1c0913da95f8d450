"""Bringing work back: from the last checkpoint that can be believed, within limits, and watched closely."""
