"""nio's client, made strict: a failure response is raised, and a key that was not shared counts as not shared.

nio returns failures as values (some look like success), waits forever on rate limits, and continues when a room's key
did not reach everyone. Its logs hold whole responses of the server, tokens and messages included, so they are silenced.
"""

from __future__ import annotations

import asyncio
import io
import json
import logging
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Self

from nio import (  # type: ignore[import-untyped]
    Api,
    AsyncClient,
    AsyncClientConfig,
    ErrorResponse,
    FileResponse,
    KeysQueryResponse,
    KeysUploadResponse,
    LocalProtocolError,
    MatrixRoom,
    ShareGroupSessionResponse,
)
from nio.crypto import ENCRYPTION_ENABLED, decrypt_attachment, encrypt_attachment  # type: ignore[import-untyped]
from nio.exceptions import EncryptionError, GroupEncryptionError, OlmTrustError  # type: ignore[import-untyped]

from hermes.errors import HermesError, PlatformRefused, PlatformUnreachable, SendRefused, SlowDown
from hermes.gateway.events import OutgoingFile
from hermes.gateway.platforms._shared.http import bounded, retry_after
from hermes.home import make_private, write_whole

logging.getLogger("nio").setLevel(logging.CRITICAL)
logging.getLogger("peewee").setLevel(logging.WARNING)  # at DEBUG it logs the keys it stores

NO_LOGIN = {"M_UNKNOWN_TOKEN", "M_MISSING_TOKEN", "M_USER_DEACTIVATED", "M_USER_LOCKED"}


class LoggedOut(PlatformRefused):
    """The access token is not, or no longer, valid. `soft`: the device itself is still known."""

    def __init__(self, message: str, soft: bool) -> None:
        super().__init__(message)
        self.soft = soft


def can_encrypt() -> bool:
    """Whether the library for encryption is installed."""
    return bool(ENCRYPTION_ENABLED)


class _Bounded:
    """A stream of aiohttp that is read no further than the largest accepted file."""

    def __init__(self, stream: Any) -> None:
        self._stream = stream

    async def read(self, size: int = -1) -> bytes:
        """All of it."""
        return await bounded(self._stream.iter_chunked(1 << 16))

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)


