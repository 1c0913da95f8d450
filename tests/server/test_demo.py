from __future__ import annotations

import asyncio
import contextlib
import random
import threading
import warnings
from collections import Counter
from collections.abc import Sequence
from concurrent.futures import CancelledError
from itertools import islice
from pathlib import Path
from typing import Any

import httpx
import pytest
from prometheus_client import CollectorRegistry

from queenright import api
from queenright.demo.agent import TakeNudges, Task, run_task
from queenright.demo.fleet import DEMO_FRAMEWORK, Fleet, NudgeInbox
from queenright.demo.hook_client import HOOK_AGENT, HookClient
from queenright.demo.model import Call, LiteLLMModel, Model, ProviderError, Reply, ScriptedModel
from queenright.demo.personas import FLEET, Persona
from queenright.demo.tools import Library, run
from queenright.health.vitals.session_outcome import WorkerStatus
from queenright.health.vitals.vital_signs import VitalSigns
from queenright.instrumentation import Nudge, Worker, names
from queenright.instrumentation.telemetry import Telemetry
from queenright.server.service import Service
from queenright.server.serving import RunningService
from queenright.server.settings import load_settings
from queenright.server.up import up
from queenright.server.up_options import UP_DEFAULTS, UpOptions
from queenright.server.views.attention import list_attention_items
from tests.server.conftest import demo_settings
from tests.waiting import until

ROOT = Path(__file__).parents[2] / "docs"


@pytest.fixture
def library(tmp_path: Path) -> Library:
    (tmp_path / "bees.md").write_text("Honey bees dance.\nBees sting.\n", encoding="utf-8")
    (tmp_path / ".venv").mkdir()
    (tmp_path / ".venv" / "hidden.md").write_text("not for reading", encoding="utf-8")
    (tmp_path / "secret.key").write_text("not for reading", encoding="utf-8")
    (tmp_path / "way-out.md").symlink_to("/etc/hostname")
    return Library(tmp_path)


def test_tools_read_only_the_text_files_of_their_folder(library: Library) -> None:
    assert library.files == ["bees.md"]
    assert library.search("bees") == ["bees.md:1", "bees.md:2"]
    for path in ("../bees.md", "/etc/hostname", "way-out.md", ".venv/hidden.md", "secret.key"):
        with pytest.raises(FileNotFoundError, match="list_files lists the files"):
            library.read_file(path)


def test_unknown_tool_error_names_the_available_tools(library: Library) -> None:
    with pytest.raises(KeyError, match="there is no tool 'dig'; available: list_files, read_file"):
        run(library.tools(), "dig", {})


def run_persona(
    model: Model, *, steps: int, tools: dict[str, Any], take_nudges: TakeNudges = list
) -> Counter[str]:
    """Let an agent work ``steps`` steps, and count its verdicts."""
    registry = CollectorRegistry()
    remaining_steps = steps

    def sleep(seconds: float) -> bool:
        nonlocal remaining_steps
        remaining_steps -= 1
        return remaining_steps < 0

    verdicts: Counter[str] = Counter()
    with Worker("tester", telemetry=Telemetry("http://127.0.0.1:9"), registry=registry) as worker:
        with contextlib.suppress(CancelledError, ProviderError):
            task = Task("node", "task", turn_seconds=0, answer_seconds=0)
            run_task(
                worker,
                model,
                task,
                tools,
                sleep,
                take_nudges,
            )
        for family in registry.collect():
            for sample in family.samples:
                if sample.name == names.WORKER_STEPS.name:
                    verdicts[sample.labels["verdict"]] += int(sample.value)
    return verdicts


@pytest.mark.parametrize(
    ("agent", "typical_verdict"),
    [("researcher", "retry"), ("librarian", "continue"), ("proofreader", "retry"), ("concierge", "continue")],
)
def test_each_persona_has_its_typical_verdicts(agent: str, typical_verdict: str) -> None:
    [persona] = [item for item in FLEET if item.agent == agent]

    verdicts = run_persona(create_persona_model(persona), steps=40, tools=Library(ROOT).tools())

    assert verdicts.most_common(1)[0][0] == typical_verdict
    assert verdicts["error"] == 0


def create_persona_model(persona: Persona) -> ScriptedModel:
    return ScriptedModel(persona.script(Library(ROOT), random.Random(7)))


@pytest.mark.parametrize("files", [0, 1])
@pytest.mark.parametrize("persona", FLEET, ids=lambda persona: persona.agent)
def test_personas_can_work_in_a_folder_with_few_files(tmp_path: Path, persona: Persona, files: int) -> None:
    for number in range(files):
        (tmp_path / f"{number}.md").write_text("A bee.\n", encoding="utf-8")

    assert list(islice(persona.script(Library(tmp_path), random.Random(7)), 200)) or not files


