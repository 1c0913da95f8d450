"""Find the extra that installs a missing package."""

from __future__ import annotations

from typing import Final

from queenright.instrumentation.extras import get_install_command

_EXTRAS: Final = {
    "textual": "tui",
    "litellm": "llm",
    "mcp": "mcp",
    "psycopg": "postgres",
    "nats": "cluster",
    **dict.fromkeys(("cronsim", "simpleeval"), "runtime"),
    **dict.fromkeys(
        ("alembic", "click", "cryptography", "fastapi", "httptools", "httpx", "jinja2", "orjson"), "server"
    ),
    **dict.fromkeys(
        (
            "pydantic_settings",
            "rich",
            "sqlalchemy",
            "stamina",
            "tomlkit",
            "typer",
            "uvicorn",
            "uvloop",
            "yaml",
        ),
        "server",
    ),
}


def explain_missing_extra(module: str | None) -> str | None:
    """Return how to install a module that an import did not find; None if no extra installs it."""
    package = (module or "").partition(".")[0]
    if package not in _EXTRAS:
        return None
    extra = _EXTRAS[package]
    return f"This needs the extra {extra!r} ({package} is not installed). Run: {get_install_command(extra)}"
