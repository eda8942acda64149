"""nio's client, made strict: a failure response is raised, and a key that was not shared counts as not shared.

nio returns failures as values (some look like success), waits forever on rate limits, and continues when a room's key
did not reach everyone. Its logs hold whole responses of the server, tokens and messages included, so they are silenced.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping
from typing import Any

from nio import (  # type: ignore[import-untyped]
    Api,
    AsyncClient,
    AsyncClientConfig,
    ErrorResponse,
    KeysQueryResponse,
    KeysUploadResponse,
    LocalProtocolError,
    MatrixRoom,
    ShareGroupSessionResponse,
)
from nio.crypto import ENCRYPTION_ENABLED, decrypt_attachment  # type: ignore[import-untyped]
from nio.exceptions import EncryptionError, GroupEncryptionError, OlmTrustError  # type: ignore[import-untyped]

from hermes.errors import HermesError, PlatformRefused, PlatformUnreachable, SendRefused, SlowDown
from hermes.gateway.platforms.http import retry_after

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
        room = self.rooms.get(room_id)
        if room is None:
            raise SendRefused(f"we are not a member of the Matrix room {room_id}; invite {self.user_id} there")
        if room.encrypted and self.olm is None:
            raise SendRefused(f"the Matrix room {room_id} is encrypted, and encryption is off here")
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
