"""Files of WeChat: its CDN keeps them encrypted with AES-128 (ECB, PKCS #7), each with a key of its own."""

from __future__ import annotations

import base64
import binascii

from hermes.errors import SendRefused

BLOCK = 16


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

    missing = BLOCK - len(data) % BLOCK
    worker = Cipher(algorithms.AES(key), modes.ECB()).encryptor()  # ECB is the vendor's choice
    return worker.update(data + bytes([missing]) * missing) + worker.finalize()


def decrypted(data: bytes, key: bytes) -> bytes:
    """The file; SendRefused if the key is not its key."""
    from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes

    if not data or len(data) % BLOCK:
        raise SendRefused("WeChat's file can't be decrypted: it is not whole")
    worker = Cipher(algorithms.AES(key), modes.ECB()).decryptor()  # ECB is the vendor's choice
    plain = worker.update(data) + worker.finalize()
    padding = plain[-1]
    if not 1 <= padding <= BLOCK or plain[-padding:] != bytes([padding]) * padding:
        raise SendRefused("WeChat's file can't be decrypted: its key does not fit")
    return plain[:-padding]
