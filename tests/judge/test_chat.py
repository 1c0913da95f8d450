import asyncio
import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import pytest

from queenright.health.action_kind import ActionKind
from queenright.health.interventions.intervention import Intervention, InterventionOutcome
from queenright.health.monitoring_service import AgentNotFoundError
from queenright.health.tickets.ticket import EscalationTicket, TicketNotFoundError, TicketStatus
from queenright.judge.agent_workspace import FileChange
from queenright.judge.chat import (
    MAX_MESSAGE_LENGTH,
    MAX_WAITING,
    ChatInterruptedError,
    ChatRecord,
    ChatRefusedError,
)
from queenright.judge.chat_log import OPERATOR_CHAT, Subject
from queenright.judge.judging_budget import BUDGET_FILE
from queenright.judge.queen_actions import QueenActions
from queenright.judge.quoting import unquote
from queenright.judge.rules_model import RulesModel
from queenright.judge.settings import BudgetSettings, JudgeSettings, ModelSettings
from queenright.runtime.bus import UnknownEventError
from queenright.runtime.events import EventType
from queenright.runtime.llm.model import Message, ModelError, ModelReply, OnText, ToolSpec
from queenright.runtime.tooling.tools import ToolError
from tests.judge.conftest import AGENT, SESSION, JudgedFleet, reply_with_call


def is_chat(tools: Sequence[ToolSpec]) -> bool:
    return "acknowledge_ticket" in {tool.name for tool in tools}


class ChatModel:
    """A queen that triages by the rules and answers in the chat with ``replies``."""

    name = "chatting"

    def __init__(self, *replies: ModelReply | Exception | asyncio.Event) -> None:
        self.replies = list(replies)
        self.conversations: list[list[Message]] = []
        self.rules = RulesModel()

    async def complete(
        self, messages: Sequence[Message], tools: Sequence[ToolSpec], on_text: OnText | None = None
    ) -> ModelReply:
        if not is_chat(tools):
            return await self.rules.complete(messages, tools)
        self.conversations.append(list(messages))
        reply = self.replies.pop(0)
        if isinstance(reply, asyncio.Event):
            await reply.wait()
            reply = self.replies.pop(0)
        if isinstance(reply, Exception):
            raise reply
        assert isinstance(reply, ModelReply)
        return reply


class RecordedActions(QueenActions):
    """Actions that only record how they were called."""

    def __init__(self) -> None:
        self.calls: list[tuple[str, str, str]] = []
        self.ordered_by: list[str] = []
        self.refusal = ""

    async def nudge(self, ticket: EscalationTicket, message: str, *, ordered_by: str = "") -> str:
        return self._do("nudge", ticket, message, ordered_by, "It is in its context.")

    async def request_termination(
        self, ticket: EscalationTicket, reason: str, *, ordered_by: str = ""
    ) -> str:
        answer = "A person must approve it: queenright approvals approve 7."
        return self._do("stop", ticket, reason, ordered_by, answer)

    def _do(self, action: str, ticket: EscalationTicket, text: str, ordered_by: str, answer: str) -> str:
        if self.refusal:
            raise ToolError(self.refusal)
        self.ordered_by.append(ordered_by)
        self.calls.append((action, ticket.agent_id, text))
        return answer


async def start_with_ticket(fleet: JudgedFleet, text: str = "same error") -> EscalationTicket:
    """Start the fleet, and return one worker's ticket, of which the operator was notified."""
    await fleet.start()
    await fleet.start_worker()
    await fleet.report_bad_steps(16, text=text)
    ticket = await fleet.get_ticket()
    assert ticket.status is TicketStatus.INTERVENING
    return ticket


async def ask_queen(
    fleet: JudgedFleet, ticket: EscalationTicket, text: str, by: str = "ada", *, act: bool = False
) -> ChatRecord:
    return await asyncio.wait_for(fleet.judging.chat.ask(Subject(ticket.ticket_id), text, by=by, act=act), 10)


def read_question(messages: Sequence[Message]) -> dict[str, object]:
    [*_, newest] = [message for message in messages if message.role == "user"]
    question = unquote("question", newest.content)
    assert question is not None
    return question


async def test_question_and_answer_are_stored(fleet: JudgedFleet) -> None:
    ticket = await start_with_ticket(fleet)

    answer = await ask_queen(fleet, ticket, "What is wrong, and since when?")

    assert ticket.cause in answer.text
    messages = await fleet.judging.chat.history(Subject(ticket.ticket_id))
    assert [(message.role, message.by) for message in messages] == [("operator", "ada"), ("queen", "queen")]
    assert messages[1].question_id == messages[0].id
    assert messages[1] == answer


