"""The recap: the end of a conversation, shown before the prompt when it is resumed.

The last exchanges in a dim panel: the user's messages (gold ●), the agent's (green ◆), and its tool calls. System
messages, tool results and reasoning are left out.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from hermes.chat.file_mentions import without_files
from hermes.commands.edit_commands import exchanges, is_summary
from hermes.commands.info_commands import tool_names
from hermes.commands.session_choice import message_count
from hermes.store.session_events import described, woven
from hermes.texts import content_text, counted, harmless, unfinished
from hermes.times import ago, zone_of

if TYPE_CHECKING:
    from collections.abc import Sequence

    from rich.console import RenderableType

    from hermes.config import Config
    from hermes.store.db import SessionDB
    from hermes.store.rows import MessageRow, SessionEvent

EXCHANGES = 10
USER_CHARACTERS = 300
ASSISTANT_CHARACTERS = 200
ASSISTANT_LINES = 3
_PANEL_FROM = 24  # columns; below, a frame would take more room than its content


@dataclass(slots=True, frozen=True)
class Entry:
    """One entry of the recap."""

    role: str  # "user", "assistant", "tools" or "event"
    text: str


def recap(db: SessionDB, session_id: str, config: Config, width: int) -> RenderableType:
    """The recap of a resumed session, `width` columns wide (config: display.resume_display)."""
    from rich.console import Group
    from rich.padding import Padding
    from rich.panel import Panel
    from rich.text import Text

    row = db.get_session(session_id)
    name = harmless((row and row["title"]) or "") or session_id
    if config.display.resume_display == "minimal":
        number = counted(message_count(db, row) if row else 0, "message")
        when = ago(row["last_active"] if row else None, zone_of(config.timezone))
        return Text(f"Resumed: {name} · {number} · last active {when}", style="dim")
    rows = db.get_messages(session_id)
    earlier, entries = recalled(rows)
    if last := unanswered(rows, db.get_session_events(session_id)):
        entries.append(Entry("event", cut_user(harmless(last))))
    lines: list[RenderableType] = (
        [Text(f"... {counted(earlier, 'earlier message')} ...", style="dim")] if earlier else []
    )
    for entry in entries:
        lines.append(_drawn(entry))
    if not lines:
        lines.append(Text("No messages here yet.", style="dim"))
    if width < _PANEL_FROM:
        return Group(*lines)
    return Panel(
        Padding(Group(*lines), 0), title=Text(name, style="dim"), title_align="left", border_style="dim", width=width
    )


def _drawn(entry: Entry) -> RenderableType:
    from rich.table import Table
    from rich.text import Text

    mark, colour = {"user": ("●", "gold1"), "assistant": ("◆", "green"), "event": ("✗", "red")}.get(
        entry.role, (" ", "default")
    )
    grid = Table.grid(padding=(0, 1, 0, 0))
    grid.add_column(width=1)
    grid.add_column(overflow="fold", ratio=1)
    grid.add_row(Text(mark, style=f"{colour} dim"), Text(entry.text, style="dim", overflow="fold"))
    return grid


def recalled(rows: list[MessageRow]) -> tuple[int, list[Entry]]:
    """The number of earlier messages, and the entries of the last exchanges."""
    starts = exchanges(rows)
    first = starts[-EXCHANGES] if len(starts) > EXCHANGES else 0
    earlier = sum(1 for row in rows[:first] if row["role"] in ("user", "assistant"))
    return earlier, entries_of(rows[first:])


def unanswered(rows: list[MessageRow], events: Sequence[SessionEvent]) -> str | None:
    """A note about a model error after the last message, if it was not answered."""
    last = [event for is_event, event in woven(rows, events)][-1:]
    return described(last[0]) if last and last[0] in events else None


def entries_of(rows: list[MessageRow]) -> list[Entry]:
    """Messages as entries; consecutive tool calls are one entry."""
    shown: list[Entry] = []
    calls: list[str] = []

    def settle() -> None:
        if calls:
            shown.append(Entry("tools", f"[{counted(len(calls), 'tool call')}: {', '.join(dict.fromkeys(calls))}]"))
            calls.clear()

    for row in rows:
        if row["role"] not in ("user", "assistant"):
            continue
        text = harmless(content_text(row["content"])).strip()
        if row["role"] == "user":
            settle()
            text = without_files(text)
            shown.append(Entry("user", "[summary of the earlier conversation]" if is_summary(row) else cut_user(text)))
            continue
        if text:
            settle()
            shown.append(Entry("assistant", cut_assistant(text)))
        if cut_off := unfinished(row):
            settle()
            shown.append(Entry("event", cut_off))
        calls += tool_names(row["tool_calls"])
    settle()
    return shown


def cut_user(text: str) -> str:
    """At most 300 characters."""
    return text if len(text) <= USER_CHARACTERS else text[:USER_CHARACTERS].rstrip() + "..."


def cut_assistant(text: str) -> str:
    """At most 200 characters or 3 lines."""
    lines = [line for line in text.splitlines() if line.strip()]
    kept = "\n".join(lines[:ASSISTANT_LINES])
    if len(kept) > ASSISTANT_CHARACTERS:
        return kept[:ASSISTANT_CHARACTERS].rstrip() + "..."
    return kept + ("..." if len(lines) > ASSISTANT_LINES else "")
