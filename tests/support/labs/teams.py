"""Teams without Microsoft: a Bot Framework of our own, with its login, its published keys, its connector and its deliveries.

It signs what it delivers with its own key, and checks every request by the published reference (login, fields, sizes, conversations).
"""

from __future__ import annotations

import base64
import html
import json
import os
import re
import time
from datetime import UTC, datetime
from functools import cache
from typing import Any
from urllib.parse import parse_qs, unquote, urlsplit

from tests.support.labs.base import PEOPLE
from tests.support.labs.http_lab import Handler, HttpLab

APP_ID, APP_SECRET, TENANT = "11111111-2222-3333-4444-555555555555", "teams-client-secret-0001", "my-tenant"
BOT = f"28:{APP_ID}"
GROUP, CHANNEL, ROOT = "19:group@thread.v2", "19:channel@thread.tacv2", "1700000000001"
LARGEST = 28 * 1024
# The fields of an activity, as botframework-schema has them (tests/real/test_teams.py compares).
FIELDS = frozenset(
    """type id timestamp localTimestamp localTimezone callerId serviceUrl channelId from conversation recipient textFormat
    attachmentLayout membersAdded membersRemoved reactionsAdded reactionsRemoved topicName historyDisclosed locale text speak
    inputHint summary suggestedActions attachments entities channelData action replyToId label valueType value name relatesTo
    code expiration importance deliveryMode listenFor textHighlights semanticAction""".split()
)


@cache
def signing_key(number: int) -> Any:
    from cryptography.hazmat.primitives.asymmetric import rsa

    return rsa.generate_private_key(public_exponent=65537, key_size=2048)


def _base64(data: bytes) -> str:
    return base64.urlsafe_b64encode(data).rstrip(b"=").decode()


def published(number: int = 0, **more: Any) -> dict[str, Any]:
    """A key as the Bot Framework publishes it."""
    numbers = signing_key(number).public_key().public_numbers()
    one = {"kty": "RSA", "use": "sig", "kid": f"key{number}", "endorsements": ["msteams", "webchat"]}
    return {**one, "n": _base64(numbers.n.to_bytes(256, "big")), "e": _base64(b"\x01\x00\x01"), **more}


def signed(content: dict[str, Any], number: int = 0, **header: Any) -> str:
    """A JWT."""
    from cryptography.hazmat.primitives.asymmetric.padding import PKCS1v15
    from cryptography.hazmat.primitives.hashes import SHA256

    head = {"typ": "JWT", "alg": "RS256", "kid": f"key{number}", **header}
    text = ".".join(_base64(json.dumps(one).encode()) for one in (head, content))
    return f"{text}.{_base64(signing_key(number).sign(text.encode(), PKCS1v15(), SHA256()))}"


