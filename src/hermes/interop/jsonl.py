"""JSONL: one session per line, whole, with the bytes of its attachments; and back.

Each line is what `SessionDB.export_session` returns, with `attachments` if the session refers to any: their bytes in base64
by hash, so that a file can be carried to another machine alone.
"""

from __future__ import annotations

import base64
import hashlib
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, BinaryIO

from hermes.interop.formats import Export, Found, Problem
from hermes.interop.json_reading import Damaged, encoded, is_spread, json_values, top_keys
from hermes.store.records.attachments import Read, parse_listed, references

ATTACHMENTS = "attachments"
_HEAD = 1 << 20  # bytes of a line that show whether it is a session
_LONGEST = sys.maxsize - 1  # bytes of a line: a session has the bytes of its attachments with it
_LOOKED_AT = 100  # lines of which one must be a session: others may be damaged


def write(export: Export) -> Iterator[bytes]:
    """Exported sessions as lines."""
    for session in export.sessions:
        if isinstance(session.get("attached"), dict):
            attachments = _bytes_of(_listed(session["attached"]), export.attachments)
        else:  # made by hand, or by another program: what reads like a reference is one
            text = encoded([session.get("messages"), session.get("rewound_messages")]).decode()
            attachments = _bytes_of([digest for digest, _, _ in references(text)], export.attachments)
        yield encoded({**session, ATTACHMENTS: attachments} if attachments else session) + b"\n"


def _listed(attached: dict[str, Any]) -> list[str]:
    return [digest for one in attached.values() for digest, _, _ in parse_listed(one)]


def _bytes_of(digests: Iterable[str], read: Read | None) -> dict[str, str]:
    found: dict[str, str] = {}
    for digest in dict.fromkeys(digests) if read is not None else ():
        assert read is not None
        try:
            found[digest] = base64.b64encode(read(digest)).decode()
        except OSError:
            continue  # the file is not there: the reference alone goes along
    return found


def sniff(path: Path) -> bool:
    """Whether one of the first lines is a session, whole or not: an object with an id and messages."""
    if not path.is_file():
        return False
    with path.open("rb") as stream:
        if is_spread(stream):
            return _is_session(stream.read(_HEAD))
        for _ in range(_LOOKED_AT):
            begin = stream.readline(_HEAD)
            if not begin or _is_session(begin):
                return bool(begin)
            while not begin.endswith(b"\n") and begin:
                begin = stream.readline(_HEAD)
    return False


def _is_session(begin: bytes) -> bool:
    keys = top_keys(begin) if begin.lstrip(b"\xef\xbb\xbf \t\r\n")[:1] in (b"{", b"[") else set()
    return "id" in keys and ("messages" in keys or {"source", "started_at"} <= keys)


def read(path: Path, folder: Path | None, problems: list[Problem]) -> Iterator[Found]:
    """The session of each good line; a line that can't be read goes to `problems`.

    A session carries the bytes of its attachments (not where `folder` is None: then nothing is imported). They are never
    written to a file on the way: the store that takes them in may be encrypted.
    """
    with path.open("rb") as stream:
        yield from _read(stream, folder is not None, problems)


def _read(stream: BinaryIO, with_files: bool, problems: list[Problem]) -> Iterator[Found]:
    for number, value, position in json_values(stream, longest=_LONGEST):
        try:
            if isinstance(value, Damaged):
                raise ValueError(value.reason)
            session = _checked(value)
        except ValueError as error:
            problems.append(Problem(number, str(error)))
            continue
        attachments = session.pop(ATTACHMENTS, None)
        if isinstance(attachments, dict) and with_files:
            session[ATTACHMENTS], bad = _unpacked(attachments)
            problems += [Problem(number, f"attachment {name}: damaged") for name in bad]
        yield Found(number, session, position)


def _checked(value: Any) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise ValueError("not a session (an object with an id and messages)")
    if not isinstance(value.get("id"), str):
        raise ValueError("a session without an id")
    messages = value.get("messages", [])
    if not isinstance(messages, list) or not all(
        isinstance(message, dict) and isinstance(message.get("role"), str) for message in messages
    ):
        raise ValueError(f"session {value['id']}: messages is not a list of messages with roles")
    return value


def _unpacked(attachments: dict[str, Any]) -> tuple[dict[str, bytes], list[str]]:
    """The bytes of attachments by hash, and the names of those whose bytes have another hash."""
    good: dict[str, bytes] = {}
    bad: list[str] = []
    for digest, text in attachments.items():
        try:
            data = base64.b64decode(text, validate=True)
        except (ValueError, TypeError):
            data = b""
        if hashlib.sha256(data).hexdigest() != digest:
            bad.append(str(digest)[:20])
        else:
            good[digest] = data
    return good, bad
