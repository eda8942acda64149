"""Tencent's iLink API: headers, its codes for errors, the login by a QR code, files in its CDN.

https://github.com/Tencent/openclaw-weixin/blob/main/docs/protocol.md

A QR code for a terminal, by ISO/IEC 18004: bytes, correction level L, mask 0, versions 1 to 6 (134 bytes at most).

The standard recommends the mask that is easiest to read; readers take any.
"""

from __future__ import annotations

import asyncio
import base64
import binascii
import hashlib
import secrets
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from typing import Any
from urllib.parse import quote

import httpx

from hermes.errors import PlatformError, PlatformRefused, PlatformUnreachable, SendRefused, SlowDown
from hermes.gateway.platforms._shared.http import HttpApi, error_text, is_at

EXPIRED, TOO_OFTEN = -14, -2  # codes; the second is not in the vendor's documents
LOGIN_AGAIN = "WeChat's session has expired; log in again with `hermes gateway setup weixin`"
_BOT_TYPE = "3"
_POLL = 35.0  # seconds that a long poll takes if the server does not say
_CODE_LASTS = 480.0  # seconds after which a QR code is given up; the server says earlier that it has expired
_CODES = 3  # QR codes shown before a login is given up
BLOCK = 16  # bytes of a key, and of what is encrypted at once
_DOMAINS = (".qq.com", ".wechat.com")


class Refused(SendRefused):
    """A request that the server refuses by a code of its own."""

    def __init__(self, code: int, text: str) -> None:
        super().__init__(f"WeChat refuses: {text or f'code {code}'}")
        self.code = code


