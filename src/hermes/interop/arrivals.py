"""Bring conversations of other programs into the record, also where they share messages.

A conversation may show messages of another one: what a compaction left in the context, or what a fork began with. They are
stored once, with the conversation that has them; the other refers to them, as after a compression or `/branch` here. A
conversation that was exported from here and continued there continues the session it came from.

One process at a time imports a foreign file into a store of this machine. An import that has read a file and stores it after a
later one has stored more would take the newer messages for messages that were taken back there, and hide them. So reading and
storing a file are one step, and a lock in the home (never one on the foreign file) keeps other processes out until it is done.
The lock goes with its process, however that ends.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hermes.home import get_hermes_home, make_private
from hermes.interop.histories.conversation import CARRIED, HERE, ORIGIN
from hermes.interop.json_reading import Record, from_json
from hermes.store.exchange.ingest import PARTIAL

if TYPE_CHECKING:
    from hermes.store.api.session_db import SessionDB

Session = Mapping[str, Any]
_SAME_TIME = 0.002  # seconds: other programs write milliseconds
_LOCK = "import.lock"  # in the home
_COPY = "@"  # in a message's foreign id, before the copy of its session in which it was said


@contextmanager
def alone(path: Path) -> Iterator[None]:
    """Hold the lock of a foreign file during this block; waits while another process holds it."""
    place = get_hermes_home() / _LOCK
    make_private(place.parent)
    # A byte of the lock file for each foreign file: imports of different files don't wait for each other.
    byte = int.from_bytes(hashlib.sha256(os.fsencode(path.resolve())).digest()[:6], "big")
    handle = os.open(place, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.lockf(handle, fcntl.LOCK_EX, 1, byte)
        yield
    finally:
        os.close(handle)


def arriving(db: SessionDB, sessions: Iterable[Session], counts: Counter[str]) -> Iterator[Session]:
    """Sessions as import_sessions takes them. `counts` gets what is stored on the way there."""
    for one in sessions:
        here = db.get_session(one["id"])
        if one.get(ORIGIN) not in (None, one["id"]) and here is None:
            one = _returned(db, one, counts)
        elif here is not None:
            one = _as_here(db, one, here)
        if CARRIED in one:
            one = _referring(one)
        if one:
            yield _plain(one)


def is_here(db: SessionDB, one: Session) -> bool:
    """Whether a session is in the record, or was exported from one that is."""
    return any(name is not None and db.get_session(name) is not None for name in (one["id"], one.get(ORIGIN)))


def new_messages(db: SessionDB, one: Session) -> list[Mapping[str, Any]]:
    """The messages of a session that an import would add."""
    known = db.foreign_message_ids(one["id"])
    told = one["messages"]
    if not known and is_here(db, one):
        known = db.foreign_message_ids(one.get(ORIGIN) or one["id"])
        told = [message for message in told if HERE not in message] if ORIGIN in one else []
    return [m for m in told if known.isdisjoint((m.get("platform_message_id"), copied_id(one["id"], m)))]


def _returned(db: SessionDB, one: Session, counts: Counter[str]) -> Session:
    """A session that was exported from here and comes back: it continues the one it came from.

    Where that one has gone on here, or the other program went on from an earlier message, it is a branch of it.
    """
    origin = db.get_session(one[ORIGIN])
    if origin is None:
        return one
    if one.get("kind") == "compression":  # a compaction there, after the session came home
        if db.get_session(one["parent_session_id"]) is not None:
            return one
        if any(not m.get("platform_message_id") for m in db.get_messages(origin["id"])[-1:]):  # it has gone on here
            return {**_without(one), "parent_session_id": origin["id"], "kind": "branch"}
        db.reopen_session(origin["id"])
        db.end_session(origin["id"], "compression")
        return {**_without(one), "parent_session_id": origin["id"]}
    # A session that has a file there, which lacks what is said in a copy of it: that is not undone there.
    is_followed = "imported" in Record.of(from_json(origin.get("meta")))
    names = {
        copied_id(one["id"], message) if is_followed else message["platform_message_id"]: message
        for message in one["messages"]
        if HERE not in message
    }
    ours = {message[HERE]: message["timestamp"] for message in one["messages"] if HERE in message}
    stored: list[Mapping[str, Any]] = [*db.get_messages(origin["id"])]
    times = {message["id"]: message["timestamp"] for message in stored if message["id"] in ours}
    if not times or any(abs(ours[number] - at) > _SAME_TIME for number, at in times.items()):
        return one  # written from another record, where messages have other numbers
    shared = [message for message in stored if message["id"] in ours or message.get("platform_message_id") in names]
    is_end = ours.keys() == times.keys() and shared[-1:] == stored[-1:]
    known = db.foreign_message_ids(origin["id"])
    goes_on = is_end and origin.get("end_reason") != "compression"
    if not names or (not goes_on and names.keys() <= known):
        counts["skipped"] += 1
        return {}
    if goes_on:
        fresh: list[Session] = [{**message, "platform_message_id": name} for name, message in names.items()]
        return _continued(db, {**one, "id": origin["id"]}, stored, fresh, counts)
    new = [message for name, message in names.items() if name not in known]
    carried = [{**message, "session_id": origin["id"]} for message in shared]
    top = max((int(message["id"]) for message in carried), default=0)
    made = {**one, "messages": [{**message, "id": top + number} for number, message in enumerate(new, 1)]}
    made |= {"parent_session_id": origin["id"], "kind": "branch"}
    return {**made, CARRIED: [{"owner": origin["id"], "after": None, "messages": carried}]} if carried else made


def _continued(
    db: SessionDB, one: Session, stored: list[Mapping[str, Any]], fresh: list[Mapping[str, Any]], counts: Counter[str]
) -> Session:
    """The session with what is new, as import_sessions follows it: by the ids that messages have in other programs."""
    if not db.foreign_message_ids(one["id"]):  # the first message from there makes it one that is followed
        fields = {
            name: value for name, value in fresh[0].items() if name not in ("role", "id", "hidden", "reasoning_tokens")
        }
        db.append_message(one["id"], fresh[0]["role"], **fields)
        counts["messages"] += 1
        if len(fresh) == 1:
            counts["updated"] += 1
            return {}
    names = {message["platform_message_id"] for message in fresh}
    own = [m for m in stored if m["session_id"] == one["id"] and m.get("platform_message_id") not in (None, *names)]
    return {**one, "messages": [*own, *fresh], "rewound_messages": []}


def _as_here(db: SessionDB, one: Session, here: Mapping[str, Any]) -> Session:
    """A session that is here: its messages stay with the session that has them here.

    Which of two forked sessions was first is not certain, and may look different when both have gone on.
    """
    shown: list[Mapping[str, Any]] = list(one["messages"])
    if CARRIED in one:
        known = db.foreign_message_ids(one["id"])
        carried = (message for some in one[CARRIED] for message in some["messages"])
        shown[:0] = [message for message in carried if message.get("platform_message_id") in known]
    if ORIGIN in one:  # said here, and written there by an export
        known = db.foreign_message_ids(one["id"])
        shown = [message for message in shown if HERE not in message or message.get("platform_message_id") in known]
    # A part of a session takes nothing away, so what a copy of it added needs no care (and the ids of a long one no reading).
    if not one.get(PARTIAL) and any(_COPY in name for name in db.foreign_message_ids(one["id"])):
        shown += [m for m in db.get_messages(one["id"]) if _COPY in (m.get("platform_message_id") or "")]
        one = {**one, **{name: here[name] for name in one.keys() & here.keys() - {"title", "meta"}}}  # it ended there
    if here.get("kind") == "branch":
        others = {m.get("platform_message_id") for m in db.get_messages(one["id"]) if m["session_id"] != one["id"]}
        shown = [
            message
            for message in shown
            if {message.get("platform_message_id"), copied_id(one["id"], message)}.isdisjoint(others - {None})
        ]
    return {**_without(one), "messages": shown}


def copied_id(session_id: str, message: Mapping[str, Any]) -> str:
    """The foreign id of a message that was said in a copy of its session."""
    return f"{message.get('platform_message_id')}{_COPY}{session_id}"


def _referring(one: Session) -> Session:
    """A new session, with references to what it shows of others."""
    numbers = {message.get("platform_message_id"): message["id"] for message in one["messages"]}
    shown = list(one["messages"])
    refs: list[list[Any]] = []
    for some in one.get(CARRIED, ()):
        told = [{**message, "session_id": some["owner"]} for message in some["messages"]]
        after = numbers.get(some["after"], 0) if some["after"] is not None else 0
        ids = [message["id"] for message in told]
        refs.append([len(refs), some["owner"], min(ids), max(ids), after, None, None])
        place = next((at for at, message in enumerate(shown, 1) if message["id"] == after and after), 0)
        shown[place:place] = told
    return {**_without(one), "messages": shown, "refs": refs}


def _without(one: Session) -> dict[str, Any]:
    return {key: value for key, value in one.items() if key != CARRIED}


def _plain(one: Session) -> Session:
    """A session without what only matters here."""
    if ORIGIN not in one:
        return one
    shown = [{key: value for key, value in message.items() if key != HERE} for message in one["messages"]]
    return {**{key: value for key, value in one.items() if key != ORIGIN}, "messages": shown}
