"""Shredding: nothing of a conversation is left in any file of the store, and nothing else is harmed.

The bytes of every file are searched for words that only the shredded conversation has. Text that an index or a frame
compresses can't be found that way, so each word stands at the beginning of what it is in, and frames are unpacked.
"""

from __future__ import annotations

import base64
import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from zstandard import ZstdDecompressor, ZstdError

from hermes.errors import InvalidInput, SessionBusy
from hermes.store.gateway.gateway_db import GatewayDB

from . import found, say, shown, talk
from .test_deleted_words import held_in_tables, listed

# Each begins with letters of its own: an index stores a word as what differs from the word before it.
WORDS = {
    "said": "xqvarnium", "replied": "zjolkrapt", "tool": "wvexmundo", "deep in tool output": "vkyzzlebrin",
    "reasoning": "uqhazzort", "arguments": "tjwickspell", "title": "qzanderplume", "attachment": "yxbytesgrow",
    "draft": "jzdraftling", "typed": "hqhistorion", "event": "gkwerrorfold", "prompt": "fzpromptuary",
    "rewound": "dqundonely", "part": "bzcompressed",
}  # fmt: skip
_FRAME = re.compile(re.escape(b"\x28\xb5\x2f\xfd"))


def everything(folder: Path) -> dict[Path, bytes]:
    return {path: path.read_bytes() for path in sorted(folder.rglob("*")) if path.is_file()}


def unpacked(data: bytes) -> bytes:
    """The contents of the zstd frames in a file, as far as they can be unpacked."""
    said = []
    for frame in _FRAME.finditer(data):
        try:
            said.append(ZstdDecompressor().decompressobj().decompress(data[frame.start() : frame.start() + 200_000]))
        except ZstdError:
            continue
    return b"".join(said)


def held(folder: Path, words: dict[str, str] = WORDS) -> set[str]:
    """Which of the words are somewhere in the bytes of a folder's files, whole or without their first two letters."""
    files = [data + unpacked(data) for data in everything(folder).values()]
    return {
        what
        for what, word in words.items()
        for data in files
        if word.encode() in data or word[2:].encode() in data.lower()
    }


def picture(text: str) -> list[dict[str, Any]]:
    data = base64.b64encode(b"\x89PNG" + text.encode() + b"." * 600).decode()
    return [{"type": "image_url", "image_url": {"url": f"data:image/png;base64,{data}"}}]


def bystanders(db: Any) -> list[str]:
    talk(db, "before", *(f"plain words number {number} stay" for number in range(120)), system_prompt="be kind " * 300)
    db.set_session_title("before", "a plain title")
    db.append_message("before", "user", picture("a shared picture"))
    db.append_message("before", "tool", "plain output " * 400, tool_name="terminal")
    return ["before"]


def conversation(db: Any) -> None:
    """A session in two parts with something of everything, and each of the words in it."""
    w = WORDS
    db.create_session("old", "cli", system_prompt="be kind " * 300 + w["prompt"])
    say(db, "old", f"{w['said']} is what I said")
    call = {"id": "c1", "type": "function", "function": {"name": "f", "arguments": json.dumps({"a": w["arguments"]})}}
    db.append_message("old", "assistant", f"{w['replied']} it is", reasoning=w["reasoning"], tool_calls=[call])
    output = f"{w['tool']} {os.urandom(900).hex()} {w['deep in tool output']} {os.urandom(900).hex()}"
    db.append_message("old", "tool", output, tool_name="terminal", tool_call_id="c1")
    db.append_message("old", "user", picture(w["attachment"]))
    db.append_message("old", "user", picture("a shared picture"))
    last = db.append_message("old", "user", w["typed"])
    db.set_session_title("old", f"{w['title']} plans")
    db.compress_session("old", "new", summary=f"{w['part']} summary", head_until=None, tail_from=last)
    say(db, "new", "going on with it", f"{w['rewound']} not meant")
    db.rewind("new", db.get_messages("new")[-2]["id"])
    db.record_event("new", "model_error", f"{w['event']} refused")
    draft = db.drafts.begin("new", after=last, model=None)
    draft.write(f"{w['draft']} so far")
    draft.close(keep=True)


@pytest.fixture
def gone(make_db: Any) -> Any:
    db = make_db("shred")
    bystanders(db)
    conversation(db)
    talk(
        db, "after", *(f"more words number {number}" for number in range(120)), system_prompt="be kind " * 300 + "after"
    )
    db.catch_up()
    return db


