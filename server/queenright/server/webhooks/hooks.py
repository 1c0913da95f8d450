"""
Receive hook calls, by which coding agents report the starts and ends of work. A response may
contain an instruction for the agent.

Hooks fail open: if a call or the service fails, the agent still gets a response within `ANSWER_SECONDS` and
continues. An unknown call is counted, and its response is {}.
"""

from __future__ import annotations

import asyncio
import json
import logging
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Final, Protocol
from urllib.parse import parse_qs

from prometheus_client import CollectorRegistry, Counter
from starlette.types import ASGIApp, Receive, Scope, Send

from queenright.health.interventions.instructions import (
    InstructionClosedError,
    InstructionMailbox,
    InstructionNotFoundError,
)
from queenright.health.interventions.permissions import Permissions
from queenright.health.interventions.target import Target
from queenright.health.store.store import StoreError
from queenright.instrumentation import names
from queenright.instrumentation.families import counter
from queenright.instrumentation.identity import clean_name, new_id
from queenright.runtime.events import AgentEvent, Clock
from queenright.server.http.json_limits import replace_lone_surrogates
from queenright.server.otlp.receiver import Ingest
from queenright.server.telemetry.assembler import Assembler
from queenright.server.telemetry.batch import Batch
from queenright.server.telemetry.client import Client, PermissionAnswer
from queenright.server.telemetry.client_sessions import ANSWERED_SUFFIX, ClientSession
from queenright.server.telemetry.dialects import CLIENTS
from queenright.server.telemetry.intake import Intake
from queenright.server.telemetry.observation import Observation
from queenright.server.telemetry.permission import PERMISSION_EVENT
from queenright.server.telemetry.process import Process
from queenright.server.telemetry.sources import Sources
from queenright.server.telemetry.unusable import RecordFault, UnusableRecordError, UnusedReason

HOOK_PATH_PREFIX: Final = "/hooks/"
CLIENT_BY_PATH: Final = {f"{HOOK_PATH_PREFIX}{client.name}": client for client in CLIENTS}
_UNKNOWN_CLIENT: Final = "other"
"""The client label for an unknown path."""
ANSWER_SECONDS: Final = 0.8
"""Maximum seconds until a response; less than the clients' timeout of one second."""
MAX_BODY: Final = 16 * 1024 * 1024
MAX_HELD_BYTES: Final = 4 * MAX_BODY
"""Maximum bytes of bodies in memory at one time."""
BODY_SECONDS: Final = 10.0
_MAX_INLINE_BYTES: Final = 64 * 1024
"""Maximum length of a body that is parsed on the event loop. Longer ones are parsed in a thread."""
_QUERY_FIELDS: Final = 16
CALL_ID_HEADER: Final = b"x-queenright-call"
"""Header with the id of a call that a cluster's process forwards, and publishes if the response is late."""
_MAX_CALL_IDS: Final = 10_000
"""Maximum ids of calls to remember. If a call arrives twice, it does so within seconds."""

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class _Question:
    """A permission request that waits for a person's decision."""

    client: Client
    answer: PermissionAnswer
    observation: Observation


def count_denied(intake: Intake, calls: Counter, clock: Clock, path: str, status: int, reason: str) -> None:
    """Count a request that the guard denied, because of its token or because it came from a web page."""
    intake.add_refusal(path, status, reason, clock())
    if path.startswith(HOOK_PATH_PREFIX):
        client = CLIENT_BY_PATH.get(path)
        calls.labels(_UNKNOWN_CLIENT if client is None else client.name, "refused").inc()


class CallKeeper(Protocol):
    """Keeps calls that cannot be stored now. In a cluster, the stream keeps them."""

    async def ingest(self, events: Sequence[AgentEvent], call_id: str) -> None:
        """Store the events and the id of a call. Return once they are durable."""

    async def keep(self, path: str, body: bytes, call_id: str) -> None:
        """Keep a call, with its path including the query, for a later ``HookReceiver.store_call``."""


