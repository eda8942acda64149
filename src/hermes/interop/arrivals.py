"""What becomes of conversations of other programs that share messages, as they come into the record.

A conversation may show messages of another one: what a compaction left in the context, or what a fork began with. They are
stored once, with the conversation that has them; the other refers to them, as after a compression or `/branch` here.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

from hermes.interop.histories.conversation import CARRIED

if TYPE_CHECKING:
    from hermes.store.db import SessionDB

Session = Mapping[str, Any]


def arriving(db: SessionDB, sessions: Iterable[Session]) -> Iterator[Session]:
    """Sessions as import_sessions takes them."""
    for one in sessions:
        here = db.get_session(one["id"])
        if here is not None:
            yield _as_here(db, one, is_branch=here.get("kind") == "branch")
        else:
            yield _referring(one) if CARRIED in one else one


def _as_here(db: SessionDB, one: Session, *, is_branch: bool) -> Session:
    """A session that is here: its messages stay with the session that has them here.

    Which of two forked sessions was first is not certain, and may look different when both have gone on.
    """
    shown: list[Mapping[str, Any]] = list(one["messages"])
    if CARRIED in one:
        known = db.foreign_message_ids(one["id"])
        carried = (message for some in one[CARRIED] for message in some["messages"])
        shown[:0] = [message for message in carried if message.get("platform_message_id") in known]
    if is_branch:
        others = {m.get("platform_message_id") for m in db.get_messages(one["id"]) if m["session_id"] != one["id"]}
        shown = [message for message in shown if message.get("platform_message_id") not in others - {None}]
    return {**_without(one), "messages": shown}


def _referring(one: Session) -> Session:
    """A new session, with references to what it shows of others."""
    numbers = {message.get("platform_message_id"): message["id"] for message in one["messages"]}
    shown = list(one["messages"])
    refs: list[list[Any]] = []
    for some in one[CARRIED]:
        told = [{**message, "session_id": some["owner"]} for message in some["messages"]]
        after = numbers.get(some["after"], 0) if some["after"] is not None else 0
        ids = [message["id"] for message in told]
        refs.append([len(refs), some["owner"], min(ids), max(ids), after, None, None])
        place = next((at for at, message in enumerate(shown, 1) if message["id"] == after and after), 0)
        shown[place:place] = told
    return {**_without(one), "messages": shown, "refs": refs}


def _without(one: Session) -> dict[str, Any]:
    return {key: value for key, value in one.items() if key != CARRIED}
