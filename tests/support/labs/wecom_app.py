"""WeCom's apps without WeCom: its HTTP API, and signed and encrypted callbacks.

Requests are checked by the published reference: token, fields, lengths. Callbacks are encrypted and signed here from WeCom's
documentation, independently of the adapter.
"""

from __future__ import annotations

import base64
import hashlib
import json
import os
import struct
import time
from email.parser import BytesParser
from email.policy import HTTP
from typing import Any
from urllib.parse import parse_qs, urlencode, urlsplit

from tests.support.labs.http_lab import Handler, HttpLab
from tests.support.labs.wecom import encrypted, with_captions

CORP, AGENT, SECRET = "ww0123456789abcdef", "1000002", "wecom-app-secret-000001"
TOKEN, AES_KEY = "callbackToken01", "jWmYm7qr5nMoAUwZRjGtBxmz3KA1tkAj3ykkR6q2B2C"
LONGEST = 2048  # bytes


class Lab(HttpLab):
    """An organisation of three people, and an app."""

    platform = "wecom"
    keeps = False  # a callback is tried three times, within some seconds
    places = frozenset({"dm"})
    can = frozenset({"redeliver", "rate_limit", "fail", "attach", "files"})

    def _forget(self) -> None:
        self._said: dict[str, str] = {}
        self._shown: list[tuple[str, str, Any]] = []
        self._media: dict[str, tuple[str, str, bytes]] = {}
        self._tokens: set[str] = set()
        self.tokens_given = 0
        self.kinds: list[str] = []
        self.not_allowed = False
        self.odd: str | None = None  # the body of every answer but those to logins

    @property
    def settings(self) -> dict[str, Any]:
        return {
            "corp_id": CORP, "agent_id": AGENT, "corp_secret": SECRET, "token": TOKEN, "encoding_aes_key": AES_KEY,
            "base_url": self.address,
        }  # fmt: skip

    def user_id(self, who: str) -> str:
        return f"{who.title()}Zhang"

    def chat_id(self, where: str, who: str = "alice") -> str:
        return self.user_id(who)

    def say(self, text: str, *, who: str = "alice", where: str = "dm", addressed: bool = True) -> str:
        return self.push(f"<MsgType><![CDATA[text]]></MsgType><Content><![CDATA[{text}]]></Content>", who=who)

    def push(self, fields: str, *, who: str = "alice", agent: str = AGENT) -> str:
        """Any message, as WeCom calls the webhook for it."""
        number = str(next(self._ids) + 4561255354251345000)
        self._said[number] = (
            f"<xml><ToUserName><![CDATA[{CORP}]]></ToUserName><FromUserName><![CDATA[{self.user_id(who)}]]></FromUserName>"
            f"<CreateTime>{int(time.time())}</CreateTime>{fields}<MsgId>{number}</MsgId><AgentID>{agent}</AgentID></xml>"
        )
        self.redeliver(number)
        return number

    def redeliver(self, message_id: str) -> None:
        self.deliver(self._said[message_id], name=message_id)

    def deliver_once(self) -> None:
        """From now on every callback is tried three times, as WeCom does, whatever the answer is."""
        self._deliveries.tries = 3

    def owed(self, kept: set[str]) -> set[str]:
        return kept | set(self._deliveries.acknowledged)

    def deliver(
        self, xml: str, *, when: float | None = None, signature: str | None = None, corp: str = CORP, name: str = ""
    ) -> None:
        """Call the webhook with an encrypted callback, well signed unless another signature is given."""
        sealed = seal(xml.encode(), corp)
        body = (
            f"<xml><ToUserName><![CDATA[{CORP}]]></ToUserName><AgentID><![CDATA[{AGENT}]]></AgentID>"
            f"<Encrypt><![CDATA[{sealed}]]></Encrypt></xml>"
        )
        self._deliveries.post(
            f"{self.webhook}?{urlencode(signed(sealed, when, signature))}", name=name, content=body.encode(),
            headers={"Content-Type": "text/xml"},
        )  # fmt: skip

    @property
    def webhook(self) -> str:
        return f"http://127.0.0.1:{self.listens_at}/wecom"

    def attach(
        self, data: bytes, name: str, mime: str, *, who: str = "alice", where: str = "dm", text: str = ""
    ) -> str:
        media = f"media{next(self._ids)}"
        image = mime.startswith("image/")
        self._media[media] = ("image" if image else "file", name, data)
        named = "" if image else f"<FileName><![CDATA[{name}]]></FileName>"
        kind = "image" if image else "file"
        return self.push(f"<MsgType><![CDATA[{kind}]]></MsgType>{named}<MediaId><![CDATA[{media}]]></MediaId>", who=who)

    def _there(self, who: str) -> list[tuple[str, Any]]:
        return [(kind, what) for chat, kind, what in self._shown if chat == self.user_id(who)]

    def shown(self, where: str = "dm", *, who: str = "alice") -> list[str]:
        return [what for kind, what in self._there(who) if kind == "text"]

    def sent_files(self, where: str = "dm", *, who: str = "alice") -> list[tuple[str, bytes, str]]:
        return with_captions(self._there(who))

    def end_tokens(self) -> None:
        """All access tokens end now."""
        self._tokens.clear()

    # ------------------------------------------------------------------------------------------ the server

    def _token(self, query: dict[str, str]) -> dict[str, Any]:
        if self.not_allowed:
            return {"errcode": 60020, "errmsg": "not allow to access from your ip"}
        if query != {"corpid": CORP, "corpsecret": SECRET}:
            return {"errcode": 40001, "errmsg": f"invalid credential {query.get('corpsecret')}"}
        self.tokens_given += 1
        token = f"token{next(self._ids)}"
        self._tokens.add(token)
        time.sleep(0.02)  # several requests may want one at the same time
        return {"errcode": 0, "errmsg": "ok", "access_token": token, "expires_in": 7200}

    def _wrong(self, text: str, code: int = 40058) -> dict[str, Any]:
        self._problems.append(text)
        return {"errcode": code, "errmsg": text}

    def _send(self, body: dict[str, Any]) -> dict[str, Any]:
        kind, person = body.get("msgtype"), body.get("touser")
        if set(body) != {"touser", "msgtype", "agentid", kind} or body["agentid"] != int(AGENT):
            return self._wrong(f"bad fields {sorted(body)}")
        if self._limited:
            self._limited -= 1
            return {"errcode": 45009, "errmsg": "api freq out of limit"}
        if self._failing:
            self._failing -= 1
            return {"errcode": -1, "errmsg": "system busy"}
        if person not in [self.user_id(who) for who in ("alice", "bob", "mallory")]:
            return {"errcode": 0, "errmsg": "ok", "invaliduser": str(person).lower(), "msgid": "m0"}
        if kind in ("text", "markdown"):
            content = body[kind].get("content", "")
            if set(body[kind]) != {"content"} or not content.strip() or len(content.encode()) > LONGEST:
                return self._wrong(f"an empty message, or one of {len(content.encode())} bytes")
            self._shown.append((str(person), "text", content))
        elif kind in ("image", "file") and (media := self._media.get(body[kind].get("media_id"))):
            self._shown.append((str(person), "file", media[1:]))
        else:
            return self._wrong("a bad kind of message, or no such media id", 40007)
        self.kinds.append(kind)
        return {"errcode": 0, "errmsg": "ok", "msgid": f"m{next(self._ids)}"}

    def _upload(self, kind: str, mime: str, body: bytes) -> dict[str, Any]:
        whole = BytesParser(policy=HTTP).parsebytes(b"Content-Type: " + mime.encode() + b"\r\n\r\n" + body)
        (part,) = whole.iter_parts()
        data = part.get_payload(decode=True)
        if part.get_param("name", header="content-disposition") != "media" or len(data) <= 5:
            return self._wrong("a bad upload", 40004)
        name = str(part.get_filename()).encode("utf-8", "surrogateescape").decode()
        media = f"media{next(self._ids)}"
        self._media[media] = (kind, name, data)
        return {"errcode": 0, "errmsg": "", "type": kind, "media_id": media, "created_at": "1"}

    def _handler(self) -> type[Handler]:
        lab = self

        class Requests(Handler):
            def _answer(self, found: dict[str, Any] | bytes, **headers: str) -> None:
                body = found if isinstance(found, bytes) else json.dumps(found).encode()
                if lab.odd is not None and "gettoken" not in self.path:
                    body, headers = lab.odd.encode(), {}
                self.answer(200, body, **{name.replace("_", "-"): value for name, value in headers.items()})

            def _asked(self) -> tuple[str, dict[str, str], bool]:
                parts = urlsplit(self.path)
                query = {name: values[0] for name, values in parse_qs(parts.query).items()}
                return parts.path, query, query.get("access_token") in lab._tokens

            def do_GET(self) -> None:
                path, query, allowed = self._asked()
                if path == "/cgi-bin/gettoken":
                    self._answer(lab._token(query))
                elif not allowed:
                    self._answer({"errcode": 42001, "errmsg": "access_token expired"})
                elif path == "/cgi-bin/media/get" and query.get("media_id") in lab._media:
                    self._answer(lab._media[query["media_id"]][2], Content_Disposition='attachment; filename="x"')
                else:
                    self._answer({"errcode": 40007, "errmsg": "invalid media_id"})

            def do_POST(self) -> None:
                body = self.body()
                path, query, allowed = self._asked()
                if not allowed:
                    self._answer({"errcode": 40014, "errmsg": "invalid access_token"})
                elif path == "/cgi-bin/message/send":
                    self._answer(lab._send(json.loads(body)))
                elif path == "/cgi-bin/media/upload" and query.get("type") in ("image", "voice", "video", "file"):
                    self._answer(lab._upload(query["type"], self.headers["Content-Type"], body))
                else:
                    self._answer(lab._wrong(f"no such path {path}"))

        return Requests


def seal(message: bytes, corp: str = CORP) -> str:
    """A message as WXBizMsgCrypt encrypts it."""
    key = base64.b64decode(AES_KEY + "=")
    return base64.b64encode(
        encrypted(os.urandom(16) + struct.pack(">I", len(message)) + message + corp.encode(), key)
    ).decode()


def signed(sealed: str, when: float | None = None, signature: str | None = None) -> dict[str, str]:
    """The query of a callback with its signature."""
    moment, nonce = str(int(when or time.time())), "1372623149"
    text = "".join(sorted((TOKEN, moment, nonce, sealed)))
    return {
        "msg_signature": signature or hashlib.sha1(text.encode()).hexdigest(),
        "timestamp": moment,
        "nonce": nonce,
    }
