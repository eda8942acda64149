"""Webhook signatures: verifying a delivery's sender over the raw bytes, in the ways senders of webhooks sign.

GitHub (and Gitea, Forgejo): X-Hub-Signature-256. Standard Webhooks (and Svix): webhook-id, webhook-timestamp,
webhook-signature. Stripe: Stripe-Signature with its time in it. Anything else: X-Signature: sha256=<hex>. GitLab signs
nothing and sends the secret itself. Every comparison takes constant time.

A route has one scheme: what is signed as one (a body with dots in it) can be cut into a valid delivery of another, under
another id, so that a captured delivery would be accepted a second time.

A field that can be changed without breaking the signature does not identify a delivery: GitHub's X-GitHub-Delivery is not
signed, so its deliveries are identified by their bytes, and a captured one can't be sent again under another id.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
import re
import secrets
from collections.abc import Callable, Mapping

DEFAULT_SCHEME = "github"
TOLERANCE = 300.0  # seconds a signed time may be off
_HEX = re.compile(r"[0-9a-fA-F]{64}")
_STAMP_IN_ID = re.compile(r"\.\d{9,}(?:\.|$)")
_LONGEST_ID = 200
_NAMES = ("webhook-id", "svix-id", "x-github-delivery", "idempotency-key", "x-gitlab-event-uuid")


class BadSignature(Exception):
    """An invalid delivery, and why."""


def verify(headers: Mapping[str, str], body: bytes, secret: str, now: float, *, scheme: str) -> str:
    """Verify a delivery by this scheme (a key of SCHEMES) alone; BadSignature when anything is wrong.

    Returns its id, which is the same whenever the same one is sent, and can't be forged. Header names are in lower case.
    """
    wanted, check = SCHEMES[scheme]
    if not any(name in headers for name in wanted):
        other = next((name for name, (found, _) in SCHEMES.items() if any(one in headers for one in found)), None)
        hint = f": it looks like scheme: {other}, and the route has scheme: {scheme}" if other else ""
        raise BadSignature(f"the delivery has no {wanted[0]}{hint}")
    return check(headers, body, secret, now)


def by_bytes(body: bytes) -> str:
    """The id of a delivery that is identified by its content."""
    return hashlib.sha256(body).hexdigest()


def _mac(secret: bytes, signed: bytes) -> bytes:
    return hmac.new(secret, signed, hashlib.sha256).digest()


def _github(headers: Mapping[str, str], body: bytes, secret: str, now: float) -> str:
    return _digest(headers["x-hub-signature-256"], body, secret)


def _x_signature(headers: Mapping[str, str], body: bytes, secret: str, now: float) -> str:
    return _digest(headers["x-signature"], body, secret)


def _digest(value: str, body: bytes, secret: str) -> str:
    """sha256=<hex> over the body."""
    kind, _, shown = value.strip().partition("=")
    if kind != "sha256" or not _HEX.fullmatch(shown):
        raise BadSignature("the signature must read sha256=<64 hexadecimal digits>")
    if not hmac.compare_digest(bytes.fromhex(shown), _mac(secret.encode(), body)):
        raise BadSignature("the signature does not fit")
    return by_bytes(body)


# ------------------------------------------------------------------------------------------------ Standard Webhooks

_STANDARD = ("webhook-id", "webhook-timestamp", "webhook-signature")
_SVIX = ("svix-id", "svix-timestamp", "svix-signature")


def _standard(headers: Mapping[str, str], body: bytes, secret: str, now: float) -> str:
    names = _STANDARD if _STANDARD[2] in headers else _SVIX
    delivery, stamp, shown = (headers.get(name, "") for name in names)
    if not delivery or len(delivery) > _LONGEST_ID:
        raise BadSignature(f"{names[0]} is missing or too long")
    if _STAMP_IN_ID.search(delivery):  # an id and a time, cut elsewhere: the signature does not say where the id ends
        raise BadSignature(f"{names[0]} contains a time")
    _in_time(stamp, now)
    expected = _mac(_standard_key(secret), f"{delivery}.{stamp}.".encode("latin-1", "replace") + body)
    good = False
    for one in shown.split(" "):
        version, _, encoded = one.partition(",")
        good |= version == "v1" and hmac.compare_digest(_decoded(encoded), expected)
    if not good:
        raise BadSignature("the signature does not fit")
    return delivery


def _standard_key(secret: str) -> bytes:
    """The bytes of a secret: base64 behind `whsec_` (or alone), else the text itself."""
    bare = secret.removeprefix("whsec_")
    return _decoded(bare) or secret.encode()


def _decoded(text: str) -> bytes:
    try:
        return base64.b64decode(text + "=" * (-len(text) % 4), validate=True)
    except (binascii.Error, ValueError):
        return b""


def _in_time(stamp: str, now: float) -> None:
    if not stamp.isascii() or not stamp.isdigit() or len(stamp) > 12:
        raise BadSignature("the time of the delivery is not a number of seconds")
    if abs(now - int(stamp)) > TOLERANCE:
        raise BadSignature("the delivery is too old, or its sender's clock is wrong")


# ------------------------------------------------------------------------------------------------ Stripe, GitLab


def _stripe(headers: Mapping[str, str], body: bytes, secret: str, now: float) -> str:
    """t=<seconds>,v1=<hex>[,v1=<hex>] over the time, a dot and the body."""
    pairs = [part.strip().partition("=") for part in headers["stripe-signature"].split(",")]
    stamp = next((found for key, _, found in pairs if key == "t"), "")
    _in_time(stamp, now)
    expected = _mac(secret.encode(), f"{stamp}.".encode() + body)
    good = False
    for key, _, shown in pairs:
        good |= key == "v1" and bool(_HEX.fullmatch(shown)) and hmac.compare_digest(bytes.fromhex(shown), expected)
    if not good:
        raise BadSignature("the signature does not fit")
    return by_bytes(body)  # a retry has another time, and the same event in it


def _gitlab(headers: Mapping[str, str], body: bytes, secret: str, now: float) -> str:
    if not hmac.compare_digest(headers["x-gitlab-token"].encode("latin-1", "replace"), secret.encode()):
        raise BadSignature("the token does not fit")
    named = headers.get("idempotency-key") or headers.get("x-gitlab-event-uuid") or ""
    return f"gitlab-{named}" if 0 < len(named) <= _LONGEST_ID else by_bytes(body)


# The schemes of `webhooks.routes.<name>.scheme`: the headers of which one must be there, and the check.
SCHEMES: dict[str, tuple[tuple[str, ...], Callable[[Mapping[str, str], bytes, str, float], str]]] = {
    "github": (("x-hub-signature-256",), _github),
    "gitlab": (("x-gitlab-token",), _gitlab),
    "standard": ((_STANDARD[2], _SVIX[2]), _standard),
    "stripe": (("stripe-signature",), _stripe),
    "x-signature": (("x-signature",), _x_signature),
}


def unsigned(headers: Mapping[str, str]) -> str:
    """The id of a delivery to a route without a secret: its sender's, else a new one."""
    named = next((headers[name] for name in _NAMES if 0 < len(headers.get(name, "")) <= _LONGEST_ID), None)
    return named or secrets.token_hex(16)
