"""Truncated and bit-flipped files: read, or refused with a typed error; found by check; and mended by repair.

With transcripts beside it every message comes back; without them, all that the file itself still holds.
"""

from __future__ import annotations

import random
import shutil
import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from tests.support.sizes import some

from . import Nursery, Refused, Remote, clone, contents, exports, step, store
from .damage import HARMS, harm, pages_of
from .workers import message, word

SESSIONS, MESSAGES = 5, 30
TYPED = {"StoreCorrupt", "NotADatabase", "StoreMissing"}
QUERIES = [word("s1", 0), word("s2", 17), "words", "line4*"]
NOT_ALONE = ("header", "cut", "swapped", "sessions", "session_refs", "system", "sqlite_schema", "messages internal")
ALONE = [name for name in HARMS if not name.startswith(NOT_ALONE)]  # where the messages themselves can still be reached


@pytest.fixture(scope="module")
def base(module_folder: Path) -> Path:
    folder = module_folder / "base"
    with store(folder / "state.db", durability="normal") as db:
        for one in range(SESSIONS):
            db.create_session(f"s{one}", "cli", system_prompt="be kind " * 300, model="m", user_id=str(one))
            db.set_session_title(f"s{one}", f"title {one}")
            for number in range(MESSAGES):
                db.append_message(f"s{one}", **message(f"s{one}", number))
        db.tag_session("s1", "red")
        db.branch_session("s0", "twig", at_message=db.get_messages("s0")[3]["id"])
        db.append_message("twig", "user", "twign0q hello")
        db.end_session("s2", "done")
        db.catch_up()
        db.vacuum()
        assert db.check() == []
    assert not (folder / "state.db-wal").exists()
    return folder


@pytest.fixture(scope="module")
def pages(base: Path) -> dict[str, list[int]]:
    return pages_of(base / "state.db")


@pytest.fixture(scope="module")
def truth(nursery: Nursery, base: Path) -> dict[str, Any]:
    return dict(nursery.run(step("open", str(base / "state.db"), read_only=True), step("everything", QUERIES))[1])


def look(nursery: Nursery, path: Path, *, read_only: bool) -> dict[str, Any] | None:
    """All that a damaged store shows, or None when it says that it is damaged. Anything else is a failure."""
    life = nursery.life(
        step("open", str(path), read_only=read_only), step("everything", QUERIES), step("close"), seconds=20
    )
    assert life["status"] == 0, f"it ended with {life['status']}"
    for reply in life["replies"]:
        if "error" in reply:
            assert reply["error"]["type"] in TYPED, f"not a typed error:\n{reply['error']['trace']}"
            return None
    return dict(life["replies"][1]["ok"])


def command(nursery: Nursery, path: Path, *words: str) -> tuple[int, str]:
    done = nursery.run(step("module", "hermes.cli.main", "sessions", *(words or ("check",)), str(path)), seconds=20)[0]
    return done["code"], done["out"]


def told(everything: dict[str, Any] | None) -> dict[str, list[tuple[Any, ...]]]:
    """The messages of each session: what nobody may lose."""
    names = ("id", "role", "content", "tool_calls", "tool_name", "tool_call_id", "timestamp")
    sessions = everything["sessions"] if everything is not None else {}
    return {key: [tuple(row[name] for name in names) for row in one["messages"]] for key, one in sessions.items()}


@pytest.mark.parametrize("name", some(list(HARMS), 10))
def test_a_damaged_file_is_read_or_refused_and_a_repair_brings_every_message_back(
    nursery: Nursery, base: Path, pages: dict[str, list[int]], truth: dict[str, Any], folder: Path, name: str
) -> None:
    path = clone(base, folder / "work")
    if not harm(path, name, pages):
        pytest.fail(f"the file has no such place: {name}; it has {sorted(pages)}")
    look(nursery, path, read_only=True)
    shown = look(nursery, path, read_only=False)
    if shown is None or told(shown) != told(truth) or shown["found"] != truth["found"]:
        code, out = command(nursery, path)
        # A flipped bit inside the index's own data can change answers and still make sense: --rebuild-index makes it anew.
        assert code == 1 or "fts_data" in name, f"check finds nothing ({code}): {out}"
    code, out = command(nursery, path, "repair", "--rebuild-index")
    assert code == (name == "header user-version"), f"repair leaves something: {out}"
    after = look(nursery, path, read_only=False)
    assert after is not None, "damaged still"
    assert told(after) == told(truth)
    assert {query: len(hits) for query, hits in after["found"].items()} == {
        query: len(hits) for query, hits in truth["found"].items()
    }
    assert command(nursery, path)[0] == 0
    if name == "header user-version":
        return  # now it is the file of a newer program, which is never written to
    with store(path) as db:
        assert db.get_session_by_title("title 3")["id"] == "s3"
        assert db.append_message("s3", "user", "on it goes") > 0
        assert db.check() == []


