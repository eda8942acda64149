"""Random lives of a store, and everything its public calls show afterwards, whatever ids the messages have."""

from __future__ import annotations

import json
from typing import Any

from hypothesis import strategies as st

from hermes.errors import HermesError
from hermes_state import SessionDB

_NUMBER = st.integers(min_value=0, max_value=40)
_KINDS = (
    "open", "say", "say", "say", "reply", "tool", "compress", "compress", "branch", "branch", "rewind", "rewind", "unrewind",
    "delete", "trash", "restore", "replace", "clear", "title", "tag", "pin", "usage", "end", "picture", "redact", "redact",
    "edit", "edit",
)  # fmt: skip
Step = tuple[str, int, int, int]
LIVES: st.SearchStrategy[list[Step]] = st.lists(
    st.tuples(st.sampled_from(_KINDS), _NUMBER, _NUMBER, _NUMBER), min_size=4, max_size=30
)
PICTURE = "data:image/png;base64," + "iVBORw0KGgo" * 20 + "A" * 4


class Life:
    """Takes the steps of one life; a step that makes no sense at that moment is left out."""

    def __init__(self, db: SessionDB) -> None:
        self.db, self.names, self.words = db, list[str](), 0
        self.gone: set[str] = set()  # words of messages that were redacted, or that had another text then
        for _ in range(2):
            self._open()

    def live(self, steps: list[Step]) -> None:
        for kind, a, b, c in steps:
            try:
                self._step(kind, self.names[a % len(self.names)], b, c)
            except HermesError:
                continue  # the session is gone, or was compressed already

    def _new(self) -> str:
        self.names.append(f"s{len(self.names)}")
        return self.names[-1]

    def _text(self) -> str:
        self.words += 1
        return f"heron w{self.words}q"

    def _open(self) -> None:
        name = self._new()
        self.db.create_session(name, "cli", system_prompt=f"be kind {len(name)}", model_config={"n": 1})
        for _ in range(3):
            self.db.append_message(name, "user", self._text())

    def _redact(self, place: int | None) -> None:
        if place is not None:
            self._note_old(place)
            assert self.db.redact_message(place)

    def _note_old(self, place: int) -> None:
        """Note a message's present text as one that must never be shown or found again."""
        ((content,),) = [
            tuple(row.values()) for row in self.db.sql("SELECT content FROM messages WHERE id = ?", [place])
        ]
        self.gone.update(word for word in str(content).replace('"', " ").split() if word.endswith("q"))

    def _place(self, name: str, number: int) -> int | None:
        shown = self.db.get_messages(name)
        return shown[number % len(shown)]["id"] if shown else None

    def _step(self, kind: str, name: str, b: int, c: int) -> None:
        db = self.db
        if kind == "open":
            self._open()
        elif kind in ("say", "reply"):
            db.append_message(name, "user" if kind == "say" else "assistant", self._text())
        elif kind == "tool":
            db.append_message(name, "tool", self._text() + " \ud800 x" * 400, tool_name="t", tool_call_id="c")
        elif kind == "picture":
            parts = [{"type": "text", "text": self._text()}, {"type": "image_url", "image_url": {"url": PICTURE}}]
            db.append_message(name, "user", parts)
        elif kind == "compress":
            shown = [m["id"] for m in db.get_messages(name)]
            head, tail = sorted((b % (len(shown) + 1), c % (len(shown) + 1)))
            db.compress_session(
                name, self._new(), summary=f"{self._text()} summary",
                head_until=shown[head] if shown[head:] and head != tail else None,
                tail_from=shown[tail] if shown[tail:] and head != tail else None,
            )  # fmt: skip
        elif kind == "branch":
            db.branch_session(name, self._new(), at_message=self._place(name, b))
        elif kind == "rewind":
            db.rewind(name, 0 if c == 0 else self._place(name, b) or 0)
        elif kind == "unrewind":
            db.unrewind(name)
        elif kind == "redact":
            self._redact(self._place(name, b))
        elif kind == "edit":
            text = self._text()
            parts = [{"type": "text", "text": text}, {"type": "image_url", "image_url": {"url": PICTURE}}]
            place = self._place(name, b)
            if place is not None:
                self._note_old(place)
                assert db.edit_message(place, parts if c % 4 == 0 else text)
        elif kind == "delete":
            db.delete_session(name)
        elif kind == "trash":
            db.trash_session(name)
        elif kind == "restore":
            db.restore_session(name)
        elif kind == "replace":
            db.replace_messages(name, [{"role": "user", "content": self._text()} for _ in range(b % 4)])
        elif kind == "clear":
            db.clear_messages(name)
        elif kind == "title":
            db.set_session_title(name, f"title {b % 7}")
        elif kind == "tag":
            db.tag_session(name, f"tag{b % 3}")
        elif kind == "pin":
            db.pin_session(name, bool(b % 2))
        elif kind == "usage":
            db.update_token_counts(name, input_tokens=b, output_tokens=c, estimated_cost_usd=0.25 if b % 2 else None)
        elif kind == "end":
            db.end_session(name, "done") if b % 2 else db.reopen_session(name)


