"""Pictures, recordings and files in a message: bytes for the turn they came with, a word about them afterwards.

The store keeps the bytes in files and leaves a reference in the message. A model is given them back while the message
is being answered, never again: later turns are told what it was and where it lies.
"""

from __future__ import annotations

import base64
from pathlib import Path
from typing import Any

from hermes.store.attachments import mime_of

_REFERENCE = "attachment:sha256:"
_KINDS = (("image", "picture"), ("audio", "recording"), ("video", "video"))
_DEEPEST = 20


def restored(part: Any, folder: Path) -> Any:
    """A part of the message that is being answered, its bytes in place of the reference; a word where they are gone."""
    whole = _filled(part, folder, 0)
    reference = _bytes_in(whole)
    return _told(part, "which is no longer there") if reference and reference.startswith(_REFERENCE) else whole


def mentioned(part: Any) -> Any:
    """A part of an earlier message: what holds bytes is only spoken of."""
    held = _bytes_in(part)
    if held is None:
        return part
    digest = held.removeprefix(_REFERENCE)
    return _told(part, "sent earlier" if digest == held else f"sent earlier: attachments/{digest[:2]}/{digest}")


def _told(part: Any, words: str) -> dict[str, str]:
    kind = str(part.get("type") or "") if isinstance(part, dict) else ""
    name = next((name for sign, name in _KINDS if sign in kind), "file")
    return {"type": "text", "text": f"[{name}, {words}]"}


def _bytes_in(part: Any, depth: int = 0) -> str | None:
    """The first text in a part that stands for bytes: a reference, a data: address, or base64 beside its format."""
    if isinstance(part, str):
        return part if _digest(part) or (part.startswith("data:") and ";base64," in part[:200]) else None
    if depth >= _DEEPEST:
        return None
    if isinstance(part, list):
        return next((held for item in part if (held := _bytes_in(item, depth + 1))), None)
    if not isinstance(part, dict) or part.get("type") == "text":
        return None
    raw = part.get("data")
    if isinstance(raw, str) and raw and (part.get("format") or part.get("media_type")):
        return raw
    return next((held for item in part.values() if (held := _bytes_in(item, depth + 1))), None)


def _filled(part: Any, folder: Path, depth: int) -> Any:
    if isinstance(part, str):
        data = _bytes_of(part, folder)
        return part if data is None else f"data:{mime_of(data)};base64,{base64.b64encode(data).decode()}"
    if depth >= _DEEPEST:
        return part
    if isinstance(part, list):
        return [_filled(item, folder, depth + 1) for item in part]
    if not isinstance(part, dict):
        return part
    raw = part.get("data")
    if isinstance(raw, str) and (data := _bytes_of(raw, folder)) is not None:  # audio and sources: bare base64
        part = {**part, "data": base64.b64encode(data).decode()}
    return {key: _filled(value, folder, depth + 1) for key, value in part.items()}


def _digest(text: str) -> str | None:
    digest = text.removeprefix(_REFERENCE)
    return digest if digest != text and len(digest) == 64 and digest.isalnum() else None


def _bytes_of(text: str, folder: Path) -> bytes | None:
    digest = _digest(text)
    if digest is None:
        return None
    try:
        return (folder / digest[:2] / digest).read_bytes()
    except OSError:
        return None