@pytest.mark.parametrize("name", some(ALONE, 4))
def test_without_transcripts_a_repair_keeps_what_the_file_still_holds(
    nursery: Nursery, base: Path, pages: dict[str, list[int]], truth: dict[str, Any], folder: Path, name: str
) -> None:
    """Indexes are made anew from the messages; a broken leaf of messages costs that page's and no others."""
    path = clone(base, folder / "work")
    shutil.rmtree(path.parent / "sessions")
    harm(path, name, pages)
    code, out = command(nursery, path, "repair", "--rebuild-index")
    assert code == 0, f"repair leaves something: {out}"
    after = look(nursery, path, read_only=False)
    assert after is not None
    assert command(nursery, path)[0] == 0
    wanted = {row[0]: row for rows in told(truth).values() for row in rows}
    got = {row[0]: row for rows in told(after).values() for row in rows}
    whole = [one for one in wanted if got.get(one) == wanted[one]]
    if name.startswith("messages "):
        assert len(whole) >= len(wanted) * 0.6, f"{len(whole)} of {len(wanted)} are left"
    else:
        assert len(whole) == len(wanted), f"{len(wanted) - len(whole)} messages were lost, and none was damaged"
        assert after["found"] == truth["found"]


# ── the -wal ──


@pytest.fixture(scope="module")
def unfinished(module_folder: Path) -> tuple[Path, list[Any]]:
    """A store whose writer was killed: most of it is in the -wal alone."""
    folder = module_folder / "unfinished"
    with Remote() as reader, Remote(folder / "state.db") as writer:
        writer.create_session("talk", "cli")
        reader.look(str(folder / "state.db"))
        writer.append("talk", "w", 0, 60)
        rows = writer.get_messages("talk")
        writer.kill()
        reader.kill()
    return folder, rows


LOG_HARMS = {
    "header": 5,
    "salt": 17,
    "early": 1 / 6,
    "late": 0.98,
    "cut to nothing": 0.0,
    "cut late": 0.9,
    "noise": 1 / 3,
}


def harm_log(path: Path, what: str) -> None:
    """Harm at a byte of the header, or behind this share of the file."""
    data, dice, where = bytearray(path.read_bytes()), random.Random(what), LOG_HARMS[what]
    at = where if isinstance(where, int) else int(len(data) * where)
    if what.startswith("cut"):
        del data[at:]
    elif what == "noise":
        data[at:] = dice.randbytes(len(data) - at)
    else:
        data[at] ^= 1 << dice.randrange(8)
    path.write_bytes(data)


@pytest.mark.filterwarnings("ignore:.* lost its newest messages")
@pytest.mark.parametrize("what", some(list(LOG_HARMS), 4))
@pytest.mark.parametrize("life_goes_on", [False, True])
def test_what_a_damaged_wal_loses_comes_back_from_the_transcripts(
    nursery: Nursery, unfinished: tuple[Path, list[Any]], folder: Path, what: str, life_goes_on: bool
) -> None:
    """The log is cut at the damage. What was acknowledged is missed by check and brought back by repair.

    Also when people went on talking meanwhile: then the numbers of the lost messages have been given to others.
    """
    path, rows = clone(unfinished[0], folder / "work"), unfinished[1]
    harm_log(Path(f"{path}-wal"), what)
    read = nursery.life(step("open", str(path)), step("export_session", "talk"))
    assert read["status"] == 0
    errors = [reply["error"] for reply in read["replies"] if "error" in reply]
    assert all(one["type"] in TYPED for one in errors), errors[0]["trace"]
    shown = contents((read["replies"][-1].get("ok") or {"messages": []})["messages"]) if not errors else []
    assert shown == contents(rows)[: len(shown)], "a beginning of what was said, and nothing made up"
    new: list[str] = []
    if life_goes_on and not errors:
        with store(path) as db:
            db.ensure_session("talk", "cli")
            for number in range(3):
                db.append_message("talk", "user", f"newn{number}q said later")
                new.append(f"newn{number}q said later")
    if len(shown) < len(rows):
        code, out = command(nursery, path)
        assert code == 1, f"{len(rows) - len(shown)} messages are missing and check finds nothing: {out}"
    code, out = command(nursery, path, "repair", "--rebuild-index")
    assert code == 0, out
    with store(path) as db:
        have = contents(db.get_messages("talk"))
        assert sorted(map(str, have)) == sorted(map(str, [*contents(rows), *new])), "each once: the old and the new"
        assert [one for one in have if one in contents(rows)] == contents(rows), "in their order"
        assert len(db.search_messages(word("w", 59))) == 1
        assert db.check() == []