def test_script_of_a_persona_is_deterministic() -> None:
    [persona] = [item for item in FLEET if item.agent == "proofreader"]

    first_script, second_script = (
        list(islice(persona.script(Library(ROOT), random.Random(7)), 30)) for _ in range(2)
    )

    assert first_script == second_script


def test_agent_with_a_failing_provider_stops() -> None:
    def raise_refusal() -> Any:
        while True:
            yield ProviderError("529 overloaded")

    verdicts = run_persona(ScriptedModel(raise_refusal()), steps=100, tools={})

    assert sum(verdicts.values()) == 12
    assert verdicts["accept"] == verdicts["continue"] == 0


def test_surveyor_waits_for_a_nudge_and_continues() -> None:
    """002 §11: the nudge is in the context of the agent."""
    [persona] = [item for item in FLEET if item.agent == "surveyor"]
    assert persona.extra_tools is not None
    inbox = NudgeInbox(threading.Event())
    library = Library(ROOT)
    shown_messages: list[list[dict[str, Any]]] = []

    class RecordingModel(ScriptedModel):
        def reply(self, messages: Sequence[dict[str, Any]]) -> Reply:
            shown_messages.append([*messages])
            move = super().reply(messages)
            if move.calls and move.calls[0].tool == "index_everything":
                inbox.put(Nudge(message="What takes so long?", instruction_id="1", expires_at=0.0))
            return move

    verdicts = run_persona(
        RecordingModel(persona.script(library, random.Random(7))),
        steps=80,
        tools=library.tools() | persona.extra_tools(library, inbox.wait),
        take_nudges=inbox.take,
    )

    turns = [
        turn
        for turn, seen_messages in enumerate(shown_messages)
        if "What takes so long?" in str(seen_messages)
    ]
    assert 0 < turns[0] < len(shown_messages) - 1
    assert verdicts["accept"] > 30


def test_wait_ends_when_the_fleet_is_stopped() -> None:
    should_stop = threading.Event()
    should_stop.set()

    assert NudgeInbox(should_stop).wait(60.0) is True
    assert NudgeInbox(threading.Event()).wait(0.0) is False


async def test_stopped_fleet_is_cancelled(running: RunningService, tmp_path: Path) -> None:
    """
    Otherwise failed workers would be recovered at the next start, and completed ones would end their tickets.
    """
    fleet = Fleet(ROOT, endpoint=running.otlp_url, registry=CollectorRegistry(), storage=tmp_path / "fleet")
    fleet.start()
    await until(lambda: len(running.service.workers()) >= 3, "some agents are running")
    await asyncio.to_thread(fleet.stop)
    await until(
        lambda: all(worker.vitals.has_ended for worker in running.service.workers()), "all agents have ended"
    )

    assert {worker.vitals.status for worker in running.service.workers()} == {WorkerStatus.CANCELLED}


