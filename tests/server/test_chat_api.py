"""Talking with the queen over HTTP and in the terminal, against a service with real sockets."""

from __future__ import annotations

import asyncio
import io
import json
import threading
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import httpx
import pytest
from rich.console import Console

from queenright.cli.commands.chat import AnswerPrinter, OnPiece, TicketChat, converse
from queenright.client.synchronous import Queenright
from queenright.judge.chat import MAX_MESSAGE_LENGTH
from queenright.judge.chat_log import Subject
from queenright.runtime.events import EventType
from queenright.server.build import build
from queenright.server.settings import Settings
from queenright.server.up import Running
from tests import warm
from tests.server.conftest import looping
from tests.server.test_app import ticket_on
from tests.waiting import until

DYING = Path(__file__).with_name("dying_chat.py")


async def queenright(running: Running, *arguments: str, typed: str = "") -> tuple[int, str, str]:
    words = ("chat", *arguments, "--url", running.url)
    completed = await asyncio.to_thread(warm.queenright, *words, typed=typed)
    return completed.returncode, completed.stdout, completed.stderr


async def test_question_has_its_answer_and_both_stay(running: Running, http: httpx.AsyncClient) -> None:
    path = f"/api/tickets/{await ticket_on(running)}/chat"

    answer = await http.post(path, json={"message": "What is wrong?", "by": "ada"})
    history = (await http.get(path)).json()["messages"]
    later = (await http.get(path, params={"after": history[0]["id"]})).json()["messages"]

    assert answer.status_code == 200
    assert "What happened: looper" in answer.json()["text"]
    assert [(one["role"], one["by"]) for one in history] == [("operator", "ada"), ("queen", "queen")]
    assert later == [answer.json()]


async def test_queen_answers_about_a_session_without_a_ticket(
    running: Running, http: httpx.AsyncClient
) -> None:
    await running.service.ingest(list(looping(running.service.clock(), agent="team/well", times=1)))
    path = "/api/agents/team%2Fwell/queen"
    question = {"message": "Is it running?", "session_id": "team/well-session", "by": "ada"}

    answer = await http.post(path, json=question)
    history = (await http.get(path, params={"session_id": "team/well-session"})).json()["messages"]

    assert "the worker is healthy" in answer.json()["text"]
    assert history[-1] == answer.json()
    assert (await http.get(path, params={"session_id": "another"})).status_code == 404
    assert (await http.post(path, json=question | {"session_id": "another"})).status_code == 404


async def test_chat_messages_are_in_the_feed_and_audit_trail(
    running: Running, http: httpx.AsyncClient
) -> None:
    ticket_id = await ticket_on(running)

    await http.post(f"/api/tickets/{ticket_id}/chat", json={"message": "What is wrong?", "by": "ada"})
    feed = [row["text"] for row in (await http.get("/api/status")).json()["feed"]]

    assert "ada → queen, about looper: What is wrong?" in feed
    assert any(text.startswith("queen → operator, about looper: ") for text in feed)


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
async def test_invalid_question_is_refused_by_field(
    running: Running, http: httpx.AsyncClient, body: Mapping[str, Any], word: str
) -> None:
    path = f"/api/tickets/{await ticket_on(running)}/chat"

    refused = await http.post(path, json=body)

    assert refused.status_code == 422
    assert refused.headers["content-type"] == "application/problem+json"
    assert word in refused.json()["title"]
    assert (await http.get(path)).json() == {"messages": []}


async def test_chat_of_an_unknown_ticket_is_404(running: Running, http: httpx.AsyncClient) -> None:
    path = f"/api/tickets/{await ticket_on(running)}/chat"

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
async def test_question_survives_a_kill_and_is_answered_once(
    settings: Settings, tmp_path: Path, moment: EventType
) -> None:
    """Killed -9 when it was asked, in the middle of the answer, and with the answer there and not told."""
    service = await build(settings)
    await service.start()
    try:
        await service.ingest(list(looping(time.time())))
        await until(lambda: any(t.analysis for t in service.tickets.open_tickets()), "a triaged ticket")
        [ticket] = service.tickets.open_tickets()
    finally:
        await service.stop()
    file = tmp_path / "settings.json"
    file.write_text(settings.model_dump_json(), encoding="utf-8")

    died = await asyncio.to_thread(warm.queenright, file, ticket.ticket_id, moment.value, script=DYING)
    result = await texts_after_start(settings, ticket.ticket_id)
    again = await texts_after_start(settings, ticket.ticket_id)

    assert died.returncode == -9, died.stderr
    assert [one["role"] for one in result] == ["operator", "queen"]
    assert "What happened: looper" in result[1]["text"]
    assert result[1]["question_id"] == result[0]["id"]
    assert again == result


async def texts_after_start(settings: Settings, ticket_id: str) -> list[dict[str, Any]]:
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


# -- in the terminal ----------------------------------------------------------------------------


async def test_one_question_and_its_answer(running: Running) -> None:
    ticket_id = await ticket_on(running)

    code, out, err = await queenright(running, ticket_id, "--say", "what was tried?")
    short = ticket_id[:-3]
    _, as_json, _ = await queenright(running, short, "--say", "what was tried?", "--json", "--by", "ada")

    assert (code, err) == (0, "")
    assert "\nDone: " in out
    assert json.loads(as_json)["text"] == out.removesuffix("\n")


async def test_only_one_message_at_a_time_is_sent_as_an_order(
    running: Running, http: httpx.AsyncClient
) -> None:
    ticket_id = await ticket_on(running)

    code, out, err = await queenright(running, ticket_id, "--act", "--say", "acknowledge", "--by", "ada")
    everything, _, why = await queenright(running, ticket_id, "--act", typed="acknowledge\n")

    assert (code, "ada" in out, err) == (0, True, "")
    assert everything == 2
    assert "--say" in why
    ticket = (await http.get(f"/api/tickets/{ticket_id}")).json()
    assert ticket["acknowledged_by"] == "ada (noted by the queen)"


