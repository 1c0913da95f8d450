"""What the terminal asks of a service: the client's answers, as values. Nothing else asks the client."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import aclosing
from http import HTTPStatus
from typing import Any, Final

from pydantic import BaseModel

from queenright.client import AsyncQueenright
from queenright.client.errors import RequestRefusedError
from queenright.client.notices import Notice
from queenright.tui.event_lines import FEED, WORK, Line
from queenright.tui.transcript import before
from queenright.tui.values import Before, Breaker, Graph, Loaded, Moment, Row, Said, Ticket, Worker

_TICKETS: Final = 200
_HISTORY: Final = 200
_SESSIONS: Final = 20
_MESSAGES: Final = 100
_TALK: Final = (
    "client_output_delta",
    "client_input_requested",
    "execution_completed",
    "execution_failed",
    "execution_paused",
)


class Link:
    """
    One service.

    Args:
        client: What asks it.
        by: Who acts; kept in the audit trail.
    """

    def __init__(self, client: AsyncQueenright, *, by: str) -> None:
        self.by = by
        self._client = client

    @property
    def url(self) -> str:
        """Where the service is."""
        return self._client.url

    async def close(self) -> None:
        """Give up its connections."""
        await self._client.aclose()

    # -- what there is --------------------------------------------------------------------------

    async def workers(self) -> list[Worker]:
        """Return every worker, each of its sessions."""
        return [Worker.of(_row(one)) async for one in self._client.agents.list()]

    async def tickets(self) -> list[Ticket]:
        """Return the newest tickets, over or not."""
        return [Ticket.of(_row(one)) async for one in self._client.tickets.list(limit=_TICKETS)]

    async def breakers(self) -> list[Breaker]:
        """Return every circuit breaker."""
        return [Breaker.of(_row(one)) async for one in self._client.breakers.list()]

    async def feed(self) -> tuple[list[Line], list[str]]:
        """Return what happened lately, oldest first, and the ids of those events."""
        rows = _row(await self._client.service.status())["feed"][::-1]
        return [Line(row["time"], row["kind"], row["text"]) for row in rows], [row["id"] for row in rows]

    async def history(self, agent_id: str) -> list[Row]:
        """Return what happened to a worker in the last day, oldest first."""
        found = [_row(one) async for one in self._client.agents.history(agent_id, limit=_HISTORY)]
        return sorted(found, key=lambda row: row["seq"])

    # -- what happens ---------------------------------------------------------------------------

    def fleet_events(
        self, told: Callable[[Notice], None], last_event_id: str | None
    ) -> AsyncIterator[Moment]:
        """Yield what happens to anybody, over every break of the connection, which ``told`` is told of."""
        return self._events((*FEED, *WORK), None, told, last_event_id)

    def worker_events(self, agent_id: str) -> AsyncIterator[Moment]:
        """Yield everything that one worker does, from now on."""
        return self._events("all", agent_id)

    def talk_events(self, told: Callable[[Notice], None]) -> AsyncIterator[Moment]:
        """Yield what agents that are loaded say and ask, and how their runs end; ``told`` as above."""
        return self._events(_TALK, None, told)

    async def _events(
        self,
        types: Sequence[str] | str,
        agent_id: str | None,
        told: Callable[[Notice], None] = lambda notice: None,
        last_event_id: str | None = None,
    ) -> AsyncIterator[Moment]:
        stream = self._client.events.stream(
            types=types, agent=agent_id, last_event_id=last_event_id, wait=True, told=told
        )
        async with aclosing(stream):
            async for event in stream:
                yield Moment.of(_row(event))

    # -- what is done ---------------------------------------------------------------------------

    async def nudge(self, worker: Worker, message: str) -> str:
        """Tell a worker something, the usual reminder if it is blank; return what became of it."""
        found = await self._client.agents.nudge(
            worker.agent_id, message.strip() or None, session_id=worker.session_id, by=self.by
        )
        return _became(_row(found))

    async def terminate(self, worker: Worker, reason: str) -> str:
        """Stop this life of a worker; return what became of it."""
        found = await self._client.agents.terminate(
            worker.agent_id,
            reason,
            session_id=worker.session_id,
            incarnation_id=worker.incarnation_id or None,
            by=self.by,
        )
        return _became(_row(found))

    async def acknowledge(self, ticket_id: str) -> None:
        """Say that a person has a ticket in hand."""
        await self._client.tickets.acknowledge(ticket_id, by=self.by)

    async def reset(self, name: str) -> None:
        """Close a circuit breaker."""
        await self._client.breakers.reset(name, by=self.by)

    # -- the queen ------------------------------------------------------------------------------

    async def messages(self, ticket_id: str) -> list[Said]:
        """Return what was said about a ticket, oldest first."""
        return [_said(_row(one)) for one in await self._client.tickets.messages(ticket_id)]

    async def ask_queen(self, ticket_id: str, question: str) -> Said:
        """Ask the queen about a ticket; return her answer once she has one."""
        return _said(_row(await self._client.tickets.chat(ticket_id, question, by=self.by)))

    # -- agents that are loaded -----------------------------------------------------------------

    async def load(self, path: str) -> str:
        """Load an agent; return its name."""
        return str(_row(await self._client.agents.load(path))["agent_id"])

    async def unload(self, agent_id: str) -> None:
        """Unload an agent; its runs are paused."""
        await self._client.agents.unload(agent_id)

    async def loaded(self) -> list[Loaded]:
        """Return the agents that are loaded."""
        return [
            Loaded(agent_id=one.agent_id, active=one.active_graph_id, graphs=tuple(one.graphs))
            for one in await self._client.agents.loaded()
        ]

    async def has_run(self, agent_id: str, execution_id: str) -> bool:
        """Return whether a run is one of this agent that is loaded, in whichever of its graphs."""
        try:
            await self._client.agents.execution(agent_id, execution_id)
        except RequestRefusedError as error:
            if error.status == HTTPStatus.NOT_FOUND:
                return False
            raise
        return True

    async def before(self, agent_id: str, graph_id: str) -> Before:
        """Return what was said with a graph of an agent before, and what it waits for."""
        asked = self._client.agents
        session = await self._session(agent_id, graph_id)
        if session is None:
            return Before()
        rows = [
            _row(one) async for one in asked.messages(agent_id, session, graph_id=graph_id, limit=_MESSAGES)
        ]
        nodes = [_row(one) async for one in asked.nodes(agent_id, graph_id)]
        return before(rows, nodes, self.by)

    async def graphs(self, agent_id: str) -> list[Graph]:
        """Return the graphs of an agent, its own first."""
        running: dict[str, int] = {}
        async for entry in self._client.agents.entry_points(agent_id):
            running[entry.graph_id] = running.get(entry.graph_id, 0) + entry.running
        found = [
            Graph(
                graph_id=one.graph_id,
                agent_id=one.agent_id,
                active=one.active,
                primary=one.primary,
                running=running.get(one.graph_id, 0),
                waiting=await self._waiting(agent_id, one.graph_id) if running.get(one.graph_id) else (),
            )
            async for one in self._client.agents.graphs(agent_id)
            if not one.of_service  # nobody talks with those here
        ]
        return sorted(found, key=lambda one: (not one.primary, one.graph_id))

    async def _waiting(self, agent_id: str, graph_id: str) -> tuple[str, ...]:
        nodes = self._client.agents.nodes(agent_id, graph_id)
        return tuple([node.node_id async for node in nodes if node.waiting_for_user])

    async def nodes(self, agent_id: str, graph_id: str) -> list[Row]:
        """Return the nodes of a graph with their edges, in the graph's order."""
        asked = self._client.agents
        names = [one.node_id async for one in asked.nodes(agent_id, graph_id)]
        return [_row(await asked.node(agent_id, graph_id, name)) for name in names]

    async def data(self, agent_id: str, graph_id: str) -> Row:
        """Return what the session of a graph knows: of the one that goes on, else of the newest."""
        session_id = await self._session(agent_id, graph_id)
        if session_id is None:
            return {}
        found = await self._client.agents.session(agent_id, session_id, graph_id=graph_id)
        return _row(found)["memory"]  # type: ignore[no-any-return]

    async def _session(self, agent_id: str, graph_id: str) -> str | None:
        asked = self._client.agents
        sessions = [one async for one in asked.sessions(agent_id, graph_id=graph_id, limit=_SESSIONS)]
        going_on = next((one for one in sessions if one.status == "active"), None)
        return (going_on or sessions[0]).session_id if sessions else None

    async def switch(self, agent_id: str, graph_id: str) -> None:
        """Let what is said go to another graph of an agent."""
        await self._client.agents.set_active_graph(agent_id, graph_id)

    async def add_graph(self, agent_id: str, path: str) -> str:
        """Load a further graph for an agent; return its id."""
        return str(_row(await self._client.agents.add_graph(agent_id, path))["graph_id"])

    async def remove_graph(self, agent_id: str, graph_id: str) -> None:
        """Unload a further graph of an agent."""
        await self._client.agents.remove_graph(agent_id, graph_id)

    async def say(self, agent_id: str, text: str) -> str:
        """Say something to an agent; return whether a node got it or a run was started."""
        found = _row(await self._client.agents.chat(agent_id, text))
        return f"{found['node_id']} has it" if found["status"] == "injected" else "a run was started"


def _row(model: BaseModel) -> dict[str, Any]:
    return model.model_dump(mode="json")


def _said(row: Row) -> Said:
    return Said(by=row["by"], text=row["text"], at=row["at"], mine=row["role"] == "operator")


def _became(row: Row) -> str:
    words = {"done": "done", "queued": "it waits for the worker to fetch it"}
    outcome = str(row["outcome"])
    detail = f": {row['detail']}" if row.get("detail") else ""
    return words.get(outcome, outcome.replace("_", " ") + detail)
