"""The client, to be awaited. The other one is made from it: ``python -m tests.client.generated --write``."""
