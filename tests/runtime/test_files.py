import asyncio
import errno
import json
import os
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import islice
from pathlib import Path
from unittest.mock import Mock

import pytest
from hypothesis import given
from hypothesis import strategies as st

from queenright.runtime.storage.files import (
    Disk,
    ExecutionLock,
    FileLockedError,
    UnusableFileError,
    append_line,
    lock_file,
    read_json,
    read_lines_before,
    read_newest_lines,
    write_files,
    write_json,
)
from tests.runtime.damage import damage

WRITERS = Path(__file__).with_name("killed_writers.py")


@contextmanager
def start_writer(*arguments: str | Path) -> Iterator[subprocess.Popen[str]]:
    process = subprocess.Popen(
        [sys.executable, str(WRITERS), *map(str, arguments)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        yield process
    finally:
        process.kill()
        process.communicate()


def read_line(process: subprocess.Popen[str]) -> str:
    assert process.stdout is not None
    return process.stdout.readline().strip()


json_values = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False, allow_infinity=False)
    # This includes lone surrogates, which models write.
    | st.text(st.characters(codec=None), max_size=20),
    lambda values: st.lists(values, max_size=4) | st.dictionaries(st.text(max_size=5), values, max_size=4),
    max_leaves=20,
)


@given(json_values)
def test_json_file_round_trips(value: object) -> None:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "not" / "there" / "yet.json"

        write_json(path, value)

        assert read_json(path) == value
        assert os.listdir(path.parent) == ["yet.json"]


