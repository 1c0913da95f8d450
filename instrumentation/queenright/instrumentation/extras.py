"""How to install an extra. Queenright is not on a package index."""

from __future__ import annotations


def get_install_command(extra: str) -> str:
    """Return the command that installs an extra, or several separated by commas."""
    return (
        f"pip install 'queenright[{extra}] @ file:///PATH/TO/WHEEL' "
        f"(or 'queenright[{extra}] @ git+https://YOUR-GIT-HOST/queenright.git')"
    )
