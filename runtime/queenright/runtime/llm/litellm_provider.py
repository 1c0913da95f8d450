"""Language models behind litellm, and loading a provider by model name."""

from __future__ import annotations

import asyncio
import importlib
import importlib.util
import json
import logging
import os
import time
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import aclosing
from difflib import get_close_matches
from pathlib import Path
from typing import Any, Final

from queenright.instrumentation.errors import QueenrightError
from queenright.instrumentation.identity import new_id
from queenright.runtime.llm.litellm_errors import rejects_streaming, rejects_tool_choice, to_model_error
from queenright.runtime.llm.litellm_reply import ReplyAccumulator
from queenright.runtime.llm.model import (
    LLMProvider,
    Message,
    ModelError,
    ModelReply,
    OnText,
    ToolSpec,
    TransientModelError,
)
from queenright.runtime.llm.scripted_provider import ScriptedProvider, ScriptError

SCRIPTED: Final = "scripted:"
_RESERVED_PREFIX: Final = "queenright/"


class ProviderUnavailableError(QueenrightError):
    """Raised for a model that cannot be used here; says what is missing."""


class _NotStreamedError(Exception):
    """Raised when the provider does not stream."""


class _NotForcedError(Exception):
    """Raised when the provider does not support a forced tool call."""


def load_provider(name: str, *, timeout_seconds: float = 60) -> LLMProvider:
    """
    Return the provider of a model.

    Args:
        name: A litellm model name, or ``scripted:PATH`` for replies from a JSON file.

    Raises:
        ProviderUnavailableError: litellm is not installed, the file is not a script, or the model is reserved
            for judge and queen.
    """
    if not name:
        raise ProviderUnavailableError("no model is set: pass a litellm model name, or scripted:PATH")
    if name.startswith(_RESERVED_PREFIX):
        raise ProviderUnavailableError(
            f"the model {name!r} is for judge and queen only: for an agent, use a litellm model, "
            "such as anthropic/claude-sonnet-4-5, or scripted:PATH"
        )
    if name.startswith(SCRIPTED):
        try:
            return ScriptedProvider.load(Path(name.removeprefix(SCRIPTED)))
        except ScriptError as error:
            raise ProviderUnavailableError(str(error)) from error
    if importlib.util.find_spec("litellm") is None:
        raise ProviderUnavailableError(f"the model {name!r} needs litellm: install queenright[llm]")
    return LiteLlmProvider(name, timeout_seconds=timeout_seconds)


