"""Matrix with a real home server: Synapse, in an environment of its own, behind our proxy.

One Synapse a process (it takes some seconds to start); every lab on it has people and rooms of its own. The direct
chats, the group and its thread are not encrypted: people here are simple HTTP clients (tests/real has encrypted rooms).
"""

from __future__ import annotations

import atexit
import base64
import ctypes
import hashlib
import hmac
import json
import os
import secrets
import signal
import subprocess
import time
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any
from urllib.parse import quote, unquote

import httpx

from tests.support.environments import environment
from tests.support.labs.base import PEOPLE
from tests.support.labs.base import Lab as Base
from tests.support.labs.proxy import Proxy
from tests.support.ports import free_port

REQUIREMENTS = ("matrix-synapse==1.163.2",)
SERVER = "lab.test"
_LIMITS = {"per_second": 100_000, "burst_count": 100_000}


class Synapse:
    """The server, until the process ends."""

    _only: Synapse | None = None

    def __init__(self) -> None:
        python = environment("synapse", REQUIREMENTS) / "python"
        self.folder = TemporaryDirectory(prefix="synapse-")
        self.port = free_port()
        self.secret = secrets.token_hex(16)
        config = self._configure(Path(self.folder.name))
        self._output = open(Path(self.folder.name) / "output", "wb")
        self._process = subprocess.Popen(
            [str(python), "-m", "synapse.app.homeserver", "-c", str(config)],
            stdout=self._output,
            stderr=subprocess.STDOUT,
            preexec_fn=_end_with_parent,
        )
        atexit.register(self.close)
        self._wait()

    @classmethod
    def running(cls) -> Synapse:
        """The server of this process."""
        if cls._only is None:
            cls._only = cls()
        return cls._only

    def _configure(self, folder: Path) -> Path:
        key = base64.b64encode(secrets.token_bytes(32)).decode().rstrip("=")
        (folder / "signing.key").write_text(f"ed25519 a_lab {key}\n")
        logs = {"version": 1, "root": {"level": "WARNING", "handlers": ["out"]}, "disable_existing_loggers": False}
        logs["handlers"] = {"out": {"class": "logging.StreamHandler"}}
        (folder / "log.yaml").write_text(json.dumps(logs))
        per_second = (
            "rc_message",
            "rc_registration",
            "rc_joins_per_room",
            "rc_room_creation",
            "rc_third_party_invite",
        )
        config = {
            "server_name": SERVER,
            "listeners": [
                {
                    "port": self.port,
                    "type": "http",
                    "bind_addresses": ["127.0.0.1"],
                    "resources": [{"names": ["client", "media"]}],
                }
            ],
            "database": {"name": "sqlite3", "args": {"database": str(folder / "homeserver.db")}},
            "media_store_path": str(folder / "media"),
            "signing_key_path": str(folder / "signing.key"),
            "log_config": str(folder / "log.yaml"),
            "registration_shared_secret": self.secret,
            "macaroon_secret_key": secrets.token_hex(16),
            "form_secret": secrets.token_hex(16),
            "report_stats": False,
            "trusted_key_servers": [],
            "bcrypt_rounds": 4,
            "url_preview_enabled": False,
            **dict.fromkeys(per_second, _LIMITS),
            "rc_login": dict.fromkeys(("address", "account", "failed_attempts"), _LIMITS),
            "rc_joins": dict.fromkeys(("local", "remote"), _LIMITS),
            "rc_invites": dict.fromkeys(("per_room", "per_user", "per_issuer"), _LIMITS),
        }
        path = folder / "homeserver.yaml"
        path.write_text(json.dumps(config))
        return path

    def _wait(self) -> None:
        deadline = time.monotonic() + 300  # on a busy machine
        while time.monotonic() < deadline:
            if self._process.poll() is not None:
                break
            try:
                if httpx.get(f"http://127.0.0.1:{self.port}/health", trust_env=False).status_code == 200:
                    return
            except httpx.HTTPError:
                time.sleep(0.1)
        output = (Path(self.folder.name) / "output").read_text(errors="replace")[-800:]
        self.close()
        raise RuntimeError(f"Synapse does not start: {output}")

    def register(self, name: str, shown: str) -> Person:
        """A new user, logged in."""
        with httpx.Client(base_url=f"http://127.0.0.1:{self.port}", trust_env=False) as http:
            nonce = http.get("/_synapse/admin/v1/register").json()["nonce"]
            password = secrets.token_urlsafe(12)
            words = "\0".join((nonce, name, password, "notadmin"))
            mac = hmac.new(self.secret.encode(), words.encode(), hashlib.sha1).hexdigest()
            body = {"nonce": nonce, "username": name, "displayname": shown, "password": password, "mac": mac}
            answer = http.post("/_synapse/admin/v1/register", json=body).raise_for_status().json()
        return Person(self.port, answer["user_id"], password, answer["access_token"])

    def close(self) -> None:
        """End the server."""
        if self._process.poll() is None:
            self._process.terminate()
            try:
                self._process.wait(5)
            except subprocess.TimeoutExpired:
                self._process.kill()
                self._process.wait()
        self._output.close()
        self.folder.cleanup()
        Synapse._only = None


