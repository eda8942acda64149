"""A small Bot API server: people, a group with topics, a channel, and everything that can go wrong between them.

It listens on a real socket, holds long polls, calls webhooks, and checks every request against Telegram's own schema;
what it sends itself is checked too, so that it can't invent a Telegram that does not exist.
"""

from __future__ import annotations

import json
import math
import re
import secrets
import socket
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Callable
from typing import Any, ClassVar

from tests.support.labs import base, telegram_schema
from tests.support.labs.telegram_wire import Refused, Server, marks_of, marks_wrong

BOT = {"id": 4242, "is_bot": True, "first_name": "Hermes", "username": "hermes_lab_bot"}
IDS = {"alice": 1001, "bob": 1002, "mallory": 1003}
GROUP, CHANNEL, TOPIC = -1001000000001, -1001000000002, 7
_CHATS: dict[int, dict[str, Any]] = {
    GROUP: {"id": GROUP, "type": "supergroup", "title": "The Lab", "is_forum": True},
    CHANNEL: {"id": CHANNEL, "type": "channel", "title": "News"},
    **{number: {"id": number, "type": "private", "first_name": who.title()} for who, number in IDS.items()},
}
_FILE_LIMIT = 20 * 1024 * 1024


def person(who: str) -> dict[str, Any]:
    """A person as Telegram describes one."""
    return {"id": IDS[who], "is_bot": False, "first_name": who.title(), "language_code": "en"}


