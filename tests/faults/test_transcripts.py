"""Transcripts after a crash: every message has exactly one line in the end, and the files alone give the same store."""

from __future__ import annotations

import shutil
import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from hermes.store.upkeep.check import rebuild_store

from . import (
    Acks,
    Nursery,
    Remote,
    Step,
    assert_kept,
    assert_transcripts_whole,
    clone,
    contents,
    exports,
    seeded,
    settled,
    size,
    step,
    store,
    transcript_ids,
)

MOMENTS = size(1, 60)  # of each call,
LAST = size(30, 1000)  # spread over its last input/output calls, since lines are written after the commit
ROUNDS = size(1, 6)
WRITERS = 4

ROWS = [{"role": ("user", "assistant")[n % 2], "content": f"word{n}q and more"} for n in range(6)]


def _told(name: str, first: int, count: int) -> list[dict[str, Any]]:
    return [
        {"id": first + n, "session_id": name, "role": "user", "content": f"{name}{n}q", "timestamp": float(first + n)}
        for n in range(count)
    ]


PARENT = {"id": "far", "source": "cli", "started_at": 1.0, "ended_at": 2.0, "end_reason": "compression",
          "messages": _told("far", 901, 5)}  # fmt: skip
CHILDREN = [
    {"id": name, "source": "cli", "started_at": 3.0, "kind": kind, "parent_session_id": "far",
     "refs": [[1, "far", 901, 900 + shared, 0, None, None]],
     "messages": [*_told("far", 901, shared), *_told(name, own, 2)]}
    for name, kind, shared, own in (("near", "compression", 2, 950), ("side", "branch", 4, 960))
]  # fmt: skip

CALLS: dict[str, Step] = {
    "create": step("create_session", "new", "cli", system_prompt="be brief", model="m", user_id="7"),
    "append": step("append", "talk", "more", 0, 3),
    "tool_output": step("append_message", "talk", "tool", "x" * 9000, tool_name="shell", tool_call_id="c1"),
    "title": step("set_session_title", "talk", "another title"),
    "usage": step("update_token_counts", "talk", input_tokens=5, output_tokens=6, estimated_cost_usd=0.5),
    "tags": step("tag_session", "talk", "red", "green"),
    "branch": step("branch_session", "talk", "twig", at_message=3, title="a twig"),
    "compress": step("compress_session", "talk", "next", summary="sum0q", head_until=1, tail_from=5),
    "rewind": step("rewind", "talk", 2),
    "unrewind": step("unrewind", "rewound"),
    "replace": step("replace_messages", "talk", [{"role": "user", "content": "instead0q"}]),
    "trash": step("trash_session", "talk"),
    "delete_parent": step("delete_session", "parent"),
    "import_parent": step("import_session", PARENT),
}


@pytest.fixture(scope="module")
def base(module_folder: Path) -> Path:
    """A few sessions in every state, closed."""
    folder = module_folder / "base"
    with store(folder / "state.db", durability="normal") as db:
        for name in ("talk", "ended", "rewound", "trashed"):
            db.create_session(name, "cli", system_prompt="be kind")
            for row in ROWS:
                db.append_message(name, **row)
            db.set_session_title(name, f"the {name}")
        db.create_session("quiet", "cli")
        db.create_session("parent", "cli")
        kept = [db.append_message("parent", **row) for row in ROWS]
        db.branch_session("parent", "child", at_message=kept[2])
        db.import_session(CHILDREN[0])
        db.end_session("ended", "done")
        db.rewind("rewound", db.get_messages("rewound")[2]["id"])
        db.trash_session("trashed")
        assert db.check() == []
    return folder


def rebuilt(sessions: Path, target: Path) -> dict[str, dict[str, Any]]:
    """The contents of a database that is made from the transcripts alone."""
    for one in target.parent.glob(f"{target.name}*"):
        one.unlink()
    rebuild_store(target, sessions)
    with store(target, transcripts="off") as db:
        return exports(db)


