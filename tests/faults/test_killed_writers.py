"""kill -9 at random moments of eight writers: what was acknowledged stays, once, in order, found at once."""

from __future__ import annotations

import random
from collections.abc import Sequence
from pathlib import Path

import pytest

from . import (
    Acks,
    Remote,
    assert_found,
    assert_in_order,
    assert_kept,
    assert_transcripts_whole,
    seeded,
    size,
    store,
    word,
)

WRITERS = 8
ROUNDS = size(1, 5)
LEAST, MOST = size(60, 100), size(160, 1000)  # acknowledgements before the first kill


def start_writers(path: Path, acks: Acks, round_: int, **kw: object) -> list[Remote]:
    writers = [Remote(pass_fds=[acks.write_end]) for _ in range(WRITERS)]
    for number, writer in enumerate(writers):
        writer.begin("open", str(path), **kw)
        writer.begin("ensure_session", f"own{number}", "cli")
        writer.begin("ensure_session", "shared", "cli")
        writer.begin("write_on", f"own{number}", "shared", f"w{number}r{round_}", acks.write_end)
    return writers


def kill_all(writers: Sequence[Remote], acks: Acks, dice: random.Random, *, at_once: bool) -> None:
    """All in one moment, or one after the other while the rest goes on writing."""
    acks.wait_for(dice.randint(LEAST, MOST))
    for writer in dice.sample(writers, len(writers)):
        if not at_once:
            acks.wait_for(len(acks.all) + dice.randint(0, 12))
        writer.signal(9)
    for writer in writers:
        writer.kill()
    acks.drain()


@pytest.mark.parametrize(("at_once", "durability"), [(True, "full"), (False, "normal")])
def test_nothing_that_eight_killed_writers_acknowledged_is_lost_doubled_or_out_of_order(
    tmp_path: Path, folder: Path, at_once: bool, durability: str
) -> None:
    dice, path = seeded(f"writers {at_once}"), (tmp_path if durability == "full" else folder) / "store" / "state.db"
    everything: list[tuple[int, str, str, int]] = []
    for round_ in range(ROUNDS):
        with Acks() as acks:
            writers = start_writers(path, acks, round_, durability=durability)
            kill_all(writers, acks, dice, at_once=at_once)
            everything += acks.all
            heard = {word(tag, number) for _, _, tag, number in acks.all}
        with store(path) as db:
            assert_kept(db, everything)
            assert_found(db, acks.all)
            shown = [row for n in range(WRITERS) for row in db.get_messages(f"own{n}")] + db.get_messages("shared")
            stored = [row["content"].split(" ")[0] for row in shown]
            surplus = [one for one in stored if f"r{round_}n" in one and one not in heard]
            assert len(surplus) <= WRITERS, "at most the one message each writer was just about to acknowledge"
            db.catch_up()
            assert db.index_status()["pending"] == 0
            assert_found(db, acks.all)
            assert_transcripts_whole(db)
            assert db.check() == []
    with store(path, read_only=True) as db:
        assert_kept(db, everything)
        assert_found(db, everything[:: max(1, len(everything) // 200)])
        assert_in_order(db.get_messages("shared"), "shared")


def test_eight_processes_that_make_a_new_store_at_once_all_open_it(folder: Path) -> None:
    for round_ in range(size(1, 12)):
        path = folder / f"new{round_}" / "state.db"
        writers = [Remote() for _ in range(WRITERS)]
        try:
            for writer in writers:
                writer.load_all()
            for number, writer in enumerate(writers):
                writer.begin("open", str(path), durability="normal")
                writer.begin("ensure_session", f"own{number}", "cli")
                writer.begin("append_message", f"own{number}", "user", "here")
            for writer in writers:
                assert [writer.receive() for _ in range(3)][2].get("ok"), "not stored"
        finally:
            for writer in writers:
                writer.kill()
        with store(path, read_only=True) as db:
            assert db.message_count() == WRITERS