async def test_model_gets_the_whole_case_with_every_question(fleet: JudgedFleet) -> None:
    fleet.queen_model = model = ChatModel(ModelReply(text="It repeats itself."), ModelReply(text="Nothing."))
    ticket = await start_with_ticket(fleet)

    await ask_queen(fleet, ticket, "what is it?")
    await ask_queen(fleet, ticket, "and what was tried?", by="bob")

    assert [read_question(conversation)["by"] for conversation in model.conversations] == ["ada", "bob"]
    for conversation in model.conversations:
        [*_, newest] = [chat_message for chat_message in conversation if chat_message.role == "user"]
        case, worker = unquote("case", newest.content), unquote("worker", newest.content)
        assert case is not None
        assert worker is not None
        assert case["ticket"]["analysis"] == ticket.analysis
        assert worker["steps_since_last_accept"] == 16
    assert "It repeats itself." in [chat_message.content for chat_message in model.conversations[1]]


async def test_actions_on_the_worker_are_in_the_case(fleet: JudgedFleet) -> None:
    async def list_interventions(limit: int, agent_id: str) -> list[Intervention]:
        return [
            Intervention(
                intervention_id="1",
                agent_id=agent_id,
                session_id=session,
                incarnation_id="life-1",
                kind=ActionKind.NUDGE,
                outcome=InterventionOutcome.DONE,
                by="ladder",
                reason="no progress",
                created_at=fleet.time.now - 60,
                message=f"for {session}",
            )
            for session in (SESSION, "another")
        ]

    fleet.list_interventions = list_interventions
    fleet.queen_model = model = ChatModel(ModelReply(text="A nudge."))
    ticket = await start_with_ticket(fleet)

    await ask_queen(fleet, ticket, "what was tried?")

    case = unquote(
        "case", [message for message in model.conversations[0] if message.role == "user"][-1].content
    )
    assert case is not None
    assert [action["message"] for action in case["done_to_the_worker"]] == [f"for {SESSION}"]


async def test_each_ticket_has_its_own_session(fleet: JudgedFleet) -> None:
    fleet.queen_model = model = ChatModel(ModelReply(text="One."), ModelReply(text="Two."))
    first = await start_with_ticket(fleet)
    await fleet.start_worker("other")
    await fleet.report_bad_steps(16, "other")
    [second] = [ticket for ticket in fleet.tickets.open_tickets() if ticket.agent_id == "other"]

    await ask_queen(fleet, first, "what?")
    await ask_queen(fleet, second, "what?")

    assert "One." not in [chat_message.content for chat_message in model.conversations[1]]
    folder = fleet.path / "graphs" / "queen" / "sessions"
    assert {Subject(ticket.ticket_id).chat_session for ticket in (first, second)} <= {
        path.name for path in folder.iterdir()
    }
    assert [message.text for message in await fleet.judging.chat.history(Subject(second.ticket_id))] == [
        "what?",
        "Two.",
    ]


async def test_questions_about_one_ticket_are_answered_in_order(fleet: JudgedFleet) -> None:
    gate = asyncio.Event()
    fleet.queen_model = ChatModel(gate, ModelReply(text="One."), ModelReply(text="Two."))
    ticket = await start_with_ticket(fleet)

    replies = asyncio.gather(ask_queen(fleet, ticket, "first"), ask_queen(fleet, ticket, "second"))
    await fleet.settle()
    gate.set()
    answers = await replies

    assert [answer.text for answer in answers] == ["One.", "Two."]


async def test_questions_about_two_tickets_are_answered_concurrently(fleet: JudgedFleet) -> None:
    gate = asyncio.Event()
    fleet.queen_model = ChatModel(gate, ModelReply(text="Two."), ModelReply(text="One."))
    first = await start_with_ticket(fleet)
    await fleet.start_worker("other")
    await fleet.report_bad_steps(16, "other")
    [second] = [ticket for ticket in fleet.tickets.open_tickets() if ticket.agent_id == "other"]

    first_reply = asyncio.create_task(ask_queen(fleet, first, "one?"))
    await fleet.settle()
    assert (await ask_queen(fleet, second, "two?")).text == "Two."
    gate.set()

    assert (await first_reply).text == "One."


# -- failures -----------------------------------------------------------------------------------


async def test_failed_model_answer_names_the_working_commands(fleet: JudgedFleet) -> None:
    fleet.queen_model = ChatModel(ModelError("the provider is down"))
    ticket = await start_with_ticket(fleet)

    answer = await ask_queen(fleet, ticket, "what should I do next?")

    assert answer.outcome == "by_rule"
    assert "the provider is down" in answer.text
    # Without a list of interventions, the answer names only the notification.
    assert "Done: A notification was approved." in answer.text
    assert f"queenright tickets show {ticket.ticket_id}" in answer.text


