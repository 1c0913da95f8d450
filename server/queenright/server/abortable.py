"""Connections that an app can break off: a client that takes nothing must not be waited for."""

from __future__ import annotations

from typing import Any, Final, cast

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

ABORT: Final = "queenright.abort"
"""In a request's ``extensions``: a function that breaks off its connection, with what is still to be sent."""


class AbortableProtocol(HttpToolsProtocol):
    """uvicorn's HTTP, which by itself closes a connection only once everything was taken."""

    def on_headers_complete(self) -> None:
        """Begin the request, which does not run before this returns."""
        super().on_headers_complete()
        cast("dict[str, Any]", self.scope).setdefault("extensions", {})[ABORT] = self.transport.abort
