"""Events that Feishu posts to us: decrypted, and proved to be Feishu's by their signature or their token.

https://open.feishu.cn/document/event-subscription-guide/event-subscriptions/event-subscription-configure-/encrypt-key-encryption-configuration-case
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import json
from collections.abc import Callable, Mapping
from typing import Any

WINDOW = 8 * 3600.0  # seconds: an event that was not acknowledged is repeated 15 s, 5 min, 1 h and 6 h later


def signature(timestamp: str, nonce: str, key: str, body: bytes) -> str:
    """The value of X-Lark-Signature for a request."""
    return hashlib.sha256(f"{timestamp}{nonce}{key}".encode("utf-8", "surrogatepass") + body).hexdigest()


def decrypted(text: str, key: str) -> bytes:
    """What `encrypt` holds: AES-256-CBC with the key's SHA-256, after the 16 bytes of its start; ValueError if it is none."""
    from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes
    from cryptography.hazmat.primitives.padding import PKCS7

    data = base64.b64decode(text, validate=True)
    if len(data) < 32 or len(data) % 16:
        raise ValueError("not whole blocks")
    reader = Cipher(algorithms.AES(hashlib.sha256(key.encode()).digest()), modes.CBC(data[:16])).decryptor()
    padded = reader.update(data[16:]) + reader.finalize()
    unpadder = PKCS7(128).unpadder()
    return unpadder.update(padded) + unpadder.finalize()


class EventProof:
    """Which requests are Feishu's. At least one of the two secrets is given."""

    def __init__(self, encrypt_key: str, token: str, in_window: Callable[[str], bool]) -> None:
        self._key, self._token, self._in_window = encrypt_key, token, in_window

    def is_genuine(self, headers: Mapping[str, str], body: bytes) -> bool:
        """Whether a request is Feishu's and not an old one.

        The check of the address is not signed: it must be encrypted with our key, or have our token.
        """
        if not self._key:
            return self._has_token(self._parsed(body))
        at, given = headers.get("X-Lark-Request-Timestamp", ""), headers.get("X-Lark-Signature", "")
        wanted = signature(at, headers.get("X-Lark-Request-Nonce", ""), self._key, body)
        if hmac.compare_digest(given.encode("utf-8", "replace"), wanted.encode()):
            return self._in_window(at) and (not self._token or self._has_token(self.opened(body)))
        found = self.opened(body)
        return found.get("type") == "url_verification" and (not self._token or self._has_token(found))

    def opened(self, body: bytes) -> dict[str, Any]:
        """The content of a request; {} if it can't be read. With a key, what is not encrypted is not read."""
        found = self._parsed(body)
        if not self._key:
            return found
        try:
            return self._parsed(decrypted(str(found["encrypt"]), self._key))
        except (KeyError, ValueError):
            return {}

    def _has_token(self, content: dict[str, Any]) -> bool:
        header = content.get("header")
        given = header.get("token") if isinstance(header, dict) else content.get("token")
        return hmac.compare_digest(str(given or "").encode("utf-8", "replace"), self._token.encode())

    def _parsed(self, body: bytes) -> dict[str, Any]:
        try:
            found = json.loads(body)
        except (ValueError, RecursionError):
            return {}
        return found if isinstance(found, dict) else {}
