"""Telegram's messages as events: sender, text, chat, and whether the bot is addressed.

Pictures sent together (an album) come as one message each and become one event.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from telegram import (
    CallbackQuery,
    Message,
    MessageEntity,
    MessageOriginChannel,
    MessageOriginChat,
    MessageOriginHiddenUser,
    MessageOriginUser,
    Update,
    User,
)

from hermes.gateway.events import CHANNEL, DM, GROUP, Attachment, Chat, Event, Forwarded, Sender
from hermes.gateway.platforms._shared.http import attachment_kind

Reading = Callable[[Sequence[Message]], Event | None]

PLATFORM = "telegram"
_TOPIC = "topic-"  # before a topic's number, which alone could be the number of a person
_TYPES = {"private": DM, "group": GROUP, "supergroup": GROUP, "channel": CHANNEL}
# what a message can have: its field, the kind of the file, and its name and type where Telegram tells none. An animation is a
# document too: it comes first.
_FILES = (
    ("voice", "audio", "voice.ogg", "audio/ogg"),
    ("video_note", "video", "video.mp4", "video/mp4"),
    ("audio", "audio", None, None),
    ("video", "video", None, None),
    ("animation", "video", None, None),
    ("document", None, None, None),
)
_AFTER_MENTION = re.compile(r"[,:]?\s+")


def thread_of(topic: int) -> str:
    """The thread id of a topic."""
    return f"{_TOPIC}{topic}"


def topic_of(chat: Chat) -> int | None:
    """The topic that a chat's thread id names."""
    number = (chat.thread_id or "").removeprefix(_TOPIC)
    return int(number) if number.isdecimal() else None


def conversations(updates: Iterable[Update]) -> list[list[Message]]:
    """The messages of some updates, oldest first, grouped by album."""
    found: list[list[Message]] = []
    albums: dict[tuple[int, str], list[Message]] = {}
    for update in sorted(updates, key=lambda one: one.update_id):
        message = update.message or update.channel_post
        if message is None:
            continue
        name = (message.chat.id, message.media_group_id) if message.media_group_id else None
        if name is not None and name in albums:
            if all(message.message_id != one.message_id for one in albums[name]):
                albums[name].append(message)
            continue
        found.append([message])
        if name is not None:
            albums[name] = found[-1]
    return found


def edits(updates: Iterable[Update]) -> list[tuple[str, Message]]:
    """The edited messages, oldest first, each with an id that a redelivery has, too. A live location's move is no edit."""
    found = []
    for update in sorted(updates, key=lambda one: one.update_id):
        message = update.edited_message or update.edited_channel_post
        if message is not None and message.location is None:
            stamp = 0 if message.edit_date is None else int(message.edit_date.timestamp())
            found.append((f"edited:{update.update_id}:{stamp}", message))
    return found


def presses(updates: Iterable[Update]) -> list[CallbackQuery]:
    """The pressed buttons, oldest first."""
    found = sorted(updates, key=lambda one: one.update_id)
    return [update.callback_query for update in found if update.callback_query is not None]


def press_event(query: CallbackQuery) -> Event | None:
    """The event of a pressed button: what the button says, by the person who pressed it. None if its message is too old."""
    message = query.message
    if not isinstance(message, Message) or not query.data or query.from_user.is_bot:
        return None
    return Event(
        id=f"press:{query.id}", chat=_chat(message),
        sender=_person(query.from_user), text=query.data,
        reply_to=str(message.message_id),
    )  # fmt: skip


def migration(message: Message) -> tuple[str, str] | None:
    """The old and the new id of a group that became a supergroup; Telegram announces it in both."""
    if message.migrate_to_chat_id is not None:
        return str(message.chat.id), str(message.migrate_to_chat_id)
    if message.migrate_from_chat_id is not None:
        return str(message.migrate_from_chat_id), str(message.chat.id)
    return None


def event_of(messages: Sequence[Message], us: User, commands: Mapping[str, str]) -> Event | None:
    """The event of one message or one album; None for what is not a person's message.

    `commands` has our command for each name in Telegram's menu, which allows fewer letters.
    """
    first = messages[0]
    sender = _sender(first)
    if sender is None:
        return None
    own = [message for message in messages if not _is_anothers(message)]
    texts = [_addressed_text(message, us, commands) for message in own]
    if any(one is None for one in texts):
        return None
    words = [one[0] for one in texts if one is not None]
    text = "\n".join(word for word in words if word)
    attachments = tuple(found for message in messages if (found := _attachment(message)) is not None)
    forwarded = _forwarded([message for message in messages if _is_anothers(message)])
    if not text and not attachments and (forwarded is None or not forwarded.text):
        return None  # a person joined, the group's picture changed, a game of dice …
    last = messages[-1].message_id
    number = str(first.message_id) if len(messages) == 1 else f"{first.message_id}-{last}"
    root = _topic_root(first)
    reply = None if root is not None else first.reply_to_message
    ours = root or reply
    return Event(
        id=f"{first.chat.id}:{number}",
        chat=_chat(first),
        sender=sender,
        text=text,
        attachments=attachments,
        message_id=str(first.message_id),
        reply_to=None if reply is None else str(reply.message_id),
        quoted=_quoted(first, reply),
        forwarded=forwarded,
        sent_at=first.date.timestamp(),
        # A topic that the bot opened is a conversation with it, like an answer to one of its messages.
        addressed=first.chat.type == "private"
        or any(one is not None and one[1] for one in texts)
        or (ours is not None and ours.from_user is not None and ours.from_user.id == us.id),
    )


def _is_anothers(message: Message) -> bool:
    """Whether the sender has not written a message: it is forwarded, or an inline bot wrote it."""
    return message.forward_origin is not None or message.via_bot is not None