class ILink(HttpApi):
    """The API for one bot account; without a token for the login alone."""

    def __init__(
        self, base_url: str, *, token: str = "", cdn_url: str = "", app_id: str = "bot", version: str = "2.4.8"
    ) -> None:
        super().__init__("WeChat", base_url.rstrip("/"), timeout=20)
        self._base, self._token, self._cdn, self._version = base_url.rstrip("/"), token, cdn_url.rstrip("/"), version
        self._about = {"iLink-App-Id": app_id, "iLink-App-ClientVersion": str(_encoded(version))}
        self._poll = _POLL

    async def call(self, name: str, *, seconds: float = 20.0, **body: Any) -> dict[str, Any]:
        """The answer of an operation of the bot, such as "sendmessage"; the error for a code that is not 0."""
        info = {"channel_version": self._version, "bot_agent": "Hermes"}
        headers = {**self._posting(), "Authorization": f"Bearer {self._token}"}
        answer = await self.request(
            "POST", f"/ilink/bot/{name}", json={**body, "base_info": info}, headers=headers, timeout=seconds
        )
        return _successful(answer)

    async def updates(self, buffer: str) -> dict[str, Any]:
        """Long-poll for updates; an empty answer after the timeout."""
        try:
            async with asyncio.timeout(self._poll + 10):
                found = await self.call("getupdates", seconds=self._poll + 15, get_updates_buf=buffer)
        except TimeoutError:
            return {}
        except Refused as error:
            raise PlatformUnreachable(str(error)) from None
        wait = found.get("longpolling_timeout_ms")
        if isinstance(wait, int | float) and not isinstance(wait, bool) and 1_000 <= wait <= 120_000:
            self._poll = wait / 1000
        return found

    def failure(self, answer: httpx.Response) -> PlatformError:
        """The error for an answer of 300 to 499."""
        if answer.status_code in (401, 403):
            return PlatformRefused(LOGIN_AGAIN)
        return SendRefused(f"WeChat refuses (HTTP {answer.status_code})")

    def _posting(self) -> dict[str, str]:
        number = base64.b64encode(str(secrets.randbits(32)).encode()).decode()
        return {**self._about, "AuthorizationType": "ilink_bot_token", "X-WECHAT-UIN": number}

    # ------------------------------------------------------------------------------------------ logging in

    async def log_in(
        self, show: Callable[[str], None], ask: Callable[[str], str], drawn: Callable[[str], str], known: str = ""
    ) -> dict[str, Any]:
        """Show QR codes until one is confirmed; what the server gives then. {} if it says that `known` is still good."""
        for _ in range(_CODES):
            body = {"local_token_list": [known] if known else []}
            path = f"/ilink/bot/get_bot_qrcode?bot_type={_BOT_TYPE}"
            code = _successful(await self.request("POST", path, json=body, headers=self._posting()))
            name, content = code.get("qrcode"), code.get("qrcode_img_content")
            if not isinstance(name, str) or not name or not isinstance(content, str) or not content:
                raise PlatformRefused("WeChat has given no QR code; try again later")
            show(drawn(content))
            show(
                f"Scan it with WeChat on your phone, and confirm there. Or open this link on another screen:\n{content}"
            )
            if (found := await self._confirmed(name, show, ask)) is not None:
                return found
            show("The QR code has expired; here is a new one.")
        raise PlatformRefused("no QR code was confirmed in time")

    async def _confirmed(
        self, code: str, show: Callable[[str], None], ask: Callable[[str], str]
    ) -> dict[str, Any] | None:
        """Wait until a code is confirmed; None when it has expired."""
        base, verification, seen = self._base, "", ""
        end = time.monotonic() + _CODE_LASTS
        while time.monotonic() < end:
            query = {"qrcode": code, **({"verify_code": verification} if verification else {})}
            found: dict[str, Any] = {}
            with suppress(PlatformUnreachable, SlowDown):  # as if nothing had happened yet
                address = f"{base}/ilink/bot/get_qrcode_status"
                found = _successful(
                    await self.request("GET", address, params=query, headers=self._about, timeout=_POLL + 5)
                )
            status = str(found.get("status") or "wait")
            if status == "confirmed":
                return found
            if status == "binded_redirect":
                return {}
            if status in ("expired", "verify_code_blocked"):
                return None
            if status == "scaned" and seen != status:
                show("Scanned. Now confirm it on the phone.")
            if status == "scaned_but_redirect":
                base = self._redirected(str(found.get("redirect_host") or ""), base)
            if status == "need_verifycode":
                verification = await asyncio.to_thread(ask, "The code that WeChat shows on the phone: ")
            seen = status
            await asyncio.sleep(0.5 if found else 2.0)
        return None

    def _redirected(self, host: str, base: str) -> str:
        return f"https://{host}" if host and self.is_tencents(f"https://{host}") else base

    # ------------------------------------------------------------------------------------------ files

    def is_tencents(self, address: str) -> bool:
        """Whether an address is Tencent's, or one of those in config.yaml."""
        return is_at(address, _DOMAINS, self._base, self._cdn)

    async def file(self, url: str, param: str) -> bytes:
        """A file's encrypted bytes."""
        address = url or f"{self._cdn}/download?encrypted_query_param={quote(param, safe='')}"
        try:
            return (await self.download(address, what="the file", trusted=self.is_tencents)).content
        except httpx.InvalidURL:
            raise SendRefused("the address of the file can't be used") from None

    async def upload(self, data: bytes, kind: int, to: str) -> dict[str, Any]:
        """Put a file into the CDN; how a message refers to it."""
        key, name = secrets.token_bytes(16), secrets.token_hex(16)
        whole = encrypted(data, key)
        digest = hashlib.md5(data, usedforsecurity=False).hexdigest()
        place = await self.call(
            "getuploadurl", filekey=name, media_type=kind, to_user_id=to, rawsize=len(data), rawfilemd5=digest,
            filesize=len(whole), no_need_thumb=True, aeskey=key.hex(),
        )  # fmt: skip
        address = place.get("upload_full_url")
        if not isinstance(address, str) or not address:
            param = quote(str(place.get("upload_param") or ""), safe="")
            address = f"{self._cdn}/upload?encrypted_query_param={param}&filekey={name}"
        if not self.is_tencents(address):
            raise SendRefused("WeChat's address for the file is not Tencent's; cdn_url allows another one")
        headers = {"Content-Type": "application/octet-stream"}
        try:
            answer = await self.request("POST", address, content=whole, headers=headers, timeout=120)
        except PlatformUnreachable as error:  # nothing was sent to anyone yet
            raise PlatformUnreachable(str(error)) from None
        param = answer.headers.get("x-encrypted-param")
        if not param:
            raise PlatformUnreachable("WeChat did not take the file")
        return {
            "encrypt_query_param": param, "aes_key": base64.b64encode(key.hex().encode()).decode(), "encrypt_type": 1,
        }  # fmt: skip