def test_no_file_has_a_word_of_it(gone: Any, engine: str) -> None:
    db, folder = gone, gone.path.parent
    truth = {name: db.export_session(name) for name in ("before", "after")}
    on_server = {"title", "rewound", "tool", "deep in tool output", "attachment"} if engine != "sqlite" else set()
    assert held(folder) | on_server >= set(WORDS) - ({"event"} if engine != "sqlite" else set()), "or nothing is proved"
    done = db.shred_session("old", by="a test")
    assert (done["parts"], done["unfinished"], done["shared_with"]) == (["old", "new"], [], [])
    assert done["messages"] == 9, "with the one that was undone"
    assert len(done["copies"]) == (0 if engine == "sqlite" else 3), (
        "a server has free space, a log, backups and other hosts"
    )
    assert held(folder) == set(), "while the store is open"
    if engine == "sqlite":
        assert not (folder / "state.db-wal").exists() or b"varnium" not in (folder / "state.db-wal").read_bytes()
    for word in WORDS.values():
        assert held_in_tables(db, engine, word) == []
        assert not found(db, word)
    assert not set(WORDS.values()) & listed(db, engine)
    assert {name: db.export_session(name) for name in truth} == truth, "the others are as they were"
    assert len(found(db, "lain")) == 100 and db.get_session("after")["system_prompt"].endswith("after")
    lines = [(line["action"], line["session_id"], line["by"], line["detail"]) for line in db.audit_log()]
    assert lines == [(*("delete", part, "a test"), f"shredded, {n} messages") for part, n in (("new", 3), ("old", 6))]
    assert db.check() == []
    assert db.shred_session("old") is None and db.shred_session("new") is None
    db.close()
    assert held(folder) == set(), "and when it is closed"


def test_one_in_the_trash_can_be_shredded(gone: Any) -> None:
    gone.trash_session("new", whole=True)
    assert gone.shred_session("new")["parts"] == ["old", "new"]
    assert held(gone.path.parent) == set() and gone.list_trash() == []


def test_a_conversation_that_another_session_shows_is_refused_whole(gone: Any) -> None:
    gone.branch_session("new", "branch")
    before = gone.export_session("new")
    with pytest.raises(InvalidInput, match="session new can't be shredded: session branch shows messages of it"):
        gone.shred_session("old")
    assert gone.export_session("new") == before
    assert gone.audit_log() == []
    gone.trash_session("branch")
    with pytest.raises(InvalidInput, match="session branch in the trash shows"):
        gone.shred_session("old")
    done = gone.shred_session("branch")
    assert done["shared_with"] == ["new", "old"] and gone.export_session("new") == before
    assert gone.shred_session("new")["unfinished"] == [] and held(gone.path.parent) == set()
    assert gone.check() == []


def test_what_was_kept_of_a_deleted_session_goes_with_the_last_that_shows_it(gone: Any) -> None:
    gone.branch_session("new", "first")
    gone.branch_session("new", "second")
    for part in ("old", "new"):
        assert gone.delete_session(part)
    assert gone.shred_session("first")["shared_with"] == ["second"]
    assert WORDS["typed"] in shown(gone, "second"), "the other branch shows it"
    gone.shred_session("second")
    left = held(gone.path.parent) - {"prompt", "title", "draft"}  # of sessions deleted before: `vacuum` is for them
    assert left == set() and gone.check() == []


def test_one_that_is_open_somewhere_is_refused(gone: Any) -> None:
    gone.hold_session("new", "a terminal")
    with pytest.raises(SessionBusy, match="a terminal"):
        gone.shred_session("old")
    assert shown(gone, "new")[-1] == "going on with it"


def test_copies_that_a_repair_put_aside_are_named(gone: Any) -> None:
    aside = gone.sessions_dir / "new.jsonl.before-repair-20260101-100000"
    for name in (aside, aside.with_name("before.jsonl.before-repair-20260101-100000")):
        name.parent.mkdir(exist_ok=True)
        name.write_text("{}\n")
    assert gone.shred_session("new")["copies"][0] == str(aside)