def _end_with_parent() -> None:
    """However the tests end, the server does too."""
    ctypes.CDLL(None).prctl(1, signal.SIGTERM)
    os.setpgid(0, 0)


class Person:
    """Someone with a client of their own, as simple as can be."""

    def __init__(self, port: int, user_id: str, password: str, token: str) -> None:
        self.user_id, self.password, self.token = user_id, password, token
        self.http = httpx.Client(
            base_url=f"http://127.0.0.1:{port}",
            headers={"Authorization": f"Bearer {token}"},
            trust_env=False,
            timeout=30,
        )

    def ask(self, method: str, path: str, **kwargs: Any) -> Any:
        """A request of the client-server API; its answer, or an error."""
        answer = self.http.request(method, f"/_matrix/client/v3{path}", **kwargs)
        if answer.status_code >= 400:
            raise AssertionError(f"{method} {path}: {answer.status_code} {answer.text}")
        return answer.json()

    def create_room(self, *others: Person, join: bool = True, **options: Any) -> str:
        """A room with others in it."""
        body = {"preset": "trusted_private_chat", "invite": [other.user_id for other in others], **options}
        room = self.ask("POST", "/createRoom", json=body)["room_id"]
        for other in others if join else ():
            other.ask("POST", f"/join/{quote(room)}", json={})
        return str(room)

    def send(self, room: str, content: dict[str, Any]) -> str:
        """Send a message; its event id."""
        path = f"/rooms/{quote(room)}/send/m.room.message/{secrets.token_hex(8)}"
        return str(self.ask("PUT", path, json=content)["event_id"])

    def upload(self, data: bytes, name: str, mime: str) -> str:
        """Store a file; its mxc address."""
        answer = self.http.post(
            "/_matrix/media/v3/upload", params={"filename": name}, content=data, headers={"Content-Type": mime}
        )
        return str(answer.raise_for_status().json()["content_uri"])

    def download(self, address: str) -> bytes:
        """The bytes behind an mxc address."""
        place = address.removeprefix("mxc://")
        return self.http.get(f"/_matrix/client/v1/media/download/{place}").raise_for_status().content

    def end_of(self, room: str) -> str:
        """A token for "now" in a room."""
        return str(self.ask("GET", f"/rooms/{quote(room)}/messages", params={"dir": "b", "limit": 1})["start"])

    def events(self, room: str, since: str) -> list[dict[str, Any]]:
        """The events in a room since then, the oldest first."""
        found: list[dict[str, Any]] = []
        start: str | None = since
        while start is not None:
            page = self.ask("GET", f"/rooms/{quote(room)}/messages", params={"dir": "f", "from": start, "limit": 200})
            found += page["chunk"]
            start = page.get("end") if page["chunk"] else None
        return found


