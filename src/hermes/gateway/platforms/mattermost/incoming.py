"""Mattermost's posts as events. A post is named by its id, which is unique on a server."""

from __future__ import annotations

import re
from typing import Any

from hermes.gateway.events import CHANNEL, DM, GROUP, Attachment, Chat, Event, Revision, Sender, deleted
from hermes.gateway.platforms._shared.http import attachment
from hermes.gateway.platforms._shared.receipt import dict_of, moment_of, parsed, text_of

_TYPES = {"D": DM, "G": GROUP, "O": CHANNEL, "P": CHANNEL}


def post_of(data: dict[str, Any]) -> dict[str, Any] | None:
    """The post of a pushed event: it is JSON in a text."""
    post = parsed(data.get("post"))
    return post if text_of(post.get("id")) else None


class PostReader:
    """Reads posts for one bot. `thread_replies`: a mention in a channel begins a thread."""

    def __init__(self, user_id: str, username: str, *, thread_replies: bool) -> None:
        self._user_id, self._thread_replies = user_id, thread_replies
        self._mention = re.compile(rf"(?<![\w@.])@{re.escape(username)}(?![\w.-]*\w)[:,]?\s*", re.IGNORECASE)

    def event(
        self, post: dict[str, Any], channel: dict[str, Any], sender_name: str | None, mentions: Any = ()
    ) -> Event | None:
        """A post as an event; None for our own posts, other bots' and the server's notices."""
        user_id, props = str(post.get("user_id") or ""), dict_of(post.get("props"))
        from_program = any(str(props.get(name)) == "true" for name in ("from_bot", "from_webhook"))
        if user_id in ("", self._user_id) or from_program or str(post.get("type") or ""):
            return None
        text = str(post.get("message") or "")
        kind = _TYPES.get(str(channel.get("type")), CHANNEL)
        root = str(post.get("root_id") or "") or None
        mentioned = self._user_id in mentions or self._mention.search(text) is not None
        if kind == CHANNEL and root is None and mentioned and self._thread_replies:
            root = post["id"]
        chat = Chat(
            platform="mattermost", chat_id=str(post.get("channel_id")), type=kind, thread_id=root if kind != DM else None,
            name=str(channel.get("display_name") or "") or None,
        )  # fmt: skip
        return Event(
            id=post["id"],
            chat=chat,
            # The server authenticated the account; posts of webhooks and bots, which may bear another name, are left out.
            sender=Sender(user_id=user_id, name=sender_name, proven=True),
            text=self._mention.sub("", text, count=1).strip() if kind != DM else text,
            attachments=_attachments(post),
            message_id=post["id"],
            reply_to=str(post.get("root_id") or "") or None,
            sent_at=moment_of(post.get("create_at")),
            addressed=kind == DM or mentioned,
        )

    def edit(self, post: dict[str, Any], event: Event) -> Revision:
        """The revision for an edited post."""
        return Revision(
            id=f"edit:{post['id']}:{post.get('edit_at') or post.get('update_at')}", revises=event.id, event=event
        )


def deletion(post: dict[str, Any]) -> Revision:
    """The revision for a deleted post."""
    return deleted(str(post["id"]))


def _attachments(post: dict[str, Any]) -> tuple[Attachment, ...]:
    metadata = post.get("metadata")
    described = metadata.get("files") if isinstance(metadata, dict) else None
    known = {str(one.get("id")): one for one in described or () if isinstance(one, dict)}
    ids = post.get("file_ids")
    found = []
    for file_id in map(str, ids if isinstance(ids, list) else known):
        about = known.get(file_id, {})
        found.append(attachment(about.get("name"), about.get("mime_type"), about.get("size"), id=file_id))
    return tuple(found)
