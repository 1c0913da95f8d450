"""The audit trail: keys, signatures, archive and exported file. Every change to them is detected."""

from __future__ import annotations

import json
import stat
import threading
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from sqlalchemy import Connection, create_engine, select

from queenright.health.audit.audit import AuditResult, verify_audit
from queenright.health.audit.audit_export import ExportCheck, check_export, export_lines
from queenright.health.audit.audit_key import (
    AuditKey,
    AuditKeyError,
    PublicKeys,
    build_signed_content,
    key_id_of,
)
from queenright.health.settings import RetentionSettings as Settings
from queenright.health.store.event_log import append_events, event_of, read_events
from queenright.health.store.retention import prune
from queenright.health.store.store import Store
from queenright.health.store.tables import AUDIT_ARCHIVE, EVENT_LOG_HEAD, EVENTS, METADATA
from queenright.runtime.events import AgentEvent, EventType
from tests.databases import change, is_postgres
from tests.warm import queenright

DAY = 86_400.0
NOW = 1_000 * DAY
SETTINGS = Settings(days=30, audit_days=365)


def make_event(age: float, kind: EventType = EventType.HEALTH_STATE_CHANGED, **fields: Any) -> AgentEvent:
    """Return an event that is ``age`` days old."""
    return AgentEvent(type=kind, time=NOW - age * DAY, agent_id="bee", session_id="s1", **fields)


def make_termination(age: float = 0, **data: Any) -> AgentEvent:
    """Return an unsigned termination event."""
    payload = {
        "reason": "silent for 25 min",
        "by": "ladder",
        "confirmed": True,
        "checkpoint_id": None,
        **data,
    }
    return make_event(age, EventType.AGENT_TERMINATED, data=payload)


@pytest.fixture
def key(tmp_path: Path) -> AuditKey:
    return AuditKey.load_or_create(tmp_path / "keys")


@pytest.fixture
def keys(key: AuditKey) -> PublicKeys:
    return PublicKeys([key.public])


@pytest.fixture
def conn() -> Iterator[Connection]:
    yield from open_memory_database()


def open_memory_database() -> Iterator[Connection]:
    engine = create_engine("sqlite://")
    METADATA.create_all(engine)
    with engine.connect() as connection:
        connection.execute(EVENT_LOG_HEAD.insert().values(id=1, length=0, hash=bytes(32)))
        yield connection
    engine.dispose()


# -- the key ---------------------------------------------------------------------------------------


def test_key_is_created_once_with_owner_only_permissions(tmp_path: Path) -> None:
    first = AuditKey.load_or_create(tmp_path / "new" / "folder")
    second = AuditKey.load_or_create(tmp_path / "new" / "folder")

    path = tmp_path / "new" / "folder" / "audit-key.pem"
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert first.key_id == second.key_id
    assert sorted(file.name for file in path.parent.iterdir()) == ["audit-key.pem", "audit-key.pub"]


def test_concurrent_starts_share_one_key(tmp_path: Path) -> None:
    key_ids: list[str] = []
    threads = [
        threading.Thread(target=lambda: key_ids.append(AuditKey.load_or_create(tmp_path).key_id))
        for _ in range(8)
    ]

    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    assert len(key_ids) == 8
    assert len(set(key_ids)) == 1


def test_key_readable_by_others_is_refused(tmp_path: Path) -> None:
    AuditKey.load_or_create(tmp_path)
    (tmp_path / "audit-key.pem").chmod(0o640)

    with pytest.raises(AuditKeyError, match=r"audit-key.pem has the mode 0640.*chmod 600"):
        AuditKey.load_or_create(tmp_path)


@pytest.mark.parametrize(
    "content", ["", "hunter2", "-----BEGIN PRIVATE KEY-----\nhunter2\n-----END PRIVATE KEY-----\n"]
)
def test_invalid_key_file_is_rejected_and_not_quoted(tmp_path: Path, content: str) -> None:
    path = tmp_path / "audit-key.pem"
    path.write_text(content, encoding="ascii")
    path.chmod(0o600)

    with pytest.raises(AuditKeyError, match="is not an unencrypted ed25519 private key") as error_info:
        AuditKey.load_or_create(tmp_path)

    assert "hunter2" not in f"{error_info.value}{error_info.value.__cause__!r}"
    assert path.read_text(encoding="ascii") == content


