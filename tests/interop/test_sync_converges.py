"""Stores that are synchronised in any order, with kills in between, end with the same conversations: none lost, none doubled."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from hypothesis import example, given, settings
from hypothesis import strategies as st

from tests.support.postgres import ENGINES
from tests.support.sizes import THOROUGH, size
from tests.support.syncing import opened, synchronised, synchronised_and_killed

CHANGES = (
    "append", "append", "append", "new", "branch", "compress", "title", "tag", "untag", "trash", "restore", "delete", "edit",
    "redact", "rewind", "unrewind", "pin", "end",
)  # fmt: skip
NUMBERS = st.integers(0, 30)
STEP = st.one_of(
    st.tuples(st.sampled_from(CHANGES), st.integers(0, 2), NUMBERS, NUMBERS),
    st.tuples(st.just("sync"), st.integers(0, 2), st.integers(0, 3), st.one_of(st.none(), st.none(), NUMBERS)),
)


class World:
    """Three stores and a folder, and every message that was ever said."""

    def __init__(self, folder: Path, engines: tuple[str, str, str]) -> None:
        self.places = [(engine, folder / one) for one, engine in zip("abc", engines, strict=True)]
        self.dbs: list[Any] = [opened(*one) for one in self.places]
        self.folder = folder / "meeting"
        self.folder.mkdir()
        self.said: dict[str, set[str]] = {}  # by first text, what the message ever said
        self.where: dict[str, str] = {}  # by first text, the session it was said in
        self.deleted: set[str] = set()  # sessions that were deleted for good somewhere
        self.redacted: set[str] = set()  # a redacted text stays where it was: it does not travel
        self.number = 0
        for store in (0, 0, 1):
            self.change("new", store, 0, 0)
        for kind, store in (("append", 0), ("sync", 0), ("sync", 1), ("sync", 2)):
            self.change(kind, store, 1, 0) if kind != "sync" else self.sync(store, 0, None)

    def text(self, change: str = "said") -> str:
        self.number += 1
        return f"{change} {self.number}"

    def change(self, kind: str, store: int, a: int, b: int) -> None:
        db = self.dbs[store]
        ids = sorted(row["id"] for row in db.list_sessions_rich(limit=500, include_children=True))
        if kind == "new" or not ids:
            if kind == "new":
                db.create_session(f"s{store}-{self.number}", "cli")
                self.say(db, f"s{store}-{self.number}")
            return
        session_id = ids[a % len(ids)]
        shown = db.get_messages(session_id)
        message = shown[b % len(shown)] if shown else None
        if kind == "append":
            self.say(db, session_id)
        elif kind == "branch" and message is not None:
            db.branch_session(session_id, f"{session_id}.b{self.text()}".replace(" ", ""), at_message=message["id"])
        elif kind == "compress" and message is not None and db.get_compression_tip(session_id) == session_id:
            summary = self.text("summary")
            db.compress_session(
                session_id, f"{session_id}.c{summary}".replace(" ", ""), summary=summary, tail_from=message["id"]
            )
            self.said[summary] = {summary}
            self.where[summary] = f"{session_id}.c{summary}".replace(" ", "")
        elif kind == "title":
            title = f"title {b % 3}"
            if db.get_session_by_title(title) is None:
                db.set_session_title(session_id, title)
        elif kind in ("tag", "untag"):
            (db.tag_session if kind == "tag" else db.untag_session)(session_id, f"t{b % 3}")
        elif kind == "trash":
            db.trash_session(session_id)
        elif kind == "restore":
            for row in db.list_trash()[:1]:
                db.restore_session(row["id"])
        elif kind == "delete":
            self.deleted.add(unforked(session_id))
            db.delete_session(session_id)
        elif kind == "edit" and message is not None and message["role"] == "user":
            text = self.text("edited")
            for versions in self.said.values():
                if message["content"] in versions:
                    versions.add(text)
            db.edit_message(message["id"], text)
        elif kind == "redact" and message is not None:
            self.redacted.add(message["content"])
            db.redact_message(message["id"])
        elif kind == "rewind" and message is not None:
            db.rewind(session_id, message["id"])
        elif kind == "unrewind":
            db.unrewind(session_id)
        elif kind == "pin":
            db.pin_session(session_id, b % 2 == 0)
        elif kind == "end":
            db.end_session(session_id, "done")

    def say(self, db: Any, session_id: str) -> None:
        text = self.text()
        db.append_message(session_id, "user", text)
        self.said[text] = {text}
        self.where[text] = session_id

    # ------------------------------------------------------------------ synchronising

    def sync(self, store: int, way: int, dies_at: int | None) -> None:
        """With the folder (way 0, 1), or directly with another store; a process that dies at its nth step."""
        there = (store + 1) % 3
        if dies_at is None:
            synchronised(self.dbs[store], self.dbs[there] if way >= 2 else self.folder)
            return
        to = self.places[there] if way >= 2 else self.folder
        synchronised_and_killed(self.places[store], to, dies_at)

    def settle(self) -> None:
        for _ in range(4):
            for store in range(3):
                self.sync(store, 0, None)


def unforked(session_id: str) -> str:
    """The session that a fork is a fork of."""
    return re.sub("-[0-9a-f]{12}$", "", session_id)


def shown(db: Any) -> dict[str, Any]:
    """Everything a person sees."""
    rows = db.list_sessions_rich(limit=500, include_children=True)
    ids = {row["id"] for row in rows}
    return {
        row["id"]: (
            [m["content"] for m in db.get_messages(row["id"])], row["title"], row["kind"],
            row["parent_session_id"] if row["parent_session_id"] in ids else None,
            db.get_tags(row["id"]), row["pinned_at"], row["end_reason"], row["message_count"],
        )
        for row in rows
    }  # fmt: skip


def check(world: World) -> None:
    world.settle()
    first, *others = [shown(db) for db in world.dbs]
    for other in others:
        assert other == first
    for db in world.dbs:
        rows = db.sql("SELECT content FROM messages WHERE coalesce(hidden, 0) <> -4")
        stored = [row["content"] for row in rows]
        for text, versions in world.said.items():
            count = sum(one in versions for one in stored)
            if unforked(world.where[text]) in world.deleted or versions & world.redacted:
                assert count <= 1, (text, count)
            else:
                assert count == 1, (text, count)
        assert db.check() == []


def run(folder: Path, engines: tuple[str, str, str], steps: list[Any]) -> None:
    world = World(folder, engines)
    try:
        for kind, store, a, b in steps:
            if kind == "sync":
                world.sync(store, a, b)
            else:
                world.change(kind, store, a, b)
        check(world)
    finally:
        for db in world.dbs:
            db.close()


# A fork that is deleted before the third store hears of it.
DELETED_FORK = [
    ("append", 2, 1, 0),
    ("append", 0, 1, 0),
    ("sync", 0, 2, None),
    ("sync", 2, 2, None),
    ("delete", 0, 2, 0),
]


@settings(max_examples=size(8, 60))
@example(steps=DELETED_FORK)
@given(steps=st.lists(STEP, min_size=4, max_size=25))
def test_stores_converge_to_the_same_conversations(tmp_path_factory, steps):
    run(tmp_path_factory.mktemp("sync"), ("sqlite", "sqlite", "sqlite"), steps)


if THOROUGH and any(one.startswith("postgres") for one in ENGINES):
    _SERVER = next(one for one in ENGINES if one.startswith("postgres"))

    @settings(max_examples=6)
    @given(steps=st.lists(STEP, min_size=4, max_size=25))
    def test_a_store_on_a_server_converges_with_files(tmp_path_factory, steps):
        run(tmp_path_factory.mktemp("sync"), ("sqlite", _SERVER, "sqlite"), steps)