class MatrixClient(AsyncClient):  # type: ignore[misc]
    """One login at a home server. Every method raises errors of hermes.errors, and no other."""

    def __init__(self, homeserver: str, user: str, keys: str | None) -> None:
        config = AsyncClientConfig(
            max_limit_exceeded=0, max_timeouts=0, encryption_enabled=keys is not None, store_sync_tokens=False
        )
        super().__init__(homeserver, user, store_path=keys or "", config=config)
        self._sharing = asyncio.Lock()
        self._share_failed: HermesError | None = None

    async def create_matrix_response(
        self, response_class: Any, transport_response: Any, *args: Any, **kwargs: Any
    ) -> Any:
        """The server's response. Failures are raised here: nio crashes on some, and takes others for success."""
        if transport_response.status >= 400:
            body = await self.parse_body(transport_response)
            raise _failure(
                self.homeserver,
                transport_response.status,
                body if isinstance(body, dict) else {},
                transport_response.headers,
            )
        if issubclass(response_class, FileResponse):
            transport_response.content = _Bounded(transport_response.content)
        return await super().create_matrix_response(response_class, transport_response, *args, **kwargs)

    async def _send(self, response_class: Any, *args: Any, **kwargs: Any) -> Any:
        try:
            answer = await super()._send(response_class, *args, **kwargs)
            if not isinstance(answer, ErrorResponse):
                return answer
            failure: HermesError = PlatformUnreachable(f"{self.homeserver} does not answer as a Matrix server does")
        except HermesError as error:
            failure = error
        except Exception as error:
            # Without the cause: an error of aiohttp may carry the request, and with it the token.
            words = f"{type(error).__name__}: {error}" if str(error) else type(error).__name__
            failure = PlatformUnreachable(f"{self.homeserver} can't be reached ({words})")
        if response_class is ShareGroupSessionResponse:
            self._share_failed = failure  # nio collects these errors and drops them
        raise failure from None

    # ---------------------------------------------------------------------------------------------- sending

    async def post(self, room_id: str, content: dict[str, Any], transaction: str) -> str:
        """Send a message, encrypted where the room is; its id. The same transaction makes one message."""
        room = self._writable(room_id)
        try:
            if room.encrypted:
                async with self._sharing:
                    await self._share_key(room)
            answer = await self.room_send(
                room_id, "m.room.message", content, tx_id=transaction, ignore_unverified_devices=True
            )
        except (LocalProtocolError, EncryptionError, GroupEncryptionError, OlmTrustError) as error:
            raise PlatformUnreachable(f"a message for {room_id} can't be encrypted yet: {error}") from error
        return str(answer.event_id)

    def _writable(self, room_id: str) -> MatrixRoom:
        """A room that messages can be sent to."""
        room = self.rooms.get(room_id)
        if room is None:
            raise SendRefused(f"we are not a member of the Matrix room {room_id}; invite {self.user_id} there")
        if room.encrypted and self.olm is None:
            raise SendRefused(f"the Matrix room {room_id} is encrypted, and encryption is off here")
        return room

    async def _share_key(self, room: MatrixRoom) -> None:
        """Make sure that everyone in the room has the key of the next message."""
        if not room.members_synced:
            await self.joined_members(room.room_id)
        if self.should_query_keys:
            await self.keys_query()
        if not self.olm.should_share_group_session(room.room_id):
            return
        self._share_failed = None
        try:
            # Devices are trusted on first use: a new device gets the key, one whose keys change does not.
            await self.share_group_session(room.room_id, ignore_unverified_devices=True)
        finally:
            self.sharing_session.pop(room.room_id, None)  # nio leaves it behind on errors, and would wait for it
        if self._share_failed is not None:
            self.olm.outbound_group_sessions.pop(room.room_id, None)
            raise self._share_failed

    # ---------------------------------------------------------------------------------------------- keys

    async def tend_keys(self) -> None:
        """Do what encryption needs between two syncs: upload, request and claim keys, send waiting messages."""
        if self.olm is None:
            return
        if self.should_upload_keys:
            try:
                await self.keys_upload()
            except SendRefused as error:
                if "already exists" not in str(error):
                    raise
                self.olm.mark_keys_as_published()  # never to be offered again; the next ones have new names
                self.olm.save_account()
        if self.should_query_keys:
            await self.keys_query()
        if self.should_claim_keys:
            await self.keys_claim(self.get_users_for_key_claiming())
        await self.send_to_device_messages()

    async def keys_upload(self) -> Any:
        """Publish keys for others to use. They are saved first: a published key that is lost can't be replaced."""
        keys = self.olm.share_keys()
        self.olm.save_account()
        return await self._send(KeysUploadResponse, *Api.keys_upload(self.access_token, keys))

    async def device_is_taken(self) -> bool:
        """Whether our device already has keys that we don't have: then another program uses this login."""
        if self.olm is None or self.olm.account.shared:
            return False
        answer = await self._send(KeysQueryResponse, *Api.keys_query(self.access_token, {self.user_id}))
        device = answer.device_keys.get(self.user_id, {}).get(self.device_id)
        ours = self.olm.account.identity_keys["ed25519"]
        return device is not None and device.get("keys", {}).get(f"ed25519:{self.device_id}") != ours

    # ---------------------------------------------------------------------------------------------- files

    async def download_file(self, url: str, encrypted: dict[str, Any] | None) -> bytes:
        """The bytes behind an mxc:// address, decrypted."""
        answer = await self.download(url)
        body = answer.body
        if not isinstance(body, bytes):
            raise SendRefused(f"there is no file behind {url}")
        if encrypted is None:
            return body
        try:
            return bytes(
                decrypt_attachment(body, encrypted["key"]["k"], encrypted["hashes"]["sha256"], encrypted["iv"])
            )
        except (EncryptionError, KeyError, TypeError, ValueError) as error:
            raise SendRefused(f"the file behind {url} can't be decrypted") from error

    async def upload_file(self, room_id: str, file: OutgoingFile) -> dict[str, Any]:
        """Store a file on the server for a message of this room: its address, and for an encrypted room its key.

        The server gets neither the bytes nor the name nor the type of a file for an encrypted room.
        """
        if not self._writable(room_id).encrypted:
            return {"url": await self._upload(file.data, file.mime, file.name)}
        data, key = await asyncio.to_thread(encrypt_attachment, file.data)
        return {"file": {**key, "url": await self._upload(data, "application/octet-stream", None)}}

    async def _upload(self, data: bytes, mime: str, name: str | None) -> str:
        answer, _ = await self.upload(lambda *_: io.BytesIO(data), mime, name, filesize=len(data))
        return str(answer.content_uri)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def close(self) -> None:
        """Close the connections and the key file."""
        await super().close()
        if self.store is not None:
            self.store.database.close()


def _failure(homeserver: str, status: int, body: dict[str, Any], headers: Mapping[str, str]) -> HermesError:
    """The error for an unsuccessful response."""
    code = str(body.get("errcode") or status)
    words = f"{homeserver}: {code} {body.get('error') or ''}".strip()
    if status == 429 or code == "M_LIMIT_EXCEEDED":
        return SlowDown(words, _pause(body, headers))
    if code in NO_LOGIN or status == 401:
        return LoggedOut(words, body.get("soft_logout") is True)
    return PlatformUnreachable(words) if status >= 500 else SendRefused(words)


def _pause(body: dict[str, Any], headers: Mapping[str, str]) -> float:
    """How long the server asks us to wait, in seconds."""
    milliseconds = body.get("retry_after_ms")
    if isinstance(milliseconds, int | float) and milliseconds >= 0:
        return milliseconds / 1000
    return retry_after(headers, 5.0)


# ----------------------------------------------------------------------------------------------------
# Logging in: with an access token, as the device of last time, or with the password as a new device.
#
# The device matters: encryption keys and the ids that keep a message from being sent twice belong to it. So a login made
# with a password is kept, and used until the server says that it is gone.

