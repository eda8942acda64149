"""Edits and deletions: Slack tells of both as messages of a kind of their own, about another message."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

from hermes.gateway.events import Event, Revision, deleted


async def revision_of(
    envelope: dict[str, Any], us: str, read: Callable[[dict[str, Any]], Awaitable[Event]]
) -> Revision | None:
    """What was done to a person's message, if anything was; `read` makes an event of a message."""
    event = (envelope.get("payload") or {}).get("event") or {}
    if event.get("type") != "message" or not isinstance(event.get("channel"), str):
        return None
    chat_id = event["channel"]
    if event.get("subtype") == "message_deleted" and event.get("deleted_ts"):
        return deleted(f"{chat_id}:{event['deleted_ts']}")
    message = event.get("message")
    if event.get("subtype") != "message_changed" or not isinstance(message, dict) or not message.get("ts"):
        return None
    if message.get("subtype") == "tombstone":  # the beginning of a thread: its place stays
        return deleted(f"{chat_id}:{message['ts']}")
    edit = message.get("edited")
    author = message.get("user")
    if not isinstance(edit, dict) or message.get("bot_id") or author in (None, us, "USLACKBOT"):
        return None  # a preview was added, a thread got an answer …
    if edit.get("user") not in (None, author):
        return None
    made = await read({**message, "channel": chat_id, "channel_type": event.get("channel_type")})
    when = event.get("event_ts") or event.get("ts")  # the edit's own says no more than the second
    return Revision(id=f"edited:{made.id}:{when}", revises=made.id, event=made)
