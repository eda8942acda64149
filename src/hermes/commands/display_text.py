"""Text for display: texts cut to a length, a message's content as text, durations and counts."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from hermes.harmless import one_line

if TYPE_CHECKING:
    from hermes.store.db import SessionDB


def shortened(text: str, limit: int) -> str:
    """At most `limit` characters, on one line; "..." marks a cut."""
    line = one_line(text)
    return line if len(line) <= limit else line[: max(limit - 3, 1)].rstrip() + "..."


def content_text(content: Any) -> str:
    """A message's content as text: parts of other kinds are named in brackets."""
    if content is None:
        return ""
    if isinstance(content, str):
        return content
    if isinstance(content, dict):
        return str(content.get("text") or f"[{content.get('type', 'attachment')}]")
    return "\n".join(content_text(part) for part in content)


def duration(seconds: float) -> str:
    """`12s`, `4m 05s`, `2h 03m`."""
    whole = max(0, int(seconds))
    if whole < 60:
        return f"{whole}s"
    if whole < 3600:
        return f"{whole // 60}m {whole % 60:02}s"
    return f"{whole // 3600}h {whole % 3600 // 60:02}m"


def counted(number: int, what: str, several: str | None = None) -> str:
    """`1 message`, `3 messages`."""
    return f"{number:,} {what if number == 1 else several or what + 's'}"


def message_count(db: SessionDB, row: dict[str, Any]) -> int:
    """How many messages a session shows; those it carries over from another one included."""
    if row["kind"] in ("branch", "compression"):
        return len(db.get_messages(row["id"]))
    return int(row["message_count"] or 0)