class HookReceiver:
    """
    The ASGI app for ``POST /hooks/CLIENT``. The query may have ``user``, ``host`` and ``repository``.

    Args:
        ingest: Stores events, and returns once they are durable.
        assembler: The assembler, shared with the OTLP receiver.
        instructions: Pending instructions for agents.
        permissions: Collects people's decisions on permission requests.
        intake: The statistics of senders.
        clock: Seconds since the epoch.
        registry: The registry for ``queenright_hook_calls_total``.
        keeper: Keeps calls that cannot be stored now; if None, they are lost.
    """

    def __init__(
        self,
        ingest: Ingest,
        assembler: Assembler,
        instructions: InstructionMailbox,
        permissions: Permissions,
        intake: Intake,
        *,
        clock: Clock,
        registry: CollectorRegistry,
        keeper: CallKeeper | None = None,
    ) -> None:
        self._ingest = ingest
        self._assembler = assembler
        self._instructions = instructions
        self._permissions = permissions
        self._intake = intake
        self._clock = clock
        self._keeper = keeper
        self._active_calls: dict[str, asyncio.Task[dict[str, Any] | _Question]] = {}
        """Calls that are being stored, by id."""
        self._stream_call_ids: OrderedDict[str, None] = OrderedDict()
        self._failed_calls: OrderedDict[str, None] = OrderedDict()
        """Ids of calls that the database may have stored although it did not answer."""
        self._held_bytes = 0
        self._tasks: set[asyncio.Task[dict[str, Any] | _Question]] = set()
        self.calls = counter(names.HOOK_CALLS, registry)
        """Calls by client and outcome, including calls that the guard denies."""
        for client in CLIENTS:
            for outcome in ("used", "ignored", "refused", "late", "failed"):
                self.calls.labels(client.name, outcome)
        self.calls.labels(_UNKNOWN_CLIENT, "refused")

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Respond to a hook call."""
        status, answer = await self._answer(scope, receive)
        if isinstance(answer, _Question):
            await self._answer_permission(answer, receive, send)
            return
        body = json.dumps(answer).encode()
        headers = [(b"content-type", b"application/json"), (b"content-length", str(len(body)).encode())]
        await send({"type": "http.response.start", "status": status, "headers": headers})
        await send({"type": "http.response.body", "body": body})

    async def _answer_permission(self, question: _Question, receive: Receive, send: Send) -> None:
        """
        Respond to a permission request when a person decides, or at the time limit.

        The response starts immediately, with a space before the JSON, so that the client sees that the
        service is alive.
        """
        headers = [(b"content-type", b"application/json")]
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        await send({"type": "http.response.body", "body": b" ", "more_body": True})
        observation = question.observation
        wait_task = asyncio.create_task(
            self._permissions.wait(
                self._get_target(observation),
                tool=observation.data["tool"],
                question=observation.data["question"],
                is_pending=lambda: self._get_session(observation).is_request_open(observation.identity),
            )
        )
        # The body has been read, so the next message is a disconnect.
        disconnect_task = asyncio.ensure_future(receive())
        try:
            await asyncio.wait((wait_task, disconnect_task), return_when=asyncio.FIRST_COMPLETED)
            decision = wait_task.result() if wait_task.done() else None
        finally:
            wait_task.cancel()
            disconnect_task.cancel()
        answer: dict[str, Any] = {}
        if decision is not None:
            reason = f": {decision.reason}" if decision.reason else ""
            answer = question.answer(decision.decision, f"{decision.by} answered {decision.decision}{reason}")
        await send({"type": "http.response.body", "body": json.dumps(answer).encode()})
        if decision is not None:
            await self._end_wait(question.client, observation)

    async def _end_wait(self, client: Client, request: Observation) -> None:
        now = self._clock()
        end = int(now * 1e9)
        end_observation = replace(request, identity=request.identity + ANSWERED_SUFFIX, end=end)
        try:
            await self._store(end_observation, now, self._ingest)
        except Exception as error:
            # The next record of the tool also ends the wait.
            _log.error("%s: cannot store the end of a wait: %s", client.name, error, exc_info=error)

    async def _answer(self, scope: Scope, receive: Receive) -> tuple[int, dict[str, Any] | _Question]:
        client = CLIENT_BY_PATH.get(scope["path"])
        if client is None:
            self.calls.labels(_UNKNOWN_CLIENT, "refused").inc()
            reason = f"unknown hook path; use {', '.join(CLIENT_BY_PATH)}"
            self._intake.add_refusal(scope["path"], 404, reason, self._clock())
            return 404, {"error": reason}
        if scope["method"] != "POST":
            return self._refuse(client, 405, "hooks accept only POST")
        try:
            async with asyncio.timeout(BODY_SECONDS):
                body = await self._read_body(receive)
        except TimeoutError:
            return self._refuse(client, 408, f"the body did not arrive within {BODY_SECONDS:g} s")
        if body is None:
            return self._refuse(client, 413, f"the body is longer than {MAX_BODY} bytes")
        call_id = next(
            (value.decode("latin-1") for name, value in scope["headers"] if name == CALL_ID_HEADER), ""
        )
        call_id = call_id or new_id()
        if call_id in self._stream_call_ids:
            # The forwarding process has stopped waiting, and has published the call to the stream.
            return 200, {}
        task = asyncio.create_task(self._process_call(client, body, scope.get("query_string", b""), call_id))
        self._active_calls[call_id] = task
        task.add_done_callback(lambda _: self._active_calls.pop(call_id, None))
        self._tasks.add(task)
        task.add_done_callback(partial(self._on_task_done, client))
        finished_tasks, _ = await asyncio.wait([task], timeout=ANSWER_SECONDS)
        if not finished_tasks:
            # The call is still being stored. Instructions are delivered with the next call.
            self.calls.labels(client.name, "late").inc()
            return 200, {}
        try:
            return 200, task.result()
        except ValueError as error:
            fault = error.fault if isinstance(error, UnusableRecordError) else None
            return self._refuse(client, 400, str(error), fault)
        except Exception:
            return 503, {}

    async def _read_body(self, receive: Receive) -> bytes | None:
        """Return the body; None if it is too long, or if all bodies in memory together are."""
        parts, size = [], 0
        try:
            while True:
                message = await receive()
                part = message.get("body", b"")
                size += len(part)
                self._held_bytes += len(part)
                if size > MAX_BODY or self._held_bytes > MAX_HELD_BYTES:
                    return None
                parts.append(part)
                if not message.get("more_body", False):
                    return b"".join(parts)
        finally:
            self._held_bytes -= size

    def _on_task_done(self, client: Client, task: asyncio.Task[dict[str, Any] | _Question]) -> None:
        self._tasks.discard(task)
        if task.cancelled() or (error := task.exception()) is None or isinstance(error, ValueError):
            return
        self.calls.labels(client.name, "failed").inc()
        _log.error("cannot store a hook call; its agent continues: %s", error, exc_info=error)

    def _refuse(
        self, client: Client, status: int, reason: str, fault: RecordFault | None = None
    ) -> tuple[int, dict[str, Any] | _Question]:
        self.calls.labels(client.name, "refused").inc()
        self._intake.add_refusal(
            f"{HOOK_PATH_PREFIX}{client.name}", status, reason, self._clock(), fault=fault
        )
        return status, {"error": reason}

    async def end_call(self, call_id: str) -> bool:
        """
        Wait until a call from the stream is no longer being stored, and prevent storing it later.

        Returns:
            Whether storing it failed here. If the database stored it anyway, the monitor lacks its events.
        """
        _remember_call_id(self._stream_call_ids, call_id)
        if (task := self._active_calls.get(call_id)) is not None:
            await asyncio.wait([task])
        return call_id in self._failed_calls

    async def store_call(
        self, path: str, query: bytes, body: bytes, received_at: float, ingest: Ingest
    ) -> None:
        """
        Store a call that was answered before it was stored, for example while its partition had no owner.

        Args:
            path: The path of the call.
            query: Its query.
            body: Its body.
            received_at: When it was received, in seconds since the epoch.
            ingest: Stores the events, and returns once they are durable. Also called without events.

        Raises:
            Exception: What ``ingest`` raises. A call that cannot be used is counted, but not stored.
        """
        client = CLIENT_BY_PATH[path]
        now = received_at
        try:
            _, observation = await asyncio.to_thread(
                _read_call, client, body, _parse_process(query), int(now * 1e9)
            )
        except ValueError as error:
            fault = error.fault if isinstance(error, UnusableRecordError) else None
            self._refuse(client, 400, str(error), fault)
            observation = None
        if observation is None:
            await ingest([])
        else:
            await self._store(observation, now, ingest)

    async def _process_call(
        self, client: Client, body: bytes, query: bytes, call_id: str
    ) -> dict[str, Any] | _Question:
        now, process = self._clock(), _parse_process(query)
        read_call = partial(_read_call, client, body, process, int(now * 1e9))
        event_name, observation = (
            await asyncio.to_thread(read_call) if len(body) > _MAX_INLINE_BYTES else read_call()
        )
        self.calls.labels(client.name, "ignored" if observation is None else "used").inc()
        sources = Sources()
        source = sources.for_process(process, client.name)
        source.records = 1
        if observation is None:
            source.unused[UnusedReason.NO_AGENT_WORK] = 1
            self._intake.add(sources, now)
            return {}
        keeper = self._keeper
        ingest = self._ingest if keeper is None else partial(keeper.ingest, call_id=call_id)
        try:
            await self._store(observation, now, ingest)
        except StoreError as error:
            if keeper is None:
                raise
            _log.warning("a hook call waits in the stream: %s", error)
            _remember_call_id(self._failed_calls, call_id)
            await keeper.keep(f"{HOOK_PATH_PREFIX}{client.name}?{query.decode('latin-1')}", body, call_id)
            return {}
        source.record(self._get_session(observation).run, observation)
        self._intake.add(sources, now)
        # The client may also ask in its terminal, and continues once the user answers there.
        self._permissions.release_answered()
        is_pending = event_name == PERMISSION_EVENT and self._get_session(observation).is_request_open(
            observation.identity
        )
        if is_pending and client.permission_answer is not None and self._permissions.has_capacity:
            return _Question(client, client.permission_answer, observation)
        return await self._pull_instruction(client, observation, event_name)

    async def _store(self, observation: Observation, now: float, ingest: Ingest) -> None:
        batch = Batch()
        for _ in self._assembler.assemble([observation], batch, now):
            pass
        batch.finish()
        duplicates = self._assembler.duplicates
        duplicates.begin_storing(batch.identities)
        is_stored = False
        try:
            if batch.events:
                await ingest(batch.events)
            is_stored = True
        finally:
            duplicates.finish_storing(batch.identities, is_stored=is_stored)
            if not is_stored:
                batch.undo()

    async def _pull_instruction(
        self, client: Client, observation: Observation, event_name: str
    ) -> dict[str, Any]:
        """Return the response that delivers a pending instruction, if this hook event can deliver one."""
        target = self._get_target(observation)
        answer: dict[str, Any] = {}
        for instruction in await self._instructions.pull(target, 0):
            instruction_answer = client.instruction_answer(event_name, instruction.kind, instruction.message)
            if instruction_answer and not answer:
                try:
                    await self._instructions.answer(target, instruction.instruction_id, "done")
                except (InstructionClosedError, InstructionNotFoundError):
                    continue
                answer = instruction_answer
        return answer

    def _get_session(self, observation: Observation) -> ClientSession:
        return self._assembler.sessions.get(observation.client, observation.session)

    def _get_target(self, observation: Observation) -> Target:
        run = self._get_session(observation).run
        return Target(agent_id=run.agent_id, session_id=run.session_id, incarnation_id=run.incarnation_id)


def route_hooks(receiver: ASGIApp, hooks: ASGIApp) -> ASGIApp:
    """Return an ASGI app that routes hook calls to ``hooks`` and everything else to ``receiver``."""

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        is_hook = scope["type"] == "http" and scope["path"].startswith(HOOK_PATH_PREFIX)
        await (hooks if is_hook else receiver)(scope, receive, send)

    return app


def _remember_call_id(ids: OrderedDict[str, None], call_id: str) -> None:
    ids[call_id] = None
    if len(ids) > _MAX_CALL_IDS:
        ids.popitem(last=False)


def _parse_process(query: bytes) -> Process:
    try:
        fields = parse_qs(query.decode("latin-1"), max_num_fields=_QUERY_FIELDS)
    except ValueError:
        raise ValueError(
            f"the URL has more than {_QUERY_FIELDS} query fields; send only user, host and repository"
        ) from None
    query_fields = {key: clean_name(values[0]) for key, values in fields.items()}
    owner = "@".join(name for name in (query_fields.get("user", ""), query_fields.get("host", "")) if name)
    return Process(
        service="",
        agent="",
        incarnation_id="",
        is_own=False,
        owner=owner,
        user=owner if query_fields.get("user") else "",
        repository=query_fields.get("repository", ""),
    )


def parse_call(body: bytes) -> Mapping[str, Any]:
    """
    Return the JSON object of a call.

    Raises:
        ValueError: The body is not a JSON object.
    """
    try:
        call = json.loads(replace_lone_surrogates(body))
    except RecursionError:
        raise ValueError("the body is nested too deeply") from None
    except ValueError as error:
        raise ValueError(f"the body is not valid JSON: {str(error)[:200]}") from None
    if not isinstance(call, dict):
        raise ValueError(f"the body must be a JSON object, not {type(call).__name__}")
    return call


def _read_call(client: Client, body: bytes, process: Process, now: int) -> tuple[str, Observation | None]:
    call = parse_call(body)
    return str(call.get("hook_event_name"))[:100], client.read_hook(call, process, now)
