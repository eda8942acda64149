"""Teams without Microsoft: a login server, a key server and a connector of our own, which signs its activities with its own keys.

It checks every request by the connector's published reference: the token, fields, types, sizes, who may edit what.
"""

from __future__ import annotations

import asyncio
import base64
import hashlib
import itertools
import json
import threading
import time
from datetime import UTC, datetime
from functools import cache
from typing import Any

from aiohttp import web
from cryptography.hazmat.primitives.asymmetric.padding import PKCS1v15
from cryptography.hazmat.primitives.asymmetric.rsa import RSAPrivateKey, generate_private_key
from cryptography.hazmat.primitives.hashes import SHA256

from tests.support.aimock import free_port
from tests.support.labs.base import PEOPLE
from tests.support.labs.base import Lab as Base
from tests.support.labs.deliveries import Deliveries

APP_ID = "11111111-2222-4333-8444-555555555555"
PASSWORD = "teams-client-secret-0001"
TENANT = "99999999-8888-4777-8666-555555555555"
BOT = f"28:{APP_ID}"
LARGEST = 28 * 1024  # bytes of a message in UTF-16
CHANNEL = "19:aaaabbbb@thread.tacv2"
_CHATS = {"group": "19:ccccdddd@thread.v2", "channel": CHANNEL, "thread": CHANNEL}
_TYPES = {"dm": "personal", "group": "groupChat", "channel": "channel", "thread": "channel"}
_FIELDS = {
    "type", "text", "textFormat", "attachments", "entities", "replyToId", "from", "recipient", "conversation", "channelData",
    "summary", "inputHint", "suggestedActions", "importance", "locale", "attachmentLayout",
}  # fmt: skip
_ROOT = "1700000000001"  # the post that begins the thread


@cache
def key(number: int = 0) -> RSAPrivateKey:
    """A key of the lab; the first is published from the beginning."""
    return generate_private_key(65537, 2048)


def coded(data: bytes) -> str:
    return base64.urlsafe_b64encode(data).rstrip(b"=").decode()


def published(number: int, endorsements: list[str] | None = None) -> dict[str, Any]:
    """The public half of a key, as the key server has it."""
    numbers = key(number).public_key().public_numbers()
    n = numbers.n.to_bytes(256, "big")
    return {
        "kty": "RSA", "use": "sig", "kid": f"key-{number}", "n": coded(n), "e": coded(numbers.e.to_bytes(3, "big")),
        "endorsements": ["msteams", "webchat"] if endorsements is None else endorsements,
    }  # fmt: skip


def token(service: str, number: int = 0, header: dict[str, Any] | None = None, **claims: Any) -> str:
    """A token as the connector makes it."""
    now = int(time.time())
    made = {"iss": "https://api.botframework.com", "aud": APP_ID, "nbf": now, "exp": now + 3600, "serviceurl": service}
    about = {"alg": "RS256", "typ": "JWT", "kid": f"key-{number}", **(header or {})}
    signed = ".".join(coded(json.dumps(one).encode()) for one in (about, {**made, **claims}))
    return f"{signed}.{coded(key(number).sign(signed.encode(), PKCS1v15(), SHA256()))}"


