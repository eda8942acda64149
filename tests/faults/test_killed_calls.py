"""kill -9 in the middle of every call that takes more than one step: all or nothing, or finished later.

Each call is killed right before or after one of its input/output calls (sampled when there are many, all of them when
there are few), and some at a random instant, in the middle of a system call or a statement.
"""

from __future__ import annotations

import random
import sqlite3
import time
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from . import Nursery, Remote, Step, clone, contents, exports, seeded, settled, size, step, store

LONG, SHORT = 2000, 120  # messages of the session "long"; the short one where its length is not the point
KILLS = size(2, 50)  # moments spread over the whole call,
LAST = size(2, 40)  # and one after the other at its end: after the commit there is more to do
INSTANTS = size(1, 8)
DAY = 86_400.0


def talk(number: int, text: str, **more: Any) -> dict[str, Any]:
    return {"role": ("user", "assistant")[number % 2], "content": text, **more}


OLD = [talk(n, f"oldword{n}q the old text") for n in range(40)]
NEW = [talk(n, f"newword{n}q the new text") for n in range(30)]


def build(folder: Path, long: int) -> Path:
    """A store with something of everything, closed; copied for each kill."""
    then = time.time() - 400 * DAY
    with store(folder / "state.db", durability="normal") as db:
        db.create_session("long", "cli", started_at=then)
        db.replace_messages("long", [talk(n, f"longword{n}q words", timestamp=then + n) for n in range(long)])
        db.end_session("long", "done")
        for name in ("past1", "past2", "past3"):
            db.create_session(name, "cli", started_at=then)
            for n in range(60):
                db.append_message(name, "user", f"{name}word{n}q", timestamp=then + n)
            db.end_session(name, "done")
        db.create_session("talk", "cli", system_prompt="be kind")
        db.replace_messages("talk", OLD)
        db.set_session_title("talk", "the talk")
        db.create_session("bystander", "telegram", user_id="7")
        for n in range(20):
            db.append_message("bystander", "user", f"bystander{n}q")
        db.tag_session("bystander", "keep")
        carried = db.get_messages("long")[4]["id"]
        db.branch_session("long", "branch", at_message=carried, title="a branch")
        db.append_message("branch", "user", "branchown0q")
        db.catch_up()
        assert db.check() == []
    return folder


@pytest.fixture(scope="module")
def huge(module_folder: Path) -> Path:
    return build(module_folder / "huge", LONG)


@pytest.fixture(scope="module")
def base(module_folder: Path) -> Path:
    return build(module_folder / "base", SHORT)


def shown_by(folder: Path) -> dict[str, dict[str, Any]]:
    with store(folder / "state.db", read_only=True) as db:
        return exports(db)


def moments(nursery: Nursery, base: Path, work: Path, call: Step, dice: random.Random) -> list[int]:
    """The input/output calls to die at: a sample of all, and the last ones without a gap."""
    path = clone(base, work)
    total = nursery.run(step("open", str(path)), step("count"), call, step("counted"))[-1]
    assert total > 3, "nothing was counted: this test would prove nothing"
    sample = dice.sample(range(1, total), min(KILLS, total - 1))
    return sorted({1, total, *sample, *range(max(1, total - LAST), total)})


def each_death(
    nursery: Nursery,
    base: Path,
    folder: Path,
    call: Step,
    verify: Callable[[Path], None],
    *,
    before: Callable[[], None] = lambda: None,
) -> None:
    """Kill the call at many moments; after each, `verify` looks at what is left. All that is wrong is told together."""
    dice, wrong = seeded(call[0]), []

    def look(path: Path, when: str) -> None:
        try:
            verify(path)
        except Exception as error:  # raised below with all the others
            wrong.append(f"killed {when}: {type(error).__name__}: {error}".replace("\n", " ")[:200])

    before()
    for at in moments(nursery, base, folder / "work", call, dice):
        before()
        path = clone(base, folder / "work")
        life = nursery.life(step("open", str(path)), step("count"), call, step("counted"), die_at=at)
        assert life["status"] == -9, f"it was to die at {at}: {life}"
        look(path, f"at input/output call {at}")
    for number in range(INSTANTS):
        before()
        path = clone(base, folder / "work")
        with Remote(path) as remote:
            remote.send(call)
            time.sleep(dice.uniform(0.0, 0.12))  # a random instant, not a wait for something
            remote.kill()
        look(path, f"at random instant {number}")
    assert not wrong, f"{call[0]}: {len(wrong)} deaths left harm behind\n" + "\n".join(wrong[:20])


def left_of(path: Path, session_id: str) -> dict[str, int]:
    """The number of rows about a session by table, read by plain SQL."""
    with closing(sqlite3.connect(path)) as sql:
        counts = {"sessions": sql.execute("SELECT count(*) FROM sessions WHERE id = ?", (session_id,)).fetchone()[0]}
        for table in ("messages", "session_tags", "session_refs", "session_members", "session_rewinds"):
            rows = sql.execute(f"SELECT count(*) FROM {table} WHERE session_id = ?", (session_id,))
            counts[table] = rows.fetchone()[0]
    return counts