def _forwarded(messages: Sequence[Message]) -> Forwarded | None:
    if not messages:
        return None
    words = (one.text or one.caption or _in_words(one) for one in messages)
    return Forwarded(text="\n".join(word for word in words if word), author=_author(messages[0]))


def _author(message: Message) -> str | None:
    """The name of the author of a message that another person passes on."""
    match message.forward_origin:
        case MessageOriginUser(sender_user=user):
            return user.full_name
        case MessageOriginHiddenUser(sender_user_name=name):
            return name
        case MessageOriginChat(sender_chat=chat) | MessageOriginChannel(chat=chat):
            return chat.title
    return None if message.via_bot is None else message.via_bot.name


def _quoted(message: Message, reply: Message | None) -> str | None:
    """The text of the answered message: the selected part, else all of it."""
    if message.quote is not None:
        return message.quote.text or None
    return None if reply is None else reply.text or reply.caption


def _topic_root(message: Message) -> Message | None:
    """The service message about a topic's creation, which Telegram gives as the answered message of its first one."""
    answered = message.reply_to_message
    return answered if answered is not None and answered.forum_topic_created is not None else None


def _chat(message: Message) -> Chat:
    chat, thread, name = message.chat, None, message.chat.title or message.chat.full_name
    # Without is_topic_message the number is that of a reply chain, and nothing can be sent to it.
    if message.is_topic_message and message.message_thread_id is not None:
        thread = thread_of(message.message_thread_id)
        root = _topic_root(message)
        if root is not None and root.forum_topic_created is not None:
            name = f"{name} / {root.forum_topic_created.name}"
    return Chat(platform=PLATFORM, chat_id=str(chat.id), type=_TYPES.get(chat.type, GROUP), thread_id=thread, name=name)


def _sender(message: Message) -> Sender | None:
    """The author; None for bots, ourselves among them. Channels and anonymous admins speak as that chat."""
    if message.is_automatic_forward:
        return None
    speaks_as = message.sender_chat or (message.chat if message.from_user is None else None)
    if speaks_as is not None:
        # Telegram checked that one of its administrators speaks, and does not say which: the chat is the sender.
        return Sender(user_id=str(speaks_as.id), name=message.author_signature or speaks_as.title, proven=True)
    user = message.from_user
    if user is None or user.is_bot:
        return None
    return _person(user)


def _person(user: User) -> Sender:
    # Telegram authenticated the account; updates come by our own token, or with the webhook's secret.
    return Sender(user_id=str(user.id), name=user.full_name, proven=True, language=user.language_code)


# ---------------------------------------------------------------------------------------------------- message text


def _addressed_text(message: Message, us: User, commands: Mapping[str, str]) -> tuple[str, bool] | None:
    """The text without the mention of the bot, and whether the bot is addressed; None for a command to another bot."""
    text = message.text or message.caption
    if text is None:
        return _in_words(message), False
    name = f"@{us.username}".lower()
    units = text.encode("utf-16-le", "surrogatepass")  # Telegram counts in these
    result, place, mentioned, command = "", 0, False, False

    def piece(start: int, end: int | None = None) -> str:
        return units[2 * start : None if end is None else 2 * end].decode("utf-16-le", "surrogatepass")

    for entity in sorted(message.entities or message.caption_entities, key=lambda one: one.offset):
        if entity.offset < place:
            continue  # nested in an entity that is handled already
        end = entity.offset + entity.length
        word, before = piece(entity.offset, end), piece(place, entity.offset)
        if entity.type == MessageEntity.BOT_COMMAND and not (result + before).strip():
            typed, _, whom = word[1:].partition("@")
            if whom and f"@{whom}".lower() != name:
                return None
            result, place, command = f"/{commands.get(typed.lower(), typed)}", end, True
        elif (entity.type == MessageEntity.MENTION and word.lower() == name) or (
            entity.type == MessageEntity.TEXT_MENTION and entity.user is not None and entity.user.id == us.id
        ):
            result, place, mentioned = result + before, end, True
            gap = _AFTER_MENTION.match(piece(end))
            if gap is not None and (not result or result[-1].isspace()):
                place += len(gap[0])  # these characters are one UTF-16 unit each
    result += piece(place)
    return (result.strip() if mentioned else result), mentioned or command


def _in_words(message: Message) -> str:
    """A description of content other than text, where a text can stand for it; a name in it is never a command or a "yes"."""
    if message.sticker is not None:
        return message.sticker.emoji or ""
    if message.location is not None:
        place = f"geo:{message.location.latitude},{message.location.longitude}"
        venue = message.venue
        return f"Location: {venue.title}, {venue.address} ({place})" if venue is not None else place
    if message.contact is not None:
        person = message.contact
        parts = (person.first_name, person.last_name, person.phone_number)
        return f"Contact: {' '.join(part for part in parts if part)}"
    return ""


def _attachment(message: Message) -> Attachment | None:
    if message.photo:
        largest = max(message.photo, key=lambda size: size.width * size.height)
        return _file("image", largest.file_id, largest.file_size, "photo.jpg", "image/jpeg")
    for name, kind, usual, mime in _FILES:
        found: Any = getattr(message, name)
        if found is not None:
            mime = getattr(found, "mime_type", None) or mime
            return _file(
                kind or attachment_kind(mime), found.file_id, found.file_size, getattr(found, "file_name", usual), mime
            )
    return None


def _file(kind: str, file_id: str, size: int | None, name: str | None, mime: str | None) -> Attachment:
    return Attachment(kind=kind, name=name, mime=mime, size=size, reference={"file_id": file_id})
