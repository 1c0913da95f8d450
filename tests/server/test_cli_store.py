"""`queenright store copy` in a separate process."""

from __future__ import annotations

import json
from pathlib import Path

from queenright.health.store.engines import open_database
from queenright.health.store.event_log import append_events
from queenright.health.store.store import Store
from queenright.runtime.events import AgentEvent, EventType
from tests.databases import Postgres, change
from tests.warm import queenright


def write_log(folder: Path, events: int) -> str:
    """Write an event log to a database in a folder, and return the URL of the database."""
    url = f"sqlite:///{folder / 'queenright.db'}"
    database = open_database(url, read_only=False, busy_timeout=5)
    with database.writer.begin():
        steps = [
            AgentEvent(type=EventType.STEP_COMPLETED, time=1.0 + index, agent_id="bee")
            for index in range(events)
        ]
        append_events(database.writer, steps)
    database.close()
    return url


def test_copied_store_passes_the_audit_and_a_summary_is_printed(tmp_path: Path, postgres: Postgres) -> None:
    source, target = write_log(tmp_path / "storage", 3), postgres.empty()

    result = queenright("store", "copy", source, target, cwd=tmp_path)
    (tmp_path / "queenright.yaml").write_text(json.dumps({"database": target}))
    verify_result = queenright("audit", "verify", "--json", cwd=tmp_path)

    assert (result.returncode, result.stderr) == (0, "")
    assert "  events: 3 rows\n" in result.stdout
    assert f"queenright.db to {target}: 4 rows.\n" in result.stdout
    audit = json.loads(verify_result.stdout)
    assert audit["ok"]
    assert f"ends in {audit['head']}.\n" in result.stdout
    postgres.drop(target)


def test_audit_covers_each_partition_of_a_cluster(tmp_path: Path, postgres: Postgres) -> None:
    url = postgres.empty()
    for number in (0, 1):
        Store.open(url, partition=number).close_now()
    (tmp_path / "queenright.yaml").write_text(json.dumps({"database": url}))

    verify_result = queenright("audit", "verify", cwd=tmp_path)
    refused_result = queenright("audit", "export", cwd=tmp_path)
    export_result = queenright("audit", "export", "--partition", "1", cwd=tmp_path)
    change(url, "UPDATE queenright_1.event_log_head SET length = 7")
    changed_result = queenright("audit", "verify", "--json", cwd=tmp_path)

    assert verify_result.stdout.splitlines() == [
        f"Partition {number}: The event log is intact: 0 rows, none changed." for number in (0, 1)
    ]
    assert (verify_result.returncode, export_result.returncode) == (0, 0)
    assert (refused_result.returncode, "has 2 partitions" in refused_result.stderr) == (2, True)
    assert changed_result.returncode == 1
    result = json.loads(changed_result.stdout)
    assert [(row["partition"], row["ok"]) for row in result["partitions"]] == [(0, True), (1, False)]
    assert result["ok"] is False
    postgres.drop(url)


def test_copy_as_json_counts_rows_by_table(tmp_path: Path) -> None:
    source = write_log(tmp_path, 2)

    result = queenright("store", "copy", source, f"sqlite:///{tmp_path / 'copy.db'}", "--json", cwd=tmp_path)

    row = json.loads(result.stdout)
    assert (row["from"], row["to"]) == (str(tmp_path / "queenright.db"), str(tmp_path / "copy.db"))
    assert row["rows"]["events"] == 2
    assert row["rows"]["tickets"] == 0
    assert len(bytes.fromhex(row["head"])) == 32


def test_failed_copy_does_not_print_the_password(tmp_path: Path) -> None:
    source = write_log(tmp_path, 1)

    for target in (
        "postgresql://ada:hush@127.0.0.1:1/x",
        "postgresql://ada:hush@x:y/x",
        "mysql://a:hush@x/x",
    ):
        result = queenright("store", "copy", source, target, cwd=tmp_path)

        assert result.returncode == 1
        assert result.stderr.startswith("queenright: ")
        assert "hush" not in result.stderr + result.stdout


def test_usage_error_about_an_extra_argument_does_not_print_the_password(tmp_path: Path) -> None:
    target = "postgresql://ada:hush@127.0.0.1:1/x"

    result = queenright("store", "copy", "sqlite:///a.db", target, target, cwd=tmp_path)

    assert result.returncode == 2
    assert "unexpected extra argument" in result.stderr
    assert "hush" not in result.stderr + result.stdout
