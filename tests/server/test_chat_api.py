"""Chat with the queen over HTTP and on the command line, with a service on real sockets."""

from __future__ import annotations

import asyncio
import contextlib
import io
import json
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, Final

import httpx
import pytest

from queenright.api.events import Event
from queenright.api.tickets import ChatMessage, Ticket
from queenright.cli.commands.chat import AnswerPrinter, _read_questions, converse, stream_answer
from queenright.client.errors import RequestRejectedError, UnreachableError
from queenright.client.notices import Notice
from queenright.client.synchronous import Queenright
from queenright.judge.chat import MAX_MESSAGE_LENGTH
from queenright.judge.chat_log import Subject
from queenright.runtime.events import EventType
from queenright.server.build import build
from queenright.server.serving import RunningService
from queenright.server.settings import Settings
from tests import warm
from tests.server.conftest import looping
from tests.server.test_app import wait_for_ticket
from tests.tui.canned import row
from tests.waiting import until

DYING_CHAT_SCRIPT = Path(__file__).with_name("dying_chat.py")


async def queenright(running: RunningService, *arguments: str, stdin: str = "") -> tuple[int, str, str]:
    command_line = ("chat", *arguments, "--url", running.url)
    completed = await asyncio.to_thread(warm.queenright, *command_line, typed=stdin)
    return completed.returncode, completed.stdout, completed.stderr


async def test_question_and_answer_are_stored(running: RunningService, http: httpx.AsyncClient) -> None:
    path = f"/api/tickets/{await wait_for_ticket(running)}/chat"

    response = await http.post(path, json={"message": "What is wrong?", "by": "ada"})
    history = (await http.get(path)).json()["messages"]
    later_messages = (await http.get(path, params={"after": history[0]["id"]})).json()["messages"]

    assert response.status_code == 200
    assert "What happened: looper" in response.json()["text"]
    assert [(message["role"], message["by"]) for message in history] == [
        ("operator", "ada"),
        ("queen", "queen"),
    ]
    assert later_messages == [response.json()]


async def test_queen_answers_about_a_session_without_a_ticket(
    running: RunningService, http: httpx.AsyncClient
) -> None:
    await running.service.ingest(list(looping(running.service.clock(), agent="team/well", times=1)))
    path = "/api/agents/team%2Fwell/queen"
    question = {"message": "Is it running?", "session_id": "team/well-session", "by": "ada"}

    response = await http.post(path, json=question)
    history = (await http.get(path, params={"session_id": "team/well-session"})).json()["messages"]

    assert "the worker is healthy" in response.json()["text"]
    assert history[-1] == response.json()
    assert (await http.get(path, params={"session_id": "another"})).status_code == 404
    assert (await http.post(path, json=question | {"session_id": "another"})).status_code == 404


async def test_chat_messages_are_in_the_feed_and_audit_trail(
    running: RunningService, http: httpx.AsyncClient
) -> None:
    ticket_id = await wait_for_ticket(running)

    await http.post(f"/api/tickets/{ticket_id}/chat", json={"message": "What is wrong?", "by": "ada"})
    feed = [event_row["text"] for event_row in (await http.get("/api/status")).json()["feed"]]

    assert "ada → queen, about looper: What is wrong?" in feed
    assert any(line.startswith("queen → operator, about looper: ") for line in feed)


@pytest.mark.parametrize(
    ("body", "word"),
    [
        ({}, "message"),
        ({"message": "  "}, "message"),
        ({"message": "x" * (MAX_MESSAGE_LENGTH + 1)}, "message"),
        ({"message": "what?", "by": ""}, "by"),
        ({"message": "what?", "approve": True}, "approve"),
        ({"message": "nul \0"}, "message"),
    ],
)
async def test_invalid_question_is_rejected_with_the_field(
    running: RunningService, http: httpx.AsyncClient, body: Mapping[str, Any], word: str
) -> None:
    path = f"/api/tickets/{await wait_for_ticket(running)}/chat"

    response = await http.post(path, json=body)

    assert response.status_code == 422
    assert response.headers["content-type"] == "application/problem+json"
    assert word in response.json()["title"]
    assert (await http.get(path)).json() == {"messages": []}


