"""The Python client of a running service, in two forms: to be awaited, and not."""