def test_other_key_type_is_refused(tmp_path: Path) -> None:
    from cryptography.hazmat.primitives import serialization
    from cryptography.hazmat.primitives.asymmetric.ec import SECP256R1, generate_private_key

    path = tmp_path / "audit-key.pem"
    path.write_bytes(
        generate_private_key(SECP256R1()).private_bytes(
            serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
        )
    )
    path.chmod(0o600)

    with pytest.raises(AuditKeyError, match="is not an unencrypted ed25519 private key"):
        AuditKey.load_or_create(tmp_path)


def test_unusable_folder_is_reported(tmp_path: Path) -> None:
    (tmp_path / "file").touch()

    with pytest.raises(AuditKeyError, match="cannot use the audit key"):
        AuditKey.load_or_create(tmp_path / "file" / "folder")


def test_key_repr_has_only_its_name(key: AuditKey, tmp_path: Path) -> None:
    assert repr(key) == f"AuditKey({key.key_id!r})"
    assert key.key_id == key_id_of(key.public)
    assert "PRIVATE" not in (tmp_path / "keys" / "audit-key.pub").read_text(encoding="ascii")


def test_earlier_signatures_stay_valid_after_key_rotation(tmp_path: Path) -> None:
    old = AuditKey.load_or_create(tmp_path)
    signed_event = old.sign(make_termination())
    (tmp_path / "audit-key.pem").unlink()

    new = AuditKey.load_or_create(tmp_path)

    public_keys = PublicKeys.load(tmp_path / "audit-key.pub")
    assert [name for name, _ in public_keys] == [old.key_id, new.key_id]
    assert (
        public_keys.find_signature_problem(
            old.key_id, signed_event.data["signature"], build_signed_content(signed_event)
        )
        == ""
    )


def test_file_without_public_keys_is_refused(tmp_path: Path) -> None:
    (tmp_path / "some.pub").write_text("ssh-ed25519 AAAA", encoding="ascii")

    with pytest.raises(AuditKeyError, match=r"some.pub has no ed25519 public keys"):
        PublicKeys.load(tmp_path / "some.pub")
    with pytest.raises(AuditKeyError, match="cannot read public keys"):
        PublicKeys.load(tmp_path / "none.pub")


# -- signatures ------------------------------------------------------------------------------------

_text = st.text(st.characters(exclude_categories=["Cs"]), max_size=12)
_json = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**63 - 1)
    | st.floats(allow_nan=False, allow_infinity=False)
    | _text,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(_text, inner, max_size=3),
    max_leaves=6,
)


@pytest.fixture(scope="module")
def one_key(tmp_path_factory: pytest.TempPathFactory) -> AuditKey:
    return AuditKey.load_or_create(tmp_path_factory.mktemp("key"))


@given(
    agent=_text,
    time=st.integers(0, 2**40) | st.floats(0, 1e12),
    data=st.dictionaries(_text, _json, max_size=4),
)
def test_signature_survives_the_log_with_any_text(
    one_key: AuditKey, agent: str, time: float, data: dict[str, Any]
) -> None:
    signed_event = one_key.sign(
        AgentEvent(type=EventType.AGENT_TERMINATED, time=time, agent_id=agent, data=data)
    )
    for conn in open_memory_database():
        append_events(conn, [signed_event])

        report = verify_audit(conn, PublicKeys([one_key.public]))

        assert report.ok, report
        assert report.signatures.terminations == 1


@pytest.mark.parametrize(
    "changes",
    [
        {"agent_id": "wasp"},
        {"session_id": "s2"},
        {"time": NOW + 0.001},
        {"id": "another"},
        {"data": {"reason": "another"}},
        {"data": {"checkpoint_id": "c"}},
        {"data": {"more": 1}},
    ],
)
def test_signature_is_valid_only_for_its_content(
    conn: Connection, key: AuditKey, keys: PublicKeys, changes: dict[str, Any]
) -> None:
    signed_event = key.sign(make_termination())
    if "data" in changes:
        changes = {"data": {**signed_event.data, **changes["data"]}}
    append_events(conn, [replace(signed_event, **changes)])

    [fault] = verify_audit(conn, keys).signatures.faults

    assert "it was forged, or the signed content changed" in fault.reason