async def test_chat_of_an_unknown_ticket_is_404(running: RunningService, http: httpx.AsyncClient) -> None:
    path = f"/api/tickets/{await wait_for_ticket(running)}/chat"

    assert (await http.post("/api/tickets/none/chat", json={"message": "what?"})).status_code == 404
    assert (await http.get("/api/tickets/none/chat")).status_code == 404
    assert (await http.get(path, params={"after": "never"})).status_code == 404


@pytest.mark.parametrize(
    "moment",
    [
        EventType.OPERATOR_ASKED,
        EventType.LLM_CALL_STARTED,
        EventType.NODE_LOOP_COMPLETED,
    ],
)
async def test_question_survives_a_kill_of_the_service_and_is_answered_once(
    settings: Settings, tmp_path: Path, moment: EventType
) -> None:
    """
    The service is killed after the question, during the answer, or between storing and publishing the answer.
    """
    service = await build(settings)
    await service.start()
    try:
        await service.ingest(list(looping(time.time())))
        await until(
            lambda: any(open_ticket.analysis for open_ticket in service.tickets.open_tickets()),
            "the ticket is triaged",
        )
        [ticket] = service.tickets.open_tickets()
    finally:
        await service.stop()
    file = tmp_path / "settings.json"
    file.write_text(settings.model_dump_json(), encoding="utf-8")

    dead_process = await asyncio.to_thread(
        warm.queenright, file, ticket.ticket_id, moment.value, script=DYING_CHAT_SCRIPT
    )
    result = await list_texts_after_start(settings, ticket.ticket_id)
    message_texts = await list_texts_after_start(settings, ticket.ticket_id)

    assert dead_process.returncode == -9, dead_process.stderr
    assert [message["role"] for message in result] == ["operator", "queen"]
    assert "What happened: looper" in result[1]["text"]
    assert result[1]["question_id"] == result[0]["id"]
    assert message_texts == result


async def list_texts_after_start(settings: Settings, ticket_id: str) -> list[dict[str, Any]]:
    service = await build(settings)
    await service.start()
    try:
        for _ in range(3000):
            messages = await service.judging.chat.history(Subject(ticket_id))
            if len(messages) > 1:
                break
            await asyncio.sleep(0.02)
        return [
            {"role": message.role, "text": message.text, "question_id": message.question_id, "id": message.id}
            for message in messages
        ]
    finally:
        await service.stop()


# -- command line ---------------------------------------------------------------------------------


async def test_chat_command_prints_the_answer_to_one_question(running: RunningService) -> None:
    ticket_id = await wait_for_ticket(running)

    code, out, err = await queenright(running, ticket_id, "--say", "what was tried?")
    short_id = ticket_id[:-3]
    _, as_json, _ = await queenright(running, short_id, "--say", "what was tried?", "--json", "--by", "ada")

    assert (code, err) == (0, "")
    assert "\nDone: " in out
    assert json.loads(as_json)["text"] == out.removesuffix("\n")


async def test_chat_command_sends_only_one_message_at_a_time_as_an_order(
    running: RunningService, http: httpx.AsyncClient
) -> None:
    ticket_id = await wait_for_ticket(running)

    code, out, err = await queenright(running, ticket_id, "--act", "--say", "acknowledge", "--by", "ada")
    repeated_code, refusal, _ = await queenright(
        running, ticket_id, "--act", "--say", "acknowledge", "--by", "ada"
    )
    output, _, reason = await queenright(running, ticket_id, "--act", stdin="acknowledge\n")

    assert (code, "ada" in out, err) == (0, True, "")
    assert (repeated_code, refusal.partition(":")[0]) == (1, "That was not carried out")
    assert output == 2
    assert "--say" in reason
    ticket = (await http.get(f"/api/tickets/{ticket_id}")).json()
    assert ticket["acknowledged_by"] == "ada (noted by the queen)"


async def test_without_a_terminal_each_input_line_is_a_question(running: RunningService) -> None:
    ticket_id = await wait_for_ticket(running)
    await queenright(running, ticket_id, "--say", "acknowledge")

    code, out, err = await queenright(running, ticket_id, stdin="since when?\n\nwhat does it cost?\n")
    _, rows, _ = await queenright(running, ticket_id, "--json", stdin="what next?\n")

    assert code == 0, err
    assert out.index("Noted: ") < out.index("What happened: ")
    assert out.count("What happened: ") == 2
    assert [json.loads(message_row)["role"] for message_row in rows.splitlines()] == [
        "operator",
        "queen",
    ] * 3 + ["queen"]