class Lab(base.Lab):
    """Telegram on this machine. Beyond the common: `channel` is a place too, but all who speak there are one."""

    platform: ClassVar[str] = "telegram"
    places: ClassVar[frozenset[str]] = frozenset({"dm", "group", "thread"})
    can: ClassVar[frozenset[str]] = frozenset(
        "redeliver rate_limit fail drop attach edits change files choices forward".split()
    )

    def __init__(self) -> None:
        self._schema = telegram_schema.load()
        self.token = f"{BOT['id']}:lab-{secrets.token_hex(16)}"
        self.turn = threading.Condition()
        self.connections: set[socket.socket] = set()
        self.answering = 0  # requests that are being answered, polls aside
        self._number = 100  # of the last message
        self._update_number = 700_000
        self._poll = 0
        self._webhook: dict[str, str] = {}
        self._closed = False
        self.reset()
        self._server = Server(self)
        self.base_url = f"http://127.0.0.1:{self._server.server_address[1]}"
        threading.Thread(target=self._server.serve_forever, args=(0.05,), daemon=True).start()

    # ------------------------------------------------------------------------------------------ the common lab

    @property
    def settings(self) -> dict[str, Any]:
        return {"token": self.token, "base_url": self.base_url}

    def user_id(self, who: str) -> str:
        return str(IDS[who])

    def chat_id(self, where: str, who: str = "alice") -> str:
        return str(self._place(where, who)[0])

    def say(self, text: str, *, who: str = "alice", where: str = "dm", addressed: bool = True) -> str:
        return self.post({"text": self._addressed(text, where, addressed)}, who=who, where=where)

    def forward(self, text: str, *, who: str = "alice", where: str = "dm") -> str:
        origin = {"type": "user", "date": 1_700_000_000, "sender_user": person("bob")}
        return self.post({"text": text, "forward_origin": origin}, who=who, where=where)

    def shown(self, where: str = "dm", *, who: str = "alice") -> list[str]:
        chat, topic = self._place(where, who)
        with self.turn:
            there = [one for one in self.sent if one["chat"]["id"] == chat and self._topic(one) == topic]
            return [one["text"] for one in there if "text" in one]

    def sent_files(self, where: str = "dm", *, who: str = "alice") -> list[tuple[str, bytes, str]]:
        chat, topic = self._place(where, who)
        with self.turn:
            there = [one for one in self.sent if one["chat"]["id"] == chat and self._topic(one) == topic]
            return [(*self._outgoing[one["message_id"]], one.get("caption", "")) for one in there if "text" not in one]

    def attach(
        self, data: bytes, name: str, mime: str, *, who: str = "alice", where: str = "dm", text: str = ""
    ) -> str:
        caption = {"caption": self._addressed(text, where, bool(text))} if text else {}
        return self.post({**self.file(data, name, mime), **caption}, who=who, where=where)

    def _buttons(self, where: str, who: str) -> list[tuple[dict[str, Any], str, str]]:
        chat, topic = self._place(where, who)
        there = [one for one in self.sent if one["chat"]["id"] == chat and self._topic(one) == topic]
        return [
            (message, one["text"], one["callback_data"])
            for message in there
            for row in (message.get("reply_markup") or {}).get("inline_keyboard", ())
            for one in row
        ]

    def buttons(self, where: str = "dm", *, who: str = "alice") -> list[str]:
        with self.turn:
            return [label for _, label, _ in self._buttons(where, who)]

    def press(self, label: str, *, who: str = "alice", where: str = "dm", which: int = -1) -> None:
        with self.turn:
            message, _, data = [one for one in self._buttons(where, who) if one[1] == label][which]
            query = {
                "id": secrets.token_hex(8), "from": person(who), "message": message, "chat_instance": "1", "data": data,
            }  # fmt: skip
            self._announce({"callback_query": query})

    def redeliver(self, message_id: str) -> None:
        with self.turn:
            self._again += [one for one in self._past if str(_message(one)["message_id"]) == message_id][:1]
            self.turn.notify_all()

    def change(self, message_id: str, text: str, *, who: str = "alice", where: str = "dm") -> None:
        with self.turn:
            (update,) = [one for one in self._past if str(_message(one)["message_id"]) == message_id][:1]
            words = "caption" if "caption" in _message(update) else "text"
            addressed = self._addressed(text, where, True)
            kind = "edited_channel_post" if where == "channel" else "edited_message"
            self._announce({kind: {**_message(update), words: addressed, "edit_date": int(time.time())}})

    def rate_limit(self, seconds: float, times: int = 1) -> None:
        wait = max(1, math.ceil(seconds))  # whole seconds only, in this API
        with self.turn:
            self._refusals += [Refused(429, f"Too Many Requests: retry after {wait}", retry_after=wait)] * times

    def fail(self, times: int = 1) -> None:
        with self.turn:
            self._refusals += [Refused(502, "Bad Gateway")] * times

    def drop(self) -> None:
        """Cut every connection, but none in the middle of an answer: what a lost answer means is `unanswered`."""
        with self.turn:
            assert self.turn.wait_for(lambda: not self.answering, 20)
            for connection in self.connections:
                try:
                    connection.shutdown(socket.SHUT_RDWR)
                except OSError:
                    pass

    def typed(self, where: str = "dm", *, who: str = "alice") -> int:
        chat, topic = self._place(where, who)
        with self.turn:
            return sum(1 for one in self.actions if one == (chat, topic))

    def threads(self) -> list[str]:
        with self.turn:
            return [topic["name"] for topic in self.topics.values() if topic["by"] is BOT]

    def problems(self) -> list[str]:
        with self.turn:
            return list(self._problems)

    def reset(self) -> None:
        with self.turn:
            self._queue: list[dict[str, Any]] = []  # updates that were not confirmed
            self._past: list[dict[str, Any]] = []
            self._again: list[dict[str, Any]] = []
            self._shuffled = False
            self.handed_out = 0  # updates, each time they are given to a poll
            self.sent: list[dict[str, Any]] = []
            self.actions: list[tuple[int, int | None]] = []
            self.requests: list[tuple[str, dict[str, Any]]] = []
            self.menu: list[dict[str, str]] = []
            self.topics: dict[int, dict[str, Any]] = {TOPIC: {"name": "Ideas", "chat": GROUP, "by": person("bob")}}
            self.files: dict[str, bytes] = {}
            self.uploads: dict[str, tuple[str, bytes]] = {}
            self._outgoing: dict[int, tuple[str, bytes]] = {}
            self.no_pictures = False
            self.moved: dict[int, int] = {}  # groups that became supergroups
            self.blocked: set[int] = set()
            self.forbidden_topics = False
            self.refuse_formatting = False
            self.revoked = False
            self.silent = False  # sends are taken and never answered
            self.unanswered = 0  # so many sends are done, and their connection is cut before the answer
            self.bad_polls = 0  # that many polls get 502
            self._refusals: list[Refused] = []
            self._problems: list[str] = []
            self._webhook = {}
            self.turn.notify_all()

    def close(self) -> None:
        with self.turn:
            self._closed = True
            self.turn.notify_all()
        self._server.shutdown()
        self.drop()
        self._server.server_close()

    # ------------------------------------------------------------------------------------------- people and files

    def post(self, fields: dict[str, Any], *, who: str = "alice", where: str = "dm", **more: Any) -> str:
        """A message with these fields is said; `more` is added to it (or replaces what would be there)."""
        with self.turn:
            chat, topic = self._place(where, who)
            self._number += 1
            message: dict[str, Any] = {"message_id": self._number, "date": int(time.time()), "chat": self._chat(chat)}
            if where == "channel":
                message["sender_chat"] = self._chat(chat)
            else:
                message["from"] = person(who)
            if topic is not None:
                message |= {"message_thread_id": topic, "is_topic_message": True}
                message["reply_to_message"] = self._root(topic)
            message |= fields
            for words, marks in (("text", "entities"), ("caption", "caption_entities")):
                if words in message and marks not in message:
                    found = marks_of(message[words])
                    message |= {marks: found} if found else {}
            message |= more
            kind = "channel_post" if where == "channel" else "message"
            self._announce({kind: {key: value for key, value in message.items() if value is not None}})
            return str(message["message_id"])

    def announce(self, **update: Any) -> None:
        """Something else happens: an edit, somebody joins …"""
        with self.turn:
            self._announce(update)

    def announce_nonsense(self) -> None:
        """An update that no library can read: the schema of another day."""
        with self.turn:
            self._update_number += 1
            self._queue.append({"update_id": self._update_number, "message": {"message_id": "x", "chat": 5}})
            self.turn.notify_all()

    def shuffle(self) -> None:
        """The updates that wait are handed out in the wrong order, once."""
        with self.turn:
            self._shuffled = True

    def file(self, data: bytes, name: str, mime: str) -> dict[str, Any]:
        """The field of a message that holds this file."""
        with self.turn:
            key = f"file-{len(self.files)}-{name}"
            self.files[key] = data
            self.files[f"small-{key}"] = data[:10]
        known = {"file_id": key, "file_unique_id": f"u{len(self.files)}", "file_size": len(data)}
        named = {**known, "file_name": name, "mime_type": mime}
        kind = mime.partition("/")[0]
        if mime == "image/jpeg":
            small = {**known, "file_id": f"small-{key}", "file_unique_id": "s", "file_size": 10}
            return {"photo": [{**small, "width": 90, "height": 60}, {**known, "width": 900, "height": 600}]}
        if mime == "audio/ogg":
            return {"voice": {**known, "mime_type": mime, "duration": 2}}
        if kind == "audio":
            return {"audio": {**named, "duration": 2}}
        if kind == "video":
            return {"video": {**named, "duration": 2, "width": 90, "height": 60}}
        return {"document": named}

    def waiting(self) -> int:
        """How many updates the bot has not confirmed."""
        with self.turn:
            return len(self._queue)

    def calls(self, method: str) -> list[dict[str, Any]]:
        """The requests for a method so far."""
        with self.turn:
            return [values for name, values in self.requests if name == method]

    def _announce(self, update: dict[str, Any]) -> None:
        self._update_number += 1
        whole = {"update_id": self._update_number, **update}
        wrong = self._schema.thing("Update", whole)
        assert not wrong, f"Telegram would never send this: {wrong}"
        self._queue.append(whole)
        self._past.append(whole)
        self.turn.notify_all()

    def _place(self, where: str, who: str) -> tuple[int, int | None]:
        """Chat and topic. Beside the known places: the name of a topic the agent has created."""
        if where in ("dm", "group", "channel"):
            return {"dm": IDS[who], "group": GROUP, "channel": CHANNEL}[where], None
        if where == "thread":
            return GROUP, TOPIC
        return next((topic["chat"], number) for number, topic in self.topics.items() if topic["name"] == where)

    def _chat(self, number: int) -> dict[str, Any]:
        return _CHATS.get(number) or {"id": number, "type": "supergroup", "title": "Moved"}

    def _root(self, number: int) -> dict[str, Any]:
        topic = self.topics[number]
        made = {"name": topic["name"], "icon_color": 7322096}
        return {
            "message_id": number, "message_thread_id": number, "is_topic_message": True, "date": 1_700_000_000,
            "chat": self._chat(topic["chat"]), "from": topic["by"], "forum_topic_created": made,
        }  # fmt: skip

    def _addressed(self, text: str, where: str, addressed: bool) -> str:
        if where == "dm" or not addressed:
            return text
        if text.startswith("/"):
            command, space, rest = text.partition(" ")
            return f"{command}@{BOT['username']}{space}{rest}"
        return f"@{BOT['username']} {text}"

    @staticmethod
    def _topic(message: dict[str, Any]) -> int | None:
        topic: int | None = message.get("message_thread_id")
        return topic

    # ------------------------------------------------------------------------------------------------ the server

    def answer(self, token: str, method: str, form: dict[str, str], gone: Callable[[], bool]) -> dict[str, Any]:
        """The body of the answer to a request, of a client that may be gone before it comes."""
        if token != self.token or self.revoked:
            return Refused(401, "Unauthorized").body
        values, wrong = self._schema.request(method, form)
        with self.turn:
            self.requests.append((method, values))
            self._problems += wrong
        handler = getattr(self, f"_do_{method}", None)
        if handler is None or wrong:
            return Refused(404 if handler is None else 400, f"Bad Request: {wrong or method}").body
        try:
            while self.silent and method == "sendMessage" and not (gone() or self._closed):
                time.sleep(0.02)
            kind, result = handler(**values, gone=gone) if method == "getUpdates" else handler(**values)
        except Refused as refused:
            return refused.body
        with self.turn:
            wrong = self._schema.thing(kind, result, method) if kind else []
            self._problems += [f"the lab itself: {one}" for one in wrong]
        return {"ok": True, "result": result}

    def _do_getMe(self) -> tuple[str, Any]:
        more = {"can_join_groups": True, "can_read_all_group_messages": True, "supports_inline_queries": False}
        return "User", {**BOT, **more, "has_topics_enabled": not self.forbidden_topics}

    def _do_deleteWebhook(self) -> tuple[str, Any]:
        with self.turn:
            self._webhook = {}
        return "True", True

    def _do_setWebhook(self, url: str, secret_token: str = "", **more: Any) -> tuple[str, Any]:
        with self.turn:
            self._webhook = {"url": url, "secret": secret_token}
        threading.Thread(target=self._bring, args=(self._webhook,), daemon=True).start()
        return "True", True

    def _do_getUpdates(
        self, gone: Callable[[], bool], offset: int = 0, limit: int = 100, timeout: int = 0, **more: Any
    ) -> tuple[str, Any]:
        with self.turn:
            if self._webhook:
                raise Refused(409, "Conflict: can't use getUpdates method while webhook is active")
            if self.bad_polls:
                self.bad_polls -= 1
                raise Refused(502, "Bad Gateway")
            self._poll += 1
            mine = self._poll
            self.turn.notify_all()
            self._queue = [one for one in self._queue if one["update_id"] >= offset]
            end = time.monotonic() + timeout
            while not (self._queue or self._again or self._poll != mine or self._closed or gone()):
                if time.monotonic() >= end:
                    break
                self.turn.wait(0.1)
            if self._poll != mine:
                raise Refused(409, "Conflict: terminated by other getUpdates request")
            found = [*self._again, *self._queue][:limit]
            self._again = []
            self.handed_out += len(found)
            if self._shuffled and len(found) > 1:
                found.reverse()
                self._shuffled = False
            return "", found  # checked when they were made

    def _bring(self, webhook: dict[str, str]) -> None:
        """Call the webhook for each update, and again until it answers well."""
        while True:
            with self.turn:
                self.turn.wait_for(
                    lambda: self._queue or self._again or self._webhook is not webhook or self._closed, 1
                )
                if self._closed or self._webhook is not webhook:
                    return
                source = self._again or self._queue
                update = source[0] if source else None
            if update is None:
                continue
            headers = {"Content-Type": "application/json", "X-Telegram-Bot-Api-Secret-Token": webhook["secret"]}
            request = urllib.request.Request(webhook["url"], json.dumps(update).encode(), headers)
            try:
                with urllib.request.urlopen(request, timeout=10):
                    with self.turn:
                        if update in source:
                            source.remove(update)
            except (urllib.error.URLError, OSError):
                time.sleep(0.05)

    def _do_sendMessage(self, chat_id: int, text: str, **more: Any) -> tuple[str, Any]:
        with self.turn:
            self._gate(chat_id, text, more)
            topic = more.get("message_thread_id")
            if topic is not None and (topic not in self.topics or self.topics[topic]["chat"] != chat_id):
                raise Refused(400, "Bad Request: message thread not found")
            self._number += 1
            message = {
                "message_id": self._number, "date": int(time.time()), "chat": self._chat(chat_id), "from": BOT,
                "text": text.strip(), **({"entities": more["entities"]} if more.get("entities") else {}),
            }  # fmt: skip
            if topic is not None:
                message |= {"message_thread_id": topic, "is_topic_message": True}
            if more.get("reply_markup"):
                for row in more["reply_markup"]["inline_keyboard"]:
                    for one in row:
                        if not 1 <= len(one["callback_data"].encode()) <= 64:
                            raise Refused(400, "Bad Request: BUTTON_DATA_INVALID")
                message["reply_markup"] = more["reply_markup"]
            self.sent.append(message)
            return "Message", message

    def _do_answerCallbackQuery(self, callback_query_id: str, **more: Any) -> tuple[str, Any]:
        return "True", True

    def _do_editMessageReplyMarkup(self, chat_id: int, message_id: int, **more: Any) -> tuple[str, Any]:
        with self.turn:
            for message in self.sent:
                if (message["chat"]["id"], message["message_id"]) == (chat_id, message_id):
                    if message.pop("reply_markup", None) is None:
                        raise Refused(400, "Bad Request: message is not modified")
                    return "Message", message
        raise Refused(400, "Bad Request: message to edit not found")

    def _do_sendPhoto(self, chat_id: int, photo: str, **more: Any) -> tuple[str, Any]:
        size = {"file_id": "sent", "file_unique_id": "sent", "width": 1, "height": 1}
        if self.no_pictures:
            raise Refused(400, "Bad Request: IMAGE_PROCESS_FAILED")
        return self._sent_file(chat_id, photo, "photo", [size], **more)

    def _do_sendDocument(self, chat_id: int, document: str, **more: Any) -> tuple[str, Any]:
        return self._sent_file(chat_id, document, "document", {"file_id": "sent", "file_unique_id": "sent"}, **more)

    def _do_sendVoice(self, chat_id: int, voice: str, **more: Any) -> tuple[str, Any]:
        return self._sent_file(
            chat_id, voice, "voice", {"file_id": "sent", "file_unique_id": "sent", "duration": 1}, **more
        )

    def _sent_file(self, chat_id: int, field: str, kind: str, what: Any, **more: Any) -> tuple[str, Any]:
        with self.turn:
            caption = more.get("caption", "")
            self._gate(chat_id, caption or "a file", {"entities": more.get("caption_entities")} if caption else {})
            name, data = self.uploads.pop(field.removeprefix("attach://"))
            if len(data) > 50 * 1024 * 1024:
                raise Refused(413, "Request Entity Too Large")
            self._number += 1
            message: dict[str, Any] = {
                "message_id": self._number, "date": int(time.time()), "chat": self._chat(chat_id), "from": BOT, kind: what,
            }  # fmt: skip
            if caption:
                message["caption"] = caption
            if (topic := more.get("message_thread_id")) is not None:
                message |= {"message_thread_id": topic, "is_topic_message": True}
            self.sent.append(message)
            self._outgoing[self._number] = (name, data)
            return "Message", message

    def _do_editMessageText(self, chat_id: int, message_id: int, text: str, **more: Any) -> tuple[str, Any]:
        with self.turn:
            self._gate(chat_id, text, more)
            for message in self.sent:
                if (message["chat"]["id"], message["message_id"]) == (chat_id, message_id):
                    if (message["text"], message.get("entities", [])) == (text.strip(), more.get("entities", [])):
                        raise Refused(400, "Bad Request: message is not modified: new content is the same")
                    message |= {"text": text.strip(), "entities": more.get("entities", [])}
                    return "Message", {**message, "edit_date": int(time.time())}
        raise Refused(400, "Bad Request: message to edit not found")

    def _gate(self, chat_id: Any, text: str, more: dict[str, Any]) -> None:
        """Check every text that is sent, and refuse it if a refusal is due."""
        if self._refusals:
            raise self._refusals.pop(0)
        if chat_id in self.moved:
            moved = self.moved[chat_id]
            raise Refused(400, "Bad Request: group chat was upgraded to a supergroup chat", migrate_to_chat_id=moved)
        if chat_id not in _CHATS and chat_id not in self.moved.values():
            raise Refused(400, "Bad Request: chat not found")
        if chat_id in self.blocked:
            raise Refused(403, "Forbidden: bot was blocked by the user")
        if not text.strip():
            raise Refused(400, "Bad Request: message text is empty")
        if self.refuse_formatting and (more.get("entities") or more.get("parse_mode")):
            raise Refused(400, "Bad Request: can't parse entities: not today")
        self._problems += marks_wrong(text, more.get("entities") or [])

    def _do_sendChatAction(self, chat_id: int, message_thread_id: int | None = None, **more: Any) -> tuple[str, Any]:
        with self.turn:
            # In a forum it is shown nowhere unless a topic is named; 1 is the general one.
            if self._chat(chat_id).get("is_forum"):
                message_thread_id = None if message_thread_id == 1 else message_thread_id or -1
            self.actions.append((chat_id, message_thread_id))
        return "True", True

    def _do_createForumTopic(self, chat_id: int, name: str, **more: Any) -> tuple[str, Any]:
        with self.turn:
            if self._chat(chat_id)["type"] == "private" and self.forbidden_topics:
                raise Refused(400, "Bad Request: the chat is not a forum")
            if self.forbidden_topics:
                raise Refused(400, "Bad Request: not enough rights to create a topic")
            self._number += 1
            self.topics[self._number] = {"name": name, "chat": chat_id, "by": BOT}
            return "ForumTopic", {"message_thread_id": self._number, "name": name, "icon_color": 7322096}

    def _do_setMyCommands(self, commands: list[dict[str, str]], **more: Any) -> tuple[str, Any]:
        with self.turn:
            self.menu = commands
            if len(commands) > 100 or any(not re.fullmatch("[a-z0-9_]+", one["command"]) for one in commands):
                raise Refused(400, "Bad Request: BOT_COMMAND_INVALID")
        return "True", True

    def _do_getFile(self, file_id: str) -> tuple[str, Any]:
        if file_id not in self.files:
            raise Refused(400, "Bad Request: wrong file_id or the file is temporarily unavailable")
        size = len(self.files[file_id])
        if size > _FILE_LIMIT:
            raise Refused(400, "Bad Request: file is too big")
        return "File", {"file_id": file_id, "file_unique_id": "u", "file_size": size, "file_path": f"docs/{file_id}"}


def _message(update: dict[str, Any]) -> dict[str, Any]:
    found: dict[str, Any] = next((value for key, value in update.items() if key != "update_id"), {})
    return found if "message_id" in found else {"message_id": None}