class LiteLlmProvider:
    """
    A language model behind litellm, streamed if its provider supports it.

    litellm is imported in a thread on first use, which takes seconds. Keys and addresses come from the
    environment variables that litellm documents for each provider. Requests are not retried here; that is
    up to the caller.

    Args:
        clock: Seconds since the epoch, to interpret a ``Retry-After`` date.
        ids: Generates the id of a tool call without one.
    """

    def __init__(
        self,
        name: str,
        *,
        timeout_seconds: float = 60,
        clock: Callable[[], float] = time.time,
        ids: Callable[[], str] = new_id,
    ) -> None:
        self._name = name
        self._timeout = timeout_seconds
        self._clock = clock
        self._ids = ids
        self._supports_streaming = True
        self._supports_forced_calls = True
        self._needs_cache_markers = needs_cache_markers(name)

    @property
    def name(self) -> str:
        """The litellm model name."""
        return self._name

    def check(self) -> None:
        """
        Check that litellm knows the model's provider. Sends nothing over the network. Blocks, the first
        time for the seconds that the import of litellm takes.

        Raises:
            ProviderUnavailableError: The provider is unknown.
        """
        litellm = _import_litellm()
        prefix, slash, _ = self._name.partition("/")
        providers = [
            *map(_get_provider_name, litellm.provider_list),
            *(row["provider"] for row in litellm.custom_provider_map),
        ]
        if slash and prefix in providers:
            return  # for a known provider, get_llm_provider may start a login
        try:
            litellm.get_llm_provider(self._name)
        except litellm.BadRequestError:
            matches = get_close_matches(prefix, providers, 1) if slash else []
            hint = f"did you mean {matches[0]}?" if matches else "write it as PROVIDER/MODEL"
            raise ProviderUnavailableError(
                f"litellm knows no provider for the model {self._name[:100]!r}: {hint}"
            ) from None

    async def complete(
        self,
        messages: Sequence[Message],
        tools: Sequence[ToolSpec],
        on_text: OnText | None = None,
        *,
        must_call: bool = False,
    ) -> ModelReply:
        """
        Call the model. Cancelling this closes the connection.

        After an interrupted stream, ``on_text`` has received text that is in no reply.

        Args:
            must_call: Force a tool call. If the provider rejects that, the model is called without it from
                then on; a provider that ignores it may still answer in text.

        Raises:
            TransientModelError: A rate limit, a timeout, a provider failure or an interrupted stream.
            ModelError: The provider rejected the request, or its response is malformed.
        """
        litellm = await asyncio.to_thread(_import_litellm)
        request: dict[str, Any] = {
            "model": self._name,
            "messages": to_openai_messages(messages, with_cache_markers=self._needs_cache_markers),
            # Some providers reject an empty list, but accept none.
            "tools": to_openai_tools(tools) or None,
            "timeout": self._timeout,
            "num_retries": 0,
            "max_retries": 0,
            # Otherwise litellm imports its own MCP gateway for every call with tools. That fails without
            # the package `mcp`, and with its current version.
            "_skip_mcp_handler": True,
        }
        if must_call and tools and self._supports_forced_calls:
            try:
                return await self._request_reply(litellm, {**request, "tool_choice": "required"}, on_text)
            except _NotForcedError:
                pass
            reply = await self._request_reply(litellm, request, on_text)
            # Set only now: a provider that rejects both requests has another reason.
            self._supports_forced_calls = False
            return reply
        return await self._request_reply(litellm, request, on_text)

    async def price(self, input_tokens: int, output_tokens: int) -> float:
        """Return the price of these tokens in dollars from litellm's price list; 0 if unknown."""
        litellm = await asyncio.to_thread(_import_litellm)
        try:
            return float(
                sum(
                    litellm.cost_per_token(
                        model=self._name, prompt_tokens=input_tokens, completion_tokens=output_tokens
                    )
                )
            )
        except Exception:  # the model is not in litellm's price list
            return 0.0

    async def _request_reply(
        self, litellm: Any, request: dict[str, Any], on_text: OnText | None
    ) -> ModelReply:
        if self._supports_streaming and _has_streaming(litellm, self._name):
            try:
                return await self._stream_reply(litellm, request, on_text)
            except _NotStreamedError:
                pass
        reply = await self._ask_without_stream(litellm, request)
        # Set only now: a provider that rejects both requests has another reason.
        self._supports_streaming = False
        if on_text is not None and reply.text:
            on_text(reply.text)
        return reply

    async def _stream_reply(
        self, litellm: Any, request: dict[str, Any], on_text: OnText | None
    ) -> ModelReply:
        stream = await self._send_request(
            litellm, {**request, "stream": True, "stream_options": {"include_usage": True}}
        )
        accumulator = ReplyAccumulator(self._ids)
        async with aclosing(stream), aclosing(self._read_chunks(stream, accumulator)) as chunks:
            async for chunk in chunks:
                text = accumulator.add(chunk)
                if text and on_text is not None:
                    on_text(text)
        # litellm always sets its own finish reason; this is the provider's.
        finish_reason = getattr(stream, "received_finish_reason", accumulator.finish_reason)
        if not (finish_reason or getattr(stream, "intermittent_finish_reason", None)):
            if accumulator.is_empty and _is_json(stream):
                raise _NotStreamedError
            raise TransientModelError(f"{self._name}: the stream was interrupted (no finish reason)")
        if accumulator.finish_reason == "content_filter" and accumulator.is_empty:
            raise ModelError(f"{self._name}: the provider's content filter blocked the whole answer")
        usage = accumulator.usage
        billed_response = litellm.ModelResponse(
            model=accumulator.model or self._name, **({"usage": usage} if usage else {})
        )
        return accumulator.reply(_get_cost(litellm, billed_response, self._name) if usage else 0.0)

    async def _ask_without_stream(self, litellm: Any, request: dict[str, Any]) -> ModelReply:
        response = await self._send_request(litellm, request)
        accumulator = ReplyAccumulator(self._ids)
        try:
            accumulator.add(response)
            if not response.choices:
                raise IndexError("it has no choices")
            return accumulator.reply(_get_cost(litellm, response, self._name))
        except (AttributeError, IndexError, TypeError) as error:
            raise ModelError(f"{self._name}: the response is malformed: {error}") from error

    async def _send_request(self, litellm: Any, request: dict[str, Any]) -> Any:
        # After a second 422, litellm returns None without a reason.
        failure = ModelError(f"{self._name}: the provider cannot process the request")
        try:
            response = await litellm.acompletion(**request)
            if response is not None:
                return response
        except Exception as error:
            if request.get("stream") and rejects_streaming(error):
                raise _NotStreamedError from None
            if "tool_choice" in request and rejects_tool_choice(error):
                raise _NotForcedError from None
            failure = to_model_error(self._name, error, now=self._clock())
        # Outside `except`: the provider's message may contain a key, and a traceback shows causes.
        raise failure

    async def _read_chunks(self, stream: Any, accumulator: ReplyAccumulator) -> AsyncGenerator[Any, None]:
        try:
            async for chunk in stream:
                yield chunk
            return
        except Exception as error:
            if accumulator.is_empty and rejects_streaming(error):
                raise _NotStreamedError from None
            failure = to_model_error(self._name, error, now=self._clock())
        raise failure


