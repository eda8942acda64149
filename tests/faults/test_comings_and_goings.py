"""Readers that open, search and close all the time while others write: nobody fails, nobody sees half a message."""

from __future__ import annotations

import os
from pathlib import Path

from . import Acks, Remote, assert_found, assert_kept, assert_transcripts_whole, size, store

WRITERS, READERS = 4, 2
EACH = size(60, 500)


def test_readers_that_come_and_go_disturb_no_writer_and_see_whole_messages_only(folder: Path) -> None:
    path = folder / "state.db"
    with store(path) as db:
        for number in range(WRITERS):
            db.create_session(f"own{number}", "cli")
        db.create_session("shared", "cli")
    stop_read, stop_write = os.pipe()
    ready_read, ready_write = os.pipe()
    with Acks() as acks:
        readers = [Remote(pass_fds=[stop_read, ready_write]) for _ in range(READERS)]
        writers = [Remote(path, pass_fds=[acks.write_end]) for _ in range(WRITERS)]
        try:
            for reader in readers:
                reader.begin("reader", str(path), "some", ready_write, stop_read)
            for _ in readers:
                os.read(ready_read, len(b"reading\n"))
            for number, writer in enumerate(writers):
                writer.begin("write_on", f"own{number}", "shared", f"w{number}", acks.write_end, EACH)
            acks.wait_for(WRITERS * EACH)
            for writer in writers:
                writer.answer()
                writer.close()
            os.close(stop_write)
            looks = [reader.answer() for reader in readers]
        finally:
            for one in (*writers, *readers):
                one.kill()
            for pipe in (stop_read, ready_read, ready_write):
                os.close(pipe)
    for seen in looks:
        assert seen == sorted(seen), "a message that was found once is found again"
    with store(path) as db:
        assert db.message_count() == WRITERS * EACH
        assert_kept(db, acks.all)
        assert_found(db, acks.all)
        assert_transcripts_whole(db)
        assert db.check() == []