def unharmed(db: Any, truth: dict[str, dict[str, Any]], *session_ids: str) -> None:
    for session_id in session_ids:
        assert db.export_session(session_id) == truth[session_id], f"{session_id} was harmed"


def test_killed_while_deleting_a_long_session(nursery: Nursery, huge: Path, folder: Path) -> None:
    """It is there whole, or nobody sees any of it; the rest goes later, files too; its branch keeps what it carries."""
    truth = shown_by(huge)

    def verify(path: Path) -> None:
        with store(path) as db:
            whole = db.get_session("long") is not None
            shown = len(db.get_messages("long"))
            hits = [db.search_messages(f"longword{n}q", session_ids=["long"]) for n in (7, 500, LONG - 1)]
            assert (shown, [len(one) for one in hits]) == ((LONG, [1, 1, 1]) if whole else (0, [0, 0, 0]))
            unharmed(db, truth, "talk", "bystander", "past1")
            if whole:
                assert db.delete_session("long")
            settled(db)
            assert db.get_session("long") is None
            assert contents(db.get_messages("branch")) == contents(truth["branch"]["messages"])
            assert not (db.sessions_dir / "long.jsonl").exists() or db.check() == []
            db.delete_session("branch")
            settled(db)
        assert set(left_of(path, "long").values()) == {0}, "something of it is left for good"
        assert not (path.parent / "sessions" / "long.jsonl").exists(), "its transcript is left for good"

    each_death(nursery, huge, folder, step("delete_session", "long"), verify)


def test_killed_while_deleting_the_last_session_that_carries_messages_of_a_deleted_one(
    nursery: Nursery, base: Path, folder: Path
) -> None:
    """Messages of a deleted session that its branch needed are deleted with the branch, or at the next clean-up."""
    truth, carried = shown_by(base), folder / "carried"
    with store(clone(base, carried)) as db:
        assert db.delete_session("long")
        assert contents(db.get_messages("branch")) == contents(truth["branch"]["messages"])

    def verify(path: Path) -> None:
        with store(path) as db:
            if db.get_session("branch") is not None:
                assert contents(db.get_messages("branch")) == contents(truth["branch"]["messages"])
                assert db.delete_session("branch")
            db.prune_sessions(older_than_days=100_000)
            unharmed(db, truth, "talk", "bystander", "past1")
            assert db.check() == []
        with closing(sqlite3.connect(path)) as sql:
            assert sql.execute("SELECT id FROM sessions WHERE purged IS NOT NULL").fetchall() == []
            assert sql.execute("SELECT count(*) FROM messages WHERE content LIKE '%longword%'").fetchone() == (0,)
        for file in (one for one in (path.parent / "sessions").rglob("*") if one.is_file()):
            assert b"longword" not in file.read_bytes(), file

    each_death(nursery, carried, folder, step("delete_session", "branch"), verify)


def test_killed_while_shredding(nursery: Nursery, base: Path, folder: Path) -> None:
    """It is there whole, or nobody sees any of it; shredding again leaves no word of it in any file."""
    truth, talked = shown_by(base), folder / "talked"
    clone(base, talked)

    def verify(path: Path) -> None:
        with store(path) as db:
            shown = db.export_session("talk")
            assert shown is None or shown == truth["talk"]
            done = db.shred_session("talk")
            assert done is None or done["unfinished"] == []
            assert [line["session_id"] for line in db.audit_log()] == ["talk"], "told once, however often it was tried"
            unharmed(db, truth, "bystander", "long", "branch", "past1")
            assert db.check() == [] and db.shred_session("talk") is None
        for file in (one for one in path.parent.rglob("*") if one.is_file()):
            data = file.read_bytes()
            assert b"oldword" not in data and b"the old text" not in data and b"the talk" not in data, file

    each_death(nursery, talked, folder, step("shred_session", "talk"), verify)


def test_killed_while_replacing_messages(nursery: Nursery, base: Path, folder: Path) -> None:
    """All the old ones or all the new ones, in the database and in the transcript."""
    truth = shown_by(base)

    def verify(path: Path) -> None:
        with store(path) as db:
            shown = contents(db.get_messages("talk"))
            assert shown in (contents(OLD), contents(NEW))
            is_new = shown == contents(NEW)
            assert db.get_session("talk")["message_count"] == len(shown)
            assert len(db.search_messages("oldword7q")) == (not is_new)
            assert len(db.search_messages("newword7q")) == is_new
            unharmed(db, truth, "bystander", "long", "branch")
            assert db.check() == []

    each_death(nursery, base, folder, step("replace_messages", "talk", NEW), verify)


