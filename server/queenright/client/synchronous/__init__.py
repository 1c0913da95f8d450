"""The client, not to be awaited. Made from the other one: ``python -m tests.client.generated --write``."""
