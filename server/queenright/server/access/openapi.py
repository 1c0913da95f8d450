"""Add access requirements to the OpenAPI document, from the guard's table."""

from __future__ import annotations

from typing import Any, Final

from queenright.server.access.rights import find_required_level
from queenright.server.access.roles import AccessLevel, list_roles

SECURITY_SCHEME: Final = "token"
_METHODS: Final = frozenset({"get", "put", "post", "delete", "patch", "head", "options"})


def add_access_requirements(document: dict[str, Any]) -> None:
    """Add the security scheme to a document, and ``security`` and ``x-role`` to each operation."""
    document.setdefault("components", {}).setdefault("securitySchemes", {})[SECURITY_SCHEME] = {
        "type": "http",
        "scheme": "bearer",
        "description": "A token from `queenright token create`. If the service listens only on loopback, "
        "it requires a token only with `auth.required`.",
    }
    for path, operations in document.get("paths", {}).items():
        for method, operation in operations.items():
            if method in _METHODS:
                level = find_required_level(method.upper(), path)
                operation["security"] = [] if level is AccessLevel.OPEN else [{SECURITY_SCHEME: []}]
                operation["x-role"] = (
                    "none"
                    if level is AccessLevel.OPEN
                    else " or ".join(role.value for role in list_roles(level))
                )
