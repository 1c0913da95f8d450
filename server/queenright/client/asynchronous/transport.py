"""Asking one service over HTTP: pages, actions that are done once, and answers as models."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Mapping
from typing import Any, Final, TypeVar

import httpx
from pydantic import BaseModel

from queenright.client.answers import no_queenright, parsed, query, refused, unanswered, values
from queenright.client.errors import UnreachableError
from queenright.instrumentation.certificates import certificates

M = TypeVar("M", bound=BaseModel)

_ACTING: Final = 300.0
"""Seconds: a worker that is stopped is given time to save its state, by settings, and the queen thinks."""
_PAGE: Final = 200
_CUT = (httpx.RemoteProtocolError, httpx.ReadError, httpx.WriteError, httpx.CloseError)
"""A connection broke that had been there: a kept one that the service gave up, for one."""


class AsyncTransport:
    """
    One service, asked over HTTP.

    Args:
        url: Where it is.
        token: What it is asked with; None for nothing.
        timeout: Seconds for an answer; an action is given up to 300.
        transport: What carries requests; sockets, without.
        ids: Makes the key of an action: whatever is sent twice under one key is done once.
    """

    def __init__(
        self,
        url: str,
        token: str | None,
        *,
        timeout: float,
        transport: httpx.AsyncBaseTransport | None,
        ids: Callable[[], str],
    ) -> None:
        self.url = url
        self._ids = ids
        self._acting = httpx.Timeout(timeout, read=max(timeout, _ACTING))
        self._http = httpx.AsyncClient(
            base_url=url,
            headers={} if token is None else {"Authorization": f"Bearer {token}"},
            timeout=timeout,
            transport=transport,
            trust_env=False,
            verify=certificates(url),
        )

    async def aclose(self) -> None:
        """Give up its connections."""
        await self._http.aclose()

    async def get(self, path: str, *, also: int | None = None, **asked: Any) -> dict[str, Any]:
        """
        Return what is at a path, as JSON; see ``values`` for what it raises, and ``UnreachableError``.

        Args:
            path: What is asked for.
            also: A status that is an answer, too, and no error.
            asked: What else is asked of it.
        """
        return values(await self._send("GET", path, params=query(**asked)), also=also)

    async def one(self, model: type[M], path: str, **asked: Any) -> M:
        """Return what is at a path, as its model."""
        return parsed(model, await self.get(path, **asked))

    async def act(
        self, path: str, sent: Mapping[str, Any] | None = None, *, method: str = "POST", **asked: Any
    ) -> dict[str, Any]:
        """
        Do something, once: it is sent again if the connection breaks, under the same key.

        Args:
            path: What is acted on.
            sent: The body; None for none.
            method: POST, PUT or DELETE.
            asked: What is said in the address.
        """
        return values(
            await self._send(
                method,
                path,
                params=query(**asked),
                json=sent,
                headers={"Idempotency-Key": self._ids()},
                timeout=self._acting,
            )
        )

    async def acted(
        self,
        model: type[M],
        path: str,
        sent: Mapping[str, Any] | None = None,
        *,
        method: str = "POST",
        **asked: Any,
    ) -> M:
        """Do something, once, and return what became of it as its model."""
        return parsed(model, await self.act(path, sent, method=method, **asked))

    async def every(
        self, model: type[M], path: str, name: str, limit: int | None = None, **asked: Any
    ) -> AsyncIterator[M]:
        """
        Yield a list, page after page, as far as somebody wants to have it.

        Args:
            model: What one is.
            path: Where the list is.
            name: What it is called in the answer.
            limit: So many at most; all without.
            asked: What else is asked of it.
        """
        async for one in self.rows(path, name, limit, **asked):
            yield parsed(model, one)

    async def rows(
        self, path: str, name: str, limit: int | None = None, **asked: Any
    ) -> AsyncIterator[dict[str, Any]]:
        """Yield a list as it is; see ``every``."""
        left, cursor = limit, None
        while left is None or left > 0:
            most = _PAGE if left is None else min(_PAGE, left)
            answer = await self.get(path, limit=most, cursor=cursor, **asked)
            found = answer.get(name)
            if not isinstance(found, list):
                raise UnreachableError(
                    f"{self.url} answered for {path} without {name!r}: it is no Queenright."
                )
            for one in found:
                yield one
            cursor = answer.get("next")
            if cursor is None:
                return
            left = None if left is None else left - len(found)

    async def open(
        self, path: str, *, headers: Mapping[str, str], idle: float, **asked: Any
    ) -> httpx.Response:
        """
        Return an answer whose body is still to come, as it comes; whoever has it closes it.

        Args:
            path: What is asked for.
            headers: What is sent along.
            idle: Seconds without a byte after which it is taken for broken.
            asked: What else is asked of it.

        Raises:
            RequestRefusedError: The service says no.
            UnreachableError: Nobody answers, or with no stream of events.
        """
        request = self._http.build_request(
            "GET",
            path,
            params=query(**asked),
            headers={"Accept": "text/event-stream", **headers},
            timeout=httpx.Timeout(self._http.timeout.connect, read=idle),
        )
        try:
            response = await self._http.send(request, stream=True)
            if response.is_success and _is_stream(response):
                return response
            await response.aread()
        except httpx.HTTPError as error:
            raise unanswered(self.url, error) from error
        if response.is_success:
            raise no_queenright(response, "it is no stream of events")
        raise refused(response)

    async def _send(self, method: str, path: str, **request: Any) -> httpx.Response:
        try:
            try:
                return await self._http.request(method, path, **request)
            except _CUT:
                return await self._http.request(method, path, **request)
        except httpx.HTTPError as error:
            raise unanswered(self.url, error) from error


def _is_stream(response: httpx.Response) -> bool:
    kind: str = response.headers.get("content-type", "")
    return kind.partition(";")[0].strip() == "text/event-stream"