def test_what_the_gateway_was_told_and_has_to_send_goes_too(gone: Any) -> None:
    gateway = GatewayDB(gone)
    with gone._engine.write() as tx:
        tx.run(
            "INSERT INTO gateway_inbox(id, platform, event_id, key, event, received_at, session_id)"
            " VALUES(1, 'telegram', '1', 'k', ?, 1.0, 'new')",
            (WORDS["said"],),
        )
        tx.run(
            "INSERT INTO gateway_outbox(id, inbox_id, platform, chat, text, nonce, created_at)"
            " VALUES(1, 1, 'telegram', '{}', ?, 'n', 1.0), (2, NULL, 'telegram', '{}', 'another', 'm', 1.0)",
            (WORDS["replied"],),
        )
    chats = {"k": {"session_id": "new", "title": f"{WORDS['title']} plans"}, "l": {"session_id": "x", "title": "kept"}}
    gone.sessions_dir.mkdir(exist_ok=True)
    (gone.sessions_dir / "sessions.json").write_text(json.dumps(chats))
    assert gone.shred_session("new")["unfinished"] == []
    assert held(gone.path.parent) == set()
    rows = gone.sql("SELECT text, error FROM gateway_outbox ORDER BY id")
    assert [(row["text"], row["error"] is None) for row in rows] == [(None, False), ("another", True)]
    assert gone.sql("SELECT event FROM gateway_inbox WHERE finished_at IS NOT NULL") == [{"event": None}]
    assert not (gone.sessions_dir / "sessions.json").exists(), "a gateway makes it again, without that title"
    assert gateway is not None


def test_a_transcript_that_comes_back_does_not_bring_the_session_back(gone: Any, sqlite_only: None) -> None:
    """A crash may leave the file, a person may copy it there: repair must know that the session was shredded."""
    path = gone.sessions_dir / "old.jsonl"
    transcript = path.read_bytes()
    gone.shred_session("new")
    path.write_bytes(transcript)
    assert [one["kind"] for one in gone.check()] == ["transcript"]
    gone.repair()
    assert gone.get_session("old") is None and not path.exists() and gone.check() == []


def test_an_unfinished_one_is_found_by_check(gone: Any, sqlite_only: None) -> None:
    with reader(gone.path):
        assert gone.shred_session("new")["unfinished"]
    (finding,) = gone.check()
    assert (finding["kind"], finding["where"]) == ("half-shredded", "session new")
    assert "hermes sessions delete --shred new" in finding["detail"]
    gone.repair()
    assert gone.check() == [finding], "repair leaves it: it would keep a copy of what is to be forgotten"
    assert not list(gone.path.parent.glob("*before-repair*"))
    gone.shred_session("new")
    assert gone.check() == []


def test_what_is_unfinished_here_is_not_brought_to_another_store(gone: Any, make_db: Any, sqlite_only: None) -> None:
    with reader(gone.path):
        assert gone.shred_session("new")["unfinished"]
    other = make_db("other")
    other.import_database(gone.path)
    assert other.check() == [] and other.shred_session("new") is None


READER = """
import sqlite3, sys
connection = sqlite3.connect(sys.argv[1])
connection.execute("BEGIN")
print(connection.execute("SELECT count(*) FROM messages").fetchone()[0], flush=True)
sys.stdin.read()
"""


@contextmanager
def reader(path: Path) -> Iterator[None]:
    """Another process, in the middle of reading."""
    words = [sys.executable, "-c", READER, str(path)]
    with subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None and process.stdout.readline()
        yield
        process.communicate()


def test_a_reader_that_keeps_the_log_is_named_and_a_second_try_ends_it(gone: Any, sqlite_only: None) -> None:
    with reader(gone.path):
        done = gone.shred_session("new")
        assert len(done["unfinished"]) == 1 and "state.db-wal can't be emptied" in done["unfinished"][0]
        assert "said" in held(gone.path.parent)
        assert gone.get_session("new") is None
    again = gone.shred_session("new")
    assert (again["parts"], again["messages"], again["unfinished"]) == (["old", "new"], 9, [])
    assert held(gone.path.parent) == set() and gone.check() == []
    assert [line["session_id"] for line in gone.audit_log()] == ["new", "old"], "it is told once"


def test_an_id_that_was_taken_again_meanwhile_is_the_new_session(gone: Any, sqlite_only: None) -> None:
    with reader(gone.path):
        assert gone.shred_session("new")["unfinished"]
    talk(gone, "old", "another conversation of that name")
    assert gone.shred_session("new")["unfinished"] == []
    assert shown(gone, "old") == ["another conversation of that name"] and gone.check() == []
    assert held(gone.path.parent) == set()
