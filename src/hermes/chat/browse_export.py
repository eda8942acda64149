"""Exporting one conversation from the browser: the ending of the file's name chooses the format."""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import TYPE_CHECKING

from hermes.errors import HermesError, InvalidInput

if TYPE_CHECKING:
    from hermes.store.db import SessionDB


def suggested(name: str) -> str:
    """A file name for a conversation of that name."""
    words = re.sub(r"[^\w.-]+", "-", name).strip("-.")
    return f"{words[:60] or 'conversation'}.jsonl"


def export(db: SessionDB, session_id: str, path: Path) -> Path:
    """Write the conversation into a new file; the file. One that exists is never written over."""
    from hermes.interop import formats

    chosen = formats.writer_for(path)
    if chosen is None:
        *others, last = formats.endings()
        raise InvalidInput(f"the name must end with {', '.join(others)} or {last}: the ending chooses the format")
    data = db.export_session(session_id)
    if data is None:
        raise HermesError("this conversation was deleted")
    title = str(data.get("title") or "A conversation")
    chunks = formats.written(chosen, formats.Export(sessions=[data], title=title, attachments=db.attachments_dir))
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
