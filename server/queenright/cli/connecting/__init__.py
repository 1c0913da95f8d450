"""`queenright connect`: changes to the settings of coding agents, and their removal."""
