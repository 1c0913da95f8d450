"""Print the version."""

from importlib.metadata import version


def print_version() -> None:
    """Print the installed version."""
    print(f"queenright {version('queenright')}")