def _import_litellm() -> Any:
    """Import litellm, configured to make no network requests except model calls, and to log nothing."""
    os.environ.setdefault("LITELLM_LOCAL_MODEL_COST_MAP", "True")
    litellm: Any = importlib.import_module("litellm")
    litellm.telemetry = False
    litellm.suppress_debug_info = True
    litellm.drop_params = True
    # Estimate missing token counts, but do not download a tokenizer for that.
    litellm.disable_hf_tokenizer_download = True
    for logger_name in ("LiteLLM", "LiteLLM Router", "LiteLLM Proxy"):
        logging.getLogger(logger_name).setLevel(logging.ERROR)
    return litellm


def _get_provider_name(provider: Any) -> str:
    return str(getattr(provider, "value", provider))


def _has_streaming(litellm: Any, name: str) -> bool:
    """Return whether the provider implements streaming; a custom provider may not."""
    handlers = {row["provider"]: row["custom_handler"] for row in litellm.custom_provider_map}
    handler = handlers.get(name.partition("/")[0])
    return handler is None or type(handler).astreaming is not litellm.CustomLLM.astreaming


def _is_json(stream: Any) -> bool:
    """Return whether the server answered a streaming request with a single JSON document."""
    hidden_parameters = getattr(stream, "_hidden_params", None) or {}
    headers = hidden_parameters.get("additional_headers") or {}
    return str(headers.get("llm_provider-content-type", "")).startswith("application/json")


def _get_cost(litellm: Any, response: Any, name: str) -> float:
    try:
        return float(litellm.completion_cost(completion_response=response, model=name) or 0.0)
    except Exception:  # the model is not in litellm's price list
        return 0.0


_CACHE_MARKER_PROVIDERS: Final = frozenset({"anthropic", "bedrock", "vertex_ai", "openrouter"})
"""litellm providers that serve Claude and support Anthropic's cache markers."""


def to_openai_messages(messages: Sequence[Message], *, with_cache_markers: bool) -> list[dict[str, Any]]:
    """
    Convert a conversation, oldest message first.

    Args:
        with_cache_markers: Mark the prefix that the next request repeats: the system prompt and the last
            message. The system prompt's marker also covers the tools, which these providers read before it.
    """
    rows = [_to_openai(message) for message in messages]
    if with_cache_markers and rows:
        for row in (rows[0], rows[-1]):
            if row["content"]:
                row["cache_control"] = {"type": "ephemeral"}
    return rows


def to_openai_tools(tools: Sequence[ToolSpec]) -> list[dict[str, Any]]:
    """Convert tools, in order: the prefix before a conversation must not change."""
    return [_tool_to_openai(tool) for tool in tools]


def needs_cache_markers(name: str) -> bool:
    """Return whether a model's provider caches prompts only where marked; others do so automatically."""
    provider, slash, model = name.lower().rpartition("/")
    if not slash:
        return model.startswith("claude")
    cloud = provider.partition("/")[0]
    return (cloud in _CACHE_MARKER_PROVIDERS and "claude" in model) or (
        cloud == "bedrock" and "nova" in model
    )


def _to_openai(message: Message) -> dict[str, Any]:
    # A lone surrogate, for example from a file name, cannot be sent.
    content: str | None = message.content.encode("utf-8", "replace").decode()
    row: dict[str, Any] = {"role": message.role, "content": content}
    if message.tool_calls:
        row["content"] = content or None
        row["tool_calls"] = [
            {
                "id": call.id,
                "type": "function",
                "function": {"name": call.name, "arguments": _to_json_object(call.arguments)},
            }
            for call in message.tool_calls
        ]
    if message.tool_call_id:
        row["tool_call_id"] = message.tool_call_id
    return row


def _to_json_object(arguments: str) -> str:
    """Return arguments that every provider accepts: anything but a JSON object is wrapped in one."""
    try:
        if isinstance(json.loads(arguments or "{}"), dict):
            return (arguments or "{}").encode("utf-8", "replace").decode()
    except (ValueError, RecursionError):
        pass
    return json.dumps({"malformed": arguments})


def _tool_to_openai(tool: ToolSpec) -> dict[str, Any]:
    function = {"name": tool.name, "description": tool.description, "parameters": dict(tool.parameters)}
    return {"type": "function", "function": function}
