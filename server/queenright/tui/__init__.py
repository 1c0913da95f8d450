"""The terminal interface. It asks a service over HTTP, and knows nothing else of it."""
