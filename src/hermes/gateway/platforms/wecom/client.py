"""The WebSocket of WeCom's AI bots: requests and their answers share an id, messages are pushed in between.

https://developer.work.weixin.qq.com/document/path/101463

WeCom's encryption of callbacks (WXBizMsgCrypt) and of files: AES-256-CBC with a padding of up to 32 bytes.

https://developer.work.weixin.qq.com/document/path/90968
An encrypted callback is 16 random bytes, the length of the message, the message, and the id of its receiver.
"""

from __future__ import annotations

import asyncio
import base64
import binascii
import hashlib
import hmac
import json
import re
import secrets
import struct
from contextlib import suppress
from typing import Any

import aiohttp

from hermes.errors import HermesError, PlatformError, PlatformRefused, PlatformUnreachable, SendRefused, SlowDown
from hermes.gateway.platforms._shared.http import connection_trouble, error_text
from hermes.gateway.platforms._shared.receipt import LOG, Log, read_object
from hermes.gateway.platforms._shared.websocket import WebSocketClient

_CONTROL = re.compile("[\x00-\x08\x0b-\x1f]")
_PATIENCE = 15.0  # seconds for an answer
_HEARTBEAT = 30.0
_PAUSE = 3.0  # a chat takes thirty messages in a minute
_LIMITS = frozenset({45009, 45033, 45047, 846607})
_BUSY = frozenset({-1, 6000})
MESSAGE, EVENT = "aibot_msg_callback", "aibot_event_callback"

Frames = asyncio.Queue[dict[str, Any] | None]


class BotSocket(WebSocketClient):
    """One connection. `frames` gets what is pushed, and None when the connection has ended."""

    def __init__(self, url: str, bot_id: str, secret: str, log: Log = LOG) -> None:
        super().__init__("WeCom", log)
        self._url, self._bot_id, self._secret = url, bot_id, secret
        self.frames: Frames = asyncio.Queue()
        self._answers: dict[str, asyncio.Future[dict[str, Any]]] = {}
        self._tasks: list[asyncio.Task[None]] = []

    async def open(self) -> None:
        """Connect and subscribe. PlatformRefused where the bot's id or secret is wrong."""
        try:
            async with asyncio.timeout(_PATIENCE):
                socket = await self.connect(self._url, heartbeat=_HEARTBEAT)
            self._tasks.append(asyncio.create_task(self._read(socket)))
            try:
                await self.request("aibot_subscribe", {"bot_id": self._bot_id, "secret": self._secret})
            except SendRefused as error:
                raise PlatformRefused(f"WeCom does not accept bot_id and secret: {error}") from None
            self._tasks.append(asyncio.create_task(self._beat()))
        except BaseException as error:
            await self.close()
            if isinstance(error, HermesError) or not isinstance(error, Exception):
                raise
            raise PlatformUnreachable(f"WeCom's WebSocket can't be reached: {connection_trouble(error)}") from None

    async def request(
        self, command: str, body: dict[str, Any] | None = None, req_id: str | None = None
    ) -> dict[str, Any]:
        """The answer to a request; the error that its errcode means."""
        socket = self._socket
        if socket is None or socket.closed:
            raise PlatformUnreachable("not connected to WeCom")
        name = req_id or f"{command}_{secrets.token_hex(12)}"
        frame: dict[str, Any] = {"cmd": command, "headers": {"req_id": name}}
        if body is not None:
            frame["body"] = body
        answer: asyncio.Future[dict[str, Any]] = asyncio.get_running_loop().create_future()
        self._answers[name] = answer
        try:
            await socket.send_str(json.dumps(frame, ensure_ascii=False))
            async with asyncio.timeout(_PATIENCE):
                found = await answer
        except (TimeoutError, aiohttp.ClientError, OSError):
            raise PlatformUnreachable("WeCom gave no answer", maybe_sent=True) from None
        finally:
            if self._answers.get(name) is answer:
                del self._answers[name]
        code = found.get("errcode", 0)
        if code != 0:
            raise self._failure(code if isinstance(code, int) else None, found.get("errmsg"))
        return found

    def _failure(self, code: int | None, told: Any) -> PlatformError:
        if code in _LIMITS:
            return SlowDown("WeCom asks us to wait", _PAUSE)
        if code in _BUSY:
            return PlatformUnreachable("WeCom is busy")
        return SendRefused(f"WeCom refuses: {error_text(told or f'errcode {code}', self._secret)}")

    async def _read(self, socket: aiohttp.ClientWebSocketResponse) -> None:
        try:
            async for message in socket:
                if message.type is aiohttp.WSMsgType.TEXT:
                    frame = read_object(message.data, "WeCom", self.log, parse=_parsed)
                    if frame is not None:
                        self._arrived(frame)
        finally:
            for answer in self._answers.values():
                if not answer.done():
                    lost = PlatformUnreachable("the connection to WeCom broke", maybe_sent=True)
                    answer.set_exception(lost)
            self.frames.put_nowait(None)

    def _arrived(self, frame: dict[str, Any]) -> None:
        if frame.get("cmd"):
            self.frames.put_nowait(frame)
            return
        headers = frame.get("headers")
        name = headers.get("req_id") if isinstance(headers, dict) else None
        answer = self._answers.get(name) if isinstance(name, str) else None
        if answer is not None and not answer.done():
            answer.set_result(frame)

    async def _beat(self) -> None:
        """WeCom ends a connection without heartbeats; one without answers is dead."""
        while self._socket is not None and not self._socket.closed:
            await asyncio.sleep(_HEARTBEAT)
            try:
                await self.request("ping")
            except PlatformError:
                with suppress(Exception):
                    if self._socket is not None:
                        await self._socket.close()
                return

    async def close(self) -> None:
        """Disconnect. May be called twice."""
        tasks, self._tasks = [one for one in self._tasks if one is not asyncio.current_task()], []
        await super().close()
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