async def test_chat_command_rejects_an_unknown_ticket(running: RunningService) -> None:
    ticket_id = await wait_for_ticket(running)

    unknown_result = await queenright(running, "nothing", "--say", "what?")
    blank_result = await queenright(running, ticket_id, "--say", " ")
    too_long_result = await queenright(running, ticket_id, "--say", "x" * (MAX_MESSAGE_LENGTH + 1))
    path = await queenright(running, "../../etc")

    assert (unknown_result[0], unknown_result[1]) == (1, "")
    assert "'nothing'" in unknown_result[2]
    assert "../../etc" in path[2]
    assert blank_result[0] == 2
    assert too_long_result[0] == 1
    assert all(fragment in too_long_result[2] for fragment in ("message", "4,000", "4,001"))


class FakeService:
    """
    A client that streams the pieces of an answer, and then returns the complete answer or raises an error.
    """

    def __init__(self, *answers: str | BaseException, pieces: tuple[str, ...] = ()) -> None:
        self.answers = list(answers)
        self.pieces = pieces
        self.questions: list[str] = []
        self.is_read = threading.Event()
        self.tickets = self.events = self

    def messages(self, ticket_id: str, *, limit: int) -> list[ChatMessage]:
        return [_make_message("operator", "bob", "[bold]is it[/bold] alive?")]

    def chat(self, ticket_id: str, message: str, *, by: str) -> ChatMessage:
        self.questions.append(message)
        assert not sys.stdout.isatty() or self.is_read.wait(60)
        answer = self.answers.pop(0)
        if isinstance(answer, BaseException):
            raise answer
        return _make_message("queen", "queen", answer)

    def stream(self, *, types: tuple[str, ...], on_notice: Callable[[Notice], None]) -> Iterator[Event]:
        on_notice(Notice("connected"))
        return FakeStream(self)


class FakeStream(Iterator[Event]):
    """A stream that breaks after the pieces of one answer."""

    def __init__(self, service: FakeService) -> None:
        self._service = service
        self._pieces = enumerate(service.pieces)

    def __next__(self) -> Event:
        for index, piece in self._pieces:
            data = {"ticket_id": TICKET.ticket_id, "question_id": "q", "index": index, "text": piece}
            return Event.model_validate(row(Event, type="queen_answer_delta", data=data))
        self._service.is_read.set()
        raise UnreachableError("the connection was lost")

    def close(self) -> None:
        pass


def _make_message(role: str, by: str, content: str) -> ChatMessage:
    return ChatMessage.model_validate(row(ChatMessage, role=role, by=by, text=content, at=60.0))


TICKET: Final = Ticket.model_validate(
    row(
        Ticket,
        agent_id="loop\x1b[31mer",
        severity="high",
        kind="doom_loop",
        status="intervening",
        cause="round and round [/]",
    )
)


def pretend_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)


def run_chat(service: FakeService, *questions: str, as_json: bool = False) -> None:
    converse(service, TICKET, questions, by="ada", as_json=as_json)  # type: ignore[arg-type]  # stands in for the client