class Lab(Base):
    """A tenant with three people, a group chat and a team's channel."""

    platform = "teams"
    places = frozenset({"dm", "group", "channel", "thread"})
    can = frozenset(
        {"redeliver", "rate_limit", "fail", "attach", "edits", "change", "take_back", "reactions", "files"}
    )  # fmt: skip

    def __init__(self) -> None:
        self.listens_at = free_port()
        self._loop = asyncio.new_event_loop()
        self._ids = itertools.count(int(time.time() * 1000))
        self.deliveries = Deliveries()
        self._forget()
        ready = threading.Event()
        self._thread = threading.Thread(target=self._serve, args=(ready,), daemon=True)
        self._thread.start()
        assert ready.wait(10)

    def _forget(self) -> None:
        self._said: dict[str, dict[str, Any]] = {}
        self._posts: dict[str, dict[str, Any]] = {}  # the bot's
        self._files: dict[str, tuple[bytes, str]] = {}
        self._typing: list[str] = []
        self._problems: list[str] = []
        self._limited, self._failing = (0.0, 0), 0
        self.reply_in_thread = False
        self.keys = [0]  # the published ones
        self.fetches = 0  # of the keys
        self.tokens: list[str] = []  # issued to the bot
        self.valid: set[str] = set()
        self.lasts = 3600  # seconds of the next token
        self.unauthorized = 0  # requests with a token that is not valid
        self.lost_answers = 0  # the next messages are taken, and the connection is cut before the answer
        self.allows = True  # whether people allow the files that they are offered
        self._stored: dict[str, tuple[str, bytes]] = {}
        self.refuses: tuple[int, str] | None = None  # how the next message is refused

    # ------------------------------------------------------------------------------------------ what tests do

    @property
    def base(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    @property
    def service(self) -> str:
        return f"{self.base}/emea/"

    @property
    def settings(self) -> dict[str, Any]:
        return {
            "app_id": APP_ID, "app_password": PASSWORD, "tenant_id": TENANT, "service_url": f"{self.base}/default",
            "login_url": f"{self.base}/login", "openid_url": f"{self.base}/openid", "reply_in_thread": self.reply_in_thread,
        }  # fmt: skip

    def user_id(self, who: str) -> str:
        return f"00000000-0000-4000-8000-{PEOPLE.index(who):012d}"

    def chat_id(self, where: str, who: str = "alice") -> str:
        return _CHATS.get(where, f"a:1{who}")

    def activity(self, kind: str, who: str, where: str, **more: Any) -> dict[str, Any]:
        """An activity as the connector sends it."""
        number = str(more.pop("id", None) or next(self._ids))
        place = self.chat_id(where, who)
        if where in ("channel", "thread"):
            place += f";messageid={_ROOT if where == 'thread' else number}"
        now = datetime.now(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
        talk = {"conversationType": _TYPES[where], "tenantId": TENANT, "id": place}
        return {
            "type": kind, "id": number, "timestamp": now, "channelId": "msteams", "serviceUrl": self.service,
            "from": {"id": f"29:1{who}", "name": who.title(), "aadObjectId": self.user_id(who)}, "conversation": talk,
            "recipient": {"id": BOT, "name": "Hermes"}, "channelData": {"tenant": {"id": TENANT}}, **more,
        }  # fmt: skip

    def deliver(self, activity: dict[str, Any], authorization: str | None = None, url: str | None = None) -> None:
        headers = {"Authorization": authorization or f"Bearer {token(activity['serviceUrl'])}"}
        self.deliveries.post(url or f"http://127.0.0.1:{self.listens_at}/teams", json=activity, headers=headers)

    def say(self, text: str, *, who: str = "alice", where: str = "dm", addressed: bool = True, **more: Any) -> str:
        mention = addressed and where != "dm"
        words = f"<at>Hermes</at> {text}" if mention else text
        entity = {"type": "mention", "mentioned": {"id": BOT, "name": "Hermes"}, "text": "<at>Hermes</at>"}
        entities = [{"type": "clientInfo", "locale": "en-GB"}, *([entity] if mention else [])]
        copy = {"contentType": "text/html", "content": f"<p>{words}</p>"}
        attachments = [*more.pop("attachments", []), copy]
        made = self.activity(
            "message", who, where, text=words, textFormat="plain", entities=entities, attachments=attachments, **more
        )
        self._said[made["id"]] = made
        self.deliver(made)
        return str(made["id"])

    def redeliver(self, message_id: str) -> None:
        self.deliver(self._said[message_id])

    def change(self, message_id: str, text: str, *, who: str = "alice", where: str = "dm") -> None:
        now = datetime.now(UTC).isoformat()
        data = {"eventType": "editMessage", "tenant": {"id": TENANT}}
        self.deliver({**self._said[message_id], "type": "messageUpdate", "text": text, "timestamp": now, "channelData": data})  # fmt: skip

    def take_back(self, message_id: str, *, who: str = "alice", where: str = "dm") -> None:
        old = {name: value for name, value in self._said[message_id].items() if name != "text"}
        self.deliver({**old, "type": "messageDelete", "channelData": {"eventType": "softDeleteMessage"}})

    def react(self, emoji: str, *, who: str = "alice", where: str = "dm") -> None:
        kind = {"👍": "like", "👎": "1f44e_thumbsdown", "🎉": "1f389_partypopper"}[emoji]
        newest = list(self._posts)[-1]
        number = f"f:{next(self._ids)}"
        self.deliver(self.activity("messageReaction", who, where, id=number, replyToId=newest, reactionsAdded=[{"type": kind}]))  # fmt: skip

    def attach(
        self, data: bytes, name: str, mime: str, *, who: str = "alice", where: str = "dm", text: str = ""
    ) -> str:
        number = str(next(self._ids))
        self._files[number] = (data, mime)
        if mime.startswith("image/"):
            one = {"contentType": "image/*", "contentUrl": f"{self.service}v3/attachments/{number}/views/original"}
        else:
            address = {"downloadUrl": f"{self.service}v3/attachments/{number}/views/original", "fileType": "txt"}
            one = {"contentType": "application/vnd.microsoft.teams.file.download.info", "content": address, "name": name}  # type: ignore[dict-item]  # fmt: skip
        return self.say(text, who=who, where=where, attachments=[one])

    def _ours(self, where: str, who: str) -> list[dict[str, Any]]:
        base = self.chat_id(where, who)
        found = [one for one in self._posts.values() if one["place"].partition(";")[0] == base]
        thread = f"{base};messageid={_ROOT}"
        return [one for one in found if where not in ("channel", "thread") or (one["place"] == thread) == (where == "thread")]  # fmt: skip

    def shown(self, where: str = "dm", *, who: str = "alice") -> list[str]:
        return [one["text"].replace("  \n", "\n") for one in self._ours(where, who) if one["text"]]

    def sent_files(self, where: str = "dm", *, who: str = "alice") -> list[tuple[str, bytes, str]]:
        """The uploaded files that are shown. The caption is a message beside the offer."""
        found = [self._stored[one["file"]] for one in self._ours(where, who) if one["file"]]
        captions = ["a dot" if name == "dot.png" and "a dot" in self.shown(where, who=who) else "" for name, _ in found]
        return [(name, data, caption) for (name, data), caption in zip(found, captions, strict=True)]

    def typed(self, where: str = "dm", *, who: str = "alice") -> int:
        return self._typing.count(self.chat_id(where, who))

    def threads(self) -> list[str]:
        return [one["text"].strip("*") for one in self._posts.values() if one["text"].startswith("**")]

    def rate_limit(self, seconds: float, times: int = 1) -> None:
        self._limited = (seconds, times)

    def fail(self, times: int = 1) -> None:
        self._failing = times

    def problems(self) -> list[str]:
        return list(self._problems)

    def reset(self) -> None:
        self._forget()

    def close(self) -> None:
        self.deliveries.close()
        asyncio.run_coroutine_threadsafe(self._runner.cleanup(), self._loop).result(10)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(5)

    # ------------------------------------------------------------------------------------------ the servers

    def _serve(self, ready: threading.Event) -> None:
        asyncio.set_event_loop(self._loop)
        self._loop.run_until_complete(self._start())
        ready.set()
        self._loop.run_forever()

    async def _start(self) -> None:
        app = web.Application(client_max_size=100_000_000)
        add = app.router.add_route
        add("GET", "/openid", self._openid)
        add("GET", "/keys", self._published)
        add("POST", "/login/{tenant}/oauth2/v2.0/token", self._login)
        for service in ("emea", "default"):
            add("POST", f"/{service}/v3/conversations", self._create)
            add("POST", f"/{service}/v3/conversations/{{place}}/activities", self._send)
            add("PUT", f"/{service}/v3/conversations/{{place}}/activities/{{id}}", self._update)
        add("GET", "/emea/v3/attachments/{id}/views/original", self._file)
        add("PUT", "/upload/{number}", self._uploaded)
        self._runner = web.AppRunner(app, shutdown_timeout=0.2)
        await self._runner.setup()
        site = web.TCPSite(self._runner, "127.0.0.1", 0)
        await site.start()
        self.port = self._runner.addresses[0][1]

    async def _openid(self, request: web.Request) -> web.Response:
        about = {"issuer": "https://api.botframework.com", "jwks_uri": f"{self.base}/keys"}
        return web.json_response({**about, "id_token_signing_alg_values_supported": ["RS256"]})

    async def _published(self, request: web.Request) -> web.Response:
        self.fetches += 1
        return web.json_response({"keys": [published(number) for number in self.keys]})

    async def _login(self, request: web.Request) -> web.Response:
        form = dict(await request.post())
        wanted = {"grant_type": "client_credentials", "scope": "https://api.botframework.com/.default"}
        if set(form) != {*wanted, "client_id", "client_secret"} or any(form[one] != wanted[one] for one in wanted):
            self._problems.append(f"a bad login {sorted(form)}")
            return web.json_response({"error": "invalid_request"}, status=400)
        if form["client_secret"] != PASSWORD or form["client_id"] != APP_ID or request.match_info["tenant"] != TENANT:
            told = f"AADSTS7000215: Invalid client secret provided: {form['client_secret']}"
            return web.json_response({"error": "invalid_client", "error_description": told}, status=401)
        made = hashlib.sha256(str(next(self._ids)).encode()).hexdigest()
        self.tokens.append(made)
        self.valid.add(made)
        return web.json_response({"token_type": "Bearer", "expires_in": self.lasts, "access_token": made})

    def _error(self, status: int, code: str, text: str, **headers: str) -> web.Response:
        return web.json_response({"error": {"code": code, "message": text}}, status=status, headers=headers)

    def _wrong(self, text: str) -> web.Response:
        self._problems.append(text)
        return self._error(400, "BadSyntax", text)

    def _refused(self, request: web.Request, *, limited: bool = False) -> web.Response | None:
        if request.headers.get("Authorization", "").removeprefix("Bearer ") not in self.valid:
            self.unauthorized += 1
            return self._error(401, "Unauthorized", "Authorization has been denied for this request.")
        seconds, times = self._limited
        if limited and times:
            self._limited = (seconds, times - 1)
            return self._error(429, "TooManyRequests", "Too many requests.", **{"Retry-After": str(seconds)})
        if limited and self._failing:
            self._failing -= 1
            return self._error(502, "ServiceError", "Bad gateway.")
        if limited and self.refuses is not None:
            (status, code), self.refuses = self.refuses, None
            return self._error(status, code, f"The message is refused: {code}")
        return None

    def _checked(self, activity: Any) -> web.Response | None:
        if not isinstance(activity, dict) or set(activity) - _FIELDS:
            return self._wrong(f"an activity has no {sorted(set(activity) - _FIELDS)}")
        if activity.get("type") == "typing":
            return None
        if activity.get("type") == "message" and "text" not in activity and "attachments" in activity:
            return self._checked_file(activity["attachments"])
        if activity.get("type") != "message" or not str(activity.get("text", "")).strip():
            return self._wrong("a message needs type and text")
        if activity.get("textFormat") not in ("markdown", "plain", "xml"):
            return self._wrong("textFormat is unknown")
        if len(json.dumps(activity, ensure_ascii=False).encode("utf-16-le")) > LARGEST:
            self._problems.append("a message is too large")
            return self._error(413, "MessageSizeTooBig", "Message size too large.")
        return None

    def _checked_file(self, attachments: list[dict[str, Any]]) -> web.Response | None:
        (one,) = attachments
        kind = str(one.get("contentType")).removeprefix("application/vnd.microsoft.teams.card.file.")
        wanted = {
            "consent": {"description", "sizeInBytes", "acceptContext", "declineContext"},
            "info": {"uniqueId", "fileType"},
        }
        if kind not in wanted or not one.get("name") or set(one["content"]) != wanted[kind]:
            return self._wrong(f"a bad card {one}")
        if kind == "info" and one["content"]["uniqueId"] not in self._stored:
            return self._wrong("a file that was not uploaded")
        return None

    def _decide(self, place: str, card: dict[str, Any]) -> None:
        """The person allows or declines a file at once."""
        who = next(one for one in PEOPLE if self.chat_id("dm", one) == place)
        number, name = f"file-{next(self._ids)}", card["name"]
        self._stored[number] = (name, b"")
        upload = {
            "contentUrl": f"https://contoso.sharepoint.com/{number}", "name": name, "uniqueId": number, "fileType": "x",
            "uploadUrl": f"{self.base}/upload/{number}?size={card['content']['sizeInBytes']}",
        }  # fmt: skip
        value = {"type": "fileUpload", "action": "accept" if self.allows else "decline"}
        value |= {"context": card["content"]["acceptContext"]} | ({"uploadInfo": upload} if self.allows else {})
        self.deliver(self.activity("invoke", who, "dm", name="fileConsent/invoke", value=value))

    async def _uploaded(self, request: web.Request) -> web.Response:
        data, number = await request.read(), request.match_info["number"]
        span = f"bytes 0-{len(data) - 1}/{request.query['size']}"
        if "Authorization" in request.headers or request.headers.get("Content-Range") != span:
            self._problems.append("an upload with our token, or with a wrong range")
            return web.Response(status=400)
        self._stored[number] = (self._stored[number][0], data)
        return web.json_response({"id": number}, status=201)

    def _made(self, place: str, activity: dict[str, Any], number: str | None = None) -> str:
        number = number or str(next(self._ids))
        (card,) = activity.get("attachments") or [{}]
        shown = card.get("content", {}).get("uniqueId")
        self._posts[number] = {"place": place, "text": activity.get("text", ""), "edits": 0, "file": shown}
        if "acceptContext" in card.get("content", {}):
            self._decide(place, card)
        return number

    def _is_known(self, place: str) -> bool:
        base, _, thread = place.partition(";messageid=")
        known = {self.chat_id("dm", who) for who in PEOPLE} | set(_CHATS.values())
        return base in known and (not thread or base == CHANNEL)

    async def _send(self, request: web.Request) -> web.Response:
        place, activity = request.match_info["place"], await request.json()
        typing = activity.get("type") == "typing"
        if refused := self._refused(request, limited=not typing) or self._checked(activity):
            return refused
        if not self._is_known(place):
            return self._error(404, "ConversationNotFound", "Conversation not found.")
        if typing:
            self._typing.append(place)
            return web.json_response({"id": str(next(self._ids))}, status=201)
        number = self._made(place, activity)
        self._cut(request)
        return web.json_response({"id": number}, status=201)

    async def _create(self, request: web.Request) -> web.Response:
        if refused := self._refused(request, limited=True):
            return refused
        body = await request.json()
        if set(body) - {"isGroup", "bot", "members", "topicName", "tenantId", "activity", "channelData"}:
            return self._wrong(f"a bad conversation {sorted(body)}")
        channel = ((body.get("channelData") or {}).get("channel") or {}).get("id")
        if channel != CHANNEL or body.get("isGroup") is not True:
            return self._wrong("a new thread needs isGroup and channelData.channel.id")
        if refused := self._checked(body.get("activity")):
            return refused
        number = str(next(self._ids))
        self._made(f"{channel};messageid={number}", body["activity"], number)
        self._cut(request)
        return web.json_response({"id": f"{channel};messageid={number}", "activityId": number}, status=201)

    def _cut(self, request: web.Request) -> None:
        if self.lost_answers:
            self.lost_answers -= 1
            assert request.transport is not None
            request.transport.abort()

    async def _update(self, request: web.Request) -> web.Response:
        activity = await request.json()
        if refused := self._refused(request) or self._checked(activity):
            return refused
        post = self._posts.get(request.match_info["id"])
        if post is None or post["place"] != request.match_info["place"]:
            return self._wrong("no such message of the bot in this conversation")
        post.update(text=activity["text"], edits=post["edits"] + 1)
        return web.json_response({"id": request.match_info["id"]})

    async def _file(self, request: web.Request) -> web.Response:
        if refused := self._refused(request):
            return refused
        found = self._files.get(request.match_info["id"])
        if found is None:
            return self._error(404, "NotFound", "Not found.")
        return web.Response(body=found[0], content_type=found[1])
