"""Language models behind litellm, and the provider that a model's name stands for."""

from __future__ import annotations

import asyncio
import importlib
import importlib.util
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
from queenright.runtime.llm.litellm_answer import Gathered, whole_reply
from queenright.runtime.llm.litellm_failure import failure, refuses_streams, refuses_tool_choice
from queenright.runtime.llm.litellm_question import messages_of, tools_of, wants_marks
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
_OURS: Final = "queenright/"


class ProviderUnavailable(QueenrightError):
    """Raised for a model that cannot be used here; the message says what is missing."""


class _NotStreamedError(Exception):
    """The provider answers, but not in pieces."""


class _NotForcedError(Exception):
    """The provider answers, but does not let itself be told to call a tool."""


def load_provider(name: str, *, timeout_seconds: float = 60) -> LLMProvider:
    """
    Return the provider called ``name``.

    Args:
        name: A model string that litellm knows, or ``scripted:PATH`` for replies from a JSON file.
        timeout_seconds: How long a model may be silent.

    Raises:
        ProviderUnavailable: litellm is not installed, the file holds no replies, or the name is that of
            rules which only judge and queen think by.
    """
    if not name:
        raise ProviderUnavailable("no model is named: give a litellm model string, or scripted:PATH")
    if name.startswith(_OURS):
        raise ProviderUnavailable(
            f"the model {name!r} is for judge and queen only: for an agent, name a litellm model, "
            "such as anthropic/claude-sonnet-4-5, or scripted:PATH"
        )
    if name.startswith(SCRIPTED):
        try:
            return ScriptedProvider.load(Path(name.removeprefix(SCRIPTED)))
        except ScriptError as error:
            raise ProviderUnavailable(str(error)) from error
    if importlib.util.find_spec("litellm") is None:
        raise ProviderUnavailable(f"the model {name!r} needs litellm: install queenright[llm]")
    return LiteLlmProvider(name, timeout_seconds=timeout_seconds)