# ------------------------------------------------------------------------------------------ what is shown


def all_ids(db: SessionDB) -> list[str]:
    return sorted(row["id"] for row in db.search_sessions(limit=1000))


def session_facts(db: SessionDB, name: str, *, parents: bool = True) -> dict[str, Any]:
    """One session, as everybody sees it."""
    session = db.get_session(name)
    assert session is not None, name
    if not parents:
        session["parent_session_id"] = None
    shown = []
    for message in db.get_messages(name):
        del message["id"]
        message["session_id"] = "own" if message["session_id"] == name else "carried"
        shown.append(message)
    return {"session": session, "shown": shown, "turns": db.get_messages_as_conversation(name, inline_attachments=False),
            "tags": db.get_tags(name), "count": db.message_count(name)}  # fmt: skip


def found_words(db: SessionDB) -> list[str]:
    """The one word of its own that each message found has; one found twice is here twice."""
    hits = db.search_messages("heron", limit=1000)
    texts = {m["id"]: json.dumps(m["content"]) for name in all_ids(db) for m in db.get_messages(name)}
    return sorted(word for hit in hits for word in texts[hit["id"]].replace('"', " ").split() if word.endswith("q"))


def facts(db: SessionDB, *, trash: bool = True, parents: bool = True, lists: bool = True) -> dict[str, Any]:
    """All a store shows. Without `trash`, as if nothing had ever been in it; `lists` are what the trash changes."""
    told: dict[str, Any] = {
        "sessions": {name: session_facts(db, name, parents=parents) for name in all_ids(db)},
        "found": found_words(db),
        "counts": (db.session_count(), db.message_count()),
    }
    if trash:
        told["trash"] = db.list_trash()
    if lists:
        told["attached"] = attached(db)
    if lists:
        told["lists"] = [db.list_sessions_rich(limit=100, order_by_last_active=order) for order in (False, True)]
        told["ancestors"] = {
            name: db.get_messages_as_conversation(name, include_ancestors=True, inline_attachments=False)
            for name in all_ids(db)
        }
    return told


def assert_only_what_is_shown_is_found(db: SessionDB) -> None:
    shown = {json.dumps(m["content"]) for name in all_ids(db) for m in db.get_messages(name)}
    words = {word for text in shown for word in text.replace('"', " ").split() if word.endswith("q")}
    found = found_words(db)
    assert found == sorted(words), f"found {found}, shown {sorted(words)}"


def assert_stays_away(db: SessionDB, gone: set[str]) -> None:
    """Redacted and replaced texts are neither shown nor found, nor the preview of a session."""
    shown = json.dumps([db.get_messages(name) for name in all_ids(db)])
    previews = json.dumps([row["preview"] for row in db.list_sessions_rich(limit=1000, include_children=True)])
    for word in sorted(gone):
        assert f"{word} " not in shown and f'{word}"' not in shown, word
        assert word not in previews.replace('"', " ").replace("...", " ").split(), word
        assert db.search_messages(word, limit=100) == [], word


def undone(db: SessionDB) -> dict[str, Any]:
    """Undo every rewind, one after the other, and give what each session shows then. Changes the store."""
    told = {}
    for name in all_ids(db):
        told[name] = []
        for _ in range(6):
            back = db.unrewind(name)
            told[name].append((back, [(m["role"], m["content"]) for m in db.get_messages(name)]))
            if not back:
                break
    return told


def attached(db: SessionDB) -> list[Any]:
    """The attachments of each message, by the words of the message."""
    with db._engine.read() as tx:
        rows = tx.rows("SELECT m.timestamp, a.hash, a.mime, a.bytes FROM attachments a JOIN messages m ON m.id = a.message_id"
                       " ORDER BY m.timestamp, a.hash")  # fmt: skip
    return [tuple(row) for row in rows]
