"""A full disk on the server, and clients that are killed: what was acknowledged is there once, and errors say what to do."""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from hermes.errors import StoreError, StoreFull
from hermes_state import SessionDB
from tests.faults import (
    Acks,
    Remote,
    assert_found,
    assert_in_order,
    assert_kept,
    can_mount,
    need,
    seeded,
    size,
    transcript_ids,
    word,
)
from tests.support.postgres import NOBODY, Cluster
from tests.support.sizes import some
from tests.support.waiting import until

from .clusters import VERSIONS, cluster, folder, words_of

WRITERS = 6


@pytest.fixture(scope="module", params=VERSIONS)
def server(request: pytest.FixtureRequest) -> Iterator[Cluster]:
    with cluster(request.param) as one:
        yield one


def until_alone(server: Cluster, database: str) -> None:
    """The server has done all that clients who are dead by now had asked of it."""
    others = f"SELECT count(*) FROM pg_stat_activity WHERE datname = '{database}'"
    until(lambda: not server.sql(others)[0][0], "somebody stays connected")


# ------------------------------------------------------------------ killed clients


@pytest.mark.parametrize("how", some(["at once", "one by one"], 1))
def test_nothing_that_killed_writers_acknowledged_is_lost_doubled_or_out_of_order(
    server: Cluster, tmp_path: Path, how: str
) -> None:
    name = "killed_" + how.replace(" ", "_")
    server.sql(f"CREATE DATABASE {name}")
    url, dice = server.url(name), seeded(f"killed {how}")
    everything: list[tuple[int, str, str, int]] = []
    for round_ in range(size(1, 5)):
        with Acks() as acks:
            writers = [Remote(pass_fds=[acks.write_end]) for _ in range(WRITERS)]
            for number, writer in enumerate(writers):
                writer.begin("open", str(tmp_path / f"host{number}" / "state.db"), url=url)
                writer.begin("ensure_session", f"own{number}", "cli")
                writer.begin("ensure_session", "shared", "cli")
                writer.begin("write_on", f"own{number}", "shared", f"w{number}r{round_}", acks.write_end)
            acks.wait_for(dice.randint(40, size(120, 600)))
            for writer in dice.sample(writers, WRITERS):
                if how != "at once":
                    acks.wait_for(len(acks.all) + dice.randint(0, 12))
                writer.signal(signal.SIGKILL)
            for writer in writers:
                writer.kill()
            acks.drain()
            everything += acks.all
            heard = {word(tag, number) for _, _, tag, number in acks.all}
        until_alone(server, name)
        with SessionDB(db_path=tmp_path / "host0" / "state.db", url=url) as db:
            assert_kept(db, everything)
            assert_found(db, acks.all[:: max(1, len(acks.all) // 40)])
            shown = [row for n in range(WRITERS) for row in db.get_messages(f"own{n}")] + db.get_messages("shared")
            stored = [row["content"].split(" ")[0] for row in shown]
            surplus = [one for one in stored if f"r{round_}n" in one and one not in heard]
            assert len(surplus) <= WRITERS, "at most the one message each writer was just about to acknowledge"
            assert_in_order(db.get_messages("shared"), "shared")
            db.catch_up()  # what has waited for a minute, as on a busy machine, would be a finding
            assert db.check() == []
    for number in range(WRITERS):  # each host mends the transcripts it was writing
        with SessionDB(db_path=tmp_path / f"host{number}" / "state.db", url=url) as db:
            lines = transcript_ids(db.sessions_dir, f"own{number}")
            assert lines == {row["id"]: 1 for row in db.get_messages(f"own{number}")}


# ------------------------------------------------------------------ a full disk


@contextmanager
def small_disk(megabytes: int) -> Iterator[Path]:
    """A file system of its own that is soon full."""
    need(os.getuid() == 0 and can_mount(), "needs the right to mount a file system")
    with folder() as place:
        disk = place / "disk"
        disk.mkdir()
        subprocess.run(
            ["mount", "-t", "tmpfs", "-o", f"size={megabytes}m,uid={NOBODY},gid={NOBODY},mode=755", "small", str(disk)],
            check=True,
        )
        try:
            yield disk
        finally:
            subprocess.run(["umount", "-l", str(disk)], check=True)


def fill(db: Any, session_id: str, kept: list[str], most: int = 2000) -> StoreError:
    """Write until there is no room; how that is told."""
    dice = seeded("fill")
    for _ in range(most):
        words = f"n{len(kept)} " + " ".join(f"{dice.getrandbits(64):x}" for _ in range(1500))
        try:
            db.append_message(session_id, "user", words)
        except StoreError as error:
            return error
        kept.append(words)
    pytest.fail("the disk was never full")


@pytest.mark.thorough
def test_a_full_disk_is_told_and_once_there_is_room_everything_goes_on(server: Cluster, tmp_path: Path) -> None:
    """The tables have no room; the server itself lives on."""
    with small_disk(132) as disk:
        place = disk / "tables"
        place.mkdir()
        os.chown(place, NOBODY, NOBODY)
        server.sql(f"CREATE TABLESPACE small LOCATION '{place}'", "CREATE DATABASE filled TABLESPACE small")
        server.sql("CHECKPOINT")  # what is on the disk by then need not find room later, when others are to be read
        ballast = disk / "ballast"
        ballast.write_bytes(
            b"x" * (108 << 20)
        )  # what was stored last is still to be indexed, which takes more than storing it
        kept: list[str] = []
        with SessionDB(db_path=tmp_path / "state.db", url=server.url("filled"), transcripts="off") as db:
            db.create_session("s", "cli")
            error = fill(db, "s", kept)
            assert isinstance(error, StoreFull), error
            assert "has no space left; free some on the server" in str(error)
            assert words_of(db, "s") == kept, "reading goes on, and nothing is half there"
            ballast.unlink()
            db.append_message("s", "user", "room again")
            assert words_of(db, "s") == [*kept, "room again"]
            assert db.get_session("s")["message_count"] == len(kept) + 1
            assert db.check() == []
        server.sql("DROP DATABASE filled WITH (FORCE)", "DROP TABLESPACE small")
