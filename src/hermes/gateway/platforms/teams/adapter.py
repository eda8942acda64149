"""The Teams adapter: the Bot Framework calls our webhook with activities, and its connector takes ours.

https://learn.microsoft.com/azure/bot-service/rest-api/bot-framework-rest-connector-api-reference
Where a conversation is served is told with each activity; it is kept, so that messages that answer nothing find their way.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from logging import Logger, LoggerAdapter
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import quote, urlsplit

from hermes.errors import PlatformRefused, PlatformUnreachable, SendRefused
from hermes.gateway.adapter import Adapter, Capabilities, Link, ReplyContext, Setting
from hermes.gateway.events import CHANNEL, DM, Attachment, Chat, OutgoingFile, Reaction
from hermes.gateway.platforms.http import HttpApi
from hermes.gateway.platforms.intake import keep
from hermes.gateway.platforms.teams.client import Connector
from hermes.gateway.platforms.teams.files import Offers, consent, uploaded
from hermes.gateway.platforms.teams.formatting import for_teams, length
from hermes.gateway.platforms.teams.identity import Gatekeeper, Keys
from hermes.gateway.platforms.teams.incoming import Reader, conversation, is_channel

if TYPE_CHECKING:
    from hermes.gateway.platforms.listener import Answer, Call, Registration

_WAIT = 10.0  # seconds that the connector waits for our answer


class Teams(Adapter):
    """A bot in Microsoft Teams."""

    platform = "teams"
    title = "Microsoft Teams"
    extra = "teams"
    settings = (
        Setting(name="app_id", help="the bot's Microsoft App ID", variable="TEAMS_APP_ID", required=True),
        Setting(
            name="app_password", help="a client secret of that app", variable="TEAMS_APP_PASSWORD", secret=True, required=True
        ),
        Setting(
            name="tenant_id", help="the directory (tenant) of a single-tenant bot", variable="TEAMS_TENANT_ID", asked=True,
            default="botframework.com",
        ),
        Setting(name="reply_in_thread", help="answer a post in a channel in its thread", kind=bool, default=True),
        Setting(
            name="service_url", help="the connector for conversations that have not written yet, and one more trusted address",
            default="https://smba.trafficmanager.net/teams",
        ),
        Setting(name="login_url", help="where the bot gets its token", default="https://login.microsoftonline.com"),
        Setting(
            name="openid_url", help="where the Bot Framework publishes its keys",
            default="https://login.botframework.com/v1/.well-known/openidconfiguration",
        ),
    )  # fmt: skip
    # Teams takes about 28 KB in UTF-16: 14,336 units with all that is around the text.
    capabilities = Capabilities(
        longest=12_000, measure=length, edits=True, typing=True, threads=True, media=True, files=True,
        tells_edits=True, tells_deletions=True, tells_reactions=True, mention_needed=True,
    )  # fmt: skip

    def __init__(self, values: Mapping[str, Any], home: Path) -> None:
        super().__init__(values, home)
        self._api: Connector | None = None
        self._keys_api: HttpApi | None = None
        self._gatekeeper: Gatekeeper | None = None
        self._registration: Registration | None = None
        self._file = home / "teams_conversations.json"
        self._known: dict[str, dict[str, str]] | None = None
        self._unwritten = False
        self._offers = Offers(home / "teams_files")

    # ------------------------------------------------------------------------------------------ login

    def validate(self) -> None:
        """Refuse addresses that are none."""
        for name in ("service_url", "login_url", "openid_url"):
            parts = urlsplit(self.text(name))
            if parts.scheme not in ("http", "https") or not parts.hostname:
                raise PlatformRefused(f"teams: {name} must be an address, as https://…")
        if not self.text("app_id"):
            raise PlatformRefused("teams needs app_id, the bot's Microsoft App ID")

    def doubts(self) -> str | None:
        """The Bot Framework must reach us."""
        if self.webhook_address is None:
            return "gateway.listen.public_url is not set: Azure needs the public https address of /teams as messaging endpoint"
        return None

    async def check(self) -> str:
        """Get a token, and say which bot we are."""
        api = self._made()
        try:
            await api.token()
        finally:
            await api.close()
        return f"bot {self.text('app_id')}"

    async def connect(self, link: Link) -> None:
        """Get a token and the keys, and register the webhook."""
        await self.disconnect()
        self._api, self._keys_api = self._made(), HttpApi("the Bot Framework's key server", "", timeout=10)
        keys = Keys(self._keys_api, self.text("openid_url"))
        self._gatekeeper = Gatekeeper(keys, self.text("app_id"))
        reader = Reader(self.text("app_id"), thread_replies=bool(self.setting("reply_in_thread")))

        async def delivered(call: Call) -> int | Answer:
            from hermes.gateway.platforms.listener import Answer

            activity = json.loads(call.body)
            await self._happened(link, reader, activity)
            return Answer(body="{}", mime="application/json") if activity.get("type") == "invoke" else 200

        try:
            await self._api.token()
            self._offers.tidy()
            self._registration = await self.listen(link, delivered, signed=self._is_genuine, seconds=_WAIT)
        except BaseException:
            await self.disconnect()
            raise
        link.connected(f"bot {self.text('app_id')}")

    async def disconnect(self) -> None:
        """Stop receiving and close everything."""
        registration, self._registration = self._registration, None
        apis, self._api, self._keys_api = (self._api, self._keys_api), None, None
        if registration is not None:
            await registration.close()
        for api in apis:
            if api is not None:
                await api.close()

    def _made(self) -> Connector:
        tenant = quote(self.text("tenant_id"), safe="")
        return Connector(
            self.title, app_id=self.text("app_id"), password=self.text("app_password"), own=self.text("service_url"),
            token_url=f"{self.text('login_url').rstrip('/')}/{tenant}/oauth2/v2.0/token", timeout=40,
        )  # fmt: skip

    # ------------------------------------------------------------------------------------------ receiving

    async def _is_genuine(self, call: Call) -> bool:
        if self._gatekeeper is None:
            raise PlatformUnreachable("not connected to Teams")
        return await self._gatekeeper.admits(call.headers.get("Authorization", ""), call.body)

    async def _happened(self, link: Link, reader: Reader, activity: dict[str, Any]) -> None:
        """Keep where the conversation is served, and hand over what was said. Whether Teams sends it again is not promised."""
        self._remember(activity, link.log)
        if (decided := consent(activity)) is not None:
            return await self._decided(activity, decided)
        what = reader.understood(activity)
        if isinstance(what, Reaction):
            await link.reacted(what)
        elif what is not None:
            await keep(link, what)
        return None

    async def _decided(self, activity: dict[str, Any], decided: dict[str, Any]) -> None:
        """Upload a file that the person has allowed, and show it. If that fails the offer stays."""
        base, _, kind = conversation(activity)
        found, upload = self._offers.get(decided.get("context")), decided.get("uploadInfo")
        if found is None:
            return
        key, data = found
        if decided.get("action") == "accept" and isinstance(upload, dict):
            await self._asked().put(str(upload.get("uploadUrl")), data)
            chat = Chat(platform=self.platform, chat_id=base, type=kind)
            message = {"type": "message", "attachments": [uploaded(upload)]}
            await self._asked().call("POST", self._address(chat), json=message)
        self._offers.drop(key)

    def _conversations(self) -> dict[str, dict[str, str]]:
        if self._known is None:
            try:
                found = json.loads(self._file.read_text("utf-8"))
            except (OSError, ValueError):
                found = {}  # each conversation's next activity tells it again
            entries = found.items() if isinstance(found, dict) else ()
            self._known = {key: value for key, value in entries if isinstance(value, dict)}
        return self._known

    def _remember(self, activity: dict[str, Any], log: Logger | LoggerAdapter[Logger]) -> None:
        """Write where a conversation is served, if that is new. A full disk does not stop the message."""
        base, _, kind = conversation(activity)
        service = str(activity.get("serviceUrl") or "").rstrip("/")
        if not base or self._api is None or not self._api.is_service(service):
            return
        about = {"service_url": service, "type": kind}
        if self._conversations().get(base) == about and not self._unwritten:
            return
        self._known, self._unwritten = {**self._conversations(), base: about}, True
        try:
            self._write(self._known)
        except OSError as error:  # the next activity tries again
            log.warning("where conversations are served could not be written (%s)", error)
            return
        self._unwritten = False

    def _write(self, known: dict[str, dict[str, str]]) -> None:
        self._file.parent.mkdir(parents=True, exist_ok=True)
        draft = self._file.with_suffix(".new")
        with draft.open("w", encoding="utf-8") as file:
            json.dump(known, file)
            file.flush()
            os.fsync(file.fileno())
        os.replace(draft, self._file)

    async def fetch(self, attachment: Attachment) -> bytes:
        """The bytes of a picture or a file. Our token goes to Microsoft's connector alone."""
        return await self._asked().file(str(attachment.reference.get("url")))

    # ------------------------------------------------------------------------------------------ sending

    async def send(
        self, chat: Chat, text: str, *, nonce: str, reply_to: str | None = None, context: ReplyContext | None = None
    ) -> str:
        """Send a message; in a channel it goes to the chat's thread, or begins one."""
        if chat.thread_id is None and self._is_channel(chat):
            return await self._post(chat, text)
        found = await self._asked().call("POST", self._address(chat), json=_message(text))
        return str(found.get("id") or nonce)

    async def _post(self, chat: Chat, text: str) -> str:
        """Begin a thread in a channel; the id of its first message, which is the thread's as well."""
        body = {"isGroup": True, "channelData": {"channel": {"id": chat.chat_id}}, "activity": _message(text)}
        body["bot"] = {"id": f"28:{self.text('app_id')}"}
        found = await self._asked().call("POST", f"{self._service(chat)}/v3/conversations", json=body)
        made = str(found.get("activityId") or str(found.get("id")).partition(";messageid=")[2])
        if not made:
            raise PlatformUnreachable("Teams did not say which message it has posted", maybe_sent=True)
        return made

    async def send_file(
        self, chat: Chat, file: OutgoingFile, *, caption: str = "", nonce: str, context: ReplyContext | None = None
    ) -> str:
        """Offer a file; it is uploaded when the person has allowed it."""
        if self._is_channel(chat) or (self._conversations().get(chat.chat_id, {}).get("type") or chat.type) != DM:
            raise SendRefused("Teams lets bots send files in personal chats only")
        if not file.data:
            raise SendRefused("Teams takes no empty files")
        offer = {"type": "message", "attachments": [self._offers.add(nonce, file)]}
        found = await self._asked().call("POST", self._address(chat), json=offer)
        return str(found.get("id") or nonce)

    async def edit(self, chat: Chat, message_id: str, text: str) -> None:
        """Replace the text of one of our messages."""
        begins = chat.thread_id is None and self._is_channel(chat)
        address = self._address(chat, thread=message_id if begins else chat.thread_id)
        await self._asked().call("PUT", f"{address}/{quote(message_id, safe='')}", json=_message(text))

    async def typing(self, chat: Chat) -> None:
        """Show that a reply is being written; channels do not show it."""
        if not self._is_channel(chat):
            await self._asked().call("POST", self._address(chat), json={"type": "typing"})

    async def create_thread(self, chat: Chat, name: str) -> Chat:
        """Begin a thread in a channel with a post that names it."""
        if not self._is_channel(chat):
            raise SendRefused("Teams has threads in channels only")
        root = await self._post(chat, f"**{name}**")
        return Chat(platform=self.platform, chat_id=chat.chat_id, type=CHANNEL, thread_id=root, name=chat.name)

    def _address(self, chat: Chat, thread: str | None = None) -> str:
        thread = thread or chat.thread_id
        name = chat.chat_id if thread is None else f"{chat.chat_id};messageid={thread}"
        return f"{self._service(chat)}/v3/conversations/{quote(name, safe='')}/activities"

    def _service(self, chat: Chat) -> str:
        return self._conversations().get(chat.chat_id, {}).get("service_url") or self.text("service_url").rstrip("/")

    def _is_channel(self, chat: Chat) -> bool:
        known = self._conversations().get(chat.chat_id, {}).get("type")
        return (known or chat.type) == CHANNEL or is_channel(chat.chat_id)

    def _asked(self) -> Connector:
        if self._api is None:
            raise PlatformUnreachable("not connected to Teams")
        return self._api


def _message(text: str) -> dict[str, Any]:
    return {"type": "message", "text": for_teams(text) or text, "textFormat": "markdown"}