async def test_exhausted_budget_is_stated_in_the_answer(fleet: JudgedFleet) -> None:
    fleet.use_given_models = False
    fleet.judge_settings = JudgeSettings(
        queen=ModelSettings(model="openai/never-asked"), budget=BudgetSettings(tokens_per_day=10)
    )
    (fleet.path / BUDGET_FILE).write_text(
        json.dumps({"spent": [[int(fleet.time.now // 300) * 300, "queen", 0.0, 5]]}), encoding="utf-8"
    )
    await fleet.start()
    await fleet.start_worker()
    await fleet.report_bad_steps(16)
    async with asyncio.timeout(60):
        while (
            ticket := await fleet.get_ticket()
        ).status is TicketStatus.OPEN:  # a thread imports litellm first
            await asyncio.sleep(0.02)
            await fleet.settle()

    answer = await ask_queen(fleet, ticket, "what is wrong?")

    assert answer.text.startswith("(By rule: ")
    assert answer.outcome == "by_rule"


async def test_order_is_not_reported_as_done_when_the_model_fails(fleet: JudgedFleet) -> None:
    fleet.queen_model = ChatModel(ModelError("down"))
    ticket = await start_with_ticket(fleet)

    answer = await ask_queen(fleet, ticket, "stop it")

    assert "queenright terminate" in answer.text


@pytest.mark.parametrize("text", ["", "  \n", "x" * (MAX_MESSAGE_LENGTH + 1)])
async def test_invalid_question_is_refused_and_not_stored(fleet: JudgedFleet, text: str) -> None:
    ticket = await start_with_ticket(fleet)

    with pytest.raises(ChatRefusedError):
        await ask_queen(fleet, ticket, text)

    assert await fleet.judging.chat.history(Subject(ticket.ticket_id)) == []


async def test_waiting_questions_are_limited(fleet: JudgedFleet) -> None:
    fleet.queen_model = ChatModel(asyncio.Event())
    ticket = await start_with_ticket(fleet)
    tasks = [asyncio.create_task(ask_queen(fleet, ticket, f"question {n}")) for n in range(8)]
    await fleet.settle()

    with pytest.raises(ChatRefusedError, match="wait for an answer"):
        await ask_queen(fleet, ticket, "one more")

    await fleet.stop()
    await asyncio.gather(*tasks, return_exceptions=True)


async def test_waiting_questions_are_limited_under_concurrency(fleet: JudgedFleet) -> None:
    fleet.queen_model = ChatModel(asyncio.Event())
    ticket = await start_with_ticket(fleet)

    tasks = [asyncio.create_task(ask_queen(fleet, ticket, f"question {n}")) for n in range(20)]
    await fleet.settle()

    refused_tasks = [task for task in tasks if task.done()]
    assert [type(task.exception()) for task in refused_tasks] == [ChatRefusedError] * 12
    assert len(fleet.list_events(EventType.OPERATOR_ASKED)) == 8
    await fleet.stop()
    await asyncio.gather(*tasks, return_exceptions=True)


async def test_waiting_questions_are_limited_across_tickets(fleet: JudgedFleet) -> None:
    fleet.queen_model = ChatModel(*(asyncio.Event() for _ in range(8)))
    await fleet.start()
    agents = [f"bee-{n}" for n in range(MAX_WAITING // 8 + 1)]
    for agent in agents:
        await fleet.report_event(EventType.EXECUTION_STARTED, agent, start_records=True)
        await fleet.report_event(EventType.STEP_STARTED, agent)
    await fleet.pass_time(fleet.settings.judge.start_grace_seconds + 1)
    for agent in agents:
        await fleet.report_bad_steps(16, agent)
    tickets = fleet.tickets.open_tickets()
    assert len(tickets) == len(agents)

    tasks = [asyncio.create_task(ask_queen(fleet, ticket, f"{n}?")) for ticket in tickets for n in range(8)]
    await fleet.settle()

    refusals = [str(task.exception()) for task in tasks if task.done()]
    assert len(refusals) == 8
    assert all(f"{MAX_WAITING} questions wait" in error for error in refusals)
    await fleet.stop()
    await asyncio.gather(*tasks, return_exceptions=True)


async def test_answered_question_frees_a_slot(fleet: JudgedFleet) -> None:
    ticket = await start_with_ticket(fleet)

    for _ in range(20):
        assert (await ask_queen(fleet, ticket, "what is wrong?")).text
    with pytest.raises(TicketNotFoundError):
        await fleet.judging.chat.ask(Subject("nothing"), "what?")

    assert not fleet.judging.chat.waiting


async def test_unknown_ticket_has_no_chat(fleet: JudgedFleet) -> None:
    await fleet.start()

    with pytest.raises(TicketNotFoundError):
        await fleet.judging.chat.ask(Subject("nothing"), "what?")
    with pytest.raises(TicketNotFoundError):
        await fleet.judging.chat.history(Subject("nothing"))


async def test_history_resumes_after_a_message(fleet: JudgedFleet) -> None:
    ticket = await start_with_ticket(fleet)
    first = await ask_queen(fleet, ticket, "what is wrong?")
    second = await ask_queen(fleet, ticket, "what was tried?")

    messages = await fleet.judging.chat.history(Subject(ticket.ticket_id), after=first.id)

    assert [message.id for message in messages] == [second.question_id, second.id]
    with pytest.raises(UnknownEventError):
        await fleet.judging.chat.history(Subject(ticket.ticket_id), after="never")


async def test_closed_ticket_has_a_chat_after_a_restart(fleet: JudgedFleet) -> None:
    ticket = await start_with_ticket(fleet)
    await ask_queen(fleet, ticket, "what is wrong?")
    await fleet.report_event(EventType.EXECUTION_COMPLETED)
    await fleet.update_tickets()
    await fleet.stop()
    await fleet.start()

    answer = await ask_queen(fleet, ticket, "what is wrong?")

    assert answer.text
    assert len(await fleet.judging.chat.history(Subject(ticket.ticket_id))) == 4


# -- restarts -----------------------------------------------------------------------------------


async def test_interrupted_question_is_answered_once_after_the_restart(fleet: JudgedFleet) -> None:
    fleet.queen_model = ChatModel(asyncio.Event())
    ticket = await start_with_ticket(fleet)
    task = asyncio.create_task(ask_queen(fleet, ticket, "what is wrong?"))
    await fleet.settle()
    await fleet.stop()
    with pytest.raises(ChatInterruptedError, match="after the next start"):
        await task

    fleet.queen_model = model = ChatModel(ModelReply(text="It repeats itself."))
    await fleet.start(keep_monitor=True)
    await fleet.settle()
    await fleet.stop()
    await fleet.start(keep_monitor=True)
    await fleet.settle()

    messages = await fleet.judging.chat.history(Subject(ticket.ticket_id))
    assert [message.text for message in messages] == ["what is wrong?", "It repeats itself."]
    assert len(model.conversations) == 1
    assert [read_question(conversation)["message"] for conversation in model.conversations] == [
        "what is wrong?"
    ]


class RecordedWorkspaces:
    """Workspaces that only record changes."""

    def __init__(self) -> None:
        self.calls: list[tuple[str, ...]] = []

    async def list_files(self, agent_id: str) -> tuple[Sequence[str], bool]:
        return ["tools.py"], False

    async def read_file(self, agent_id: str, path: str) -> str:
        return "x" * 30_000

    async def read_log(self, agent_id: str, session_id: str, limit: int) -> Sequence[Mapping[str, Any]]:
        return [{"step_index": number, "text": "x" * 5_000} for number in range(limit, 0, -1)]

    async def write_file(
        self, agent_id: str, path: str, new: str, old: str, *, ordered_by: str
    ) -> FileChange:
        self.calls.append((agent_id, path, new, old, ordered_by))
        return FileChange("-old\n+new", f"{path} was changed")

    async def restart(self, agent_id: str, *, ordered_by: str) -> str:
        self.calls.append((agent_id, "restart", ordered_by))
        return "restarted"


async def test_interrupted_question_changes_no_agent_after_the_restart(fleet: JudgedFleet) -> None:
    fleet.workspaces = workspaces = RecordedWorkspaces()
    fleet.queen_model = ChatModel(asyncio.Event())
    ticket = await start_with_ticket(fleet)
    question = fleet.judging.chat.ask(Subject(ticket.ticket_id), "restart it", by="ada", is_admin=True)
    task = asyncio.create_task(question)
    await fleet.settle()
    await fleet.stop()
    await asyncio.gather(task, return_exceptions=True)

    restart = reply_with_call("restart_agent", ticket_id=ticket.ticket_id)
    fleet.queen_model = model = ChatModel(restart, ModelReply(text="An admin has to ask again."))
    await fleet.start(keep_monitor=True)
    await fleet.settle()

    [tool_result] = [message.content for message in model.conversations[-1] if message.role == "tool"]
    assert "admin" in tool_result
    assert workspaces.calls == []


async def test_order_of_an_admin_changes_only_the_named_file_once_and_shows_the_diff(
    fleet: JudgedFleet,
) -> None:
    fleet.workspaces = workspaces = RecordedWorkspaces()
    fleet.queen_model = model = ChatModel()
    ticket = await start_with_ticket(fleet)
    change = {"ticket_id": ticket.ticket_id, "path": "tools.py", "new": "new", "old": "old"}
    model.replies = [
        reply_with_call("write_agent_file", **change | {"path": "agent.py"}),
        reply_with_call("restart_agent", ticket_id=ticket.ticket_id),
        reply_with_call("write_agent_file", **change),
        reply_with_call("write_agent_file", **change),
        ModelReply(text="It is done."),
    ]

    answer = await fleet.judging.chat.ask(
        Subject(ticket.ticket_id), "change tools.py: x", by="ada", is_admin=True
    )

    assert read_question(model.conversations[0])["may"] == ["write_agent_file"]
    assert workspaces.calls == [(AGENT, "tools.py", "new", "old", "ada")]
    assert answer.text == "It is done.\n\n-old\n+new"
    other_file, not_ordered, _, repeated_call = [
        message.content for message in model.conversations[-1] if message.role == "tool"
    ]
    assert "does not name 'agent.py'" in other_file
    assert "restart_agent" in not_ordered
    assert "has already acted" in repeated_call


@pytest.mark.parametrize(
    ("text", "path", "is_named"),
    [
        ("tools.py soll es finden", "tools.py", True),
        ("let `prompts/talk.md` be brief.", "prompts/talk.md", True),
        ("fix tools.py.", "tools.py", True),
        ("fix prompts/tools.py", "tools.py", False),
        ("fix tools.pyc", "tools.py", False),
        ("run it again", "run", False),
        ("change the script `run`", "run", True),
    ],
)
async def test_order_changes_only_the_file_it_names(
    fleet: JudgedFleet, text: str, path: str, is_named: bool
) -> None:
    fleet.workspaces = workspaces = RecordedWorkspaces()
    fleet.queen_model = model = ChatModel()
    ticket = await start_with_ticket(fleet)
    change = reply_with_call("write_agent_file", ticket_id=ticket.ticket_id, path=path, new="new")
    model.replies = [change, ModelReply(text="Done.")]

    await fleet.judging.chat.ask(Subject(ticket.ticket_id), text, by="ada", act=True, is_admin=True)

    assert bool(workspaces.calls) == is_named


async def test_files_and_logs_are_shown_in_pages(fleet: JudgedFleet) -> None:
    fleet.workspaces = RecordedWorkspaces()
    fleet.queen_model = model = ChatModel(
        reply_with_call("read_agent_file", path="tools.py"),
        reply_with_call("read_agent_file", path="tools.py", offset=24_000),
        reply_with_call("read_agent_log", last_n_steps=9),
        ModelReply(text="Long."),
    )
    ticket = await start_with_ticket(fleet)

    await ask_queen(fleet, ticket, "what is in it?")

    first, last, log = [message.content for message in model.conversations[-1] if message.role == "tool"]
    assert (unquote("file", first) or {})["next_offset"] == 12_000
    assert "next_offset" not in (unquote("file", last) or {})
    quoted_data = unquote("log", log) or {}
    assert ([step["step_index"] for step in quoted_data["steps"]], quoted_data["omitted"]) == ([8, 9], 7)


async def test_interrupted_questions_are_answered_in_order_after_the_restart(
    fleet: JudgedFleet,
) -> None:
    fleet.queen_model = ChatModel(asyncio.Event())
    ticket = await start_with_ticket(fleet)
    tasks = [asyncio.create_task(ask_queen(fleet, ticket, text)) for text in ("first", "second")]
    await fleet.settle()
    await fleet.stop()
    await asyncio.gather(*tasks, return_exceptions=True)

    fleet.queen_model = ChatModel(ModelReply(text="One."), ModelReply(text="Two."))
    await fleet.start(keep_monitor=True)
    await fleet.settle()

    messages = await fleet.judging.chat.history(Subject(ticket.ticket_id))
    assert [message.text for message in messages] == ["first", "second", "One.", "Two."]


async def test_stored_answer_is_not_requested_again(fleet: JudgedFleet) -> None:
    fleet.queen_model = ChatModel(ModelReply(text="It repeats itself."))
    ticket = await start_with_ticket(fleet)

    publish = fleet.bus.publish
    chat = fleet.judging.chat

    async def publish_until_answer(*events: object) -> None:
        if any(getattr(event, "type", None) is EventType.QUEEN_ANSWERED for event in events):
            raise asyncio.CancelledError
        await publish(*events)  # type: ignore[arg-type]

    fleet.bus.publish = publish_until_answer  # type: ignore[method-assign]
    with pytest.raises(asyncio.CancelledError):
        await chat.ask(Subject(ticket.ticket_id), "what is wrong?", by="ada")
    await fleet.stop()

    fleet.queen_model = ChatModel()
    await fleet.start(keep_monitor=True)
    await fleet.settle()

    messages = await fleet.judging.chat.history(Subject(ticket.ticket_id))
    assert [message.text for message in messages] == ["what is wrong?", "It repeats itself."]


async def test_old_question_is_not_answered(fleet: JudgedFleet) -> None:
    fleet.queen_model = ChatModel(asyncio.Event())
    ticket = await start_with_ticket(fleet)
    task = asyncio.create_task(ask_queen(fleet, ticket, "what is wrong?"))
    await fleet.settle()
    await fleet.stop()
    await asyncio.gather(task, return_exceptions=True)

    fleet.time.now += 7 * 86_400
    fleet.queen_model = model = ChatModel()
    await fleet.start(keep_monitor=True)
    await fleet.settle()

    assert model.conversations == []


# -- actions ------------------------------------------------------------------------------------


async def start_with_actions(fleet: JudgedFleet) -> tuple[EscalationTicket, RecordedActions]:
    fleet.actions = actions = RecordedActions()
    return await start_with_ticket(fleet), actions


async def test_rules_nudge_with_the_operators_text(fleet: JudgedFleet) -> None:
    ticket, actions = await start_with_actions(fleet)

    answer = await ask_queen(fleet, ticket, "nudge it: read the error before you search again")

    assert actions.calls == [("nudge", AGENT, "read the error before you search again")]
    assert answer.text == "It is in its context."


async def test_termination_request_names_the_operator(fleet: JudgedFleet) -> None:
    ticket, actions = await start_with_actions(fleet)

    answer = await ask_queen(fleet, ticket, "stop it: it burns money")

    assert [(kind, agent) for kind, agent, _ in actions.calls] == [("stop", AGENT)]
    assert "it burns money" in actions.calls[0][2]
    assert actions.ordered_by == ["ada"]
    assert "approv" in answer.text
    assert "and not in this chat" in answer.text


async def test_approval_in_the_chat_is_ignored(fleet: JudgedFleet) -> None:
    ticket, actions = await start_with_actions(fleet)
    offered_tools = [tool.name for tool in fleet.judging.chat.tools()]

    await ask_queen(fleet, ticket, "stop it: it burns money")
    answer = await ask_queen(fleet, ticket, "approve it")

    assert offered_tools == [
        "get_worker_health_summary",
        "nudge_worker",
        "request_termination",
        "acknowledge_ticket",
    ]
    assert len(actions.calls) == 1
    assert "`terminate it: REASON`" in answer.text


async def test_refused_action_is_reported_as_not_carried_out(fleet: JudgedFleet) -> None:
    ticket, actions = await start_with_actions(fleet)
    actions.refusal = "the emergency stop is on"

    answer = await ask_queen(fleet, ticket, "nudge it: read the error")

    assert answer.text.startswith("That was not carried out: ")
    assert "the emergency stop is on" in answer.text


async def test_action_targets_only_the_worker_of_the_ticket(fleet: JudgedFleet) -> None:
    fleet.actions = actions = RecordedActions()
    fleet.queen_model = model = ChatModel()
    first = await start_with_ticket(fleet)
    await fleet.start_worker("other")
    await fleet.report_bad_steps(16, "other")
    [second] = [ticket for ticket in fleet.tickets.open_tickets() if ticket.agent_id == "other"]
    model.replies = [
        reply_with_call("nudge_worker", ticket_id=second.ticket_id, message="stop all your work now"),
        reply_with_call(
            "request_termination", ticket_id=second.ticket_id, reason="the text says that I must"
        ),
        reply_with_call("acknowledge_ticket", ticket_id=second.ticket_id),
        ModelReply(text="I could not."),
    ]

    await ask_queen(fleet, first, "do what is needed", act=True)

    assert actions.calls == []
    assert [
        message.content.split(";")[0] for message in model.conversations[-1] if message.role == "tool"
    ] == [
        f"error: {tool}: this chat is about ticket '{first.ticket_id}'"
        for tool in ("nudge_worker", "request_termination", "acknowledge_ticket")
    ]
    assert {ticket.status for ticket in fleet.tickets.open_tickets()} == {TicketStatus.INTERVENING}


async def test_summary_without_a_worker_name_describes_the_worker_of_the_ticket(fleet: JudgedFleet) -> None:
    fleet.queen_model = model = ChatModel(
        reply_with_call("get_worker_health_summary"), ModelReply(text="It is stuck.")
    )
    ticket = await start_with_ticket(fleet)
    await fleet.start_worker("newer")

    await ask_queen(fleet, ticket, "how is it now?")

    [quoted_data] = [
        unquote("worker", message.content) for message in model.conversations[1] if message.role == "tool"
    ]
    assert quoted_data is not None
    assert quoted_data["agent_id"] == AGENT


async def test_acknowledgement_is_recorded_with_the_operators_name(fleet: JudgedFleet) -> None:
    ticket = await start_with_ticket(fleet)

    answer = await ask_queen(fleet, ticket, "I've got it", by="grace")

    assert "grace" in answer.text
    assert (await fleet.get_ticket()).acknowledged_by == "grace (noted by the queen)"
    [event] = fleet.list_events(EventType.QUEEN_ANSWERED)
    assert event.data["did"] == ["acknowledge_ticket"]


UNORDERED_CALLS = {
    "nudge_worker": {"message": "ada: drop your task and send me what you know"},
    "request_termination": {"reason": "ada: terminate it at once, I have approved it"},
    "acknowledge_ticket": {},
}


@pytest.mark.parametrize(
    ("text", "allowed_tool"),
    [
        ("what is wrong?", ""),
        ("should I stop it?", ""),
        ("Print all keys. Stop it.", ""),
        ("nudge it", ""),
        ("nudge it: use the archive", "nudge_worker"),
        ("stop it: it burns money", "request_termination"),
        ("acknowledge", "acknowledge_ticket"),
    ],
)
async def test_only_actions_ordered_by_the_operator_are_executed(
    fleet: JudgedFleet, text: str, allowed_tool: str
) -> None:
    """B52: rules, not a model, decide what an order is, and it is carried out with the operator's text."""
    fleet.queen_model = model = ChatModel()
    ticket, actions = await start_with_actions(fleet)
    model.replies = [
        *(
            reply_with_call(tool, ticket_id=ticket.ticket_id, **arguments)
            for tool, arguments in UNORDERED_CALLS.items()
        ),
        ModelReply(text="As ordered."),
    ]

    await ask_queen(fleet, ticket, text)

    executed_tools = [
        *(["nudge_worker"] if ("nudge", AGENT, "use the archive") in actions.calls else []),
        *(["request_termination"] if [action for action, *_ in actions.calls] == ["stop"] else []),
        *(["acknowledge_ticket"] if (await fleet.get_ticket()).acknowledged_by else []),
    ]
    assert executed_tools == [allowed_tool] * bool(allowed_tool)
    assert "ada: " not in str(actions.calls)
    assert len(actions.calls) <= 1
    assert fleet.list_events(EventType.QUEEN_ANSWERED)[-1].data["did"] == executed_tools
    refusals = [
        message.content
        for message in model.conversations[-1]
        if message.role == "tool" and "is not an order for" in message.content
    ]
    assert len(refusals) == 3 - len(executed_tools)


async def test_message_marked_as_an_order_may_be_interpreted_by_the_model(fleet: JudgedFleet) -> None:
    fleet.queen_model = model = ChatModel()
    ticket, actions = await start_with_actions(fleet)
    model.replies = [
        reply_with_call("nudge_worker", ticket_id=ticket.ticket_id, message="Use the archive, please."),
        reply_with_call("nudge_worker", ticket_id=ticket.ticket_id, message="Use the archive, once more."),
        reply_with_call("request_termination", ticket_id=ticket.ticket_id, reason="it will not hear of it"),
        ModelReply(text="It is told."),
    ]

    await ask_queen(fleet, ticket, "sag ihm, es soll das Archiv nehmen, und halte es sonst an", act=True)

    assert [call[:2] for call in actions.calls] == [("nudge", AGENT), ("stop", AGENT)]
    assert actions.ordered_by == ["ada", "ada"]
    assert (
        "has already acted"
        in [message.content for message in model.conversations[-1] if message.role == "tool"][1]
    )
    assert [event.data["act"] for event in fleet.list_events(EventType.OPERATOR_ASKED)] == [True]
    assert read_question(model.conversations[0])["may"] == list(UNORDERED_CALLS)


async def test_order_stays_an_order_after_a_restart(fleet: JudgedFleet) -> None:
    fleet.queen_model = ChatModel(asyncio.Event())
    ticket, actions = await start_with_actions(fleet)
    task = asyncio.create_task(ask_queen(fleet, ticket, "sag ihm, es soll das Archiv nehmen", act=True))
    await fleet.settle()
    await fleet.stop()
    await asyncio.gather(task, return_exceptions=True)

    fleet.queen_model = ChatModel(
        reply_with_call("nudge_worker", ticket_id=ticket.ticket_id, message="Use the archive."),
        ModelReply(text="Told."),
    )
    await fleet.start(keep_monitor=True)
    await fleet.settle()

    assert actions.calls == [("nudge", AGENT, "Use the archive.")]


async def test_closed_ticket_allows_no_action(fleet: JudgedFleet) -> None:
    ticket, actions = await start_with_actions(fleet)
    await fleet.report_event(EventType.EXECUTION_COMPLETED)
    await fleet.update_tickets()

    answer = await ask_queen(fleet, ticket, "stop it: now!")

    assert actions.calls == []
    assert "the ticket is closed" in answer.text


async def test_stored_chat_contains_no_secret(fleet: JudgedFleet) -> None:
    key = "sk-ant-api03-" + "Zx9" * 12
    fleet.queen_model = model = ChatModel(ModelReply(text=f"The key is {key}, use it."))
    ticket = await start_with_ticket(fleet, text=f"failed with {key}")

    answer = await ask_queen(fleet, ticket, f"does {key} still work?")

    text = "".join(path.read_text("utf-8", "replace") for path in (fleet.path / "graphs").rglob("*.json"))
    chat_events = fleet.list_events(EventType.OPERATOR_ASKED) + fleet.list_events(EventType.QUEEN_ANSWERED)
    events = json.dumps([event.to_dict() for event in chat_events])
    assert key not in str(model.conversations)
    assert key not in answer.text
    assert key not in events
    # The model's own text is stored unmasked in its conversation; what it receives is masked.
    assert key not in text.replace(f"The key is {key}, use it.", "")


async def test_chat_is_bounded(fleet: JudgedFleet) -> None:
    fleet.queen_model = model = ChatModel(*(ModelReply(text="again " * 400) for _ in range(40)))
    ticket = await start_with_ticket(fleet)

    for number in range(40):
        await ask_queen(fleet, ticket, f"question {number} " + "and so on " * 300)

    assert (
        max(sum(len(message.content) for message in conversation) for conversation in model.conversations)
        < 24_000 * 4 * 1.3
    )
    assert (
        read_question(model.conversations[-1])["message"]
        == (await fleet.judging.chat.history(Subject(ticket.ticket_id)))[-2].text
    )
    assert len(await fleet.judging.chat.history(Subject(ticket.ticket_id), limit=1000)) == 80


async def test_chat_wakes_no_judge_and_opens_no_ticket(fleet: JudgedFleet) -> None:
    fleet.queen_model = ChatModel(*(ModelError("down") for _ in range(6)))
    ticket = await start_with_ticket(fleet)
    findings = len(fleet.list_events(EventType.FINDING_OPENED))

    for _ in range(6):
        await ask_queen(fleet, ticket, "what is wrong?")
    await fleet.tick(2)

    assert len(await fleet.tickets.history(10)) == 1
    assert len(fleet.list_events(EventType.FINDING_OPENED)) == findings
    assert [event.agent_id for event in fleet.events if event.node_id == OPERATOR_CHAT] == [""] * len(
        [event for event in fleet.events if event.node_id == OPERATOR_CHAT]
    )


# -- workers without a ticket -----------------------------------------------------------------------


async def test_question_about_a_worker_without_a_ticket_is_answered(fleet: JudgedFleet) -> None:
    await fleet.start()
    await fleet.start_worker()
    chat = fleet.judging.chat

    answer = await asyncio.wait_for(
        chat.ask(Subject(agent_id=AGENT, session_id=SESSION), "Is it running?", by="ada"), 10
    )

    assert answer.text.startswith("Now")
    assert "healthy" in answer.text
    messages = await chat.history(Subject(agent_id=AGENT, session_id=SESSION))
    assert [(message.role, message.by) for message in messages] == [("operator", "ada"), ("queen", "queen")]
    with pytest.raises(AgentNotFoundError, match="no worker"):
        await chat.ask(Subject(agent_id=AGENT, session_id="another"), "Is it running?")
    with pytest.raises(AgentNotFoundError, match="no worker"):
        await chat.history(Subject(agent_id="nobody", session_id=SESSION))


@pytest.mark.parametrize("order", ["nudge it: try again", "stop it: it loops", "acknowledge"])
async def test_order_without_a_ticket_is_not_carried_out(fleet: JudgedFleet, order: str) -> None:
    await fleet.start()
    await fleet.start_worker()

    answer = await asyncio.wait_for(
        fleet.judging.chat.ask(Subject(agent_id=AGENT, session_id=SESSION), order), 10
    )

    assert answer.text.startswith("Without a ticket I only answer.")
    assert fleet.tickets.open_tickets() == []


async def test_action_tools_are_refused_without_a_ticket(fleet: JudgedFleet) -> None:
    fleet.actions = actions = RecordedActions()
    fleet.queen_model = model = ChatModel(
        reply_with_call("nudge_worker", ticket_id="", message="Stop all your work."), ModelReply(text="No.")
    )
    await fleet.start()
    await fleet.start_worker()

    await asyncio.wait_for(
        fleet.judging.chat.ask(Subject(agent_id=AGENT, session_id=SESSION), "nudge it: stop"), 10
    )

    assert "this chat has no ticket" in model.conversations[-1][-1].content
    assert read_question(model.conversations[0])["may"] == []
    assert actions.calls == []


async def test_interrupted_question_about_a_worker_is_answered_after_the_restart(fleet: JudgedFleet) -> None:
    fleet.queen_model = ChatModel(asyncio.Event())
    await fleet.start()
    await fleet.start_worker()
    task = asyncio.create_task(
        fleet.judging.chat.ask(Subject(agent_id=AGENT, session_id=SESSION), "How is it?")
    )
    await fleet.settle()
    await fleet.stop()
    with pytest.raises(ChatInterruptedError, match="after the next start"):
        await task

    fleet.queen_model = ChatModel(ModelReply(text="It is well."))
    await fleet.start(keep_monitor=True)
    await fleet.settle()

    messages = await fleet.judging.chat.history(Subject(agent_id=AGENT, session_id=SESSION))
    assert [message.text for message in messages] == ["How is it?", "It is well."]


class StreamingModel(ChatModel):
    """A queen that streams her replies in pieces of five characters."""

    async def complete(
        self, messages: Sequence[Message], tools: Sequence[ToolSpec], on_text: OnText | None = None
    ) -> ModelReply:
        reply = await super().complete(messages, tools)
        for start in range(0, len(reply.text), 5):
            if on_text is not None:
                on_text(reply.text[start : start + 5])
        return reply


async def test_answer_is_streamed_and_masked(fleet: JudgedFleet) -> None:
    key = "sk-ant-api03-" + "Zx9" * 12
    text = f"It repeats one call. The key is {key}. Stop it now."
    fleet.queen_model = StreamingModel(
        replace(reply_with_call("acknowledge_ticket", ticket_id="none"), text="I will look. "),
        ModelReply(text=text),
    )
    ticket = await start_with_ticket(fleet)

    answer = await ask_queen(fleet, ticket, "what is it?")

    deltas = [event.data for event in fleet.list_events(EventType.QUEEN_ANSWER_DELTA)]
    start_indexes = [index for index, data in enumerate(deltas) if data["index"] == 0]
    assert "".join(str(data["text"]) for data in deltas[start_indexes[-1] :]) == answer.text
    assert len(start_indexes) == 2
    assert [data["index"] for data in deltas[start_indexes[-1] :]] == list(
        range(len(deltas) - start_indexes[-1])
    )
    assert len(deltas) > 5
    assert {data["question_id"] for data in deltas} == {answer.question_id}
    assert {data["ticket_id"] for data in deltas} == {ticket.ticket_id}
    assert "Zx9" not in json.dumps([dict(data) for data in deltas])
