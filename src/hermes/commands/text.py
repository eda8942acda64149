"""Words for people: text made harmless for a screen, cut to a length, and times as one would say them."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from hermes.store.db import SessionDB

# Control characters (C0 but for line feed and tab, DEL, C1) could move the cursor or retitle the window.
_CONTROLS = {code: None for code in (*range(32), 127, *range(128, 160)) if code not in (9, 10)}
# These turn the direction of what follows around, also of what we print after them.
_CONTROLS |= dict.fromkeys((*range(0x202A, 0x202F), *range(0x2066, 0x206A)))


def harmless(text: str) -> str:
    """The text without anything that could do more to a terminal than show a character."""
    cleaned = text.replace("\r\n", "\n").translate(_CONTROLS)
    return cleaned.encode("utf-8", "replace").decode("utf-8")


def shortened(text: str, limit: int) -> str:
    """At most `limit` characters, on one line; what was cut off is shown by three dots."""
    line = " ".join(harmless(text).split())
    return line if len(line) <= limit else line[: max(limit - 3, 1)].rstrip() + "..."


def said(content: Any) -> str:
    """What a message's content says, as text: parts of other kinds are named in brackets."""
    if content is None:
        return ""
    if isinstance(content, str):
        return content
    if isinstance(content, dict):
        return str(content.get("text") or f"[{content.get('type', 'attachment')}]")
    return "\n".join(said(part) for part in content)


def ago(then: float | None, now: float | None = None) -> str:
    """`just now`, `5m ago`, `2h ago`, `yesterday`, `3d ago`, or the date."""
    if then is None:
        return "never"
    seconds = (time.time() if now is None else now) - then
    if seconds < 60:
        return "just now"
    if seconds < 3600:
        return f"{int(seconds // 60)}m ago"
    if seconds < 86400:
        return f"{int(seconds // 3600)}h ago"
    if seconds < 2 * 86400:
        return "yesterday"
    if seconds < 14 * 86400:
        return f"{int(seconds // 86400)}d ago"
    return time.strftime("%Y-%m-%d", time.localtime(then))


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
