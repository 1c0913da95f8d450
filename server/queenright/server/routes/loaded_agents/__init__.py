"""Routes of loaded agents."""