TAKEN = (
    "the access token for {user} belongs to a device whose encryption keys are elsewhere (the login of another program?): "
    "use user_id and password, a token made for Hermes alone, or encryption: false"
)


async def log_in(client: MatrixClient, values: Mapping[str, Any], memory: SavedState) -> None:
    """Log a client in, with its encryption keys if it encrypts."""
    user, token, password = (str(values.get(key) or "") for key in ("user_id", "access_token", "password"))
    if not token and not (user and password):
        raise PlatformRefused("Matrix needs user_id and password, or an access_token (platforms.matrix in config.yaml)")
    try:
        if token:
            await _enter(client, token, user)
            if await client.device_is_taken():
                raise PlatformRefused(TAKEN.format(user=client.user_id))
        else:
            name = str(values.get("device_name") or "Hermes")
            await _enter_by_password(client, memory, user, password, name)
    except SendRefused as error:
        raise PlatformRefused(f"login failed at {error}") from None
    if client.store_path:
        for file in memory.keys.iterdir():
            file.chmod(0o600)


async def _enter(client: MatrixClient, token: str, user: str, device: str = "hermes") -> None:
    """Log in with a token; the server says whose it is."""
    client.access_token = token
    who = await client.whoami()
    if user.startswith("@") and who.user_id != user:
        raise PlatformRefused(f"the Matrix access token is not of {user} but of {who.user_id}")
    client.restore_login(who.user_id, who.device_id or device, token)


async def _enter_by_password(client: MatrixClient, memory: SavedState, user: str, password: str, name: str) -> None:
    """Log in as the saved device; else as a new one, which is saved."""
    known = memory.login(user)
    if known is not None:
        try:
            await _enter(client, known["access_token"], user, known["device_id"])
        except LoggedOut as error:
            client.access_token = ""
            client.device_id = known["device_id"] if error.soft else ""
            if not error.soft:
                memory.forget_login()  # its keys are gone with the device
        else:
            return
    await client.login(password, device_name=name)
    memory.keep_login(user, client.user_id, client.device_id, client.access_token)


# ----------------------------------------------------------------------------------------------------
# The state that has to survive a restart, in small private files below <home>/matrix.
#
# The position in the server's stream is written only after everything before it was stored: after a kill messages may come
# twice, but none is lost. A file that belongs to another account, or can't be read, counts as missing.

MOST_WAITING = 500  # encrypted messages whose keys have not arrived; older ones are given up


class SavedState:
    """The files of one account on one home server."""

    def __init__(self, home: Path, homeserver: str) -> None:
        self.folder = home / "matrix"
        self.homeserver = homeserver
        make_private(home)
        make_private(self.folder)

    @property
    def keys(self) -> Path:
        """The folder of the encryption keys."""
        folder = self.folder / "keys"
        make_private(folder)
        return folder

    # ---------------------------------------------------------------------------------------------- login

    def login(self, user: str | None) -> dict[str, str] | None:
        """The saved device of a password login: user_id, device_id, access_token."""
        saved = self._read("login.json", user)
        return saved if saved and {"user_id", "device_id", "access_token"} <= saved.keys() else None

    def keep_login(self, user: str | None, user_id: str, device_id: str, access_token: str) -> None:
        """Log in as the same device next time: its keys and its transaction ids stay valid."""
        self._write("login.json", user, {"user_id": user_id, "device_id": device_id, "access_token": access_token})

    def forget_login(self) -> None:
        """The server no longer knows that device."""
        (self.folder / "login.json").unlink(missing_ok=True)

    # ---------------------------------------------------------------------------------------------- stream

    def since(self, user_id: str) -> str | None:
        """The stored position in the stream; None before the first time."""
        saved = self._read("sync.json", user_id)
        return str(saved["since"]) if saved and saved.get("since") else None

    def keep_since(self, user_id: str, since: str) -> None:
        """Store that everything before this position is safe."""
        self._write("sync.json", user_id, {"since": since})

    def waiting(self, user_id: str) -> list[dict[str, Any]]:
        """Encrypted messages that can't be read yet, oldest first, as the server sent them."""
        saved = self._read("waiting.json", user_id)
        events = saved.get("events") if saved else None
        return [event for event in events if isinstance(event, dict)] if isinstance(events, list) else []

    def keep_waiting(self, user_id: str, events: list[dict[str, Any]]) -> None:
        """Replace the remembered messages."""
        self._write("waiting.json", user_id, {"events": events[-MOST_WAITING:]})

    # ---------------------------------------------------------------------------------------------- files

    def _read(self, name: str, owner: str | None) -> dict[str, Any] | None:
        try:
            saved = json.loads((self.folder / name).read_text("utf-8"))
        except (OSError, ValueError):
            return None
        if not isinstance(saved, dict) or saved.get("homeserver") != self.homeserver or saved.get("owner") != owner:
            return None
        return saved

    def _write(self, name: str, owner: str | None, what: dict[str, Any]) -> None:
        write_whole(self.folder / name, json.dumps({"homeserver": self.homeserver, "owner": owner, **what}))
