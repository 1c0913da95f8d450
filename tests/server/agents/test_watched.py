"""A loaded agent is a worker like any other: it is monitored, nudged, terminated and recovered."""

from __future__ import annotations

from pathlib import Path

from queenright.runtime.events import AgentEvent, EventType
from tests.server.agents.parts import run_agent_service, write_guide, write_looper
from tests.waiting import until

EAGER = {"judge": {"start_grace_seconds": 0}, "intervention": {"quiet_seconds": 0}}


async def test_looping_agent_gets_a_ticket_and_a_nudge_and_is_terminated(
    tmp_path: Path,
) -> None:
    write_looper(tmp_path / "agents" / "looper")
    async with run_agent_service(tmp_path, agents={"load": ["looper"]}, health_monitoring=EAGER) as home:
        events: list[AgentEvent] = []
        home.service.bus.subscribe(events.append, name="test", filter_agent="looper")
        response = await home.request("POST", "/api/agents/looper/chat", json={"message": "go"})
        run = response["execution_id"]
        await until(lambda: home.service.tickets.open_tickets(), "a ticket about the agent is open")
        [ticket] = home.service.tickets.open_tickets()

        nudge_response = await home.request(
            "POST", "/api/agents/looper/nudge", json={"message": "Stop."}, status=202
        )
        session = ticket.session_id
        health = await home.request("GET", "/api/agents/looper/health")
        terminate_response = await home.request(
            "POST", "/api/agents/looper/terminate", json={"reason": "the agent repeats itself"}, status=202
        )
        await home.service.agents.get("looper").runtime.wait(run)
        row = await home.request("GET", f"/api/agents/looper/executions/{run}")

        assert (ticket.agent_id, ticket.kind) == ("looper", "doom_loop")
        assert health["state"] in ("degraded", "stuck")
        assert nudge_response["outcome"] == "done"
        assert terminate_response["outcome"] in ("started", "done")
        assert (row["status"], row["session_id"]) == ("terminated", session)
        assert row["checkpoint_id"]
        kinds = {event.type for event in events}
        assert {EventType.EXECUTION_STARTED, EventType.TOOL_CALL_COMPLETED} <= kinds

        # The agent is recovered in its session where it was stopped, as a new incarnation.
        task = {"task_id": health["task_id"], "by": "ada"}
        recovery_response = await home.request("POST", "/api/recoveries", json=task, status=202)
        await until(lambda: select_events(events, EventType.RECOVERY_COMPLETED), "the agent is recovered")
        [stop_event], [event_groups], [recovery] = (
            select_events(events, kind)
            for kind in (
                EventType.AGENT_TERMINATED,
                EventType.RECOVERY_INITIATED,
                EventType.RECOVERY_COMPLETED,
            )
        )

        assert event_groups.data["recovery_id"] == recovery_response["recovery_id"]
        assert (
            event_groups.data["from_checkpoint"] == stop_event.data["checkpoint_id"] == row["checkpoint_id"]
        )
        assert (recovery.data["new_agent_id"], recovery.data["new_session_id"]) == ("looper", session)
        assert recovery.data["new_incarnation_id"] not in ("", stop_event.incarnation_id)
        assert select_events(events, EventType.EXECUTION_RESUMED)


def select_events(events: list[AgentEvent], kind: EventType) -> list[AgentEvent]:
    return [event for event in events if event.type is kind]


async def test_actions_on_the_previous_incarnation_of_a_run_are_refused(
    tmp_path: Path,
) -> None:
    """B112: the caller names the incarnation that it intends to act on."""
    write_guide(tmp_path / "agents" / "guide")
    async with run_agent_service(tmp_path, agents={"load": ["guide"]}) as home:
        response = await home.request("POST", "/api/agents/guide/chat", json={"message": "bees"})
        await until(
            lambda: home.service.agents.get("guide").runtime.list_waiting_nodes(),
            "the run waits for its user",
        )
        await until(lambda: home.service.monitor.get("guide"), "the worker is monitored")
        worker = home.service.monitor.get("guide")
        assert worker is not None
        session = worker.vitals.session_id
        stale_target = {"session_id": session, "incarnation_id": "another"}
        target = {"session_id": session, "incarnation_id": worker.vitals.incarnation_id}
        answer = {"node_id": "talk", "content": "Ada"}

        for verb, body in (("stop", {}), ("inject", answer), ("resume", {})):
            error = await home.request(
                "POST", f"/api/agents/guide/{verb}", json=body | stale_target, status=409
            )
            assert "was restarted in the meantime" in error["title"], verb

        stop_response = await home.request("POST", "/api/agents/guide/stop", json=target)
        assert stop_response["executions"] == [response["execution_id"]]
        place = f"/api/agents/guide/sessions/{session}/checkpoints"
        [newest, *_] = (await home.request("GET", place))["checkpoints"]
        restore = f"{place}/{newest['checkpoint_id']}/restore"
        error = await home.request("POST", restore, json={"incarnation_id": "another"}, status=409)
        assert "was restarted in the meantime" in error["title"]


async def test_agent_events_are_only_in_the_service_log(
    tmp_path: Path,
) -> None:
    write_guide(tmp_path / "agents" / "guide")
    write_guide(tmp_path / "agents" / "second", "second")
    async with run_agent_service(tmp_path, agents={"load": ["guide", "second"]}) as home:
        other_logs: list[AgentEvent] = []
        home.service.agents.get("second").runtime.subscribe_to_events(None, other_logs.append)

        run, session = await home.complete_run()

        logged_types = await home.service.store.read(
            lambda conn: conn.exec_driver_sql(
                "select type from events where agent_id = 'guide' and session_id = ?", (session,)
            ).all()
        )
        assert {"execution_started", "client_input_requested", "execution_completed"} <= {
            kind for (kind,) in logged_types
        }
        assert other_logs == []
        assert run


async def test_stopping_service_pauses_runs_and_the_next_start_reloads_their_sessions(
    tmp_path: Path,
) -> None:
    write_guide(tmp_path / "agents" / "guide")
    async with run_agent_service(tmp_path, agents={"load": ["guide"]}) as home:
        _, session = await home.start_waiting_run()
    async with run_agent_service(tmp_path, agents={"load": ["guide"]}) as home:
        body = await home.request("GET", f"/api/agents/guide/sessions/{session}")
        response = await home.request(
            "POST", "/api/agents/guide/resume", json={"session_id": session}, status=202
        )

        assert body["status"] == "paused"
        assert await home.wait_for_question("guide", response["execution_id"]) == session


async def test_configured_agent_that_cannot_be_loaded_is_reported(
    tmp_path: Path,
) -> None:
    async with run_agent_service(tmp_path, agents={"load": ["nobody"]}) as home:
        ready = await home.request("GET", "/readyz", status=503)

        assert "nobody" in ready["missing"][0]
        await home.request("GET", "/api/agents")
