"""Exporting one conversation from the browser: the ending of the file's name says in which form."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from hermes.errors import HermesError, InvalidInput

if TYPE_CHECKING:
    from hermes.store.db import SessionDB

ENDINGS = (".jsonl", ".md", ".html")


def suggested(name: str) -> str:
    """A file name for a conversation of that name."""
    words = re.sub(r"[^\w.-]+", "-", name).strip("-.")
    return f"{words[:60] or 'conversation'}{ENDINGS[0]}"


def export(db: SessionDB, session_id: str, path: Path) -> Path:
    """Write the conversation into a new file; the file. One that exists is never written over."""
    if path.suffix.lower() not in ENDINGS:
        raise InvalidInput("the name must end with .jsonl, .md or .html: it says in which form")
    chunks = _written(db, session_id, path.suffix.lower())
    try:
        file = os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600), "wb")
    except FileExistsError:
        raise InvalidInput(f"{path} exists already; give another name") from None
    try:
        with file:
            for chunk in chunks:
                file.write(chunk)
    except BaseException:
        os.unlink(path)  # half a file would look like a whole one
        raise
    return path.resolve()


def _written(db: SessionDB, session_id: str, ending: str) -> Iterator[bytes]:
    data = db.export_session(session_id)
    if data is None:
        raise HermesError("this conversation is gone")
    if ending == ".md":
        from hermes.interop import markdown

        return markdown.write([data])
    if ending == ".html":
        from hermes.interop import html

        return html.write([data], str(data.get("title") or "A conversation"), attachments=db.attachments_dir)
    from hermes.interop import jsonl

    return jsonl.write([data], db.attachments_dir)