class Lab(HttpLab):
    """One tenant: personal chats with the bot, a group chat, a channel with posts."""

    platform = "teams"
    keeps = False  # the Bot Framework does not promise to deliver an activity again
    places = frozenset({"dm", "group", "thread"})
    can = frozenset("redeliver rate_limit fail attach edits change take_back files forward".split())
    issuer = "https://api.botframework.com"

    first_id = 1_700_000_001_000

    def _forget(self) -> None:
        self._said: dict[str, dict[str, Any]] = {}
        self.sent: dict[str, dict[str, Any]] = {}
        self._files: dict[str, tuple[bytes, str]] = {}
        self._typing: list[str] = []
        self.requests: list[tuple[str, str, str | None, dict[str, Any]]] = []  # method, conversation, message, body
        self.token, self.tokens_issued, self.keys_read = "", 0, 0
        self.published = [published()]
        self.consents = True  # whether people accept files at once
        self._uploaded: dict[str, bytes] = {}

    @property
    def service(self) -> str:
        return f"{self.address}/amer/"

    @property
    def settings(self) -> dict[str, Any]:
        return {
            "app_id": APP_ID, "app_secret": APP_SECRET, "tenant_id": TENANT, "service_hosts": ["127.0.0.1"],
            "login_url": self.address, "metadata_url": f"{self.address}/v1/.well-known/openidconfiguration",
        }  # fmt: skip

    def user_id(self, who: str) -> str:
        return f"aad-{who}"

    def chat_id(self, where: str, who: str = "alice") -> str:
        return f"a:{who}" if where == "dm" else GROUP if where == "group" else CHANNEL

    def _conversation(self, where: str, who: str, message_id: str) -> dict[str, Any]:
        kind = {"dm": "personal", "group": "groupChat"}.get(where, "channel")
        name = self.chat_id(where, who)
        thread = {"thread": ROOT, "channel": message_id}.get(where)
        return {"id": f"{name};messageid={thread}" if thread else name, "conversationType": kind, "tenantId": TENANT}

    def say(self, text: str, *, who: str = "alice", where: str = "dm", addressed: bool = True, **more: Any) -> str:
        message_id = str(next(self._ids))
        entities = []
        if addressed and where != "dm":
            text = f"<at>Hermes</at> {text}"
            entities = [{"type": "mention", "mentioned": {"id": BOT, "name": "Hermes"}, "text": "<at>Hermes</at>"}]
        self._said[message_id] = {
            "type": "message", "id": message_id, "timestamp": _now(), "serviceUrl": self.service, "channelId": "msteams",
            "from": {"id": f"29:{who}", "name": who.title(), "aadObjectId": self.user_id(who)},
            "conversation": self._conversation(where, who, message_id), "recipient": {"id": BOT, "name": "Hermes"},
            "text": text, "textFormat": "plain", "entities": entities, "attachments": [], "channelData": {"tenant": {"id": TENANT}},
            **more,
        }  # fmt: skip
        self.redeliver(message_id)
        return message_id

    def forward(self, text: str, *, who: str = "alice", where: str = "dm") -> str:
        return self.forward_with("", text, who=who, where=where)

    def forward_with(self, comment: str, text: str, *, who: str = "alice", where: str = "dm") -> str:
        """A forwarded message with a comment: the text has both, the HTML tells them apart."""
        quoted = f'<blockquote itemtype="http://schema.skype.com/Forward">\n<p>{html.escape(text)}</p>\n</blockquote>'
        page = f"<p>{html.escape(comment)}</p>\n{quoted}" if comment else quoted
        whole = f"{comment}\n\n{text}" if comment else text
        return self.say(whole, who=who, where=where, attachments=[{"contentType": "text/html", "content": page}])

    def redeliver(self, message_id: str, **changed: Any) -> None:
        self.post({**self._said[message_id], **changed})

    def post(self, activity: dict[str, Any], **claims: Any) -> None:
        """Deliver an activity with a token."""
        headers = {"Authorization": f"Bearer {self.proof(**claims)}", "Content-Type": "application/json"}
        self._deliveries.post(
            f"http://127.0.0.1:{self.listens_at}/teams", name=str(activity.get("id")), content=json.dumps(activity),
            headers=headers,
        )  # fmt: skip

    def deliver_once(self) -> None:
        """From now on every activity is delivered once, whatever the answer is."""
        self._deliveries.tries = 1

    def owed(self, kept: set[str]) -> set[str]:
        return kept | set(self._deliveries.acknowledged)

    def proof(self, **claims: Any) -> str:
        """A token as the Bot Framework makes it."""
        now = int(time.time())
        content = {
            "iss": self.issuer,
            "aud": APP_ID,
            "nbf": now,
            "exp": now + 3600,
            "serviceurl": self.service,
        }
        return signed({**content, **claims})

    def change(self, message_id: str, text: str, *, who: str = "alice", where: str = "dm") -> None:
        self._said[message_id]["text"] = text
        data = {"eventType": "editMessage", "tenant": {"id": TENANT}}
        self.redeliver(message_id, type="messageUpdate", timestamp=_now(), channelData=data)

    def take_back(self, message_id: str, *, who: str = "alice", where: str = "dm") -> None:
        data = {"eventType": "softDeleteMessage", "tenant": {"id": TENANT}}
        self.redeliver(message_id, type="messageDelete", text="", timestamp=_now(), channelData=data)

    def restore(self, message_id: str) -> None:
        """A person undoes the deletion of a message."""
        data = {"eventType": "undeleteMessage", "tenant": {"id": TENANT}}
        self.redeliver(message_id, type="messageUpdate", timestamp=_now(), channelData=data)

    def attach(
        self, data: bytes, name: str, mime: str, *, who: str = "alice", where: str = "dm", text: str = ""
    ) -> str:
        key = os.urandom(6).hex()
        self._files[key] = (data, mime)
        if mime.startswith("image/"):
            about = {"contentType": mime, "contentUrl": f"{self.service}v3/attachments/{key}/views/original"}
        else:
            content = {
                "downloadUrl": f"{self.address}/files/{key}",
                "uniqueId": key,
                "fileType": name.rpartition(".")[2],
            }
            about = {
                "contentType": "application/vnd.microsoft.teams.file.download.info",
                "content": content,
                "name": name,
            }  # type: ignore[dict-item]
        page = {"contentType": "text/html", "content": f"<p>{text}</p>"}
        return self.say(text, who=who, where=where, attachments=[about, page])

    def _ours(self, where: str, who: str) -> list[dict[str, Any]]:
        name = self.chat_id(where, who)
        found = [one for one in self.sent.values() if one["conversation"].partition(";")[0] == name]
        if where == "thread":
            return [one for one in found if one["conversation"].endswith(f"={ROOT}")]
        return [one for one in found if not one["conversation"].endswith(f"={ROOT}")]

    def shown(self, where: str = "dm", *, who: str = "alice") -> list[str]:
        return [
            one["text"].replace("&lt;", "<").replace("  \n", "\n")
            for one in self._ours(where, who)
            if not one["attachments"]
        ]

    def sent_files(self, where: str = "dm", *, who: str = "alice") -> list[tuple[str, bytes, str]]:
        """Pictures in messages, and files that were uploaded and are shown."""
        found, captions = [], {}
        for one in self._ours(where, who):
            for file in one["attachments"]:
                if file["contentType"].endswith("file.consent"):
                    captions[file["name"]] = one["text"]
                elif file["contentType"].endswith("file.info"):
                    found.append((file["name"], self._uploaded[file["content"]["uniqueId"]], captions[file["name"]]))
                else:
                    found.append((file["name"], base64.b64decode(file["contentUrl"].partition(",")[2]), one["text"]))
        return found

    def consent(
        self, conversation: str, context: dict[str, Any], name: str, action: str = "accept", **more: Any
    ) -> None:
        """A person answers the offer of a file."""
        key = os.urandom(6).hex()
        place = {
            "contentUrl": f"https://contoso.sharepoint.com/{key}", "name": name, "uploadUrl": f"{self.address}/upload/{key}",
            "uniqueId": key, "fileType": name.rpartition(".")[2], **more,
        }  # fmt: skip
        value = {"type": "fileUpload", "action": action, "context": context, "uploadInfo": place}
        self.post(
            {
                "type": "invoke", "name": "fileConsent/invoke", "id": f"f:{key}", "serviceUrl": self.service, "channelId": "msteams",
                "conversation": {"id": conversation, "conversationType": "personal"}, "from": {"id": "29:alice"},
                "recipient": {"id": BOT}, "value": value,
            }
        )  # fmt: skip

    def typed(self, where: str = "dm", *, who: str = "alice") -> int:
        return sum(one.partition(";")[0] == self.chat_id(where, who) for one in self._typing)

    # ------------------------------------------------------------------------------------------ the server

    def _handler(self) -> type[Handler]:
        lab = self

        class Requests(Handler):
            def _all(self) -> None:
                body = self.body()
                given = {name.title(): value for name, value in self.headers.items()}
                status, answer, headers = lab._answer(self.command, self.path, given, body)
                raw = answer if isinstance(answer, bytes) else json.dumps(answer).encode()
                self.answer(status, raw, **headers)

            do_GET = do_POST = do_PUT = _all  # noqa: N815

        return Requests

    def _answer(
        self, method: str, target: str, headers: dict[str, str], body: bytes
    ) -> tuple[int, Any, dict[str, str]]:
        path = unquote(urlsplit(target).path)
        if path == f"/{TENANT}/oauth2/v2.0/token":
            return self._login(body)
        if path == "/v1/.well-known/openidconfiguration":
            return 200, {"issuer": self.issuer, "jwks_uri": f"{self.address}/v1/.well-known/keys"}, {}
        if path == "/v1/.well-known/keys":
            self.keys_read += 1
            return 200, {"keys": self.published}, {}
        if path.startswith("/upload/"):
            if "Authorization" in headers or headers.get("Content-Range") != f"bytes 0-{len(body) - 1}/{len(body)}":
                return self._wrong("an upload")
            self._uploaded[path.rpartition("/")[2]] = body
            return 201, {}, {}
        if path.startswith("/files/"):
            if "Authorization" in headers:
                self._problems.append("the token went to a file's server")
            data, mime = self._files[path.rpartition("/")[2]]
            return 200, data, {"Content-Type": mime}
        if not self.token or headers.get("Authorization") != f"Bearer {self.token}":
            return (
                401,
                {"error": {"code": "Unauthorized", "message": "Authorization has been denied for this request."}},
                {},
            )
        if found := re.fullmatch(r"/amer/v3/attachments/(\w+)/views/original", path):
            data, mime = self._files[found[1]]
            return 200, data, {"Content-Type": mime}
        if found := re.fullmatch(r"/amer/v3/conversations/([^/]+)/activities(?:/([^/]+))?", path):
            return self._activity(method, found[1], found[2], body)
        return self._wrong(f"{method} {path}", 404)

    def _login(self, body: bytes) -> tuple[int, Any, dict[str, str]]:
        form = {key: values[0] for key, values in parse_qs(body.decode()).items()}
        if form.get("grant_type") != "client_credentials" or form.get("scope") != f"{self.issuer}/.default":
            return self._wrong("the form of the login")
        if (form.get("client_id"), form.get("client_secret")) != (APP_ID, APP_SECRET):
            told = "AADSTS7000215: Invalid client secret provided."
            return 401, {"error": "invalid_client", "error_description": told}, {}
        self.tokens_issued += 1
        self.token = f"token{self.tokens_issued}{os.urandom(6).hex()}"
        return 200, {"token_type": "Bearer", "expires_in": 3599, "access_token": self.token}, {}

    def _wrong(self, text: str, status: int = 400) -> tuple[int, Any, dict[str, str]]:
        self._problems.append(text)
        return status, {"error": {"code": "BadArgument", "message": text}}, {}

    def _activity(
        self, method: str, conversation: str, message_id: str | None, body: bytes
    ) -> tuple[int, Any, dict[str, str]]:
        activity = json.loads(body)
        self.requests.append((method, conversation, message_id, activity))
        known = {GROUP, CHANNEL, *(f"a:{who}" for who in PEOPLE)}
        if conversation.partition(";")[0] not in known or not re.fullmatch(r"[^;]+(;messageid=\d+)?", conversation):
            return 404, {"error": {"code": "ConversationNotFound", "message": "Conversation not found."}}, {}
        if unknown := set(activity) - FIELDS:
            return self._wrong(f"an activity has no {sorted(unknown)}")
        if activity.get("type") == "typing" and not activity.get("text") and not activity.get("attachments"):
            self._typing.append(conversation)
            return 202, {}, {}
        files, text = activity.get("attachments", []), activity.get("text", "")
        if activity.get("type") != "message" or not (text or files) or "![" in text:
            return self._wrong(f"a message of the agent: {sorted(activity)}")
        if activity.get("textFormat", "markdown") != "markdown":
            return self._wrong("a text that is not shown as Markdown")
        if problem := _file_problem(files, conversation):
            return self._wrong(problem)
        if (len(body) > LARGEST and not files) or len(text.encode("utf-16-le")) > LARGEST:
            return self._wrong(f"a message of {len(body)} bytes", 413)
        if self._limited:
            self._limited -= 1
            return (
                429,
                {"error": {"code": "TooManyRequests", "message": "slow down"}},
                {"Retry-After": str(self._seconds)},
            )
        if self._failing:
            self._failing -= 1
            return (502 if self._failing % 2 else 412), {"error": {"code": "ServiceError", "message": "try again"}}, {}
        if method == "PUT":
            if message_id not in self.sent or activity.get("id") != message_id:
                return self._wrong("an update of a message that is not there", 404)
            self.sent[message_id]["text"] = activity["text"]
            return 200, {"id": message_id}, {}
        new = str(next(self._ids))
        if conversation == CHANNEL:
            conversation = f"{CHANNEL};messageid={new}"
        self.sent[new] = {"conversation": conversation, "text": text, "attachments": files}
        for file in files:
            if file["contentType"].endswith("file.consent") and self.consents:
                self.consent(conversation, file["content"]["acceptContext"], file["name"])
        return 201, {"id": new}, {}


def _file_problem(files: list[dict[str, Any]], conversation: str) -> str | None:
    for one in files:
        kind = one["contentType"]
        if kind == "application/vnd.microsoft.teams.card.file.consent":
            wanted = {"description", "sizeInBytes", "acceptContext", "declineContext"}
            if set(one) != {"contentType", "name", "content"} or set(one["content"]) != wanted:
                return "the card that offers a file"
            if not conversation.startswith("a:"):
                return "files are for personal chats"
        elif kind == "application/vnd.microsoft.teams.card.file.info":
            if set(one["content"]) != {"uniqueId", "fileType"} or not one["contentUrl"].startswith("https://"):
                return "the card that shows a file"
        elif kind not in ("image/png", "image/jpeg", "image/gif") or len(one["contentUrl"]) > 1_400_000:
            return f"an attachment of the type {kind}"
    return None


def _now() -> str:
    return datetime.now(UTC).isoformat().replace("+00:00", "Z")
