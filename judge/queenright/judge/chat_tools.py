"""The queen's tools in the operator chat."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Final

from pydantic import BaseModel, ConfigDict

from queenright.health.monitoring.monitor import HealthMonitor
from queenright.health.ticket_service import TicketService
from queenright.health.tickets.ticket import AckChannel, EscalationTicket, TicketError, WorkerFacts
from queenright.judge.agent_workspace import (
    ADMIN_TOOLS,
    RESTART,
    WRITE_FILE,
    AgentWorkspaces,
    ListArguments,
    LogArguments,
    ReadArguments,
    RestartArguments,
    WriteArguments,
    show_files,
    show_log,
    show_text,
    workspace_tools,
)
from queenright.judge.chat_commands import ACKNOWLEDGE, ChatCommand, parse_command
from queenright.judge.chat_log import Question
from queenright.judge.monitoring_tools import SummaryArguments, show_summary, summary_tool
from queenright.judge.queen_actions import (
    NUDGE,
    REQUEST_TERMINATION,
    NudgeArguments,
    QueenActions,
    TerminationArguments,
    nudge_tool,
    termination_tool,
)
from queenright.runtime.events import Clock
from queenright.runtime.tooling.tools import Tool, ToolError

ACTING_TOOLS: Final = (NUDGE, REQUEST_TERMINATION, ACKNOWLEDGE)

_COMMANDS: Final = {
    NUDGE: "`nudge it: TEXT`",
    REQUEST_TERMINATION: "`terminate it: REASON`",
    ACKNOWLEDGE: "`acknowledge`",
    WRITE_FILE: "`change FILE: TEXT`",
    RESTART: "`restart it`",
}
_APPROVAL_HINT: Final = "It is approved or denied with `queenright approvals`, and not in this chat."


class AcknowledgeArguments(BaseModel):
    """The ticket that the operator acknowledges."""

    model_config = ConfigDict(extra="forbid")

    ticket_id: str


@dataclass(frozen=True, slots=True)
class ChatTurn:
    """A question that is being answered, with its worker and the tools that were used."""

    worker: EscalationTicket | WorkerFacts
    """The ticket; without a ticket, the facts about the worker."""
    question: Question
    used_tools: set[str] = field(default_factory=set)
    diffs: list[str] = field(default_factory=list)
    """The diffs of changed files, which are appended to the answer."""

    @property
    def ticket(self) -> EscalationTicket | None:
        """The ticket of the question; None for a worker without a ticket."""
        return self.worker if isinstance(self.worker, EscalationTicket) else None

    @property
    def command(self) -> ChatCommand | None:
        """The command in the operator's message, or None."""
        subject = {
            "agent_id": self.worker.agent_id,
            "ticket_id": self.question.subject.ticket_id,
        }
        return parse_command(self.question.text, subject)

    @property
    def allowed_tools(self) -> Sequence[str]:
        """The tools that the message allows. Without a ticket, there are none."""
        names: tuple[str, ...]
        if self.ticket is None:
            names = ()
        elif self.question.act:
            names = (*ACTING_TOOLS, *ADMIN_TOOLS)
        else:
            names = () if self.command is None else self.command.tools
        return [tool for tool in names if self.question.is_admin or tool not in ADMIN_TOOLS]

    def names_file(self, path: str) -> bool:
        """Return whether the operator's message names a file. Other files must not be changed."""
        if self.question.act:
            name = re.escape(path)
            pattern = rf"(?<![\w./-]){name}(?![\w/-]|\.\w)"
            if not {".", "/"} & set(path):  # a word without a dot or slash names a file only in quotes
                pattern = rf"[`'\"]{name}[`'\"]"
            return re.search(pattern, self.question.text) is not None
        return self.command is not None and self.command.arguments.get("path") == path

    def choose_text(self, draft: str) -> str:
        """Return the operator's text if the message is a command, otherwise the model's draft."""
        command = None if self.question.act else self.command
        if command is None:
            return draft
        return str(command.arguments.get("message") or command.arguments.get("reason") or draft)