def _successful(answer: httpx.Response) -> dict[str, Any]:
    """The content of an answer without an error; a missing code is success."""
    try:
        found = answer.json() if answer.content.strip() else {}
    except ValueError:
        raise PlatformUnreachable("WeChat's answer can't be read; check base_url") from None
    if not isinstance(found, dict):
        raise PlatformUnreachable("WeChat's answer can't be read; check base_url")
    code = found.get("errcode") or found.get("ret") or 0
    if code == EXPIRED:
        raise PlatformRefused(LOGIN_AGAIN)
    if code != 0:
        raise Refused(code if isinstance(code, int) else -1, error_text(found.get("errmsg") or ""))
    return found


def _encoded(version: str) -> int:
    """A version as the API wants it: a byte for each of its three numbers."""
    numbers = [int(one) for one in version.split(".") if one.isascii() and one.isdecimal()][:3]
    major, minor, patch = (numbers + [0, 0, 0])[:3]
    return (major & 255) << 16 | (minor & 255) << 8 | patch & 255


# ------------------------------------------------------------------------------------------ encrypted files
#
# The CDN keeps files encrypted with AES-128 (ECB, which is the vendor's choice, and PKCS #7), each with a key of its own.


def key_of(text: str) -> bytes | None:
    """The key that a message names: 32 hex digits, or base64 of them, or base64 of its 16 bytes. None if it is none of these."""
    if (found := _from_hex(text)) is not None:
        return found
    try:
        decoded = base64.b64decode(text, validate=True)
    except (binascii.Error, ValueError):
        return None
    if len(decoded) == BLOCK:
        return decoded
    return _from_hex(decoded.decode("ascii", "replace"))


def _from_hex(text: str) -> bytes | None:
    try:
        return bytes.fromhex(text) if len(text) == 2 * BLOCK and text.isalnum() else None
    except ValueError:
        return None


def encrypted(data: bytes, key: bytes) -> bytes:
    """A file as the CDN keeps it."""
    from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes
    from cryptography.hazmat.primitives.padding import PKCS7

    padder, worker = PKCS7(8 * BLOCK).padder(), Cipher(algorithms.AES(key), modes.ECB()).encryptor()
    return worker.update(padder.update(data) + padder.finalize()) + worker.finalize()


def decrypted(data: bytes, key: bytes) -> bytes:
    """The file; SendRefused if the key is not its key."""
    from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes
    from cryptography.hazmat.primitives.padding import PKCS7

    unpadder, worker = PKCS7(8 * BLOCK).unpadder(), Cipher(algorithms.AES(key), modes.ECB()).decryptor()
    try:
        return unpadder.update(worker.update(data) + worker.finalize()) + unpadder.finalize()
    except ValueError:
        raise SendRefused("WeChat's file can't be decrypted: it is not whole, or its key does not fit") from None


Grid = list[list[bool]]

# version → bytes of data, bytes of correction in each block, number of blocks
_VERSIONS = {1: (19, 7, 1), 2: (34, 10, 1), 3: (55, 15, 1), 4: (80, 20, 1), 5: (108, 26, 1), 6: (136, 18, 2)}
_FORMAT = 0b111011111000100  # level L and mask 0, with their correction
_QUIET = 2  # empty modules around it; readers want some


def drawn(text: str) -> str:
    """The code of a text in block characters, dark on light; "" if the text is too long for one."""
    grid = matrix(text)
    if not grid:
        return ""
    size = len(grid) + 2 * _QUIET
    rows = [[False] * size for _ in range(size + size % 2)]
    for number, row in enumerate(grid):
        rows[number + _QUIET][_QUIET : _QUIET + len(row)] = row
    pairs = zip(rows[::2], rows[1::2], strict=True)
    signs = {(False, False): "█", (False, True): "▀", (True, False): "▄", (True, True): " "}  # for dark terminals
    return "\n".join("".join(signs[pair] for pair in zip(*two, strict=True)) for two in pairs)


