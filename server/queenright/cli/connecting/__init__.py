"""What `queenright connect` writes into the settings of coding agents, and how it is removed again."""