async def test_hook_client_waits_for_a_decision_and_ends_when_it_is_stopped(
    running: RunningService, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(running.service.permissions, "wait_seconds", 600.0)
    hooks = HookClient(running.otlp_url, tool_seconds=0, pause_seconds=0)

    def list_requests() -> list[api.AttentionItem]:
        return [item for item in list_attention_items(running.service).items if item.kind == "permission"]

    hooks.start()
    await until(list_requests, "the client requests a permission")
    [first_request] = list_requests()
    assert (first_request.agent_id, first_request.options) == (HOOK_AGENT, ["allow", "deny"])
    async with httpx.AsyncClient(base_url=running.url, trust_env=False) as http:
        answer = {"decision": "allow", "by": "ada"}
        assert (await http.post(f"/api/permissions/{first_request.item_id}/answer", json=answer)).is_success
    await until(
        lambda: [event.session_id for event in list_requests()] not in ([], [first_request.session_id]),
        "the client requests a permission again",
    )
    await asyncio.to_thread(hooks.stop)

    await until(
        lambda: all(event.vitals.has_ended for event in running.service.workers()),
        "the sessions of the client have ended",
    )
    assert list_requests() == []


async def test_demo_shows_each_kind_of_item_that_needs_a_person(tmp_path: Path) -> None:
    """It shows them during the first two minutes of `make up`."""
    options = UpOptions(files=ROOT, prometheus_port=0, alertmanager_port=0, receiver_port=0)
    seen_items: dict[str, api.AttentionItem] = {}
    kinds = {"permission", "question", "approval", "incident", "ticket"}
    settings = load_settings(
        defaults=UP_DEFAULTS | {"storage": tmp_path / "storage"}, http={"port": 0}, otlp={"port": 0}
    )
    async with up(settings, options, say=lambda _: None, find=lambda _: None) as running:

        def has_seen_all() -> bool:
            seen_items.update({item.kind: item for item in list_attention_items(running.service).items})
            return seen_items.keys() >= kinds and seen_items["incident"].workers == 3

        await until(has_seen_all, f"all of {sorted(kinds)}, and three workers in the incident", seconds=120)
        owners = {owner.vitals.owner for owner in running.service.workers()}
        repositories = {owner.vitals.repository for owner in running.service.workers()}

    assert len(owners - {""}) >= 3
    assert len(repositories - {""}) >= 3


async def test_demo_agents_accept_nudges(tmp_path: Path) -> None:
    options = UpOptions(files=ROOT, prometheus_port=0, alertmanager_port=0, receiver_port=0)
    async with up(
        demo_settings(tmp_path / "storage"), options, say=lambda _: None, find=lambda _: None
    ) as running:

        def list_vitals() -> list[VitalSigns]:
            workers = running.service.workers()
            return [worker.vitals for worker in workers if worker.vitals.framework == DEMO_FRAMEWORK]

        await until(
            lambda: {worker.agent_id for worker in list_vitals()} >= {worker.agent for worker in FLEET},
            "all agents work",
        )
        assert all(worker.fetches for worker in list_vitals())


def test_any_litellm_model_can_drive_the_agents(library: Library) -> None:
    """The real litellm is used, with a test provider behind its interface."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        model = LiteLLMModel("bees/dancer")
        import litellm

        class FakeProvider(litellm.CustomLLM):  # type: ignore[misc, name-defined]  # litellm is not typed
            replies = 0

            def completion(self, *args: Any, **kwargs: Any) -> Any:
                FakeProvider.replies += 1
                if FakeProvider.replies == 1:
                    call = {
                        "id": "1",
                        "type": "function",
                        "function": {"name": "search", "arguments": '{"word": "bees"}'},
                    }
                    message: dict[str, Any] = {"role": "assistant", "content": None, "tool_calls": [call]}
                elif FakeProvider.replies == 2:
                    message = {"role": "assistant", "content": "Bees dance."}
                else:
                    raise litellm.exceptions.InternalServerError("the hive is full", "bees", "dancer")
                return litellm.ModelResponse(
                    choices=[{"message": message, "finish_reason": "stop", "index": 0}],
                    usage={"prompt_tokens": 11, "completion_tokens": 3, "total_tokens": 14},
                )

        litellm.custom_provider_map = [{"provider": "bees", "custom_handler": FakeProvider()}]
        first_reply, second_reply = model.reply([{"role": "user", "content": "Go."}]), model.reply([])
        with pytest.raises(ProviderError, match="from bees/dancer"):
            model.reply([])

    assert first_reply == Reply((Call("search", {"word": "bees"}),), input_tokens=11, output_tokens=3)
    assert second_reply == Reply(answer="Bees dance.", final=True, input_tokens=11, output_tokens=3)


async def test_demo_agent_asks_its_user_immediately_and_ends_with_the_answer(tmp_path: Path) -> None:
    options = UpOptions(files=ROOT, prometheus_port=0, alertmanager_port=0, receiver_port=0)
    settings = demo_settings(tmp_path / "storage")
    for is_answered in (False, True):
        async with up(settings, options, say=lambda _: None, find=lambda _: None) as running:
            service = running.service

            def list_questions(service: Service = service) -> list[api.AttentionItem]:
                return [item for item in list_attention_items(service).items if item.can_answer]

            await until(list_questions, "the demo agent asks a question")
            assert service.agents.slots["publisher"].warnings == ()
            [question] = list_questions()
            assert (question.agent_id, question.kind) == ("publisher", "question")
            assert "Which one shall I publish?" in question.title
            if not is_answered:
                continue  # The next run asks again.
            body = {"content": "The notes", "session_id": question.session_id, "node_id": question.node_id}
            async with httpx.AsyncClient(base_url=running.url, trust_env=False, timeout=60) as http:
                assert (await http.post("/api/agents/publisher/inject", json=body)).is_success

            await until(lambda: not list_questions(), "the question is answered")
            worker = service.monitor.get("publisher")
            assert worker is not None
            assert worker.vitals.cost_usd
            assert [worker.key[0] for worker in service.workers()].count("publisher") == 1


async def test_scripted_model_of_the_demo_has_a_price(tmp_path: Path) -> None:
    options = UpOptions(files=ROOT, prometheus_port=0, alertmanager_port=0, receiver_port=0)
    async with up(
        demo_settings(tmp_path / "storage"), options, say=lambda _: None, find=lambda _: None
    ) as running:
        workers = running.service.workers

        await until(
            lambda: any(
                worker.vitals.cost_usd for worker in workers() if worker.vitals.agent_id == "librarian"
            ),
            "a demo agent has a cost",
        )
