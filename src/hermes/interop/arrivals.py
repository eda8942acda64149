"""Bring conversations of other programs into the record, also where they share messages.

A conversation may show messages of another one: what a compaction left in the context, or what a fork began with. They are
stored once, with the conversation that has them; the other refers to them, as after a compression or `/branch` here. A
conversation that was exported from here and continued there continues the session it came from.

One process at a time imports a foreign file into a store of this machine. An import that has read a file and stores it after a
later one has stored more would take the newer messages for messages that were taken back there, and hide them. So reading and
storing a file are one step, and a lock in the home (never one on the foreign file) keeps other processes out until it is done.
The lock goes with its process, however that ends.

Standard input, or a pipe, is copied to a file in the import's own temporary folder, since detecting a format consumes bytes. For
an encrypted store it is refused: nothing may lie on the disk in plain text, not even for a moment.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import shutil
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO

from hermes.errors import InvalidInput
from hermes.home import get_hermes_home, make_private
from hermes.interop.histories import CARRIED, HERE, ORIGIN
from hermes.interop.json_reading import Record, from_json
from hermes.store.exchange.ingest import PARTIAL

if TYPE_CHECKING:
    from hermes.store.api.session_db import SessionDB

Session = Mapping[str, Any]
_SAME_TIME = 0.002  # seconds: other programs write milliseconds
_LOCK = "import.lock"  # in the home
_COPY = "@"  # in a message's foreign id, before the copy of its session in which it was said


def copied(stream: BinaryIO, folder: Path, *, encrypted: bool) -> Path:
    """The bytes of a stream as a file that can be read several times. `encrypted`: they must not come to a disk."""
    if encrypted:
        raise InvalidInput("the store is encrypted, so standard input is not copied to the disk; import it as a file")
    copy = folder / "standard-input"
    with copy.open("wb") as file:
        shutil.copyfileobj(stream, file)
    return copy


@contextmanager
def alone(path: Path) -> Iterator[None]:
    """Hold the lock of a foreign file during this block; waits while another process holds it."""
    lock_file = get_hermes_home() / _LOCK
    make_private(lock_file.parent)
    # A byte of the lock file for each foreign file: imports of different files don't wait for each other.
    byte = int.from_bytes(hashlib.sha256(os.fsencode(path.resolve())).digest()[:6], "big")
    handle = os.open(lock_file, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.lockf(handle, fcntl.LOCK_EX, 1, byte)
        yield
    finally:
        os.close(handle)


def arriving(db: SessionDB, sessions: Iterable[Session], counts: Counter[str]) -> Iterator[Session]:
    """Prepare sessions for `import_sessions`; what is stored on the way is added to `counts`."""
    for session in sessions:
        stored = db.get_session(session["id"])
        if session.get(ORIGIN) not in (None, session["id"]) and stored is None:
            session = _returned(db, session, counts)
        elif stored is not None:
            session = _existing(db, session, stored)
        if CARRIED in session:
            session = _with_references(session)
        if session:
            yield _without_origin(session)


def is_here(db: SessionDB, session: Session) -> bool:
    """Whether a session, or the one it was exported from, is in the record."""
    return any(name is not None and db.get_session(name) is not None for name in (session["id"], session.get(ORIGIN)))


def new_messages(db: SessionDB, session: Session) -> list[Mapping[str, Any]]:
    """The messages of a session that an import would add."""
    known = db.foreign_message_ids(session["id"])
    messages = session["messages"]
    if not known and is_here(db, session):
        known = db.foreign_message_ids(session.get(ORIGIN) or session["id"])
        messages = [message for message in messages if HERE not in message] if ORIGIN in session else []
    return [m for m in messages if known.isdisjoint((m.get("platform_message_id"), copied_id(session["id"], m)))]


def _returned(db: SessionDB, session: Session, counts: Counter[str]) -> Session:
    """A session that was exported from here and comes back, as a continuation of its origin.

    If the origin has gone on here, or the other program went on from an earlier message, it is a branch of the origin.
    """
    origin = db.get_session(session[ORIGIN])
    if origin is None:
        return session
    if session.get("kind") == "compression":  # a compaction there, after the session came home
        if db.get_session(session["parent_session_id"]) is not None:
            return session
        if any(not m.get("platform_message_id") for m in db.get_messages(origin["id"])[-1:]):  # it has gone on here
            return {**_without_carried(session), "parent_session_id": origin["id"], "kind": "branch"}
        db.reopen_session(origin["id"])
        db.end_session(origin["id"], "compression")
        return {**_without_carried(session), "parent_session_id": origin["id"]}
    # A session that has a file there: messages of a copy are not in that file, and were not undone there.
    is_followed = "imported" in Record.of(from_json(origin.get("meta")))
    names = {
        copied_id(session["id"], message) if is_followed else message["platform_message_id"]: message
        for message in session["messages"]
        if HERE not in message
    }
    ours = {message[HERE]: message["timestamp"] for message in session["messages"] if HERE in message}
    stored: list[Mapping[str, Any]] = [*db.get_messages(origin["id"])]
    times = {message["id"]: message["timestamp"] for message in stored if message["id"] in ours}
    if not times or any(abs(ours[number] - at) > _SAME_TIME for number, at in times.items()):
        return session  # written from another record, where messages have other numbers
    shared = [message for message in stored if message["id"] in ours or message.get("platform_message_id") in names]
    is_end = ours.keys() == times.keys() and shared[-1:] == stored[-1:]
    known = db.foreign_message_ids(origin["id"])
    goes_on = is_end and origin.get("end_reason") != "compression"
    if not names or (not goes_on and names.keys() <= known):
        counts["skipped"] += 1
        return {}
    if goes_on:
        fresh: list[Session] = [{**message, "platform_message_id": name} for name, message in names.items()]
        return _continued(db, {**session, "id": origin["id"]}, stored, fresh, counts)
    new = [message for name, message in names.items() if name not in known]
    carried = [{**message, "session_id": origin["id"]} for message in shared]
    top = max((int(message["id"]) for message in carried), default=0)
    made = {**session, "messages": [{**message, "id": top + number} for number, message in enumerate(new, 1)]}
    made |= {"parent_session_id": origin["id"], "kind": "branch"}
    return {**made, CARRIED: [{"owner": origin["id"], "after": None, "messages": carried}]} if carried else made


def _continued(
    db: SessionDB, session: Session, stored: list[Mapping[str, Any]], new: list[Mapping[str, Any]], counts: Counter[str]
) -> Session:
    """The session with its new messages, which import_sessions matches by their ids in other programs."""
    if not db.foreign_message_ids(session["id"]):  # the first message from there makes it one that is followed
        fields = {
            name: value for name, value in new[0].items() if name not in ("role", "id", "hidden", "reasoning_tokens")
        }
        db.append_message(session["id"], new[0]["role"], **fields)
        counts["messages"] += 1
        if len(new) == 1:
            counts["updated"] += 1
            return {}
    names = {message["platform_message_id"] for message in new}
    own = [m for m in stored if m["session_id"] == session["id"] and m.get("platform_message_id") not in (None, *names)]
    return {**session, "messages": [*own, *new], "rewound_messages": []}


def _existing(db: SessionDB, session: Session, stored: Mapping[str, Any]) -> Session:
    """A session that is stored here: its messages stay with the session that has them here.

    Which of two forked sessions was first is not certain, and may look different when both have gone on.
    """
    shown: list[Mapping[str, Any]] = list(session["messages"])
    if CARRIED in session:
        known = db.foreign_message_ids(session["id"])
        carried = (message for group in session[CARRIED] for message in group["messages"])
        shown[:0] = [message for message in carried if message.get("platform_message_id") in known]
    if ORIGIN in session:  # said here, and written there by an export
        known = db.foreign_message_ids(session["id"])
        shown = [message for message in shown if HERE not in message or message.get("platform_message_id") in known]
    # A part of a session takes nothing away, so what a copy of it added needs no care (and the ids of a long one no reading).
    if not session.get(PARTIAL) and any(_COPY in name for name in db.foreign_message_ids(session["id"])):
        shown += [m for m in db.get_messages(session["id"]) if _COPY in (m.get("platform_message_id") or "")]
        kept_fields = session.keys() & stored.keys() - {"title", "meta"}
        session = {**session, **{name: stored[name] for name in kept_fields}}  # it ended there
    if stored.get("kind") == "branch":
        messages = db.get_messages(session["id"])
        others = {m.get("platform_message_id") for m in messages if m["session_id"] != session["id"]}
        shown = [
            message
            for message in shown
            if {message.get("platform_message_id"), copied_id(session["id"], message)}.isdisjoint(others - {None})
        ]
    return {**_without_carried(session), "messages": shown}


def copied_id(session_id: str, message: Mapping[str, Any]) -> str:
    """The foreign id of a message that was said in a copy of its session."""
    return f"{message.get('platform_message_id')}{_COPY}{session_id}"


def _with_references(session: Session) -> Session:
    """A new session, with references to the messages of others that it shows."""
    numbers = {message.get("platform_message_id"): message["id"] for message in session["messages"]}
    shown = list(session["messages"])
    refs: list[list[Any]] = []
    for group in session.get(CARRIED, ()):
        messages = [{**message, "session_id": group["owner"]} for message in group["messages"]]
        after = numbers.get(group["after"], 0) if group["after"] is not None else 0
        ids = [message["id"] for message in messages]
        refs.append([len(refs), group["owner"], min(ids), max(ids), after, None, None])
        place = next((at for at, message in enumerate(shown, 1) if message["id"] == after and after), 0)
        shown[place:place] = messages
    return {**_without_carried(session), "messages": shown, "refs": refs}


def _without_carried(session: Session) -> dict[str, Any]:
    return {key: value for key, value in session.items() if key != CARRIED}


def _without_origin(session: Session) -> Session:
    """A session without the keys that only this module reads."""
    if ORIGIN not in session:
        return session
    shown = [{key: value for key, value in message.items() if key != HERE} for message in session["messages"]]
    return {**{key: value for key, value in session.items() if key != ORIGIN}, "messages": shown}
