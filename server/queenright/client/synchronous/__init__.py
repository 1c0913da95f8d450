"""The synchronous client, generated from the asynchronous: ``python -m tests.client.generated --write``."""
