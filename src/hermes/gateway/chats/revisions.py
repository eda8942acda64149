"""Revisions: a message that its author edits or deletes on a platform is changed in the record, too.

If the message still waits for its answer, the new text is answered, and a deleted one is not answered at all. If the
answer has begun, the record is changed and nothing is answered again. A message that is deleted before it arrives (a
platform may send again what could not be stored) is not answered.
"""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING, Any

import msgspec

from hermes.gateway.events import Event, Revision, as_json, from_json, platform_of, writable
from hermes.gateway.flow.inbox import command_message
from hermes.gateway.flow.replies import words_of
from hermes.store.gateway import inbox

if TYPE_CHECKING:
    from hermes.gateway.chats.participants import Services
    from hermes.store.gateway.inbox import KnownEvent

WORDS = "words"  # in a message's meta: the length of the person's own text; the rest describes attachments


class Revisions:
    """Applies edits and deletions, each once."""

    def __init__(self, services: Services) -> None:
        self._services, self._store = services, services.store

    async def take(self, platform: str, revision: Revision) -> None:
        """Apply an adapter's edit or deletion. Returns when it is stored."""
        event = None if revision.event is None else writable(revision.event)
        if event is not None and (message := command_message(event)) is not None:
            event = message[1]
        if event is not None and not event.words and not event.attachments:
            return
        await asyncio.to_thread(self._apply, platform, revision, event)

    def _apply(self, platform: str, revision: Revision, event: Event | None) -> None:
        store = self._store
        if store.read(inbox.is_noted, platform, revision.id):
            return
        while (known := store.read(inbox.find_event, platform, revision.revises)) is None:
            if event is not None or store.write(inbox.keep_deletion, platform, revision.revises):
                return
        if event is not None and not self._is_author(known, platform, event):
            log = logging.getLogger(f"hermes.gateway.{platform}")
            log.warning("a person other than the author tried to edit a message; it is unchanged")
            return
        if known.inbox_id is not None and not known.message_ids:
            if self._waits(known, event):
                store.write(inbox.note, platform, revision.id)
                return
            known = store.read(inbox.find_event, platform, revision.revises)  # its answer began a moment ago
        ids = known.message_ids if known is not None else []
        for message_id in ids:
            self._in_record(message_id, event)
        store.write(inbox.note, platform, revision.id, ids[-1] if ids else None)
        self._services.index.touched()

    def _is_author(self, known: KnownEvent, platform: str, event: Event) -> bool:
        """Whether the author edits it, as far as we know. An answered message is not changed by a person who does not see its
        conversation; between those who talk there the adapter has checked it."""
        who = event.sender.id
        if known.event is not None:
            return from_json(known.event, Event).sender.id == who
        user = (platform_of(platform), who or "")
        return who is None or all(
            self._services.db.session_of_message(one, visible_to=user) is not None for one in known.message_ids
        )

    def _waits(self, known: KnownEvent, event: Event | None) -> bool:
        """Change the waiting event in the inbox; False when it does not wait there any more."""
        revised = None
        if event is not None and known.event is not None:
            text = self._services.db.masked(event.text)
            revised = as_json(msgspec.structs.replace(from_json(known.event, Event), text=text))
        return known.inbox_id is not None and self._store.write(inbox.revise, known.inbox_id, revised)

    def _in_record(self, message_id: int, event: Event | None) -> None:
        db = self._services.db
        if event is None:
            db.redact_message(message_id)
            return
        found = self._store.content_of(message_id)
        if found is None:
            return
        shared = self._services.router.key_of(event)[1]
        content = with_words(*found, words_of(db, event, shared=shared))
        if content is not None:
            db.edit_message(message_id, content)


def with_words(content: Any, meta: Any, words: str) -> Any:
    """A message's content with a new text; its attachments stay. None when text and attachments can't be separated."""
    length = meta.get(WORDS) if isinstance(meta, dict) else None
    if isinstance(content, str):
        return words if length is None else f"{words.strip()}{content[length:]}".strip()
    if not isinstance(content, list) or not isinstance(length, int):
        return None
    first, *rest = content
    if not isinstance(first, dict) or not isinstance(first.get("text"), str):
        return None
    return [{**first, "text": f"{words.strip()}{first['text'][length:]}".strip()}, *rest]
