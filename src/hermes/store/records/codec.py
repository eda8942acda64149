"""How one message becomes a row and a row becomes a message again.

A round trip is exact: text, lists of parts and JSON fields keep their type, lone surrogates and NULs included.
Tool output over 2 KB has its first 256 characters as text (readable in the table) and
the rest as one zstd frame in another column; what people and models wrote is never compressed.
"""

from __future__ import annotations

import json
import re
from functools import lru_cache
from threading import get_ident
from typing import Any

import msgspec

from hermes.errors import InvalidInput, StoreCorrupt

COMPRESS_OVER = 2048
HEAD = 200  # as much as a hit's context shows
_LEVEL = 3

JSON_FIELDS = ("tool_calls", "reasoning_details", "codex_reasoning_items", "codex_message_items", "meta")


FOREIGN_PARTS = "\0json:"  # how other programs mark a text column that holds a list of content parts


class Blob(bytes):
    """Bytes that mean bytes (compressed text, attachments). Other bytes in a parameter are text that is no valid UTF-8."""

    __slots__ = ()


_encode, _decode = msgspec.json.Encoder().encode, msgspec.json.Decoder().decode


def storable(text: str) -> str | bytes:
    """Text as the database can hold it: lone surrogates are no valid UTF-8, so such text is stored as bytes."""
    if text.isascii():
        return text
    try:
        text.encode()
    except UnicodeEncodeError:
        return text.encode("utf-8", "surrogatepass")
    return text


ESCAPE = "\ufdd0"  # a character that Unicode reserves for such uses and never assigns
_UNFIT = re.compile("[\0\ud800-\udfff\ufdd0]")
_WRITTEN = re.compile(ESCAPE + "([0-9a-f]{4})")


def fit(text: str) -> str:
    """Text without NUL and lone surrogates, for a place that can't hold them: each becomes ESCAPE and four hex digits.

    So does ESCAPE itself: every text comes back as it went in, equal texts stay equal, common prefixes stay common.
    """
    if text.isascii():
        return text if "\0" not in text else text.replace("\0", ESCAPE + "0000")
    return _UNFIT.sub(lambda found: f"{ESCAPE}{ord(found[0]):04x}", text)


def unfit(text: str) -> str:
    """The inverse of fit()."""
    return _WRITTEN.sub(lambda found: chr(int(found[1], 16)), text)


def restored(value: Any) -> Any:
    """The inverse of storable(); any other value unchanged."""
    if type(value) is not bytes:
        return value
    try:
        return value.decode("utf-8", "surrogatepass")
    except UnicodeDecodeError as error:
        raise StoreCorrupt(f"the text of a message is damaged ({error}); repair the store") from error


def to_json(value: Any) -> str:
    """JSON text, readable (not escaped) where UTF-8 can hold it."""
    try:
        return _encode(value).decode()
    except (TypeError, ValueError, UnicodeEncodeError, OverflowError, RecursionError):
        pass
    try:
        return json.dumps(value, ensure_ascii=False, allow_nan=True)  # lone surrogates stay unchanged
    except (TypeError, ValueError, RecursionError) as error:
        raise InvalidInput(f"this value can't be stored as JSON: {error}") from error


def from_json(text: Any) -> Any:
    """The value of stored JSON; text that is no JSON (written by another program) is returned unchanged."""
    if text is None:
        return None
    try:
        return _decode(text)
    except (ValueError, RecursionError, UnicodeEncodeError):
        pass
    try:
        return json.loads(restored(text))
    except (ValueError, RecursionError):
        return restored(text)


def content_value(text: Any, form: Any) -> Any:
    """The value of a content column: parts as a list (or one object), anything else as text.

    Without a format, a text that begins with FOREIGN_PARTS holds the parts of a message another program wrote.
    """
    if form == "json":
        return from_json(text)
    if form is None and type(text) is str and text.startswith(FOREIGN_PARTS):
        parts = from_json(text[len(FOREIGN_PARTS) :])
        if isinstance(parts, (list, dict)):
            return parts
    return text


def number(value: Any, kind: str) -> int | float | None:
    """A value of a file converted for a column of this type (INTEGER or REAL); None for what is no such number."""
    if isinstance(value, bool) or not isinstance(value, (int, float)) or value != value or abs(value) >= 2**63:
        return None
    if kind.startswith("INTEGER"):
        return int(value) if value == int(value) else None
    return float(value)


def json_field(value: Any) -> str | None:
    """The text of a JSON column: lists and dicts encoded; text is assumed to be JSON."""
    return value if value is None or isinstance(value, str) else to_json(value)


@lru_cache(maxsize=64)
def _zstd(thread: int) -> tuple[Any, Any]:
    """A compressor and a decompressor: costly to create (half the time of a message), and not shared between threads."""
    from zstandard import ZstdCompressor, ZstdDecompressor

    return ZstdCompressor(level=_LEVEL, write_checksum=True), ZstdDecompressor()  # a flipped bit must be detected


def split_output(text: str) -> tuple[str, bytes | None]:
    """Long tool output as (its beginning in plain, the rest compressed)."""
    if len(text) * 4 <= COMPRESS_OVER or len(text.encode("utf-8", "surrogatepass")) <= COMPRESS_OVER:
        return text, None
    head = text[:HEAD]
    if not head.isascii() and storable(head) is not head:
        head = ""
    rest = text[len(head) :].encode("utf-8", "surrogatepass")
    return head, Blob(_zstd(get_ident())[0].compress(rest))


def text_damage(head: Any, rest: bytes | None, form: Any) -> str | None:
    """Describe the damage of a stored text or its format; None for a sound one."""
    try:
        whole = joined(head, rest)
    except StoreCorrupt:
        return "its text can't be unpacked"
    if form not in (None, "json", "text"):
        return f"its content has an unknown format ({form!r})"
    is_parts = form != "json" or isinstance(from_json(whole), (list, dict))
    return None if is_parts else "its content is no valid JSON"


DAMAGED = " [… the rest of this text was damaged and is lost]"


def joined(head: str | bytes | None, rest: bytes | None) -> str | None:
    """The whole text of a row's `content` and `content_rest`."""
    if rest is None:
        return restored(head)  # type: ignore[no-any-return]
    from zstandard import ZstdError

    try:
        tail: str = _zstd(get_ident())[1].decompress(rest).decode("utf-8", "surrogatepass")
    except (ZstdError, UnicodeDecodeError) as error:
        raise StoreCorrupt(f"the text of a message is damaged ({error}); repair the store") from error
    return (restored(head) or "") + tail
