"""The asynchronous client. The synchronous one is generated: ``python -m tests.client.generated --write``."""