def _parsed(text: str) -> Any:
    """A frame. WeCom does not escape control characters in people's texts, which makes them invalid JSON to a strict parser."""
    try:
        return json.loads(text, strict=False)
    except ValueError:
        return json.loads(_CONTROL.sub("", text))


_BLOCK = 32


def key_of(encoded: str) -> bytes:
    """The AES key of an EncodingAESKey (43 characters) or of a file's aeskey. ValueError if it is none."""
    text = encoded.strip()
    try:
        key = base64.b64decode(text + "=" * (-len(text) % 4), validate=True)
    except (binascii.Error, ValueError):
        key = b""
    if len(key) != 32:
        raise ValueError("not a key of 32 bytes in Base64")
    return key


def signature(token: str, timestamp: str, nonce: str, encrypted: str) -> str:
    """The signature of a callback."""
    return hashlib.sha1("".join(sorted([token, timestamp, nonce, encrypted])).encode()).hexdigest()


def is_signed(given: str, token: str, timestamp: str, nonce: str, encrypted: str) -> bool:
    """Whether this is the signature of a callback; takes the same time either way."""
    wanted = signature(token, timestamp, nonce, encrypted)
    return hmac.compare_digest(given.encode("utf-8", "replace"), wanted.encode())


def opened(encrypted: str, key: bytes, receiver: str) -> bytes:
    """The message of a callback for this receiver. ValueError where it can't be decrypted, or is for another one."""
    try:
        data = base64.b64decode(encrypted, validate=True)
    except (binascii.Error, ValueError):
        raise ValueError("not Base64") from None
    plain = decrypted(data, key)
    if len(plain) < 20:
        raise ValueError("too short")
    (length,) = struct.unpack(">I", plain[16:20])
    if 20 + length > len(plain):
        raise ValueError("shorter than it says")
    if not hmac.compare_digest(plain[20 + length :], receiver.encode()):
        raise ValueError("for another receiver")
    return plain[20 : 20 + length]


def decrypted(data: bytes, key: bytes) -> bytes:
    """The bytes of an encrypted file or callback, without their padding. ValueError where they can't be decrypted."""
    from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes

    if not data or len(data) % 16:
        raise ValueError("not a multiple of a block")
    reader = Cipher(algorithms.AES(key), modes.CBC(key[:16])).decryptor()
    plain = reader.update(data) + reader.finalize()
    padding = plain[-1]
    if not 1 <= padding <= _BLOCK or plain[-padding:] != bytes([padding]) * padding:
        raise ValueError("not encrypted with this key")
    return plain[:-padding]
