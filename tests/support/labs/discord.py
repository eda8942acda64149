"""A Discord of our own for tests: see discord_server for what it does, base for what the conformance suite asks."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from aiohttp import web

from tests.support.labs import base
from tests.support.labs.discord_server import TOKEN, DiscordServer, answer, person, stamp


class Lab(base.Lab):
    """One server with a channel, a thread in it and a forum; alice, bob and mallory with a direct message each."""

    platform = "discord"
    places = frozenset({"dm", "channel", "thread"})
    can = frozenset("redeliver rate_limit fail drop attach edits change take_back files choices forward".split())

    def __init__(self) -> None:
        self.server = DiscordServer()
        self._people: dict[str, dict[str, Any]] = {}
        self._places: dict[str, str] = {}
        for name in base.PEOPLE:
            someone = person(name, name.capitalize(), self.server.new_id())
            self._people[name] = self.server.people[someone["id"]] = someone
            self._places[f"dm {name}"] = self._add({"type": 1, "recipients": [someone]})
        common = {"guild_id": self.server.guild_id, "position": 0, "permission_overwrites": [], "nsfw": False}
        common |= {"parent_id": None, "topic": None, "rate_limit_per_user": 0, "flags": 0}
        self._places["channel"] = self._add(common | {"type": 0, "name": "general"})
        self._places["forum"] = self._add(common | {"type": 15, "name": "ideas", "available_tags": []})
        thread = self.server.thread("plans", self.server.channels[self._places["channel"]])
        self.server.channels[thread["id"]] = thread
        self._places["thread"] = thread["id"]

    def _add(self, channel: dict[str, Any]) -> str:
        number = self.server.new_id()
        self.server.channels[number] = channel | {"id": number}
        return number

    # ------------------------------------------------------------------------------------------ who and where

    @property
    def settings(self) -> dict[str, Any]:
        """Token and addresses."""
        there = f"127.0.0.1:{self.server.port}"
        return {"token": TOKEN, "api_base": f"http://{there}/api/v10", "gateway_url": f"ws://{there}/gateway/"}

    def user_id(self, who: str) -> str:
        """A person's id."""
        return str(self._people[who]["id"])

    def chat_id(self, where: str, who: str = "alice") -> str:
        """A channel's id; of a thread, its parent's, for that is the chat it is in."""
        return self._places["channel"] if where == "thread" else self.place(where, who)

    def place(self, where: str, who: str = "alice") -> str:
        """The channel on the wire. "thread:<name>" is one the agent has created."""
        if where.startswith("thread:"):
            made = [one for one in self.server.channels.values() if one.get("made") and one["name"] == where[7:]]
            return str(made[-1]["id"])
        return self._places[f"dm {who}" if where == "dm" else where]

    # ------------------------------------------------------------------------------------------ what people do

    def say(self, text: str, *, who: str = "alice", where: str = "dm", addressed: bool = True) -> str:
        """A message; it mentions the bot on the server if `addressed`."""
        return self._post(text, who, where, addressed)

    def reply(self, text: str, to: str, *, who: str = "alice", where: str = "dm") -> str:
        """A message that answers another, without a mention."""
        answered = self.server.find(to)
        reference = {"type": 0, "message_id": to, "channel_id": answered["channel_id"]}
        return self._post(text, who, where, False, type=19, message_reference=reference, referenced_message=answered)

    def forward(self, text: str, *, who: str = "alice", where: str = "dm") -> str:
        """A message from elsewhere, passed on."""
        snapshot = self.server.message("0", self._people["bob"], text)
        kept = ("type", "content", "attachments", "embeds", "timestamp", "edited_timestamp", "flags", "mentions")
        inner = {key: snapshot[key] for key in (*kept, "mention_roles", "components")}
        reference = {"type": 1, "message_id": snapshot["id"], "channel_id": "0"}
        return self._post("", who, where, False, message_reference=reference, message_snapshots=[{"message": inner}])

    def attach(
        self, data: bytes, name: str, mime: str, *, who: str = "alice", where: str = "dm", text: str = ""
    ) -> str:
        """A file, with words or without."""
        number = self.server.new_id()
        self.server.files[number] = (data, mime)
        file = {"id": number, "filename": name, "content_type": mime, "size": len(data)}
        return self._post(text, who, where, True, attachments=[file])

    def _post(self, text: str, who: str, where: str, addressed: bool, **more: Any) -> str:
        async def post() -> str:
            message = self._message(text, who, where, addressed, **more)
            await self.server.dispatch("MESSAGE_CREATE", self.server.event(message))
            return str(message["id"])

        return str(self.server.call(post()))

    def _message(self, text: str, who: str, where: str, addressed: bool, **more: Any) -> dict[str, Any]:
        if addressed and where != "dm":
            text = f"<@{self.server.bot['id']}> {text}".rstrip()
            more.setdefault("mentions", [self.server.bot])
        author = more.pop("author", self._people[who])
        return self.server.message(self.place(where, who), author, text, **more)

    def announce(self, text: str = "", *, where: str = "channel", kind: int = 7, **more: Any) -> str:
        """A message of the platform's own (7: somebody joined)."""
        return self._post(text, "bob", where, False, type=kind, **more)

    @property
    def menu(self) -> list[dict[str, Any]]:
        """The slash commands Discord shows."""
        return self.server.commands

    def command(self, name: str, arguments: str | None = None, *, who: str = "alice", where: str = "dm") -> str:
        """A slash command from the menu; its token, for `interaction`."""
        options = [{"name": "arguments", "type": 3, "value": arguments}] if arguments is not None else []
        data = {"id": self.server.new_id(), "name": name, "type": 1, "options": options}
        return self._interact(2, data, who, where)

    def _interact(self, kind: int, data: dict[str, Any], who: str, where: str, **more: Any) -> str:
        number = self.server.new_id()
        channel = self.server.channels[self.place(where, who)]
        given: dict[str, Any] = {
            "id": number, "application_id": self.server.bot["id"], "type": kind, "token": f"token-of-{number}",
            "version": 1, "channel_id": channel["id"], "channel": channel, "attachment_size_limit": 10485760,
            "data": data, "entitlements": [], **more,
            "authorizing_integration_owners": {}, "locale": "en-US", "app_permissions": "0",
        }  # fmt: skip
        if channel.get("guild_id"):
            member = {"user": self._people[who], "roles": [], "joined_at": None, "deaf": False, "mute": False}
            given |= {
                "guild_id": channel["guild_id"],
                "member": member | {"flags": 0, "permissions": "0", "nick": None},
            }
        else:
            given["user"] = self._people[who]
        self.server.interactions[given["token"]] = "waiting"
        if "message" in more:
            self.server.pressed[given["token"]] = more["message"]["id"]
        self.server.call(self.server.dispatch("INTERACTION_CREATE", given))
        return str(given["token"])

    def interaction(self, token: str) -> str:
        """How Discord sees a command: waiting, thinking (acknowledged), gone (its line was taken away)."""
        return self.server.interactions[token]

    def person_object(self, who: str) -> dict[str, Any]:
        """A person, as messages mention them."""
        return self._people[who]

    # ------------------------------------------------------------------------------------------ what people see

    def shown(self, where: str = "dm", *, who: str = "alice") -> list[str]:
        """The texts of the bot's messages in a channel."""
        said = self.server.messages.get(self.place(where, who), [])
        return [one["content"] for one in said if one["author"]["id"] == self.server.bot["id"]]

    def _buttons(self, where: str, who: str) -> list[tuple[dict[str, Any], dict[str, Any]]]:
        said = self.server.messages.get(self.place(where, who), [])
        return [(one, button) for one in said for row in one.get("components") or () for button in row["components"]]

    def buttons(self, where: str = "dm", *, who: str = "alice") -> list[str]:
        """The labels of buttons."""
        return [button["label"] for _, button in self._buttons(where, who)]

    def press(self, label: str, *, who: str = "alice", where: str = "dm", which: int = -1) -> None:
        """A button is pressed."""
        message, button = [one for one in self._buttons(where, who) if one[1]["label"] == label][which]
        data = {"component_type": 2, "custom_id": button["custom_id"], "id": 1}
        self._interact(3, data, who, where, message=self.server.event(message))

    def sent_files(self, where: str = "dm", *, who: str = "alice") -> list[tuple[str, bytes, str]]:
        """The files of the bot's messages."""
        said = self.server.messages.get(self.place(where, who), [])
        return [
            (file.get("title") or file["filename"], self.server.files[file["id"]][0], one["content"])
            for one in said
            if one["author"]["id"] == self.server.bot["id"]
            for file in one["attachments"]
        ]

    def typed(self, where: str = "dm", *, who: str = "alice") -> int:
        """How often the bot was typing."""
        return self.server.typed[self.place(where, who)]

    def threads(self) -> list[str]:
        """Names of threads the bot opened."""
        return list(self.server.threads_made)

    def problems(self) -> list[str]:
        """Requests that Discord's document does not allow, and messages that could ping."""
        return list(self.server.problems)

    # ------------------------------------------------------------------------------------------ what goes wrong

    def change(self, message_id: str, text: str, *, who: str = "alice", where: str = "dm") -> None:
        """The author edits a message."""
        message = self.server.find(message_id)
        mention = message["content"].startswith("<@")
        message["content"] = f"<@{self.server.bot['id']}> {text}" if mention else text
        message["edited_timestamp"] = stamp()
        self.server.call(self.server.dispatch("MESSAGE_UPDATE", self.server.event(message)))

    def redeliver_as_update(self, message_id: str) -> None:
        """Discord has added something to a message that nobody edited."""
        self.server.call(self.server.dispatch("MESSAGE_UPDATE", self.server.event(self.server.find(message_id))))

    def take_back(self, message_id: str, *, who: str = "alice", where: str = "dm") -> None:
        """A message is deleted."""
        self.take_back_all([message_id], bulk=False)

    def take_back_all(self, message_ids: Sequence[str], *, bulk: bool = True) -> None:
        """Several messages of a channel are deleted at once, as moderators do it."""
        channel = self.server.find(message_ids[0])["channel_id"]
        said = self.server.messages[channel]
        said[:] = [one for one in said if one["id"] not in message_ids]
        guild = self.server.channels[channel].get("guild_id")
        which = {"ids": list(message_ids)} if bulk else {"id": message_ids[0]}
        data = {**which, "channel_id": channel, **({"guild_id": guild} if guild else {})}
        self.server.call(self.server.dispatch("MESSAGE_DELETE_BULK" if bulk else "MESSAGE_DELETE", data))

    def redeliver(self, message_id: str) -> None:
        """Send the event of a message once more."""
        message = self.server.find(message_id)
        self.server.call(self.server.dispatch("MESSAGE_CREATE", self.server.event(message)))

    def rate_limit(self, seconds: float, times: int = 1, *, at_the_door: bool = False) -> None:
        """429 for the next sends and edits; `at_the_door` as Cloudflare gives it, before Discord has seen us."""
        if at_the_door:
            page = {"status": 429, "text": "error code: 1015", "headers": {"Retry-After": str(seconds)}}
            self.server.misbehaviour += [lambda: web.Response(**page)] * times
            return
        told = {"message": "You are being rate limited.", "retry_after": seconds, "global": False}
        headers = {
            "Retry-After": str(seconds), "X-RateLimit-Limit": "5", "X-RateLimit-Remaining": "0",
            "X-RateLimit-Reset-After": str(seconds), "X-RateLimit-Bucket": "lab", "X-RateLimit-Scope": "user",
        }  # fmt: skip
        self.server.misbehaviour += [lambda: answer(429, told, **headers)] * times

    def fail(self, times: int = 1, status: int = 503) -> None:
        """A server error for the next sends and edits. discord.py itself tries again after 500, 502, 504 and 524."""
        self.server.misbehaviour += [lambda: answer(status, {"message": "trouble", "code": 0})] * times

    def swallow(self, times: int = 1) -> None:
        """The next sends are done, but the connection is cut before the answer."""
        self.server.swallow += times

    def drop(self, *, forget: bool = False) -> None:
        """Cut every connection; with `forget` sessions can't be resumed."""
        self.server.call(self.server.cut())
        if forget:
            self.server.sessions.clear()

    def down(self) -> None:
        """Nobody listens any more, until `up`."""
        self.server.call(self.server.stop_listening())

    def up(self) -> None:
        """The server is back, at the same address."""
        self.server.call(self.server.listen())

    def order(self, op: int, data: Any = None) -> None:
        """An order of the gateway: 7 reconnect, 9 invalid session."""
        if op == 9 and data is False:
            told, self.server.sessions = self.server.sessions, {}
            for session in told.values():
                if session.socket is not None:
                    self.server.call(session.socket.send({"op": op, "d": data}))
        else:
            self.server.call(self.server.tell({"op": op, "d": data}))

    def expire_links(self) -> None:
        """Addresses of files that were given out no longer work."""
        self.server.link_age += 1

    @contextmanager
    def frozen(self) -> Iterator[None]:
        """The server answers nobody, not even a goodbye."""
        melt = threading.Event()
        self.server.later(melt.wait)
        try:
            yield
        finally:
            melt.set()

    def open_thread(self, name: str, *, told: bool = True) -> str:
        """A thread in the channel by one of the people, "thread:<name>"; not `told`: it was in the archive."""
        thread = self.server.thread(name, self.server.channels[self._places["channel"]]) | {"made": True}
        self.server.channels[thread["id"]] = thread
        if told:
            self.server.call(self.server.dispatch("THREAD_CREATE", thread))
        return str(thread["id"])

    def forget(self, message_id: str) -> None:
        """A message is deleted."""
        message = self.server.find(message_id)
        self.server.messages[message["channel_id"]].remove(message)

    def forbid(self, where: str, who: str = "alice") -> None:
        """The bot may no longer write there."""
        self.server.forbidden.add(self.place(where, who))

    def reset(self) -> None:
        """As new, but for the people and places."""
        self.server.clear()
        self.server.content_allowed = True

    def close(self) -> None:
        """End the server."""
        self.server.close()