@pytest.mark.parametrize(
    "statement", ["DELETE FROM state_meta", "UPDATE state_meta SET value = 'x'", "DROP TABLE words"]
)
def test_bookkeeping_that_another_program_threw_away_is_made_anew(
    nursery: Nursery, base: Path, truth: dict[str, Any], folder: Path, statement: str
) -> None:
    """Nothing hangs, nothing is missed: what can be derived from the messages is."""
    path = clone(base, folder / "work")
    with closing(sqlite3.connect(path)) as sql, sql:
        sql.execute(statement)
    life = nursery.life(step("open", str(path)), step("append", "s1", "late", 0, 3), step("close"), seconds=8)
    assert life["status"] == 0, f"it {life['status']}"
    errors = [reply["error"] for reply in life["replies"] if "error" in reply]
    assert all(one["type"] in TYPED for one in errors), errors[0]["trace"]
    code, out = command(nursery, path, "repair", "--rebuild-index")
    assert code == 0, out
    after = look(nursery, path, read_only=False)
    assert after is not None
    assert after["found"][QUERIES[0]] == truth["found"][QUERIES[0]]
    assert command(nursery, path)[0] == 0


@pytest.mark.parametrize("name", ["messages_fts_data zeros", "sqlite_autoindex_sessions_1 zeros", "messages zeros"])
def test_a_repair_while_another_process_has_the_store_open_loses_nothing_that_one_writes(
    nursery: Nursery, base: Path, pages: Any, folder: Path, name: str
) -> None:
    """A file that is put in the place of another is not the file the others have open."""
    path = clone(base, folder / "work")
    with Remote(path) as other:
        other.create_session("new", "cli")
        kept = other.attempt("new", "before", 0, 3)["done"]
        other.close()
        harm(path, name, pages_of(path))
        try:
            other.open(str(path))
        except Refused as refused:
            assert refused.kind in TYPED  # noqa: PT017  (a damaged store may refuse; then there is nothing to lose)
            return
        kept += [[one, n + 3] for one, n in other.attempt("new", "during", 0, 3)["done"]]
        command(nursery, path, "repair", "--rebuild-index")
        kept += [[one, n + 6] for one, n in other.attempt("new", "after", 0, 3)["done"]]
    assert command(nursery, path, "repair", "--rebuild-index")[0] == 0
    names = [word(tag, n) for tag in ("before", "during", "after") for n in range(3)]
    with store(path) as db:
        have = [row["content"].split(" ")[0] for row in db.get_messages("new")]
    missing = [names[n] for _, n in kept if names[n] not in have]
    assert not missing, f"acknowledged, and gone: {missing}"


def test_the_damaged_file_is_kept_beside_the_repaired_one(
    nursery: Nursery, base: Path, folder: Path, pages: Any
) -> None:
    path = clone(base, folder / "work")
    harm(path, "messages noise", pages)
    damaged = path.read_bytes()
    assert command(nursery, path, "repair", "--rebuild-index")[0] == 0
    copies = [one for one in path.parent.iterdir() if one.is_file() and one != path and one.read_bytes() == damaged]
    assert copies, f"no copy of what was there before: {sorted(one.name for one in path.parent.iterdir())}"


def test_a_lost_database_is_made_anew_from_its_transcripts(nursery: Nursery, base: Path, folder: Path) -> None:
    path = clone(base, folder / "work")
    with store(path, read_only=True) as db:
        shown = exports(db)
    path.unlink()
    path.write_bytes(b"")
    code, out = command(nursery, path, "repair", "--rebuild-index")
    assert code == 0, out
    with store(path) as db:
        after = exports(db)
    assert {name: contents(one["messages"]) for name, one in after.items()} == {
        name: contents(one["messages"]) for name, one in shown.items()
    }