class LiteLlmProvider:
    """
    A language model behind litellm, streamed where its provider streams.

    litellm is imported at the first question, in a thread: it takes seconds. Keys and addresses come
    from the environment, the way litellm documents for each provider. Nothing is asked twice: whoever
    asks decides when to ask again.

    Args:
        name: litellm's model string.
        timeout_seconds: How long the provider may be silent, also between two pieces.
        clock: Seconds since the epoch, to read a ``Retry-After`` that is a date.
        ids: Makes the id of a tool call to which the provider gave none.
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
        self._streams = True
        self._forces = True
        self._marks = wants_marks(name)

    @property
    def name(self) -> str:
        """The model string."""
        return self._name

    def check(self) -> None:
        """
        Look whether litellm knows who the model's provider is. Nobody is asked over the network; it blocks,
        the first time for the seconds that the import of litellm takes.

        Raises:
            ProviderUnavailable: It does not.
        """
        litellm = _litellm()
        prefix, slash, _ = self._name.partition("/")
        known = [
            *map(_word, litellm.provider_list),
            *(row["provider"] for row in litellm.custom_provider_map),
        ]
        if slash and prefix in known:
            return  # asked about one that it knows, litellm may go and log in there
        try:
            litellm.get_llm_provider(self._name)
        except litellm.BadRequestError:
            near = get_close_matches(prefix, known, 1) if slash else []
            hint = f"did you mean {near[0]}?" if near else "write it as PROVIDER/MODEL"
            raise ProviderUnavailable(
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
        Ask the model. Cancelled, it closes the connection.

        After a cut stream ``on_text`` has seen words that are in no reply.

        Args:
            messages: The conversation, the system prompt first.
            tools: What may be called.
            on_text: Is given the text piece by piece.
            must_call: An answer is to be a tool call. A provider that refuses to be told so is asked
                without, from then on; one that ignores it may still answer in words.

        Raises:
            TransientModelError: A rate limit, a time-out, a failing provider, a cut stream.
            ModelError: The provider refused, or answered in a shape that is no answer.
        """
        litellm = await asyncio.to_thread(_litellm)
        question: dict[str, Any] = {
            "model": self._name,
            "messages": messages_of(messages, marked=self._marks),
            # An empty list is refused by some; no list is not.
            "tools": tools_of(tools) or None,
            "timeout": self._timeout,
            "num_retries": 0,
            "max_retries": 0,
            # Else litellm imports a gateway of its own for any call with tools. That fails without the
            # package `mcp`, and with the one that is current.
            "_skip_mcp_handler": True,
        }
        if must_call and tools and self._forces:
            try:
                return await self._answer(litellm, {**question, "tool_choice": "required"}, on_text)
            except _NotForcedError:
                pass
            reply = await self._answer(litellm, question, on_text)
            # Only now: what refused both had another reason.
            self._forces = False
            return reply
        return await self._answer(litellm, question, on_text)

    async def price(self, input_tokens: int, output_tokens: int) -> float:
        """Return what so many tokens cost in dollars, by litellm's price list; 0 if it has no price."""
        litellm = await asyncio.to_thread(_litellm)
        try:
            return float(
                sum(
                    litellm.cost_per_token(
                        model=self._name, prompt_tokens=input_tokens, completion_tokens=output_tokens
                    )
                )
            )
        except Exception:  # a model that is not in litellm's price list
            return 0.0

    async def _answer(self, litellm: Any, question: dict[str, Any], on_text: OnText | None) -> ModelReply:
        if self._streams and _has_streaming(litellm, self._name):
            try:
                return await self._streamed(litellm, question, on_text)
            except _NotStreamedError:
                pass
        reply = await self._whole(litellm, question)
        # Only now: what refused both had another reason.
        self._streams = False
        if on_text is not None and reply.text:
            on_text(reply.text)
        return reply

    async def _streamed(self, litellm: Any, question: dict[str, Any], on_text: OnText | None) -> ModelReply:
        stream = await self._ask(
            litellm, {**question, "stream": True, "stream_options": {"include_usage": True}}
        )
        gathered = Gathered(self._ids)
        async with aclosing(stream), aclosing(self._chunks(stream, gathered)) as chunks:
            async for chunk in chunks:
                words = gathered.add(chunk)
                if words and on_text is not None:
                    on_text(words)
        # litellm ends every stream with a reason of its own; here is the provider's.
        ended = getattr(stream, "received_finish_reason", gathered.finish_reason)
        if not (ended or getattr(stream, "intermittent_finish_reason", None)):
            if gathered.empty and _is_json(stream):
                raise _NotStreamedError
            raise TransientModelError(f"{self._name}: the stream was cut: it ended without a reason")
        if gathered.finish_reason == "content_filter" and gathered.empty:
            raise ModelError(f"{self._name}: the provider's content filter let nothing through")
        usage = gathered.usage
        priced = litellm.ModelResponse(
            model=gathered.model or self._name, **({"usage": usage} if usage else {})
        )
        return gathered.reply(_cost(litellm, priced, self._name) if usage else 0.0)

    async def _whole(self, litellm: Any, question: dict[str, Any]) -> ModelReply:
        response = await self._ask(litellm, question)
        try:
            return whole_reply(response, _cost(litellm, response, self._name), self._ids)
        except (AttributeError, IndexError, TypeError) as error:
            raise ModelError(f"{self._name} answered in a shape that is no answer: {error}") from error

    async def _ask(self, litellm: Any, question: dict[str, Any]) -> Any:
        # After a second 422 litellm returns None and keeps the reason to itself.
        failed = ModelError(f"{self._name}: the provider cannot process the request")
        try:
            answer = await litellm.acompletion(**question)
            if answer is not None:
                return answer
        except Exception as error:
            if question.get("stream") and refuses_streams(error):
                raise _NotStreamedError from None
            if "tool_choice" in question and refuses_tool_choice(error):
                raise _NotForcedError from None
            failed = failure(self._name, error, now=self._clock())
        # Not inside `except`: what the provider said may repeat a key, and a traceback shows causes.
        raise failed

    async def _chunks(self, stream: Any, gathered: Gathered) -> AsyncGenerator[Any, None]:
        try:
            async for chunk in stream:
                yield chunk
            return
        except Exception as error:
            if gathered.empty and refuses_streams(error):
                raise _NotStreamedError from None
            failed = failure(self._name, error, now=self._clock())
        raise failed


def _litellm() -> Any:
    """Import litellm so that it asks the network for nothing and logs nothing."""
    os.environ.setdefault("LITELLM_LOCAL_MODEL_COST_MAP", "True")
    litellm: Any = importlib.import_module("litellm")
    litellm.telemetry = False
    litellm.suppress_debug_info = True
    litellm.drop_params = True
    # Tokens that a provider does not count are estimated; not with a tokenizer fetched for that.
    litellm.disable_hf_tokenizer_download = True
    for noisy in ("LiteLLM", "LiteLLM Router", "LiteLLM Proxy"):
        logging.getLogger(noisy).setLevel(logging.ERROR)
    return litellm


def _word(provider: Any) -> str:
    return str(getattr(provider, "value", provider))


def _has_streaming(litellm: Any, name: str) -> bool:
    """Say whether there is a way to ask for a stream: a provider that a program registered may have none."""
    handlers = {row["provider"]: row["custom_handler"] for row in litellm.custom_provider_map}
    handler = handlers.get(name.partition("/")[0])
    return handler is None or type(handler).astreaming is not litellm.CustomLLM.astreaming


def _is_json(stream: Any) -> bool:
    """Say whether the server, asked for a stream, sent its answer in one piece."""
    hidden = getattr(stream, "_hidden_params", None) or {}
    headers = hidden.get("additional_headers") or {}
    return str(headers.get("llm_provider-content-type", "")).startswith("application/json")


def _cost(litellm: Any, response: Any, name: str) -> float:
    try:
        return float(litellm.completion_cost(completion_response=response, model=name) or 0.0)
    except Exception:  # a model that is not in litellm's price list
        return 0.0
