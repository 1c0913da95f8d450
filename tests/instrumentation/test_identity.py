"""Ids are unique across processes."""

from __future__ import annotations

import os

from queenright.instrumentation.identity import new_id


def test_forked_process_generates_its_own_ids() -> None:
    """Random parts of ids are generated in advance; a child must not use those of its parent."""
    new_id()
    read_end, write_end = os.pipe()
    child = os.fork()
    if child == 0:
        os.write(write_end, "\n".join(new_id() for _ in range(50)).encode())
        os._exit(0)
    os.close(write_end)
    os.waitpid(child, 0)
    with os.fdopen(read_end) as pipe:
        child_ids = pipe.read().split()

    assert len(child_ids) == 50
    assert {own_id[-12:] for own_id in child_ids}.isdisjoint(new_id()[-12:] for _ in range(300))