def test_killed_while_compressing(nursery: Nursery, base: Path, folder: Path) -> None:
    """The old session goes on as if nothing was, or the new one is there with all it carries."""
    truth = shown_by(base)
    rows = truth["talk"]["messages"]
    head, tail = rows[1]["id"], rows[-2]["id"]

    def verify(path: Path) -> None:
        with store(path) as db:
            old, child = db.get_session("talk"), db.get_session("child")
            assert contents(db.get_messages("talk")) == contents(OLD)
            if child is None:
                assert old["ended_at"] is None
                assert db.get_compression_tip("talk") == "talk"
                assert db.compress_session("talk", "child", summary="sum0q", head_until=head, tail_from=tail) == "child"
            assert db.get_session("talk")["end_reason"] == "compression"
            assert db.get_compression_tip("talk") == "child"
            assert db.get_session_title("child") == "the talk #2"
            assert contents(db.get_messages("child")) == [*contents(OLD[:2]), "sum0q", *contents(OLD[-2:])]
            assert len(db.search_messages("sum0q")) == 1
            unharmed(db, truth, "bystander", "long", "branch")
            assert db.check() == []

    call = step("compress_session", "talk", "child", summary="sum0q", head_until=head, tail_from=tail)
    each_death(nursery, base, folder, call, verify)


def test_killed_while_importing_a_database(nursery: Nursery, base: Path, folder: Path) -> None:
    """Each session is whole or not there; importing again brings the rest and doubles nothing."""
    truth = shown_by(base)
    empty = folder / "empty"
    with store(empty / "state.db") as db:
        db.create_session("mine", "cli")
        db.append_message("mine", "user", "mine0q")
    before = {one: (base / one).read_bytes() for one in ("state.db", "sessions/talk.jsonl")}

    def verify(path: Path) -> None:
        with store(path) as db:
            for name, wanted in truth.items():
                got = db.export_session(name)
                assert got is None or contents(got["messages"]) == contents(wanted["messages"])
            db.import_database(base / "state.db")
            for name, wanted in truth.items():
                assert contents(db.get_messages(name)) == contents(wanted["messages"])
            assert contents(db.get_messages("mine")) == ["mine0q"]
            assert len(db.search_messages("longword77q")) == len(db.search_messages("mine0q")) == 1
            assert db.check() == []

    each_death(nursery, empty, folder, step("import_database", str(base / "state.db")), verify)
    assert {one: (base / one).read_bytes() for one in before} == before, "the file that was imported is not altered"


def test_killed_while_indexing(nursery: Nursery, base: Path, folder: Path) -> None:
    """The index and the messages agree, and search misses nothing, however far the indexer got."""
    behind, count = folder / "behind", 200
    with Remote(clone(base, behind)) as remote:
        many = [{"role": "user", "content": f"latecomer{n}q word " + "filler " * 50} for n in range(count)]
        remote.replace_messages("bystander", many)
        remote.kill()

    def verify(path: Path) -> None:
        with store(path) as db:
            for _ in range(2):
                for n in (0, 63, 64, count - 1):
                    assert len(db.search_messages(f"latecomer{n}q")) == 1
                assert len(db.search_messages("latecomer*", limit=1000)) == count
                assert len(db.search_messages("atecomer7", limit=10)) >= 1, "parts of words too"
                db.catch_up()
                assert db.index_status()["pending"] == 0
            assert db.check() == []

    each_death(nursery, behind, folder, step("catch_up"), verify)


def test_killed_while_a_reply_is_stored_its_tokens_count_if_it_is_there(
    nursery: Nursery, base: Path, folder: Path
) -> None:
    call = step("append_message", "talk", "assistant", "reply0q", input_tokens=7, usage={"input_tokens": 7})

    def verify(path: Path) -> None:
        with store(path) as db:
            stored = sum(message["input_tokens"] or 0 for message in db.get_messages("talk"))
            assert db.get_session("talk")["input_tokens"] == stored
            assert db.check() == []

    each_death(nursery, base, folder, call, verify)


def test_killed_while_backing_up(nursery: Nursery, base: Path, folder: Path) -> None:
    """A backup that has its name is whole; a torn one is not in the way of the next."""
    truth = shown_by(base)
    target = folder / "copies" / "copy.db"
    target.parent.mkdir()

    def verify(path: Path) -> None:
        with store(path) as db:
            assert exports(db) == truth
            assert db.check() == []
            if not target.exists():
                db.backup(target)
        with store(target, read_only=True) as copy:
            assert exports(copy) == truth
        with store(target, transcripts="off") as copy:
            assert copy.check() == []

    def tidy() -> None:
        for left in target.parent.glob("copy.db*"):
            left.unlink()

    each_death(nursery, base, folder, step("backup", str(target)), verify, before=tidy)


def test_killed_while_vacuuming(nursery: Nursery, base: Path, folder: Path) -> None:
    holed = folder / "holed"
    path = clone(base, holed)
    with store(path) as db:
        for name in ("past1", "past2"):
            db.delete_session(name)
        wanted = exports(db)

    def verify(path: Path) -> None:
        with store(path) as db:
            assert exports(db) == wanted
            assert db.check() == []
            assert len(db.search_messages("longword99q")) == 1

    each_death(nursery, holed, folder, step("vacuum"), verify)


def test_killed_while_clearing_messages(nursery: Nursery, base: Path, folder: Path) -> None:
    truth = shown_by(base)

    def verify(path: Path) -> None:
        with store(path) as db:
            assert contents(db.get_messages("talk")) in (contents(OLD), [])
            unharmed(db, truth, "bystander", "long", "branch")
            assert db.check() == []

    each_death(nursery, base, folder, step("clear_messages", "talk"), verify)
