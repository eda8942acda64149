"""The Slack lab: a workspace with a direct message for everybody, a group, a public and a private channel, and a thread.

A message that mentions the agent in a channel comes as two events, as Slack does it. Beyond what every lab can, this one
takes native commands (`slash`), ends connections with a warning (`refresh`), and answers any method with what a test
says (`answer_next`).
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any, ClassVar

from aiohttp import web

from tests.support.labs import base
from tests.support.labs.slack_server import BOT, TEAM, Said, Server, State, _type

GROUP, CHANNEL, PRIVATE, FOREIGN, ARCHIVED, STRANGE = "GFRIENDS1", "CGENERAL1", "CSECRET01", "CFOREIGN1", "CARCHIVE1", "DSTRANGE1"  # fmt: skip
IDS = {"alice": "UALICE001", "bob": "UBOB00001", "mallory": "UMALLORY1"}
SHOWN = {"alice": "Alice A.", "bob": "Bob B.", "mallory": "Mallory M."}


def _people() -> dict[str, dict[str, Any]]:
    people = {
        IDS[who]: {
            "id": IDS[who],
            "name": who,
            "is_bot": False,
            "profile": {"display_name": SHOWN[who], "real_name": who},
        }
        for who in IDS
    }
    return people | {BOT: {"id": BOT, "name": "hermes", "is_bot": True, "profile": {"display_name": "Hermes"}}}


def _chats() -> dict[str, dict[str, Any]]:
    chats: dict[str, dict[str, Any]] = {
        GROUP: {"id": GROUP, "name": "mpdm-alice--bob--hermes-1", "is_mpim": True, "is_private": True},
        CHANNEL: {"id": CHANNEL, "name": "general", "is_channel": True, "is_member": True},
        PRIVATE: {"id": PRIVATE, "name": "secret", "is_channel": True, "is_private": True, "is_member": True},
        FOREIGN: {"id": FOREIGN, "name": "foreign", "is_channel": True, "is_member": False},
        ARCHIVED: {"id": ARCHIVED, "name": "old", "is_channel": True, "is_member": True, "is_archived": True},
    }
    for who, user in IDS.items():
        chat = f"D{who.upper()[:7]:0<8}"
        chats[chat] = {"id": chat, "is_im": True, "user": user}
    return chats


class Lab(base.Lab):
    """A workspace of Slack's."""

    platform: ClassVar[str] = "slack"
    places: ClassVar[frozenset[str]] = frozenset({"dm", "group", "channel", "thread"})  # and "private"
    typing_place: ClassVar[str] = "thread"  # Slack shows it nowhere else
    can: ClassVar[frozenset[str]] = frozenset(
        "redeliver rate_limit fail drop attach edits change take_back files choices forward".split()
    )

    def __init__(self) -> None:
        self.server = Server(_people(), _chats())
        self.reset()

    @property
    def settings(self) -> dict[str, Any]:
        server = self.server
        return {
            "bot_token": server.bot_token, "app_token": server.app_token, "base_url": server.base_url,
            "reply_in_thread": False,  # what every platform is asked speaks to a channel itself
        }  # fmt: skip

    @property
    def state(self) -> State:
        """The state of the server; its lists may be read from any thread."""
        return self.server.state

    def user_id(self, who: str) -> str:
        return IDS[who]

    def chat_id(self, where: str, who: str = "alice") -> str:
        if where == "dm":
            return next(one["id"] for one in self.server.chats.values() if one.get("user") == IDS[who])
        return {"group": GROUP, "private": PRIVATE}.get(where, CHANNEL)

    # ------------------------------------------------------------------------------------------ what people do

    def say(self, text: str, *, who: str = "alice", where: str = "dm", addressed: bool = True, thread: str = "") -> str:
        """`thread` is the message whose thread it is said in; "thread" is a place with a thread already."""
        return self._say(_encoded(text), who, where, addressed, thread or None)

    def say_raw(self, text: str, *, who: str = "alice", where: str = "dm", **more: Any) -> str:
        """A message in Slack's own notation, mentions and links in angle brackets."""
        return self._say(text, who, where, False, None, **more)

    def forward(self, text: str, *, who: str = "alice", where: str = "dm") -> str:
        share = {
            "is_share": True,
            "is_msg_unfurl": True,
            "author_id": IDS["bob"],
            "author_name": "Bob",
            "text": _encoded(text),
        }
        return self._say("", who, where, False, None, attachments=[share])

    def _say(self, text: str, who: str, where: str, addressed: bool, thread: str | None, **more: Any) -> str:
        mention = addressed and where != "dm"

        def inside() -> str:
            said = Said(
                self.server.now(), self.chat_id(where, who), IDS[who],
                self._root if where == "thread" else thread, f"<@{BOT}> {text}" if mention else text,
            )  # fmt: skip
            self.state.messages.append(said)
            both = mention and where != "group"
            self.server.hear(said, kinds=("message", "app_mention") if both else ("message",), **more)
            return said.ts

        return self.server.do(inside)

    def attach(
        self, data: bytes, name: str, mime: str, *, who: str = "alice", where: str = "dm", text: str = "", **more: Any
    ) -> str:
        """`more` replaces what the event says of the file."""
        file = self.keep_file(data, name, mime)
        return self._say(_encoded(text), who, where, where != "dm", None, subtype="file_share", files=[file | more])

    def keep_file(self, data: bytes, name: str, mime: str) -> dict[str, Any]:
        """A file at Slack, as events and files.info tell of it."""
        number = f"F{len(self.state.files):08d}"
        address = f"http://127.0.0.1:{self.server.port}/files-pri/{number}/{name}"
        file = {
            "id": number, "name": name, "title": name, "mimetype": mime, "size": len(data), "mode": "hosted",
            "url_private": address, "url_private_download": address,
        }  # fmt: skip
        self.state.files[number] = (file, data)
        return file

    def slash(
        self, text: str, *, command: str = "/hermes", who: str = "alice", where: str = "dm", chat: str = ""
    ) -> None:
        """A native command."""
        payload = {
            "command": command, "text": _encoded(text), "user_id": IDS[who], "user_name": who, "team_id": "TLAB00001",
            "channel_id": chat or self.chat_id(where, who), "channel_name": "directmessage", "api_app_id": "ALAB00001",
            "trigger_id": f"{self.server.do(self.server.now)}.trigger", "response_url": self.server.base_url,
        }  # fmt: skip
        self.server.do(lambda: self.server.envelope("slash_commands", payload, payload["trigger_id"]))

    def announce(self, event: dict[str, Any]) -> None:
        """Any other event."""
        self.server.do(lambda: self.server.announce(event))

    # ------------------------------------------------------------------------------------------ what they see

    def shown(self, where: str = "dm", *, who: str = "alice", thread: str = "") -> list[str]:
        chat = self.chat_id(where, who)
        under = self._root if where == "thread" else thread or None
        return [
            _visible(one) for one in list(self.state.messages) if (one.chat, one.thread, one.user) == (chat, under, BOT)
        ]

    def _buttons(self, where: str, who: str) -> list[tuple[Said, dict[str, Any]]]:
        place = (self.chat_id(where, who), self._root if where == "thread" else None, BOT)
        return [
            (one, button)
            for one in list(self.state.messages)
            if (one.chat, one.thread, one.user) == place
            for block in one.blocks or ()
            if block["type"] == "actions"
            for button in block["elements"]
        ]

    def buttons(self, where: str = "dm", *, who: str = "alice") -> list[str]:
        return [button["text"]["text"] for _, button in self._buttons(where, who)]

    def press(self, label: str, *, who: str = "alice", where: str = "dm", which: int = -1) -> None:
        said, button = [one for one in self._buttons(where, who) if one[1]["text"]["text"] == label][which]
        chat = self.server.chats[said.chat]
        thread = {} if said.thread is None else {"thread_ts": said.thread}

        def inside() -> None:
            now = self.server.now()
            action = {
                "type": "button", "block_id": "b1", "action_id": button["action_id"], "text": button["text"],
                "value": button["value"], "action_ts": now,
            }  # fmt: skip
            payload = {
                "type": "block_actions", "api_app_id": "ALAB00001", "token": "verification", "trigger_id": f"{now}.trigger",
                "user": {"id": IDS[who], "username": who, "name": who, "team_id": TEAM}, "team": {"id": TEAM, "domain": "lab"},
                "enterprise": None, "is_enterprise_install": False, "state": {"values": {}}, "response_url": self.server.base_url,
                "channel": {"id": said.chat, "name": chat.get("name", "directmessage")},
                "container": {
                    "type": "message", "message_ts": said.ts, "channel_id": said.chat, "is_ephemeral": False, **thread,
                },
                "message": {
                    "type": "message", "user": BOT, "ts": said.ts, "text": said.text, "blocks": said.blocks, "team": TEAM, **thread,
                },
                "actions": [action],
            }  # fmt: skip
            self.server.envelope("interactive", payload, payload["trigger_id"])

        self.server.do(inside)

    def sent_files(self, where: str = "dm", *, who: str = "alice") -> list[tuple[str, bytes, str]]:
        place = (self.chat_id(where, who), self._root if where == "thread" else None)
        return [(name, data, text) for *there, name, data, text in list(self.state.shared) if tuple(there) == place]

    def typed(self, where: str = "dm", *, who: str = "alice") -> int:
        """Slack shows it in threads alone."""
        place = (self.chat_id(where, who), self._root if where == "thread" else None)
        return sum(1 for chat, thread, status in list(self.state.statuses) if (chat, thread) == place and status)

    def threads(self) -> list[str]:
        """A thread hangs on a message of its own, which is nothing but its name: a text without blocks."""
        return [_visible(one) for one in list(self.state.messages) if one.user == BOT and not one.blocks]

    # ------------------------------------------------------------------------------------------ what goes wrong

    def change(self, message_id: str, text: str, *, who: str = "alice", where: str = "dm", by: str = "") -> None:
        def inside() -> None:
            said = next(one for one in self.state.messages if one.ts == message_id)
            before, now = self._told(said), self.server.now()
            said.text = f"<@{BOT}> {_encoded(text)}" if said.text.startswith("<@") else _encoded(text)
            after = {**self._told(said), "edited": {"user": by or said.user, "ts": now}}
            self._revised(said.chat, "message_changed", now, message=after, previous_message=before)

        self.server.do(inside)

    def take_back(self, message_id: str, *, who: str = "alice", where: str = "dm") -> None:
        def inside() -> None:
            said = next(one for one in self.state.messages if one.ts == message_id)
            self.state.messages.remove(said)
            about = {"deleted_ts": said.ts, "previous_message": self._told(said)}
            self._revised(said.chat, "message_deleted", self.server.now(), **about)

        self.server.do(inside)

    def _told(self, said: Said) -> dict[str, Any]:
        thread = {} if said.thread is None else {"thread_ts": said.thread}
        return {"type": "message", "user": said.user, "ts": said.ts, "text": said.text, "team": TEAM, **thread}

    def _revised(self, chat: str, subtype: str, ts: str, **more: Any) -> None:
        event = {
            "type": "message",
            "subtype": subtype,
            "hidden": True,
            "channel": chat,
            "ts": ts,
            "event_ts": ts,
            **more,
        }
        self.server.announce({**event, "channel_type": _type(self.server.chats[chat])}, f"revised {ts}")

    def redeliver(self, message_id: str) -> None:
        def inside() -> None:
            for envelope in list(self.state.sent[message_id]):
                self.server.deliver({**envelope, "retry_attempt": 1, "retry_reason": "timeout"})

        self.server.do(inside)

    def send_again(self) -> None:
        """Send the events that were not acknowledged in time once more."""
        self.server.do(self.server.send_again)

    def answer_next(self, method: str, answer: Callable[[], web.StreamResponse], times: int = 1) -> None:
        """The next calls of a method ("send" for both that send, "file" for downloads) get this answer."""
        self.server.do(lambda: self.state.faults.extend([(method, answer)] * times))

    def refuse(self, error: str, *, method: str = "send", times: int = 1, **more: Any) -> None:
        """The next calls are refused with one of Slack's errors."""
        self.answer_next(method, lambda: web.json_response({"ok": False, "error": error, **more}), times)

    def rate_limit(self, seconds: float, times: int = 1) -> None:
        headers = {"Retry-After": f"{seconds:g}"}
        body = {"ok": False, "error": "ratelimited"}
        self.answer_next("send", lambda: web.json_response(body, status=429, headers=headers), times)

    def fail(self, times: int = 1) -> None:
        page = "<html>Something went wrong</html>"
        self.answer_next("send", lambda: web.Response(status=503, text=page, content_type="text/html"), times)

    def lose_answers(self, times: int = 1) -> None:
        """The next sends succeed, but nobody hears of it: the connection breaks."""
        self.state.answers_lost = times

    def drop(self) -> None:
        self.server.do(self.server.drop)

    def refresh(self, reason: str = "refresh_requested") -> None:
        """Slack ends the connections, as it does every few hours."""
        self.server.wait(self.server.refresh(reason))

    def problems(self) -> list[str]:
        return self.state.problems + [f"would ping people: {text}" for text in self.state.pings]

    def reset(self) -> None:
        self.server.wait(self.server.alone())  # what a connection of before still says is not said to the new state

        def inside() -> str:
            self.server.past.update(self.state.unacknowledged)
            self.server.state = State()
            root = Said(self.server.now(), CHANNEL, IDS["alice"], None, "Let us talk about it here")
            self.state.messages.append(root)
            return root.ts

        self._root = self.server.do(inside)

    def close(self) -> None:
        self.server.close()


