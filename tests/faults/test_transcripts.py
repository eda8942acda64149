"""Transcripts after a crash: every message has exactly one line in the end, and the files alone give the same store."""

from __future__ import annotations

import shutil
import signal
import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from hermes.store.transcripts.writer import TranscriptWriter
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
    lock_is_free,
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
SOON = 20.0  # seconds that nobody needs who does not wait for a sleeper

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
    "first_append": step("append", "quiet", "first", 0),
    "append": step("append", "talk", "more", 0, 3),
    "tool_output": step("append_message", "talk", "tool", "x" * 9000, tool_name="shell", tool_call_id="c1"),
    "title": step("set_session_title", "talk", "another title"),
    "end": step("end_session", "talk", "done"),
    "reopen": step("reopen_session", "ended"),
    "reply": step("append_message", "talk", "assistant", "hello0q", input_tokens=5, usage={"input_tokens": 5}),
    "usage": step("update_token_counts", "talk", input_tokens=5, output_tokens=6, estimated_cost_usd=0.5),
    "prompt": step("update_system_prompt", "talk", "be wise"),
    "tags": step("tag_session", "talk", "red", "green"),
    "pin": step("pin_session", "talk"),
    "archive": step("archive_session", "talk"),
    "share": step("share_session", "talk", "telegram", "8"),
    "branch": step("branch_session", "talk", "twig", at_message=3, title="a twig"),
    "compress": step("compress_session", "talk", "next", summary="sum0q", head_until=1, tail_from=5),
    "rewind": step("rewind", "talk", 2),
    "unrewind": step("unrewind", "rewound"),
    "replace": step("replace_messages", "talk", [{"role": "user", "content": "instead0q"}]),
    "clear": step("clear_messages", "talk"),
    "trash": step("trash_session", "talk"),
    "restore": step("restore_session", "trashed"),
    "handoff": step("request_handoff", "talk", "telegram"),
    "delete": step("delete_session", "talk"),
    "delete_parent": step("delete_session", "parent"),
    "import_parent": step("import_session", PARENT),
    "import_sibling": step("import_session", CHILDREN[1]),
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


@pytest.mark.parametrize("cut", [1, 2, 7, 60, 333, 1500])
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


def test_a_line_lost_by_the_machine_itself_is_found_by_check_and_mended_by_repair(folder: Path) -> None:
    """After a power cut the database has more than the transcript, and nobody was there to leave a mark."""
    path = folder / "state.db"
    with store(path) as db:
        db.create_session("talk", "cli")
        for n in range(5):
            db.append_message("talk", "user", f"word{n}q")
    file = path.parent / "sessions" / "talk.jsonl"
    file.write_bytes(file.read_bytes()[:-150])
    with store(path) as db:
        problems = db.check()
        if problems:  # it may just as well have been filled in
            assert {one["kind"] for one in problems} == {"transcript"}
            db.repair()
        assert_transcripts_whole(db)
        assert contents(db.get_messages("talk")) == [f"word{n}q" for n in range(5)]
        assert db.check() == []


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


def mark_of_the_dead(path: Path, round_: int) -> None:
    """A process writes one more message and is killed: the store knows that "talk" has to be looked at."""
    with Remote(path) as remote:
        remote.append("talk", f"v{round_}", 0)
        remote.kill()


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


def test_a_newcomer_leaves_the_line_to_the_living_writer_who_is_about_to_write_it(folder: Path) -> None:
    """One process has committed and is stopped before its line; another opens and mends what a third, killed, left."""
    wrong, tried = [], 0
    with Remote(folder / "dry" / "state.db") as remote:
        remote.create_session("talk", "cli")
        remote.append("talk", "dry", 0)
        remote.count()
        remote.append("talk", "dry", 1)
        total = remote.counted()
    for at in range(max(1, total - 12), total, size(2, 1)):
        path = folder / f"s{at}" / "state.db"
        with Remote(path) as slow:
            slow.create_session("talk", "cli")
            slow.append("talk", "slow", 0)
            with Remote(path) as victim:
                victim.append("talk", "victim", 0)
                victim.kill()
            slow.count(at, signal.SIGSTOP)
            slow.begin("append", "talk", "slow", 1)
            slow.stopped()
            free = lock_is_free(path)
            if free:
                tried += 1
                with Remote() as newcomer:  # whatever the stopped one has in its hands, this one gets through
                    newcomer.begin("open", str(path))
                    newcomer.answer(SOON)
                    newcomer.begin("append", "talk", "newcomer", 0)
                    newcomer.answer(SOON)
                    newcomer.begin("close")
                    newcomer.answer(SOON)
            slow.signal(signal.SIGCONT)
            slow.answer()
            slow.close()
        with store(path) as db:
            try:
                assert_transcripts_whole(db)
                assert len(db.get_messages("talk")) == 3 + free
                assert db.check() == []
            except AssertionError as error:
                wrong.append(f"stopped at {at} of {total}: {error}".replace("\n", " ")[:160])
    assert tried, "the lock was never free: this test would prove nothing"
    assert not wrong, "\n".join(wrong)


def test_a_store_that_is_opened_while_another_process_creates_a_session_has_lost_nothing(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The newcomer completes the transcript of the session before its creator writes the first line."""
    path, opened = folder / "state.db", TranscriptWriter.opened

    def late(writer: TranscriptWriter, *session: Any, **more: Any) -> None:
        store(path).close()
        opened(writer, *session, **more)

    with store(path) as db:
        db.create_session("before", "cli")
        monkeypatch.setattr(TranscriptWriter, "opened", late)
        db.create_session("talk", "cli")
        db.append_message("talk", "user", "hello")
        assert_transcripts_whole(db)
        assert db.check() == []
    store(path).close()  # without a warning


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


def test_rows_that_another_program_has_just_written_are_no_finding(folder: Path) -> None:
    path = folder / "state.db"
    with store(path) as db:
        db.create_session("talk", "cli")
        db.append_message("talk", "user", "ours")
    with (
        closing(sqlite3.connect(path)) as sql,
        sql,
    ):  # as a program of schema 11 does: it counts, and knows no other column
        sql.execute("INSERT INTO messages(session_id, role, content, timestamp) VALUES ('talk', 'user', 'theirs', 5e9)")
        sql.execute("UPDATE sessions SET message_count = message_count + 1 WHERE id = 'talk'")
    with store(path) as db:
        assert db.check() == []
        assert_transcripts_whole(db)
        assert db.get_session("talk")["last_active"] == 5e9


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