def assert_same(told: dict[str, dict[str, Any]], shown: dict[str, dict[str, Any]]) -> None:
    assert sorted(told) == sorted(shown)
    for session_id, wanted in shown.items():
        got = told[session_id]
        different = {key: (got.get(key), value) for key, value in wanted.items() if got.get(key) != value}
        assert not different, f"{session_id}: (rebuilt, original) {different}"


@pytest.mark.parametrize("name", CALLS)
def test_killed_anywhere_in_a_call_the_next_open_makes_the_transcripts_whole(
    nursery: Nursery, base: Path, folder: Path, name: str
) -> None:
    call, wrong = CALLS[name], []
    path = clone(base, folder / "work")
    total = nursery.run(step("open", str(path)), step("count"), call, step("counted"))[-1]
    assert total > 3, "nothing was counted"
    late = range(max(1, total - LAST), total + 1)
    for at in sorted(seeded(name).sample(late, min(MOMENTS, len(late)))):
        path = clone(base, folder / "work")
        life = nursery.life(step("open", str(path)), step("count"), call, step("counted"), die_at=at)
        assert life["status"] == -9, life
        try:
            with store(path) as db:
                if name.startswith("delete"):
                    settled(db)  # it may have to be finished first
                shown = exports(db)
                assert_transcripts_whole(db)
                assert db.check() == []
                sessions = db.sessions_dir
            assert_same(rebuilt(sessions, folder / "again.db"), shown)
        except Exception as error:  # raised below with all the others
            wrong.append(f"killed at {at} of {total}: {error}".replace("\n", " ")[:200])
    assert not wrong, f"{len(wrong)} deaths leave transcripts that differ\n" + "\n".join(wrong[:7])


def left_by_a_killed_writer(folder: Path, count: int) -> Path:
    """A store whose writer was killed, and whose transcript of "talk" can now be tampered with."""
    path = folder / "store" / "state.db"
    with Remote(path) as remote:
        remote.create_session("talk", "cli")
        remote.append("talk", "w", 0, count)
        remote.kill()
    return path


@pytest.mark.parametrize("cut", [1, 60, 1500])
def test_a_torn_last_line_is_filled_in_by_the_next_open(folder: Path, cut: int) -> None:
    path = left_by_a_killed_writer(folder, 12)
    file = path.parent / "sessions" / "talk.jsonl"
    file.write_bytes(file.read_bytes()[:-cut])
    with store(path) as db:
        assert_transcripts_whole(db)
        db.append_message("talk", "user", "after it")
        assert_transcripts_whole(db)
        assert db.check() == []


@pytest.mark.parametrize("left", ["", "{", '{"type":"message","id":999,"role":"us', "\x00" * 512])
def test_a_torn_line_of_another_process_does_not_swallow_ours(folder: Path, left: str) -> None:
    """Whatever bytes a dying process left at the end, the line that follows is a line of its own."""
    path = left_by_a_killed_writer(folder, 3)
    file = path.parent / "sessions" / "talk.jsonl"
    with file.open("ab") as end:
        end.write(left.encode())
    with store(path) as db:
        for n in range(3):
            db.append_message("talk", "user", f"later {n}")
        assert_transcripts_whole(db)
        assert db.check() == []


def test_opening_while_others_write_the_same_session_doubles_no_line(folder: Path) -> None:
    """Writers on one session are killed and replaced again and again; each newcomer mends while the rest write."""
    dice, path = seeded("mending"), folder / "store" / "state.db"
    with Acks() as acks:

        def writer(number: int) -> Remote:
            one = Remote(pass_fds=[acks.write_end])
            one.begin("open", str(path), durability="normal")
            one.begin("ensure_session", f"own{number}", "cli")
            one.begin("ensure_session", "shared", "cli")
            one.begin("write_on", f"own{number}", "shared", f"w{number}", acks.write_end)
            return one

        writers = [writer(number) for number in range(WRITERS)]
        try:
            for number in range(WRITERS, WRITERS + size(5, 30)):
                acks.wait_for(len(acks.all) + dice.randint(20, 60))
                writers.pop(dice.randrange(len(writers))).kill()
                writers.append(writer(number))
            acks.wait_for(len(acks.all) + 60)
        finally:
            for one in writers:
                one.kill()
        acks.drain()
    with store(path) as db:
        assert_kept(db, acks.all)
        assert_transcripts_whole(db)
        assert db.check() == []