class ChatTools:
    """
    The tools of the chat. The session of a call identifies the question and its ticket.

    A tool acts only if the operator's newest message is a command for it, or was sent as an order (``act``).
    Text that a worker wrote cannot make it act. Each tool acts only once per question.

    Args:
        actions: Nudges and stops workers. If None, there are no tools for this.
        workspaces: Reads, changes and restarts agents. If None, there are no tools for this.
    """

    def __init__(
        self,
        *,
        tickets: TicketService,
        monitor: HealthMonitor,
        clock: Clock,
        actions: QueenActions | None,
        workspaces: AgentWorkspaces | None = None,
    ) -> None:
        self._tickets = tickets
        self._monitor = monitor
        self._clock = clock
        self._turns: dict[str, ChatTurn] = {}
        self.all: Sequence[Tool] = [
            summary_tool(self._show, ("session_id",)),
            *(() if actions is None else self._build_action_tools(actions)),
            Tool(
                ACKNOWLEDGE,
                "Record that the operator handles the ticket.",
                AcknowledgeArguments,
                self._acknowledge,
                context=("session_id",),
            ),
            *(() if workspaces is None else self._build_workspace_tools(workspaces)),
        ]

    @contextmanager
    def open_turn(
        self, session_id: str, worker: EscalationTicket | WorkerFacts, question: Question
    ) -> Iterator[ChatTurn]:
        """Assign the tool calls of a session to a question, until the context is exited."""
        self._turns[session_id] = turn = ChatTurn(worker, question)
        try:
            yield turn
        finally:
            del self._turns[session_id]

    async def _show(self, arguments: SummaryArguments, *, session_id: str) -> str:
        worker = self._get_turn(session_id).worker
        agent_id = arguments.agent_id or worker.agent_id
        session = None if arguments.session_id == "auto" else arguments.session_id
        if session is None and agent_id == worker.agent_id:
            session = worker.session_id
        return show_summary(self._monitor.get(agent_id, session), self._clock(), arguments.last_n_steps)

    async def _acknowledge(self, arguments: AcknowledgeArguments, *, session_id: str) -> str:
        with self._open_action(session_id, arguments.ticket_id, ACKNOWLEDGE) as turn:
            by = turn.question.by
            try:
                await self._tickets.acknowledge(
                    arguments.ticket_id, by=f"{by} (noted by the queen)", via=AckChannel.CHAT
                )
            except TicketError as error:
                raise ToolError(str(error)) from error
            return f"Noted: {by} handles it."

    def _build_action_tools(self, actions: QueenActions) -> list[Tool]:
        async def nudge(arguments: NudgeArguments, *, session_id: str) -> str:
            with self._open_action(session_id, arguments.ticket_id, NUDGE) as turn:
                ticket, by = self._get_open_ticket(turn), turn.question.by
                return await actions.nudge(ticket, turn.choose_text(arguments.message), ordered_by=by)

        async def request_termination(arguments: TerminationArguments, *, session_id: str) -> str:
            with self._open_action(session_id, arguments.ticket_id, REQUEST_TERMINATION) as turn:
                ticket, by = self._get_open_ticket(turn), turn.question.by
                answer = await actions.request_termination(
                    ticket, turn.choose_text(arguments.reason), ordered_by=by
                )
                return f"{answer} {_APPROVAL_HINT}" if "approv" in answer else answer

        context = ("session_id",)
        return [nudge_tool(nudge, context), termination_tool(request_termination, context)]

    def _build_workspace_tools(self, workspaces: AgentWorkspaces) -> list[Tool]:
        def get_agent_id(session_id: str) -> str:
            return self._get_turn(session_id).worker.agent_id

        async def list_files(arguments: ListArguments, *, session_id: str) -> str:
            return show_files(*await workspaces.list_files(get_agent_id(session_id)))

        async def read_file(arguments: ReadArguments, *, session_id: str) -> str:
            text = await workspaces.read_file(get_agent_id(session_id), arguments.path)
            return show_text(arguments.path, text, arguments.offset)

        async def read_log(arguments: LogArguments, *, session_id: str) -> str:
            worker = self._get_turn(session_id).worker
            rows = await workspaces.read_log(worker.agent_id, worker.session_id, arguments.last_n_steps)
            return show_log(rows)

        async def write(arguments: WriteArguments, *, session_id: str) -> str:
            with self._open_action(session_id, arguments.ticket_id, WRITE_FILE) as turn:
                if not turn.names_file(arguments.path):
                    raise ToolError(
                        f"the operator's message does not name {arguments.path!r}; only a file that it "
                        "names may be changed"
                    )
                change = await workspaces.write_file(
                    turn.worker.agent_id,
                    arguments.path,
                    arguments.new,
                    arguments.old,
                    ordered_by=turn.question.by,
                )
                turn.diffs.append(change.diff)
                return f"{change.summary}. The diff is appended to your answer; do not repeat it"

        async def restart(arguments: RestartArguments, *, session_id: str) -> str:
            with self._open_action(session_id, arguments.ticket_id, RESTART) as turn:
                return await workspaces.restart(turn.worker.agent_id, ordered_by=turn.question.by)

        return workspace_tools(
            list_files=list_files, read_file=read_file, read_log=read_log, write=write, restart=restart
        )

    @contextmanager
    def _open_action(self, session_id: str, ticket_id: str, tool: str) -> Iterator[ChatTurn]:
        """
        Let a tool act for the session's question if the operator ordered it.

        The tool may act once. If it fails, it may act again.
        """
        turn = self._get_turn(session_id)
        if turn.ticket is None:
            raise ToolError(
                "this chat has no ticket, so no action is possible; name the command for the terminal instead"
            )
        if turn.ticket.ticket_id != ticket_id:
            raise ToolError(f"this chat is about ticket {turn.ticket.ticket_id!r}; pass its ticket_id")
        if tool in ADMIN_TOOLS and not turn.question.is_admin:
            raise ToolError(
                f"{tool} needs the admin role, which {turn.question.by} does not have; nothing was done. "
                "An admin must ask for it"
            )
        if tool not in turn.allowed_tools:
            raise ToolError(
                f"the operator's message is not an order for {tool}; nothing was done. The operator can "
                f"write {_COMMANDS[tool]}, or send any text as an order (`queenright chat --act`)"
            )
        if tool in turn.used_tools:
            raise ToolError(f"{tool} has already acted for this question; report its result in the answer")
        turn.used_tools.add(tool)
        try:
            yield turn
        except BaseException:
            turn.used_tools.discard(tool)
            raise

    def _get_turn(self, session_id: str) -> ChatTurn:
        turn = self._turns.get(session_id)
        if turn is None:
            raise ToolError("this question has timed out; answer in text instead")
        return turn

    def _get_open_ticket(self, turn: ChatTurn) -> EscalationTicket:
        ticket = self._tickets.get(turn.question.subject.ticket_id)
        if ticket is None or not ticket.is_live:
            raise ToolError(
                "the ticket is closed; act on the worker itself with queenright nudge or queenright terminate"
            )
        return ticket
