"""Files as they were before a tool changed them, so that /undo can put them back.

The old bytes are an attachment; the last line of the tool's result names it, so that the record keeps the bytes as long as
the message. Large files, files with secrets, and more than a bounded number of bytes a conversation are not kept.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from hermes.agent.tools.file_access import read_bytes, remove, write_bytes
from hermes.errors import HermesError, ToolError
from hermes.store.records.attachments import PREFIX
from hermes.texts import content_text

if TYPE_CHECKING:
    from hermes.agent.tools.tool import Context
    from hermes.store.api.session_db import SessionDB

MOST_BYTES: Final = 2_000_000  # of one file
MOST_IN_ALL: Final = 50_000_000  # of one conversation while it is open
TOOLS: Final = ("write_file", "edit_file")
_LINE: Final = re.compile(r"^\[before: (\{.*\})\]$", re.MULTILINE)


def note_of(context: Context, path: Path, before: bytes | None, after: bytes) -> str:
    """The line for the result: which bytes the file had before, and the hash of those it has now."""
    about: dict[str, Any] = {"path": str(path), "after": hashed(after)}
    if before is None:
        about["made"] = True
    else:
        kept = _kept(context, before)
        if kept is None:
            return "[/undo can't put this file back: it is large, or holds secrets]"
        about["was"] = kept
    return f"[before: {json.dumps(about, ensure_ascii=False)}]"


def _kept(context: Context, data: bytes) -> str | None:
    used = context.state.get("snapshot_bytes", 0) + len(data)
    if len(data) > MOST_BYTES or used > MOST_IN_ALL:
        return None
    text = data.decode("utf-8", "replace")
    if context.db.masked(text) != text:
        return None
    context.state["snapshot_bytes"] = used
    return context.db.keep_attachment(data)


@dataclass(frozen=True, slots=True)
class Change:
    """A file that tools changed: what it was (None: it did not exist) and the hash of what they left."""

    path: Path
    was: str | None
    after: str


def changes_in(messages: Iterable[Mapping[str, Any]]) -> list[Change]:
    """The files that these messages' tools changed, each once: as before the first change and after the last one."""
    found: dict[str, Change] = {}
    for message in messages:
        if message["role"] != "tool" or message["tool_name"] not in TOOLS:
            continue
        for line in _LINE.findall(content_text(message["content"]))[-1:]:
            try:
                about = json.loads(line)
                path, after = str(about["path"]), str(about["after"])
                was = None if about.get("made") else str(about["was"]).removeprefix(PREFIX)
            except (ValueError, KeyError, TypeError):
                continue
            first = found.get(path)
            found[path] = Change(Path(path), first.was if first else was, after)
    return list(found.values())


def text_before(db: SessionDB, change: Change) -> str:
    """The text of a file before a change; "" when it did not exist. HermesError or OSError if it is lost."""
    data = b"" if change.was is None else db.read_attachment(change.was)
    return data.decode("utf-8", "replace")


def hashed(data: bytes) -> str:
    """The hash by which a file's bytes are known."""
    return hashlib.sha256(data).hexdigest()


def without_note(text: str) -> str:
    """A tool's result without the line for /undo, which is not for people."""
    return _LINE.sub("", text)


def put_back(db: SessionDB, change: Change) -> str | None:
    """Put a file back as it was; None, or why not. A file that was changed since is left alone."""
    try:
        now = read_bytes(change.path)
        if now is None and change.was is None:
            return None
        if now is None or hashed(now) != change.after:
            return "it was changed since"
        if change.was is None:
            remove(change.path)
            return None
        data = db.read_attachment(change.was)
        if hashed(data) != change.was:
            return "its old text is damaged"
        write_bytes(change.path, data)
    except (ToolError, OSError, HermesError) as error:
        return str(error)
    return None