def test_terminations_with_unknown_signer_are_listed(
    conn: Connection, key: AuditKey, keys: PublicKeys, tmp_path: Path
) -> None:
    other_key = AuditKey.load_or_create(tmp_path / "stranger")
    forged_event = other_key.sign(make_termination())
    forged_event.data = {**forged_event.data, "key_id": key.key_id}
    append_events(
        conn,
        [
            key.sign(make_termination()),
            make_termination(),
            other_key.sign(make_termination()),
            forged_event,
            make_termination(key_id=key.key_id, signature="!"),
            make_termination(key_id=key.key_id, signature=7),
        ],
    )

    report = verify_audit(conn, keys)

    assert (report.ok, report.log.ok, report.signatures.terminations) == (False, True, 6)
    assert [fault.seq for fault in report.signatures.faults] == [2, 3, 4, 5, 6]
    assert "row 2" in str(report.signatures.faults[0])
    assert "'bee'" in str(report.signatures.faults[0])
    assert "signed by an unknown key" in report.signatures.faults[1].reason


def test_many_faults_are_counted(conn: Connection, keys: PublicKeys) -> None:
    append_events(conn, [make_termination() for _ in range(50)])

    signatures = verify_audit(conn, keys).signatures

    assert (len(signatures.faults), signatures.fault_count) == (20, 50)


async def test_signatures_are_checked_in_the_archive_too(
    database_url: str, key: AuditKey, keys: PublicKeys
) -> None:
    store = Store.open(database_url)
    await store.append([key.sign(make_termination(50)), make_termination(40), key.sign(make_termination(1))])
    await store.transact(lambda conn: prune(conn, NOW, SETTINGS))

    report = await store.read(lambda conn: verify_audit(conn, keys))

    assert (report.archive.rows, report.signatures.terminations) == (2, 3)
    assert [fault.seq for fault in report.signatures.faults] == [2]
    await store.close()


# -- changes to the archive ------------------------------------------------------------------------


@pytest.fixture
async def archived_url(database_url: str, key: AuditKey) -> str:
    """Create a database with six archived events and no triggers."""
    store = Store.open(database_url)
    events = [
        key.sign(make_termination(50)) if n == 3 else make_event(50, id=f"event-{n}") for n in range(1, 7)
    ]
    await store.append([*events, make_event(1, id="event-7")])
    await store.transact(lambda conn: prune(conn, NOW, SETTINGS))
    await store.close()
    tables = ("events", "audit_archive")
    if is_postgres(database_url):
        change(database_url, *(f"ALTER TABLE {table} DISABLE TRIGGER ALL" for table in tables))
    else:
        change(
            database_url,
            *(f"DROP TRIGGER {table}_refuse_{verb}" for table in tables for verb in ("update", "delete")),
        )
    return database_url


EVENT_COLUMNS = [column.name for column in EVENTS.columns if column.name != "seq"]


def make_other_value(url: str, column: str) -> str:
    """Return an SQL expression for a value that differs from that of the row."""
    if column.endswith("hash"):
        return r"'\x00'::bytea" if is_postgres(url) else "zeroblob(32)"
    return "time + 0.001" if column == "time" else f"{column} || ' '"


def verify_database(url: str, keys: PublicKeys) -> AuditResult:
    store = Store.open(url, read_only=True)
    try:
        return store.read_now(lambda conn: verify_audit(conn, keys))
    finally:
        store.close_now()


def test_untouched_archive_is_intact(archived_url: str, keys: PublicKeys) -> None:
    report = verify_database(archived_url, keys)

    assert report.ok
    assert (report.log.rows, report.log.let_go, report.archive.rows) == (1, 6, 6)


