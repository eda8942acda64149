"""WeCom's encryption of callbacks (WXBizMsgCrypt) and of files: AES-256-CBC with a padding of up to 32 bytes.

https://developer.work.weixin.qq.com/document/path/90968
An encrypted callback is 16 random bytes, the length of the message, the message, and the id of its receiver.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
import struct

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