class Lab(Base):
    """Three people and the agent on a Synapse."""

    platform = "matrix"
    places = frozenset({"dm", "group", "thread"})
    can = frozenset("attach edits fail rate_limit drop change take_back files forward".split())

    def __init__(self) -> None:
        self.synapse = Synapse.running()
        self.proxy = Proxy(self.synapse.port)
        self.mark = secrets.token_hex(3)
        self.agent = self.synapse.register(f"hermes-{self.mark}", "Hermes")
        self.people = {name: self.synapse.register(f"{name}-{self.mark}", name.capitalize()) for name in PEOPLE}
        self.rooms = {name: person.create_room(self.agent, is_direct=True) for name, person in self.people.items()}
        alice, bob, mallory = self.people.values()
        self.rooms["group"] = alice.create_room(bob, mallory, self.agent, name="The team")
        self.root = alice.send(self.rooms["group"], {"msgtype": "m.text", "body": "A thread begins here"})
        self._since: dict[str, str] = {}
        self.reset()

    @property
    def homeserver(self) -> str:
        """The address the adapter uses: the proxy's."""
        return f"http://127.0.0.1:{self.proxy.port}"

    @property
    def settings(self) -> dict[str, Any]:
        return {"homeserver": self.homeserver, "user_id": self.agent.user_id, "password": self.agent.password}

    def user_id(self, who: str) -> str:
        return self.people[who].user_id

    def chat_id(self, where: str, who: str = "alice") -> str:
        return self.rooms[who if where == "dm" else "group"]

    def say(self, text: str, *, who: str = "alice", where: str = "dm", addressed: bool = True) -> str:
        content: dict[str, Any] = {"msgtype": "m.text", "body": text, "m.mentions": {}}
        if where != "dm" and addressed:
            content["body"] = f"Hermes: {text}"
            content["m.mentions"] = {"user_ids": [self.agent.user_id]}
        return self.people[who].send(self.chat_id(where, who), self._placed(content, where))

    def forward(self, text: str, *, who: str = "alice", where: str = "dm") -> str:
        origin = {"event_id": "$1:elsewhere.org", "room_id": "!1:elsewhere.org", "sender": self.people["bob"].user_id}
        content = {"msgtype": "m.text", "body": text, "m.mentions": {}, "m.forwarded": origin}
        return self.people[who].send(self.chat_id(where, who), self._placed(content, where))

    def change(self, message_id: str, text: str, *, who: str = "alice", where: str = "dm") -> None:
        new: dict[str, Any] = {"msgtype": "m.text", "body": text, "m.mentions": {}}
        relation = {"rel_type": "m.replace", "event_id": message_id}
        content = {**new, "body": f"* {text}", "m.new_content": new, "m.relates_to": relation}
        self.people[who].send(self.chat_id(where, who), content)

    def take_back(self, message_id: str, *, who: str = "alice", where: str = "dm") -> None:
        room, number = quote(self.chat_id(where, who)), secrets.token_hex(8)
        self.people[who].ask("PUT", f"/rooms/{room}/redact/{quote(message_id)}/{number}", json={"reason": "oops"})

    def _placed(self, content: dict[str, Any], where: str) -> dict[str, Any]:
        if where == "thread":
            content["m.relates_to"] = {
                "rel_type": "m.thread",
                "event_id": self.root,
                "is_falling_back": True,
                "m.in_reply_to": {"event_id": self.root},
            }
        return content

    def shown(self, where: str = "dm", *, who: str = "alice") -> list[str]:
        return [content["body"] for content in self.messages(where, who=who)]

    def messages(self, where: str = "dm", *, who: str = "alice") -> list[dict[str, Any]]:
        """The contents of what the agent has said there, as they are after edits."""
        room = self.chat_id(where, who)
        said: dict[str, dict[str, Any]] = {}
        for event in self.people[who].events(room, self._since[room]):
            content = event.get("content", {})
            relation = content.get("m.relates_to", {})
            if event["sender"] != self.agent.user_id or event["type"] != "m.room.message":
                continue
            if relation.get("rel_type") == "m.replace":
                if relation["event_id"] in said:
                    said[relation["event_id"]] = content["m.new_content"]
            elif (relation.get("rel_type") == "m.thread") == (where == "thread"):
                said[event["event_id"]] = content
        return list(said.values())

    def attach(
        self, data: bytes, name: str, mime: str, *, who: str = "alice", where: str = "dm", text: str = ""
    ) -> str:
        person = self.people[who]
        kind = mime.partition("/")[0]
        content = {
            "msgtype": f"m.{kind}" if kind in ("image", "audio", "video") else "m.file",
            "body": text or name,
            "filename": name,
            "url": person.upload(data, name, mime),
            "info": {"mimetype": mime, "size": len(data)},
        }
        if where != "dm":
            content["m.mentions"] = {"user_ids": [self.agent.user_id]}
        return person.send(self.chat_id(where, who), self._placed(content, where))

    def sent_files(self, where: str = "dm", *, who: str = "alice") -> list[tuple[str, bytes, str]]:
        sent = [one for one in self.messages(where, who=who) if "url" in one]
        return [
            (
                one["filename"],
                self.people[who].download(one["url"]),
                one["body"] if one["body"] != one["filename"] else "",
            )
            for one in sent
        ]

    def rate_limit(self, seconds: float, times: int = 1) -> None:
        self.proxy.rate_limit(seconds, times, path="/send/m.room.")

    def fail(self, times: int = 1) -> None:
        self.proxy.fail(times, 502, {"Content-Type": "text/html"}, "<h1>Bad Gateway</h1>", path="/send/m.room.")

    def drop(self) -> None:
        self.proxy.drop()

    def typed(self, where: str = "dm", *, who: str = "alice") -> int:
        path = f"/rooms/{self.chat_id(where, who)}/typing/"
        asked = [request for request in list(self.proxy.requests) if path in unquote(request.path)]
        return sum(1 for request in asked if json.loads(request.body)["typing"])

    def threads(self) -> list[str]:
        return []

    def reset(self) -> None:
        self.proxy.reset()
        alice = self.people["alice"]
        for room in self.agent.ask("GET", "/joined_rooms")["joined_rooms"]:  # for the next login all this is answered
            self.agent.send(room, {"msgtype": "m.notice", "body": "the end of a test"})
        for name, room in self.rooms.items():
            self._since[room] = self.people.get(name, alice).end_of(room)

    def close(self) -> None:
        self.proxy.close()
        for person in (self.agent, *self.people.values()):
            person.http.close()