@pytest.mark.parametrize("column", [column.name for column in AUDIT_ARCHIVE.columns if column.name != "seq"])
def test_change_to_an_archived_column_is_detected_at_its_row(
    archived_url: str, keys: PublicKeys, column: str
) -> None:
    """B80: every change to a row of the audit archive is detected."""
    change(
        archived_url,
        f"UPDATE audit_archive SET {column} = {make_other_value(archived_url, column)} WHERE seq = 4",
    )

    report = verify_database(archived_url, keys)

    assert (report.ok, report.archive.ok, report.archive.first_bad, report.archive.rows) == (
        False,
        False,
        4,
        3,
    )


@pytest.mark.parametrize("column", EVENT_COLUMNS)
def test_change_to_a_column_of_a_pruned_log_is_detected_at_its_row(
    archived_url: str, keys: PublicKeys, column: str
) -> None:
    """B80: every change to a row of the audit log is detected on both databases."""
    change(
        archived_url, f"UPDATE events SET {column} = {make_other_value(archived_url, column)} WHERE seq = 7"
    )

    report = verify_database(archived_url, keys)

    assert (report.ok, report.log.ok, report.log.first_bad, report.archive.ok) == (False, False, 7, True)


@pytest.mark.parametrize(
    ("statement", "first_bad"),
    [
        ("DELETE FROM audit_archive WHERE seq = 1", 2),
        ("DELETE FROM audit_archive WHERE seq = 3", 4),
        ("DELETE FROM audit_archive WHERE seq = 6", 6),
        ("DELETE FROM audit_archive", 1),
        ("UPDATE audit_archive SET seq = 0 WHERE seq = 2", 0),
        ("UPDATE audit_archive SET seq = 9 WHERE seq = 6", 9),
        ("UPDATE event_log_head SET archive_base_seq = 1", 2),
        ("UPDATE event_log_head SET archive_hash = NULL", 7),
        ("UPDATE event_log_head SET archive_base_hash = hash", 1),
        ("DELETE FROM event_log_head", 1),
    ],
)
def test_removed_or_moved_archive_rows_are_detected(
    archived_url: str, keys: PublicKeys, statement: str, first_bad: int
) -> None:
    """B80: every change to the audit archive is detected, including removed last rows."""
    change(archived_url, statement)

    report = verify_database(archived_url, keys)

    assert not report.archive.ok
    assert report.archive.first_bad == first_bad


@pytest.mark.parametrize(
    "statement",
    [
        "UPDATE event_log_head SET base_length = 5",
        "UPDATE event_log_head SET base_length = 7",
        "UPDATE event_log_head SET base_hash = NULL",
    ],
)
def test_moved_archive_start_is_detected(archived_url: str, keys: PublicKeys, statement: str) -> None:
    """B80: the database records where the archive starts after pruning."""
    change(archived_url, statement)

    assert not verify_database(archived_url, keys).log.ok


# -- the file --------------------------------------------------------------------------------------


def make_export(conn: Connection, key: AuditKey | None, **options: Any) -> list[bytes]:
    keys = PublicKeys([key.public] if key is not None else [])
    return list(export_lines(conn, now=NOW, keys=keys, signer=key, **options))


def fill_log(conn: Connection, key: AuditKey) -> None:
    """Add archived and logged audit events, and steps in between that are not part of the trail."""
    step = EventType.STEP_COMPLETED
    append_events(
        conn,
        [
            make_event(50),
            make_event(49, step),
            key.sign(make_termination(48)),
            make_event(47, data={"é": -0.0}),
        ],
    )
    prune(conn, NOW, SETTINGS)
    append_events(
        conn,
        [
            make_event(3),
            make_event(2.5, step),
            key.sign(make_termination(2)),
            make_event(1),
            make_event(0.5, step),
        ],
    )


def test_exported_trail_verifies_on_its_own(conn: Connection, key: AuditKey, keys: PublicKeys) -> None:
    fill_log(conn, key)

    lines = make_export(conn, key)

    report = check_export(lines, keys)
    assert (report.ok, report.rows, report.key_id, report.own_keys) == (True, 6, key.key_id, False)
    assert (report.signatures.terminations, report.signatures.fault_count) == (2, 0)
    rows = [json.loads(line) for line in lines[1:-1]]
    assert [row["seq"] for row in rows] == [1, 3, 4, 5, 7, 8]
    assert [row["data"] for row in rows] == [
        event.data
        for _, event in [*read_archive(conn), *read_events(conn)]
        if event.type is not EventType.STEP_COMPLETED
    ]
    assert json.loads(lines[-1])["log"]["length"] == 9


