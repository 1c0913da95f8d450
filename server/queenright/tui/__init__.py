"""The terminal interface of a service, over its HTTP API."""
