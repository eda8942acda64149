"""A store that is read while another process is just creating it: the reader waits, and never takes it for damaged."""

from __future__ import annotations

from pathlib import Path

import pytest

from hermes.errors import StoreError
from tests.support.waiting import until

from . import Remote, size, store

TRIES = size(12, 100)


def test_a_reader_waits_for_the_process_that_creates_the_store(tmp_path: Path) -> None:
    """Each try: a process creates a store; the moment its file is there, others read it."""
    seen = set()
    with Remote() as maker:
        for number in range(TRIES):
            path = tmp_path / str(number) / "state.db"
            path.parent.mkdir()
            maker.send(("open", (str(path),), {}))
            until(path.exists, maker.answer)
            for _ in range(3):
                with store(path, read_only=True) as db:
                    seen.add(len(db.list_sessions_rich()))
            assert maker.answer() is False  # opened, and not only for reading
            maker.close()
    assert seen == {0}


def test_an_empty_file_has_nothing_to_read_and_can_still_be_created(tmp_path: Path) -> None:
    path = tmp_path / "state.db"
    path.touch()
    for _ in range(2):
        with pytest.raises(StoreError, match="is empty: there is nothing to read"):
            store(path, read_only=True)
        assert [one.name for one in tmp_path.iterdir()] == ["state.db"]
    with store(path) as db:  # the readers that failed hold no lock on it
        db.create_session("s", "cli")
    with store(path, read_only=True) as db:
        assert len(db.list_sessions_rich()) == 1