def read_archive(conn: Connection) -> list[tuple[int, AgentEvent]]:
    rows = conn.execute(select(AUDIT_ARCHIVE).order_by(AUDIT_ARCHIVE.c.seq))
    return [(row.seq, event) for row in rows if (event := event_of(row)) is not None]


def test_export_contains_only_the_requested_period(conn: Connection, key: AuditKey, keys: PublicKeys) -> None:
    fill_log(conn, key)

    lines = make_export(conn, key, since=NOW - 48 * DAY, until=NOW - 2 * DAY)

    assert [json.loads(line)["seq"] for line in lines[1:-1]] == [3, 4, 5]
    assert check_export(lines, keys).ok


def test_files_own_keys_are_named_as_such(conn: Connection, key: AuditKey) -> None:
    fill_log(conn, key)

    report = check_export(make_export(conn, key))

    assert (report.ok, report.own_keys, report.key_id) == (True, True, key.key_id)


def test_unsigned_export_is_reported_as_unsigned(conn: Connection, key: AuditKey) -> None:
    append_events(conn, [make_event(1)])

    assert check_export(make_export(conn, None)) == ExportCheck(ok=True, rows=1, own_keys=True)


def test_unsigned_termination_is_named_in_the_file_too(
    conn: Connection, key: AuditKey, keys: PublicKeys
) -> None:
    append_events(conn, [make_termination()])

    report = check_export(make_export(conn, key), keys)

    assert (report.ok, [fault.seq for fault in report.signatures.faults]) == (False, [1])


@pytest.mark.parametrize(
    ("change_lines", "reason"),
    [
        (lambda lines: lines[1:], "line 1 is out of place"),
        (lambda lines: lines[:-1], "the last line is missing"),
        (lambda lines: [], "the last line is missing"),
        (lambda lines: [lines[0], *lines[2:]], "do not match the count and the digest"),
        (lambda lines: [*lines[:-2], lines[-1]], "do not match the count and the digest"),
        (lambda lines: [lines[0], lines[2], lines[1], *lines[3:]], "line 3, row 1, does not follow row 3"),
        (lambda lines: [*lines, lines[1]], "line 9 was added after the end"),
        (lambda lines: [lines[0].replace(b"audit/1", b"audit/2"), *lines[1:]], "the format"),
        (lambda lines: [b"hello\n"], "line 1 cannot be read"),
        (lambda lines: [b"[]\n"], "line 1 cannot be read"),
    ],
)
def test_removed_added_or_moved_export_lines_are_detected(
    conn: Connection, key: AuditKey, keys: PublicKeys, change_lines: Any, reason: str
) -> None:
    fill_log(conn, key)

    report = check_export(change_lines(make_export(conn, key)), keys)

    assert not report.ok
    assert reason in report.reason


@given(data=st.data())
def test_change_of_any_export_byte_is_detected(one_key: AuditKey, data: st.DataObject) -> None:
    for conn in open_memory_database():
        fill_log(conn, one_key)
        file_content = b"".join(make_export(conn, one_key))
    position = data.draw(st.integers(0, len(file_content) - 1))
    byte = data.draw(st.integers(0, 255).filter(lambda value: value != file_content[position]))
    changed_content = file_content[:position] + bytes([byte]) + file_content[position + 1 :]

    # Whitespace at the end, after the last line's object, is not significant.
    is_harmless = position == len(file_content) - 1 and byte in b" \t\r\n"
    assert (
        check_export(changed_content.splitlines(keepends=True), PublicKeys([one_key.public])).ok
        is is_harmless
    )