def test_rows_of_another_program_get_their_lines(folder: Path) -> None:
    path = folder / "state.db"
    with store(path) as db:
        db.create_session("talk", "cli")
        db.append_message("talk", "user", "ours")
    with closing(sqlite3.connect(path)) as sql, sql:
        sql.executemany(
            "INSERT INTO messages(session_id, role, content, timestamp) VALUES ('talk', 'user', ?, 5e9)",
            [(f"theirs {n}",) for n in range(3)],
        )
    with store(path) as db:
        db.catch_up()
    with store(path) as db:
        assert contents(db.get_messages("talk")) == ["ours", "theirs 0", "theirs 1", "theirs 2"]
        assert_transcripts_whole(db)
        assert db.check() == []


def test_a_transcript_that_cannot_be_read_is_moved_aside_and_written_again(tmp_path: Path) -> None:
    path = tmp_path / "sessions" / "a.jsonl"
    with store(tmp_path / "state.db") as db:
        db.create_session("a", "cli")
        db.append_message("a", "user", "one")
    path.unlink()
    path.mkdir()
    with store(tmp_path / "state.db") as db:
        (found,) = db.check()
        assert "unreadable" in found["detail"]
        db.repair()
        assert b'"one"' in path.read_bytes() and db.check() == []


def mark_of_the_dead(path: Path, round_: int) -> None:
    """A process writes one more message and is killed: the store knows that "talk" has to be looked at."""
    with Remote(path) as remote:
        remote.append("talk", f"v{round_}", 0)
        remote.kill()


def test_several_processes_that_open_at_once_mend_it_once(folder: Path) -> None:
    """The lines that a killed writer left out are filled in by one of the next processes, not by each of them."""
    path = left_by_a_killed_writer(folder, 300)
    file = path.parent / "sessions" / "talk.jsonl"
    whole = file.read_bytes()
    for round_ in range(ROUNDS):
        mark_of_the_dead(path, round_)
        file.write_bytes(whole[: len(whole) // 20])
        openers = [Remote() for _ in range(WRITERS)]
        try:
            for opener in openers:
                opener.warnings()  # it is up and waits
            for opener in openers:
                opener.begin("open", str(path))
            for opener in openers:
                opener.answer()
            for opener in openers:
                opener.close()
        finally:
            for opener in openers:
                opener.kill()
        with store(path) as db:
            assert_transcripts_whole(db)
            assert db.check() == []


def test_the_transcripts_of_killed_writers_alone_give_the_same_store(nursery: Nursery, folder: Path) -> None:
    """Kill four writers, open once, throw the database away: everything is in the files."""
    path, dice = folder / "store" / "state.db", seeded("rebuild")
    with Acks() as acks:
        writers = [Remote(pass_fds=[acks.write_end]) for _ in range(WRITERS)]
        for number, writer in enumerate(writers):
            writer.begin("open", str(path), durability="normal")
            writer.begin("ensure_session", f"own{number}", "cli")
            writer.begin("ensure_session", "shared", "cli")
            writer.begin("write_on", f"own{number}", "shared", f"w{number}", acks.write_end)
        acks.wait_for(dice.randint(100, 250))
        for writer in writers:
            writer.signal(9)
        for writer in writers:
            writer.kill()
        acks.drain()
    with store(path) as db:
        shown = exports(db)
        assert sum(len(one["messages"]) for one in shown.values()) >= len(acks.all)
    alone = folder / "alone"
    shutil.copytree(path.parent / "sessions", alone)
    assert_same(rebuilt(alone, folder / "again.db"), shown)
    with store(folder / "again.db", transcripts="off") as again:
        assert_kept(again, acks.all)
        assert again.check() == []
    assert sum(transcript_ids(alone, "shared").values()) == len(shown["shared"]["messages"])