def test_terminal_chat_shows_the_history_without_control_characters(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    pretend_terminal(monkeypatch)  # otherwise Typer itself would remove the escape sequences
    service = FakeService("It is [red]stuck[/red].\x1b[2J\x07")
    service.is_read.set()

    run_chat(service, "what is wrong?")

    output = capsys.readouterr().out
    assert service.questions == ["what is wrong?"]
    assert "high, doom loop, intervening, since " in output
    assert "round and round [/]" in output
    assert output.index("[bold]is it[/bold] alive?") < output.index("It is [red]stuck[/red].")
    assert not [sequence for sequence in ("\x1b[2J", "\x1b[31m", "\x07") if sequence in output]


@pytest.mark.parametrize(
    ("pieces", "answer", "expected_output"),
    [
        ([], "It loops.", "It loops.\n"),
        ([(0, "It "), (1, "loops")], "It loops.", "It loops.\n"),
        (
            [(0, "Let me see"), (0, "It "), (1, "loops.\x1b[2J")],
            "It loops.\x1b[2J",
            "Let me see\nIt loops.[2J\n",
        ),
        ([(0, "It loops")], "(by rule) It loops", "It loops\n(by rule) It loops\n"),
        ([(3, "loops")], "It loops.", "It loops.\n"),
        ([(0, "It "), (2, ".")], "It loops.", "It loops.\n"),
    ],
    ids=["none", "prefix", "restarted", "another answer", "start missing", "gap"],
)
def test_answer_is_printed_while_the_queen_writes_it(
    pieces: list[tuple[int, str]], answer: str, expected_output: str, capsys: pytest.CaptureFixture[str]
) -> None:
    printer = AnswerPrinter()

    for index, piece in pieces:
        printer.print_piece(index, piece)
    printer.print_rest(answer)

    assert capsys.readouterr().out == expected_output


@pytest.mark.parametrize("as_json", [True, False])
def test_chat_streams_to_a_terminal(
    as_json: bool, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    pretend_terminal(monkeypatch)
    service = FakeService("It loops.\nStop it.", pieces=("It ", "loops"))
    if as_json:
        service.is_read.set()

    run_chat(service, "why?", as_json=as_json)

    output = capsys.readouterr().out
    assert output.count("loops") == 1
    assert ("\n  It loops.\n  Stop it.\n\n" in output) is not as_json


def test_chat_does_not_stream_without_a_terminal(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    service = FakeService("It loops.", pieces=("It ", "loops"))
    monkeypatch.setattr(service, "stream", None)

    run_chat(service, "why?")

    assert "UTC\n  It loops.\n\n" in capsys.readouterr().out


@pytest.mark.parametrize("status", [409, 503])
def test_chat_continues_after_a_rejected_question(status: int, capsys: pytest.CaptureFixture[str]) -> None:
    refusal = RequestRejectedError("The queen is busy.\nAsk again.", status=status, problem={})
    service = FakeService(refusal, "It loops.")

    run_chat(service, "why?", "and now?")

    output = capsys.readouterr()
    assert output.err == "queenright: The queen is busy. Ask again.\n"
    assert output.out.endswith("  It loops.\n\n")


def test_rejected_question_is_an_error_of_a_json_chat(capsys: pytest.CaptureFixture[str]) -> None:
    refusal = RequestRejectedError("The queen is busy.", status=503, problem={})

    with pytest.raises(RequestRejectedError):
        run_chat(FakeService(refusal), "why?", as_json=True)

    assert capsys.readouterr().err == ""


def test_error_is_on_a_separate_line_below_the_partial_answer(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    pretend_terminal(monkeypatch)
    refusal = RequestRejectedError("The service stops.", status=503, problem={})

    run_chat(FakeService(refusal, pieces=("It ", "loo")), "why?")

    assert capsys.readouterr().out.endswith("  It loo\n")


def test_chat_works_without_the_readline_module(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "readline", None)
    monkeypatch.setattr(sys, "stdin", io.StringIO("why?\n"))
    monkeypatch.setattr(sys.stdin, "isatty", lambda: True)

    assert list(_read_questions(is_prompted=True)) == ["why?"]


@pytest.mark.parametrize("is_typed", [True, False])
def test_ctrl_c_ends_a_typed_conversation_and_interrupts_a_pipe(
    is_typed: bool, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "stdin", io.StringIO())
    monkeypatch.setattr(sys.stdin, "isatty", lambda: is_typed)

    with contextlib.nullcontext() if is_typed else pytest.raises(KeyboardInterrupt):
        run_chat(FakeService(KeyboardInterrupt()), "why?")

    assert capsys.readouterr().err == ""


async def test_command_line_streams_the_answer(
    running: RunningService, monkeypatch: pytest.MonkeyPatch
) -> None:
    pretend_terminal(monkeypatch)
    ticket_id = await wait_for_ticket(running)
    pieces: list[str] = []
    is_written = threading.Event()

    class Printer(AnswerPrinter):
        def print_piece(self, index: int, piece: str) -> None:
            pieces.append(piece)
            is_written.set()

    def ask_question() -> str:
        with Queenright(running.url) as service, stream_answer(service, ticket_id, Printer()):
            answer = service.tickets.chat(ticket_id, "What is wrong?", by="ada")
            assert is_written.wait(60)
            return answer.text

    answer = await asyncio.to_thread(ask_question)

    assert answer.startswith("".join(pieces))