def test_row_changed_before_the_export_is_detected_in_the_file(
    conn: Connection, key: AuditKey, keys: PublicKeys
) -> None:
    """B80: an export of a changed row does not hide the change."""
    fill_log(conn, key)
    for column in ("data", "agent_id", "time", "hash"):
        conn.exec_driver_sql(f"UPDATE events SET {column} = x'00ff' WHERE seq = 5")

    assert not check_export(make_export(conn, key), keys).ok


# -- the command -----------------------------------------------------------------------------------


async def test_verify_and_export_by_command_while_the_service_runs(tmp_path: Path) -> None:
    storage = tmp_path / ".queenright"
    key = AuditKey.load_or_create(storage)
    store = Store.open(f"sqlite:///{storage / 'queenright.db'}")
    await store.append([make_event(50), key.sign(make_termination(2)), make_event(1)])
    await store.transact(lambda conn: prune(conn, NOW, SETTINGS))

    log_result = queenright("audit", "verify", cwd=tmp_path)
    export = queenright("audit", "export", "--since", "1970-01-02", "--out", "trail.jsonl", cwd=tmp_path)
    export_result = queenright("audit", "verify", "--export", "trail.jsonl", cwd=tmp_path)
    elsewhere_result = queenright(
        "audit",
        "verify",
        "--export",
        str(tmp_path / "trail.jsonl"),
        "--storage",
        "no",
        "--json",
        cwd=tmp_path,
    )
    await store.append([make_termination(0)])
    changed_result = queenright("audit", "verify", cwd=tmp_path)
    result = queenright("audit", "verify", "--json", cwd=tmp_path)
    await store.close()

    assert (log_result.returncode, log_result.stdout.splitlines()) == (
        0,
        [
            "The event log is intact: 2 rows, none changed; 1 older row pruned.",
            "The audit archive is intact: 1 row, each as it was in the log.",
            "Terminations: 1, each signed by a key of the service.",
        ],
    )
    assert (export.returncode, key.key_id in export.stdout, "3 events" in export.stdout) == (0, True, True)
    assert stat.S_IMODE((tmp_path / "trail.jsonl").stat().st_mode) == 0o600
    assert export_result.returncode == 0
    assert key.key_id in export_result.stdout
    assert json.loads(elsewhere_result.stdout)["own_keys"] is True
    assert changed_result.returncode == 1
    assert "row 4" in changed_result.stdout
    assert "'bee'" in changed_result.stdout
    assert json.loads(result.stdout)["faults"][0]["seq"] == 4


def test_changed_export_fails_and_missing_one_is_reported(tmp_path: Path) -> None:
    (tmp_path / "trail.jsonl").write_text("{}\n", encoding="ascii")

    changed_result = queenright("audit", "verify", "--export", "trail.jsonl", cwd=tmp_path)
    missing_result = queenright("audit", "verify", "--export", "none.jsonl", cwd=tmp_path)
    invalid_date_result = queenright("audit", "export", "--since", "yesterday", cwd=tmp_path)

    assert (changed_result.returncode, "line 1 " in changed_result.stdout) == (1, True)
    assert (missing_result.returncode, invalid_date_result.returncode) == (1, 2)
    assert "cannot read none.jsonl" in missing_result.stderr
    assert "'yesterday'" in invalid_date_result.stderr.replace("\n", " ")


async def test_command_reads_the_database_of_the_settings(
    database_url: str, key: AuditKey, tmp_path: Path
) -> None:
    (tmp_path / "queenright.yaml").write_text(
        json.dumps({"database": database_url, "storage": "keys"}), encoding="utf-8"
    )
    store = Store.open(database_url)
    await store.append([key.sign(make_termination(50)), key.sign(make_termination(1))])
    await store.transact(lambda conn: prune(conn, NOW, SETTINGS))

    result = queenright("audit", "verify", "--json", cwd=tmp_path)
    trail = queenright("audit", "export", cwd=tmp_path)
    await store.close()

    report = json.loads(result.stdout)
    assert (result.returncode, report["rows"], report["archive"]["rows"], report["terminations"]) == (
        0,
        1,
        1,
        2,
    )
    assert trail.returncode == 0
    lines = trail.stdout.encode().splitlines(keepends=True)
    assert check_export(lines, PublicKeys([key.public])).rows == 2
