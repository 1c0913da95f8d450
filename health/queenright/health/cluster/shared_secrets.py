"""Random keys that outlive a process, and that the processes of a cluster share."""

from __future__ import annotations

import secrets
from typing import Final

from sqlalchemy import Connection, select

from queenright.health.store.tables import SECRETS

LOGIN_KEY: Final = "login"
"""The name of the key that signs the cookies of the console."""
_BYTES: Final = 32


def make_secret() -> bytes:
    """Return a new key."""
    return secrets.token_bytes(_BYTES)


def get_secret(conn: Connection, name: str) -> bytes:
    """Return the key with this name. Create it if it is missing. The caller commits."""
    value: bytes | None = conn.execute(select(SECRETS.c.value).where(SECRETS.c.name == name)).scalar()
    if value is None:
        value = make_secret()
        conn.execute(SECRETS.insert().values(name=name, value=value))
    return value