def test_empty_store_finds_nothing(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        read_json(tmp_path / "x.json")


@pytest.mark.parametrize("kind", ["torn", "empty", "not utf-8", "utf-16", "deep", "folder"])
def test_invalid_json_file_is_named_with_the_reason(tmp_path: Path, kind: str) -> None:
    path = tmp_path / "x.json"
    write_json(path, {"a": 1})
    damage(path, kind)

    with pytest.raises(UnusableFileError) as error:
        read_json(path)

    assert str(path) in str(error.value)
    assert error.value.reason


def test_file_in_place_of_a_folder_above_is_unusable_and_not_missing(tmp_path: Path) -> None:
    (tmp_path / "folder").write_bytes(b"")

    with pytest.raises(UnusableFileError, match="directory"):
        read_json(tmp_path / "folder" / "x.json")


def test_full_disk_changes_no_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first, second = tmp_path / "1", tmp_path / "2"
    write_files({first: b"old", second: b"old"})
    synced_files: list[int] = []

    def fail_second_sync(file: int) -> None:
        synced_files.append(file)
        if len(synced_files) == 2:
            raise OSError(errno.ENOSPC, "full")

    with monkeypatch.context() as patched:
        patched.setattr(os, "fsync", fail_second_sync)
        with pytest.raises(OSError, match="full"):
            write_files({first: b"new", second: b"new"})

    assert (first.read_bytes(), second.read_bytes()) == (b"old", b"old")
    assert sorted(os.listdir(tmp_path)) == ["1", "2"]


def test_file_is_complete_after_a_kill_at_any_line(tmp_path: Path) -> None:
    copies = tmp_path / "copies"
    with start_writer("kill_at_every_line", tmp_path / "folder", copies) as process:
        assert process.wait() == 0

    contents = []
    for number in range(len(os.listdir(copies))):
        first, second = copies / str(number) / "first", copies / str(number) / "made" / "second"
        contents.append((first.read_bytes(), second.read_bytes() if second.exists() else None))
    assert len(contents) > 30
    # The files change only in the order in which they were passed.
    stages = [(b"old", None), (b"new", None), (b"new", b"new")]
    assert list(dict.fromkeys(contents)) == stages
    assert contents == sorted(contents, key=stages.index)


@given(
    st.lists(
        st.one_of(
            st.dictionaries(st.text(max_size=5), st.text(max_size=200), max_size=3),
            st.sampled_from([b'{"torn": "li', b"\xff\xfe\n", b"[1]\n", b"\n\n", b"null\n", b"[" * 100_000]),
        ),
        max_size=30,
    )
)
def test_valid_lines_are_read_between_corrupt_ones(rows: list[dict[str, str] | bytes]) -> None:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "logs" / "x.jsonl"
        path.parent.mkdir()
        for row in rows:
            if isinstance(row, bytes):
                with path.open("ab") as file:
                    # A kill or another program can leave such a line.
                    file.write(row if path.stat().st_size == 0 else b"\n" + row)
            else:
                append_line(path, row)

        assert list(read_newest_lines(path))[::-1] == [row for row in rows if isinstance(row, dict)]


def test_line_longer_than_the_read_size_is_complete(tmp_path: Path) -> None:
    path = tmp_path / "x.jsonl"
    rows = [{"n": n, "text": "x" * 50_000 * n} for n in range(5)]
    for row in rows:
        append_line(path, row)

    assert list(read_newest_lines(path)) == rows[::-1]


def test_missing_file_has_no_lines_and_a_folder_is_unusable(tmp_path: Path) -> None:
    assert list(read_newest_lines(tmp_path / "none.jsonl")) == []
    with pytest.raises(UnusableFileError):
        list(read_newest_lines(tmp_path))


def test_unserializable_row_leaves_the_file_unchanged(tmp_path: Path) -> None:
    path = tmp_path / "x.jsonl"
    append_line(path, {"a": 1})

    with pytest.raises(TypeError):
        append_line(path, {"a": object()})

    assert path.read_bytes() == b'{"a":1}\n'


def test_lock_has_one_holder_even_among_threads_of_a_process(tmp_path: Path) -> None:
    path = tmp_path / "lock"
    count = 0

    def add() -> None:
        nonlocal count
        for _ in range(100):
            with lock_file(path, wait=True):
                count_before = count
                os.sched_yield()
                count = count_before + 1

    threads = [threading.Thread(target=add) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    assert count == 400
    with lock_file(path, wait=False), pytest.raises(FileLockedError), lock_file(path, wait=False):
        pass


def test_lock_of_a_replaced_file_is_acquired_on_the_new_file(tmp_path: Path) -> None:
    path = tmp_path / "lock"
    with lock_file(path, wait=True):
        path.unlink()
        with lock_file(path, wait=False):
            pass


def test_lock_in_a_missing_folder_is_refused(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError), lock_file(tmp_path / "none" / "lock", wait=True):
        pass


def test_rejected_claim_names_the_holder(tmp_path: Path) -> None:
    claim = ExecutionLock.take(tmp_path / "lock")

    with pytest.raises(FileLockedError, match=str(os.getpid())) as error:
        ExecutionLock.take(tmp_path / "lock")

    assert error.value.pid == os.getpid()
    claim.release()
    claim.release()
    ExecutionLock.take(tmp_path / "lock").release()


def test_claim_without_pid_has_unknown_holder(tmp_path: Path) -> None:
    claim = ExecutionLock.take(tmp_path / "lock")
    (tmp_path / "lock").write_bytes(b"\xff")

    with pytest.raises(FileLockedError, match="another process") as error:
        ExecutionLock.take(tmp_path / "lock")

    assert error.value.pid is None
    claim.release()


def test_claim_is_free_as_soon_as_its_process_is_killed(tmp_path: Path) -> None:
    with start_writer("hold", tmp_path / "lock") as process:
        assert read_line(process) == "held"
        with pytest.raises(FileLockedError) as error:
            ExecutionLock.take(tmp_path / "lock")
        assert error.value.pid == process.pid

        process.send_signal(signal.SIGKILL)
        process.wait()

        ExecutionLock.take(tmp_path / "lock").release()


def test_child_of_the_killed_process_does_not_hold_its_claim(tmp_path: Path) -> None:
    with start_writer("hold_with_child", tmp_path / "lock") as process:
        child = int(read_line(process))

        process.send_signal(signal.SIGKILL)
        process.wait()

        os.kill(child, 0)
        ExecutionLock.take(tmp_path / "lock").release()


async def test_disk_work_does_not_block_the_loop() -> None:
    disk, may_run = Disk(), threading.Event()

    def work() -> str:
        assert may_run.wait(60)
        return "done"

    disk_task = asyncio.ensure_future(disk.run(work))
    await asyncio.sleep(0)
    assert disk.pending == 1
    may_run.set()

    assert await disk_task == "done"
    assert disk.pending == 0


async def test_exception_of_disk_work_is_raised() -> None:
    disk = Disk()

    with pytest.raises(ZeroDivisionError):
        await disk.run(lambda: 1 // 0)

    assert disk.pending == 0


async def test_disk_work_that_cannot_start_is_not_pending(monkeypatch: pytest.MonkeyPatch) -> None:
    disk = Disk()
    no_thread = Mock(side_effect=RuntimeError("can't start new thread"))
    monkeypatch.setattr(threading.Thread, "start", no_thread)

    with pytest.raises(RuntimeError, match="new thread"):
        await disk.run(lambda: None)

    assert disk.pending == 0


async def test_disk_work_that_cannot_start_is_not_done_later(monkeypatch: pytest.MonkeyPatch) -> None:
    disk, may_run, refused_work = Disk(), threading.Event(), Mock()
    disk_task = asyncio.ensure_future(disk.run(lambda: may_run.wait(60)))
    await asyncio.sleep(0)
    no_thread = Mock(side_effect=RuntimeError("can't start new thread"))
    monkeypatch.setattr(threading.Thread, "start", no_thread)

    with pytest.raises(RuntimeError, match="new thread"):
        await disk.run(refused_work)
    may_run.set()

    assert await disk_task
    assert await disk.run(lambda: "next") == "next"
    refused_work.assert_not_called()


async def test_cancelled_disk_work_is_waited_for(caplog: pytest.LogCaptureFixture) -> None:
    disk, may_run, has_ended = Disk(), threading.Event(), threading.Event()

    def work() -> None:
        assert may_run.wait(60)
        has_ended.set()
        raise OSError("full")

    disk_task = asyncio.ensure_future(disk.run(work))
    for _ in range(3):
        await asyncio.sleep(0)
        disk_task.cancel()
    await asyncio.sleep(0)
    assert not disk_task.done()
    may_run.set()
    with pytest.raises(asyncio.CancelledError):
        await disk_task

    assert has_ended.is_set()
    assert disk.pending == 0
    assert "full" in caplog.text


def test_json_line_contains_no_line_break(tmp_path: Path) -> None:
    append_line(tmp_path / "x", {"a": "1\n2\u2028\r", "ö": "\ud800"})

    data = (tmp_path / "x").read_bytes()
    assert data.count(b"\n") == 1
    assert json.loads(data) == {"a": "1\n2\u2028\r", "ö": "\ud800"}


def test_lines_before_an_offset_are_stable(tmp_path: Path) -> None:
    path = tmp_path / "rows.jsonl"
    for number in range(2000):
        append_line(path, {"n": number, "filling": "x" * 80})

    newest = list(islice(read_lines_before(path), 3))
    append_line(path, {"n": 2000})
    older = list(read_lines_before(path, newest[-1][0]))

    assert [row["n"] for _, row in newest] == [1999, 1998, 1997]
    assert [row["n"] for _, row in older] == [*range(1996, -1, -1)]
    assert older[-1][0] == 0
    assert list(read_lines_before(path, 0)) == []