def _encoded(text: str) -> str:
    """A text as Slack's apps send it."""
    return text.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")


def _visible(said: Said) -> str:
    """The visible text of a message."""
    if not said.blocks:
        return said.text.replace("&lt;", "<").replace("&gt;", ">").replace("&amp;", "&").replace("\u2060", "")
    shown = [block for block in said.blocks if block["type"] != "actions"]
    pieces = [block["text"] if block["type"] == "markdown" else block["text"]["text"] for block in shown]
    if said.blocks[0]["type"] != "markdown":
        return "".join(pieces)
    parts = re.split(r"^```[^\n]*\n(.*?)^```[ \t]*$\n?", "\n".join(pieces).replace("\u2060", ""), flags=re.S | re.M)
    return "".join(part if number % 2 else _rendered(part) for number, part in enumerate(parts)).strip()


def _rendered(markdown: str) -> str:
    """Markdown without its signs, as far as people see none of them."""
    for pattern, shown in (
        (r"^#{1,6}[ \t]+", ""), (r"\*\*(\S(?:.*?\S)?)\*\*", r"\1"), (r"~~(\S(?:.*?\S)?)~~", r"\1"),
        (r"(?<!\w)[*_](\S(?:[^*_\n]*\S)?)[*_](?!\w)", r"\1"), (r"`([^`\n]+)`", r"\1"), (r"\[([^]\n]+)\]\([^)\s]+\)", r"\1"),
    ):  # fmt: skip
        markdown = re.sub(pattern, shown, markdown, flags=re.M)
    return markdown
