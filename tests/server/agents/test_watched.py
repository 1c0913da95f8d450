"""A loaded agent is a worker like any other: monitored, nudged, terminated, recovered."""

from __future__ import annotations

from pathlib import Path

from queenright.runtime.events import AgentEvent, EventType
from tests.server.agents.parts import guide, house, looper
from tests.waiting import until

EAGER = {"judge": {"start_grace_seconds": 0}, "intervention": {"quiet_seconds": 0}}


async def test_looping_agent_gets_a_ticket_and_a_nudge_and_is_terminated(
    tmp_path: Path,
) -> None:
    looper(tmp_path / "agents" / "looper")
    async with house(tmp_path, agents={"load": ["looper"]}, health_monitoring=EAGER) as home:
        events: list[AgentEvent] = []
        home.service.bus.subscribe(events.append, name="test", filter_agent="looper")
        started = await home.ask("POST", "/api/agents/looper/chat", json={"message": "go"})
        run = started["execution_id"]
        await until(lambda: home.service.tickets.open_tickets(), "there is a ticket about it")
        [ticket] = home.service.tickets.open_tickets()

        nudged = await home.ask("POST", "/api/agents/looper/nudge", json={"message": "Stop."}, status=202)
        session = ticket.session_id
        health = await home.ask("GET", "/api/agents/looper/health")
        ended = await home.ask(
            "POST", "/api/agents/looper/terminate", json={"reason": "it goes in circles"}, status=202
        )
        await home.service.agents.get("looper").runtime.wait(run)
        row = await home.ask("GET", f"/api/agents/looper/executions/{run}")

        assert (ticket.agent_id, ticket.kind) == ("looper", "doom_loop")
        assert health["state"] in ("degraded", "stuck")
        assert nudged["outcome"] == "done"
        assert ended["outcome"] in ("started", "done")
        assert (row["status"], row["session_id"]) == ("terminated", session)
        assert row["checkpoint_id"]
        kinds = {event.type for event in events}
        assert {EventType.EXECUTION_STARTED, EventType.TOOL_CALL_COMPLETED} <= kinds

        # Brought back: in its session, from where it was stopped, as another life.
        task = {"task_id": health["task_id"], "by": "ada"}
        brought = await home.ask("POST", "/api/recoveries", json=task, status=202)
        await until(lambda: of(events, EventType.RECOVERY_COMPLETED), "it is back")
        [stopped], [event_groups], [back] = (
            of(events, kind)
            for kind in (
                EventType.AGENT_TERMINATED,
                EventType.RECOVERY_INITIATED,
                EventType.RECOVERY_COMPLETED,
            )
        )

        assert event_groups.data["recovery_id"] == brought["recovery_id"]
        assert event_groups.data["from_checkpoint"] == stopped.data["checkpoint_id"] == row["checkpoint_id"]
        assert (back.data["new_agent_id"], back.data["new_session_id"]) == ("looper", session)
        assert back.data["new_incarnation_id"] not in ("", stopped.incarnation_id)
        assert of(events, EventType.EXECUTION_RESUMED)


def of(heard: list[AgentEvent], kind: EventType) -> list[AgentEvent]:
    return [event for event in heard if event.type is kind]


async def test_run_that_was_restarted_is_not_stopped_answered_or_resumed_as_the_one_before(
    tmp_path: Path,
) -> None:
    """B112: by incarnation, as the caller saw it."""
    guide(tmp_path / "agents" / "guide")
    async with house(tmp_path, agents={"load": ["guide"]}) as home:
        started = await home.ask("POST", "/api/agents/guide/chat", json={"message": "bees"})
        await until(lambda: home.service.agents.get("guide").runtime.waiting_nodes(), "it asks")
        await until(lambda: home.service.monitor.get("guide"), "it is watched")
        worker = home.service.monitor.get("guide")
        assert worker is not None
        session = worker.vitals.session_id
        stale = {"session_id": session, "incarnation_id": "another"}
        seen = {"session_id": session, "incarnation_id": worker.vitals.incarnation_id}
        answer = {"node_id": "talk", "content": "Ada"}

        for verb, body in (("stop", {}), ("inject", answer), ("resume", {})):
            refused = await home.ask("POST", f"/api/agents/guide/{verb}", json=body | stale, status=409)
            assert "was restarted in the meantime" in refused["title"], verb

        stopped = await home.ask("POST", "/api/agents/guide/stop", json=seen)
        assert stopped["executions"] == [started["execution_id"]]
        where = f"/api/agents/guide/sessions/{session}/checkpoints"
        [newest, *_] = (await home.ask("GET", where))["checkpoints"]
        restore = f"{where}/{newest['checkpoint_id']}/restore"
        refused = await home.ask("POST", restore, json={"incarnation_id": "another"}, status=409)
        assert "was restarted in the meantime" in refused["title"]


async def test_agent_events_are_only_in_the_service_log(
    tmp_path: Path,
) -> None:
    guide(tmp_path / "agents" / "guide")
    guide(tmp_path / "agents" / "second", "second")
    async with house(tmp_path, agents={"load": ["guide", "second"]}) as home:
        elsewhere: list[AgentEvent] = []
        home.service.agents.get("second").runtime.subscribe_to_events(None, elsewhere.append)

        run, session = await home.done()

        logged = await home.service.store.read(
            lambda conn: conn.exec_driver_sql(
                "select type from events where agent_id = 'guide' and session_id = ?", (session,)
            ).all()
        )
        assert {"execution_started", "client_input_requested", "execution_completed"} <= {
            kind for (kind,) in logged
        }
        assert elsewhere == []
        assert run


async def test_stopping_service_pauses_runs_and_reloads_them_with_their_sessions(
    tmp_path: Path,
) -> None:
    guide(tmp_path / "agents" / "guide")
    async with house(tmp_path, agents={"load": ["guide"]}) as home:
        _, session = await home.begun()
    async with house(tmp_path, agents={"load": ["guide"]}) as home:
        body = await home.ask("GET", f"/api/agents/guide/sessions/{session}")
        resumed = await home.ask("POST", "/api/agents/guide/resume", json={"session_id": session}, status=202)

        assert body["status"] == "paused"
        assert await home.waits("guide", resumed["execution_id"]) == session


async def test_configured_agent_that_cannot_be_loaded_is_reported(
    tmp_path: Path,
) -> None:
    async with house(tmp_path, agents={"load": ["nobody"]}) as home:
        ready = await home.ask("GET", "/readyz", status=503)

        assert "nobody" in ready["missing"][0]
        await home.ask("GET", "/api/agents")
