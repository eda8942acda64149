"""An app of an organisation: WeCom calls our webhook for each message, and takes messages by its HTTP API.

https://developer.work.weixin.qq.com/document/path/90238
Callbacks are signed and encrypted. The signature is checked on the bytes, before anything is parsed.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any

import httpx

from hermes.errors import PlatformRefused, PlatformUnreachable, SendRefused, SlowDown
from hermes.gateway.adapter import Link
from hermes.gateway.events import Attachment, Chat, OutgoingFile
from hermes.gateway.platforms._shared.http import AccessToken, HttpApi, TokenRefused, error_text, json_object
from hermes.gateway.platforms._shared.receipt import Keeper
from hermes.gateway.platforms._shared.tasks import Tasks, close_each
from hermes.gateway.platforms.wecom.bot import media_kind
from hermes.gateway.platforms.wecom.client import is_signed, key_of, opened
from hermes.gateway.platforms.wecom.incoming import app_event, encrypted_part, fields_of
from hermes.gateway.platforms.wecom.outgoing import app_message

if TYPE_CHECKING:
    from hermes.gateway.platforms._shared.listener import PlatformRequest, PlatformResponse, Registration

SECONDS = 5.0  # WeCom waits so long, and sends a callback three times
_STALE = frozenset({40014, 42001, 40001})
_LIMITS = frozenset({45009, 45011, 45033})
_PAUSE = 5.0

Listen = Callable[..., Awaitable["Registration"]]


class App:
    """An app: its webhook and its API."""

    def __init__(
        self, base_url: str, keeper: Keeper, *, corp_id: str, corp_secret: str, agent_id: str, token: str, aes_key: str,
        markdown: bool,
    ) -> None:  # fmt: skip
        self._base_url, self._corp_id, self._agent_id = base_url, corp_id, agent_id
        self._corp_secret, self._token, self._aes_key = corp_secret, token, aes_key
        self._markdown, self._keeper = markdown, keeper
        self._tasks = Tasks()
        self._api: AppApi | None = None
        self._registration: Registration | None = None

    async def check(self) -> str:
        """Log in and say which app we are."""
        async with self._made() as api:
            await api.login()
            return self._identity

    async def connect(self, link: Link, listen: Listen) -> None:
        """Log in and register the webhook."""
        self._api = api = self._made()
        await api.login()

        async def called(call: PlatformRequest) -> int | PlatformResponse:
            return await self._called(link, call)

        self._registration = await listen(
            link, called, methods=("GET", "POST"), signed=self._is_wecom, seconds=SECONDS - 0.5
        )
        link.connected(self._identity)
        self._tasks.start(self._keeper.restore(link), name="wecom")

    async def disconnect(self) -> None:
        """Stop receiving and close everything."""
        registration, self._registration = self._registration, None
        api, self._api = self._api, None
        await self._tasks.stop()
        await close_each(registration)
        await self._keeper.save()
        await close_each(api)

    @property
    def _identity(self) -> str:
        return f"{self._corp_id}/{self._agent_id}"

    def _made(self) -> AppApi:
        return AppApi(self._base_url, self._corp_id, self._corp_secret)

    # ------------------------------------------------------------------------------------------ receiving

    def _is_wecom(self, call: PlatformRequest) -> bool:
        from hermes.gateway.platforms._shared.listener import in_window

        encrypted, query = _encrypted(call), call.query
        if encrypted is None or not in_window(query.get("timestamp")):
            return False
        given = (query.get("msg_signature", ""), query.get("timestamp", ""), query.get("nonce", ""))
        return is_signed(given[0], self._token, given[1], given[2], encrypted)

    async def _called(self, link: Link, call: PlatformRequest) -> int | PlatformResponse:
        from hermes.gateway.platforms._shared.listener import PlatformResponse

        try:
            plain = opened(_encrypted(call) or "", key_of(self._aes_key), self._corp_id)
            if call.method == "GET":  # WeCom tries the address when it is saved in the console
                return PlatformResponse(body=plain)
            fields = fields_of(plain)
        except ValueError as error:
            why = f"a callback of WeCom can't be read ({error}); check encoding_aes_key and corp_id"
            link.log.error("%s", why)
            link.troubled(why)
            return 400
        if fields.get("AgentID", self._agent_id) != self._agent_id:
            link.log.warning("a callback of WeCom is for another app (%s)", error_text(fields["AgentID"]))
            return 200
        event = app_event(fields)
        if event is not None:
            await self._keeper.keep(link, event)  # WeCom gives up after three tries
        elif fields.get("MsgType") != "event":
            link.log.warning("a message of WeCom can't be read: it has no id or author")
        return 200

    # ------------------------------------------------------------------------------------------ sending

    async def send(self, chat: Chat, text: str, **_: object) -> str:
        """Send a message."""
        kind, content = app_message(text, allow_markdown=self._markdown)
        return await self._sent(chat, kind, {"content": content})

    async def send_file(self, chat: Chat, file: OutgoingFile) -> str:
        """Upload a file and send it."""
        kind = media_kind(file)
        upload = {"media": (file.name, file.data, file.mime or "application/octet-stream")}
        found = await self._asked().call("POST", "/cgi-bin/media/upload", {"type": kind}, files=upload)
        if not isinstance(media := found.get("media_id"), str):
            raise PlatformUnreachable("WeCom did not take the file")
        return await self._sent(chat, kind, {"media_id": media})

    async def _sent(self, chat: Chat, kind: str, content: dict[str, Any]) -> str:
        agent = int(self._agent_id) if self._agent_id.isdecimal() else self._agent_id
        body = {"touser": chat.chat_id, "msgtype": kind, "agentid": agent, kind: content}
        found = await self._asked().call("POST", "/cgi-bin/message/send", json=body)
        if chat.chat_id.lower() in str(found.get("invaliduser") or "").lower().split("|"):
            raise SendRefused(f"{chat.chat_id} is not a member of the organisation, or may not use the app")
        return str(found.get("msgid") or "")

    async def fetch(self, attachment: Attachment) -> bytes:
        """Download a file, which WeCom keeps for three days."""
        return await self._asked().media(str(attachment.reference.get("media_id")))

    def _asked(self) -> AppApi:
        if self._api is None:
            raise PlatformUnreachable("not connected to WeCom")
        return self._api


class AppApi(HttpApi):
    """WeCom's HTTP API with an access token that is renewed in time."""

    def __init__(self, base_url: str, corp_id: str, corp_secret: str) -> None:
        super().__init__("WeCom", base_url, timeout=40)
        self._login = {"corpid": corp_id, "corpsecret": corp_secret}
        self._token = AccessToken(self._fetch, refusal="WeCom does not accept a new access token: {}")

    async def login(self) -> None:
        """Get a token; PlatformRefused where the organisation's id or the app's secret is wrong."""
        await self._token.get()

    async def _fetch(self) -> tuple[str, float]:
        found = _object(await self.request("GET", "/cgi-bin/gettoken", params=self._login))
        try:
            self._passed(found)
            return str(found["access_token"]), float(found.get("expires_in") or 7200)
        except (SendRefused, TokenRefused) as error:
            raise PlatformRefused(f"WeCom does not accept corp_id and corp_secret: {error}") from None
        except (KeyError, TypeError, ValueError):
            raise PlatformUnreachable("WeCom gave no access token") from None

    async def call(self, method: str, path: str, query: dict[str, str] | None = None, **options: Any) -> dict[str, Any]:
        """The object that the API answers; once more with a new token if the old one has ended."""
        return _object(await self._answer(method, path, query or {}, **options))

    async def media(self, media_id: str) -> bytes:
        """The bytes of a file."""
        answer = await self._answer("GET", "/cgi-bin/media/get", {"media_id": media_id})
        return answer.content

    async def _answer(self, method: str, path: str, query: dict[str, str], **options: Any) -> httpx.Response:
        async def asked(token: str) -> httpx.Response:
            answer = await self.request(method, path, params={"access_token": token, **query}, **options)
            if "Content-Disposition" not in answer.headers and (found := json_object(answer)) is not None:
                self._passed(found)  # not a file
            return answer

        return await self._token.used(asked)

    def _passed(self, found: dict[str, Any]) -> None:
        """Raise the error of an answer's errcode."""
        code = found.get("errcode", 0)
        if code == 0:
            return
        code = code if isinstance(code, int) else None
        told = error_text(found.get("errmsg") or f"errcode {code}", self._login["corpsecret"])
        if code in _STALE:
            raise TokenRefused(told)
        if code in _LIMITS:
            raise SlowDown("WeCom asks us to wait", _PAUSE)
        if code == -1:
            raise PlatformUnreachable("WeCom is busy")
        if code == 60020:
            raise PlatformRefused(
                "WeCom takes no requests from this machine's address; add it to the app's trusted IPs"
            )
        raise SendRefused(f"WeCom refuses: {told}")


def _encrypted(call: PlatformRequest) -> str | None:
    if call.method == "GET":
        return call.query.get("echostr", "").replace(" ", "+") or None
    return encrypted_part(call.body)


def _object(answer: httpx.Response) -> dict[str, Any]:
    found = json_object(answer)
    if found is None:
        raise PlatformUnreachable("WeCom's answer can't be read", maybe_sent=True)
    return found