def matrix(text: str) -> Grid:
    """The modules of a text's code (True: dark); [] if it is too long."""
    data = text.encode()
    version = next((one for one, (room, _, _) in _VERSIONS.items() if len(data) <= room - 2), None)
    if version is None:
        return []
    size = 17 + 4 * version
    grid: list[list[bool | None]] = [[None] * size for _ in range(size)]
    _patterns(grid)
    stream = iter("".join(f"{byte:08b}" for byte in codewords(data, version)))
    for row, column in _places(size):
        if grid[row][column] is None:
            dark = next(stream, "0") == "1"
            grid[row][column] = dark != ((row + column) % 2 == 0)
    return [[bool(module) for module in line] for line in grid]


def codewords(data: bytes, version: int) -> list[int]:
    """Everything that is drawn, in order: blocks of data and of correction, interleaved."""
    total, extra, count = _VERSIONS[version]
    bits = f"0100{len(data):08b}" + "".join(f"{byte:08b}" for byte in data) + "0000"
    words = [int(bits[place : place + 8], 2) for place in range(0, len(bits), 8)]
    words += [(0xEC, 0x11)[number % 2] for number in range(total - len(words))]
    size = total // count
    blocks = [words[place : place + size] for place in range(0, total, size)]
    corrections = [correction(block, extra) for block in blocks]
    return [word for parts in (blocks, corrections) for group in zip(*parts, strict=True) for word in group]


def _product(one: int, other: int) -> int:
    """A product in the field of 256 elements by x⁸ + x⁴ + x³ + x² + 1."""
    found = 0
    while other:
        if other & 1:
            found ^= one
        one <<= 1
        if one & 0x100:
            one ^= 0x11D
        other >>= 1
    return found


def correction(data: Sequence[int], count: int) -> list[int]:
    """The Reed-Solomon code of a block."""
    generator, root = [1], 1
    for _ in range(count):
        shifted = [*generator, 0]
        for place, factor in enumerate(generator):
            shifted[place + 1] ^= _product(factor, root)
        generator, root = shifted, _product(root, 2)
    rest = [0] * count
    for word in data:
        lead = word ^ rest[0]
        rest = [*rest[1:], 0]
        rest = [one ^ _product(factor, lead) for one, factor in zip(rest, generator[1:], strict=True)]
    return rest


def _places(size: int) -> Iterator[tuple[int, int]]:
    """The order in which data is drawn: columns in pairs from the right, up and down, without the timing column."""
    up, right = True, size - 1
    while right > 0:
        for step in range(size):
            row = size - 1 - step if up else step
            yield row, right
            yield row, right - 1
        up, right = not up, right - 2
        if right == 6:
            right = 5


def _patterns(grid: list[list[bool | None]]) -> None:
    """Draw what every code of this size has: three corners, their dotted lines, a small square, and the format."""
    size = len(grid)
    for top, left in ((0, 0), (0, size - 7), (size - 7, 0)):
        for row in range(max(0, top - 1), min(size, top + 8)):
            for column in range(max(0, left - 1), min(size, left + 8)):
                far = max(abs(row - top - 3), abs(column - left - 3))
                grid[row][column] = far not in (2, 4)
    for place in range(8, size - 8):
        grid[6][place] = grid[place][6] = place % 2 == 0
    for row in range(size - 9, size - 4) if size > 21 else ():
        for column in range(size - 9, size - 4):
            grid[row][column] = max(abs(row - size + 7), abs(column - size + 7)) != 1
    for place in range(15):
        dark = bool(_FORMAT >> place & 1)
        grid[place if place < 6 else place + 1 if place < 8 else size - 15 + place][8] = dark
        grid[8][size - 1 - place if place < 8 else 7 if place == 8 else 14 - place] = dark
    grid[size - 8][8] = True
