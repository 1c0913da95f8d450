"""HTTP requests to one service: pagination, idempotent actions, responses as models."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Mapping
from typing import Any, Final, TypeVar

import httpx
from pydantic import BaseModel

from queenright.client.address import remove_credentials
from queenright.client.errors import UnreachableError
from queenright.client.responses import (
    make_not_queenright_error,
    make_refusal_error,
    make_unreachable_error,
    parse_json_object,
    parse_model,
    query_params,
)
from queenright.instrumentation.certificates import certificates

M = TypeVar("M", bound=BaseModel)

_ACTION_TIMEOUT_SECONDS: Final = 300.0
"""A worker needs time to save its state before it stops, and the queen needs time to answer."""
_PAGE_SIZE: Final = 1_000
_BROKEN_CONNECTION_ERRORS = (httpx.RemoteProtocolError, httpx.ReadError, httpx.WriteError, httpx.CloseError)
"""Errors of a broken connection, such as a kept-alive one that the service closed."""


class AsyncTransport:
    """
    Sends HTTP requests to one service.

    Args:
        url: URL of the service.
        token: Access token, if any.
        timeout: Seconds to wait for a response; actions wait at least 300.
        transport: The httpx transport; None opens real connections.
        ids: Returns a new idempotency key for each action.
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
        self._action_timeout = httpx.Timeout(timeout, read=max(timeout, _ACTION_TIMEOUT_SECONDS))
        self._http = httpx.AsyncClient(
            base_url=url,
            headers={} if token is None else {"Authorization": f"Bearer {token}"},
            timeout=timeout,
            transport=transport,
            trust_env=False,
            follow_redirects=True,  # a renamed agent has another address
            verify=certificates(url),
        )

    async def aclose(self) -> None:
        """Close the connections."""
        await self._http.aclose()

    async def get_json(
        self, path: str, *, accepted_status: int | None = None, **params: Any
    ) -> dict[str, Any]:
        """
        Return the JSON object at a path.

        Args:
            path: Path of the request.
            accepted_status: An error status that is a valid response here.
            params: Query parameters.

        Raises:
            RequestRejectedError: The service answers with an error.
            UnreachableError: The service cannot be reached, or the server is not Queenright.
        """
        return parse_json_object(
            await self._request("GET", path, params=query_params(**params)), accepted_status=accepted_status
        )

    async def get_model(self, model: type[M], path: str, **params: Any) -> M:
        """Return the response at a path as a model."""
        return parse_model(model, await self.get_json(path, **params))

    async def send(
        self, path: str, body: Mapping[str, Any] | None = None, *, method: str = "POST", **params: Any
    ) -> dict[str, Any]:
        """
        Perform an action once: a retry after a broken connection has the same idempotency key.

        Args:
            path: Path of the request.
            body: JSON body, if any.
            method: POST, PUT or DELETE.
            params: Query parameters.
        """
        return parse_json_object(
            await self._request(
                method,
                path,
                params=query_params(**params),
                json=body,
                headers={"Idempotency-Key": self._ids()},
                timeout=self._action_timeout,
            )
        )

    async def send_and_parse(
        self,
        model: type[M],
        path: str,
        body: Mapping[str, Any] | None = None,
        *,
        method: str = "POST",
        **params: Any,
    ) -> M:
        """Perform an action once, and return the response as a model."""
        return parse_model(model, await self.send(path, body, method=method, **params))

    async def iterate_items(
        self, model: type[M], path: str, name: str, limit: int | None = None, **params: Any
    ) -> AsyncIterator[M]:
        """
        Yield the items of a list; pages are requested as they are needed.

        Args:
            model: Model of an item.
            path: Path of the list.
            name: Key of the list in the response.
            limit: Maximum number. Default: no limit.
            params: Query parameters.
        """
        async for row in self.list_rows(path, name, limit, **params):
            yield parse_model(model, row)

    async def list_rows(
        self, path: str, name: str, limit: int | None = None, **params: Any
    ) -> AsyncIterator[dict[str, Any]]:
        """Yield the items of a list as JSON; see ``iterate_items``."""
        remaining, cursor = limit, None
        while remaining is None or remaining > 0:
            size = _PAGE_SIZE if remaining is None else min(_PAGE_SIZE, remaining)
            answer = await self.get_json(path, limit=size, cursor=cursor, **params)
            rows = answer.get(name)
            if not isinstance(rows, list):
                raise UnreachableError(
                    f"{remove_credentials(self.url)} responds to {path} without {name!r}; "
                    "it is not Queenright."
                )
            for row in rows:
                yield row
            cursor = answer.get("next")
            if cursor is None:
                return
            remaining = None if remaining is None else remaining - len(rows)

    async def open_stream(
        self, path: str, *, headers: Mapping[str, str], idle: float, **params: Any
    ) -> httpx.Response:
        """
        Return a streaming response, which the caller must close.

        Args:
            path: Path of the stream.
            headers: Request headers.
            idle: Seconds without data after which the connection counts as broken.
            params: Query parameters.

        Raises:
            RequestRejectedError: The service answers with an error.
            UnreachableError: The service cannot be reached, or the response is not an event stream.
        """
        request = self._http.build_request(
            "GET",
            path,
            params=query_params(**params),
            headers={"Accept": "text/event-stream", **headers},
            timeout=httpx.Timeout(self._http.timeout.connect, read=idle),
        )
        try:
            response = await self._http.send(request, stream=True)
            if response.is_success and _is_event_stream(response):
                return response
            await response.aread()
        except httpx.HTTPError as error:
            raise make_unreachable_error(self.url, error) from error
        if response.is_success:
            raise make_not_queenright_error(response, "the response is not an event stream")
        raise make_refusal_error(response)

    async def _request(self, method: str, path: str, **request: Any) -> httpx.Response:
        try:
            try:
                return await self._http.request(method, path, **request)
            except _BROKEN_CONNECTION_ERRORS:
                return await self._http.request(method, path, **request)
        except httpx.HTTPError as error:
            raise make_unreachable_error(self.url, error) from error


def _is_event_stream(response: httpx.Response) -> bool:
    content_type: str = response.headers.get("content-type", "")
    return content_type.partition(";")[0].strip() == "text/event-stream"


class AsyncResource:
    """A group of API calls."""

    def __init__(self, transport: AsyncTransport) -> None:
        self._transport = transport
