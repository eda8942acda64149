"""The lines of the session browser, and which of them a filter keeps. Nothing here knows about a screen."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from hermes.harmless import one_line
from hermes.store.text import fold

if TYPE_CHECKING:
    from hermes.store.db import SessionDB


@dataclass(slots=True)
class Line:
    """A conversation in the list."""

    id: str
    title: str
    preview: str
    source: str
    last_active: float | None
    pinned: bool = False
    compressed: bool = False  # it has several parts
    haystack: str = ""  # what the filter looks in, folded
    snippet: str = ""  # of a search: the text around the match, with >>>marks<<<
    message_id: int | None = None  # of a search: the message that matched
    more: int = 0  # of a search: further matches in this conversation

    def __post_init__(self) -> None:
        self.haystack = fold(f"{self.title}\n{self.preview}\n{self.id}\n{self.source}")

    def renamed(self, title: str | None) -> None:
        """Take another title."""
        self.title = one_line(title)
        self.__post_init__()

    @property
    def name(self) -> str:
        """What a person would call it."""
        return self.title or self.preview or self.id


def line_of(row: dict[str, Any]) -> Line:
    """A row of list_sessions_rich (or get_session) as a line."""
    return Line(
        id=row["id"],
        title=one_line(row.get("title")),
        preview=one_line(row.get("preview")),
        source=one_line(row.get("source")),
        last_active=row.get("last_active") or row.get("started_at"),
        pinned=row.get("pinned_at") is not None,
        compressed="compression" in (row.get("kind"), row.get("end_reason")),
    )


def matching(lines: Sequence[Line], text: str) -> list[Line]:
    """The lines that hold every word of the text, whatever its case and accents."""
    words = fold(text).split()
    if not words:
        return list(lines)
    if len(words) == 1:
        word = words[0]
        return [line for line in lines if word in line.haystack]
    return [line for line in lines if all(word in line.haystack for word in words)]


def found_inside(db: SessionDB, query: str, limit: int = 200) -> list[Line]:
    """The conversations in which something matches, best first, each once with its best match."""
    lines: dict[str, Line] = {}
    for hit in db.search_messages(query, limit=limit):
        session_id = hit["session_id"]
        if session_id in lines:
            lines[session_id].more += 1
            continue
        session = db.get_session(session_id)
        if session is None:  # deleted in between
            continue
        line = line_of(session)
        line.snippet, line.message_id = one_line(hit["snippet"]), hit["id"]
        line.last_active = hit["timestamp"]
        lines[session_id] = line
    return list(lines.values())


def marked(text: str) -> Iterable[tuple[str, bool]]:
    """A snippet in pieces; True where it matched."""
    for number, piece in enumerate(re.split(r">>>(.*?)<<<", text)):
        if piece:
            yield piece, number % 2 == 1