async def test_without_a_terminal_every_line_is_a_question(running: Running) -> None:
    ticket_id = await ticket_on(running)
    await queenright(running, ticket_id, "--say", "acknowledge")

    code, out, err = await queenright(running, ticket_id, typed="since when?\n\nwhat does it cost?\n")
    _, rows, _ = await queenright(running, ticket_id, "--json", typed="what next?\n")

    assert code == 0, err
    assert out.index("Noted: ") < out.index("What happened: ")
    assert out.count("What happened: ") == 2
    assert [json.loads(row)["role"] for row in rows.splitlines()] == ["operator", "queen"] * 3 + ["queen"]


async def test_chat_command_refuses_an_unknown_ticket(running: Running) -> None:
    ticket_id = await ticket_on(running)

    unknown = await queenright(running, "nothing", "--say", "what?")
    blank = await queenright(running, ticket_id, "--say", " ")
    too_long = await queenright(running, ticket_id, "--say", "x" * (MAX_MESSAGE_LENGTH + 1))
    path = await queenright(running, "../../etc")

    assert (unknown[0], unknown[1]) == (1, "")
    assert "'nothing'" in unknown[2]
    assert "../../etc" in path[2]
    assert blank[0] == 2
    assert too_long[0] == 1
    assert all(part in too_long[2] for part in ("message", "4,000", "4,001"))


class Typed:
    """A chat that answers every question with the same words."""

    def __init__(self, answer: str, *pieces: str) -> None:
        self.answer = answer
        self.pieces = pieces
        self.asked: list[str] = []

    def history(self) -> list[dict[str, Any]]:
        return [{"role": "operator", "by": "bob", "at": 0.0, "text": "[bold]is it[/bold] alive?"}]

    def say(self, text: str, *, on_piece: OnPiece | None = None) -> dict[str, Any]:
        self.asked.append(text)
        for index, piece in enumerate(self.pieces if on_piece else ()):
            on_piece and on_piece(index, piece)
        return {"role": "queen", "by": "queen", "at": 60.0, "text": self.answer}


def test_terminal_chat_shows_history_first_without_control_characters() -> None:
    out = io.StringIO()
    talk = Typed("It is [red]stuck[/red].\x1b[2J\x07")
    typed = iter(["  ", "what is wrong?"])
    ticket = {
        "agent_id": "loop\x1b[31mer",
        "severity": "high",
        "kind": "doom_loop",
        "status": "intervening",
        "first_seen": 1_769_248_800.0,
        "cause": "round and round [/]",
    }

    def read() -> str:
        try:
            return next(typed)
        except StopIteration:
            raise EOFError from None

    converse(Console(file=out, width=100), ticket, talk, read=read)

    text = out.getvalue()
    assert talk.asked == ["what is wrong?"]
    assert "high, doom loop, intervening, since " in text
    assert "round and round [/]" in text
    assert text.index("[bold]is it[/bold] alive?") < text.index("It is [red]stuck[/red].")
    assert not {"\x1b", "\x07"} & set(text)


@pytest.mark.parametrize(
    ("pieces", "answer", "printed"),
    [
        ([], "It loops.", "It loops.\n"),
        ([(0, "It "), (1, "loops")], "It loops.", "It loops.\n"),
        (
            [(0, "Let me see"), (0, "It "), (1, "loops.\x1b[2J")],
            "It loops.\x1b[2J",
            "Let me see\nIt loops.[2J\n",
        ),
        ([(0, "It loops")], "(by rule) It loops", "It loops\n(by rule) It loops\n"),
    ],
)
def test_answer_is_printed_as_it_is_written(pieces: list[tuple[int, str]], answer: str, printed: str) -> None:
    out = io.StringIO()
    printer = AnswerPrinter(out)

    for index, piece in pieces:
        printer.write(index, piece)
    printer.finish(answer)

    assert out.getvalue() == printed


@pytest.mark.parametrize("is_terminal", [True, False])
def test_chat_streams_to_a_terminal_only(is_terminal: bool) -> None:
    out = io.StringIO()
    ticket = {
        "agent_id": "looper",
        "severity": "high",
        "kind": "doom_loop",
        "status": "intervening",
        "first_seen": 1_769_248_800.0,
        "cause": "round",
    }
    typed = iter(["why?"])

    def read() -> str:
        try:
            return next(typed)
        except StopIteration:
            raise EOFError from None

    talk = Typed("It loops.", "It ", "loops")
    converse(Console(file=out, width=100, force_terminal=is_terminal), ticket, talk, read=read)

    assert out.getvalue().count("loops") == 1
    assert ("  It loops." in out.getvalue()) is not is_terminal


async def test_command_line_follows_the_answer_as_it_is_written(running: Running) -> None:
    ticket_id = await ticket_on(running)
    pieces: list[str] = []
    is_written = threading.Event()

    def on_piece(index: int, text: str) -> None:
        pieces.append(text)
        is_written.set()

    def ask() -> dict[str, Any]:
        with Queenright(running.url) as service, pytest.MonkeyPatch.context() as patch:
            chat = service.tickets.chat

            def chat_slowly(*args: Any, **options: Any) -> Any:
                answer = chat(*args, **options)
                assert is_written.wait(60)
                return answer

            patch.setattr(service.tickets, "chat", chat_slowly)
            return TicketChat(service, ticket_id, "ada").say("What is wrong?", on_piece=on_piece)

    answer = await asyncio.to_thread(ask)

    assert answer["text"].startswith("".join(pieces))
