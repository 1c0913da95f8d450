"""Judge and queen: they decide which findings become tickets, and which tickets reach a person."""
