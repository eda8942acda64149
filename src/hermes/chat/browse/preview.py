"""The preview: participants and times, then the conversation in plain text, shortened to a glance.

Of a long conversation it shows the first message and the end or, after a search, the messages around the match.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import tzinfo
from typing import TYPE_CHECKING

from rich.cells import cell_len
from rich.text import Text

from hermes.chat.browse.list import ListLine
from hermes.commands.info_commands import message_count, tool_names
from hermes.store.text.index_text import plain_parts
from hermes.texts import counted, harmless, one_line, unfinished
from hermes.times import ago

if TYPE_CHECKING:
    from hermes.store.api.session_db import SessionDB
    from hermes.store.records.rows import MessageRow, SessionRow

SHOWN = 30  # messages at the end, or around a match
CHARACTERS = 600  # characters of one message
_WHO = {"user": ("● you", "bold yellow"), "assistant": ("◆ assistant", "bold green")}


@dataclass(slots=True)
class Preview:
    """The text of the pane, and the position of the match in it, if there is one."""

    text: Text
    match: int | None = None

    def top(self, width: int) -> int:
        """The line the pane should begin with."""
        if self.match is None or width < 1:
            return 0
        before = self.text.plain[: self.match].split("\n")
        return max(0, sum(max(1, -(-cell_len(line) // width)) for line in before) - 2)


def preview(db: SessionDB, line: ListLine, zone: tzinfo | None) -> Preview:
    """The conversation behind a line."""
    session = db.get_session(line.id)
    if session is None:
        return Preview(Text("This conversation was deleted."))
    messages = [message for message in db.get_messages(line.id) if _is_shown(message)]
    text = _head(db, session, zone)
    start, end = _window(messages, line.message_id)
    match = None
    if start > 0 and line.message_id is None:  # the first message
        opening = next((n for n, message in enumerate(messages[:start]) if message["role"] == "user"), None)
        if opening is not None:
            _message(text, messages[opening], False)
            start = max(start, opening + 1)
    if start > 0:
        text.append(f"… {counted(start, 'earlier message')} …\n\n", "dim")
    for message in messages[start:end]:
        hit = message["id"] == line.message_id
        if hit:
            match = len(text)
        _message(text, message, hit)
    if end < len(messages):
        text.append(f"… {counted(len(messages) - end, 'later message')} …\n", "dim")
    if not messages:
        text.append("No messages yet.", "dim")
    text.rstrip()
    return Preview(text, match)


def _is_shown(message: MessageRow) -> bool:
    """Whether the preview shows a message: those of people and models, and tool calls."""
    return message["role"] in _WHO and bool(message["content"] or message["tool_calls"])


def _window(messages: list[MessageRow], match: int | None) -> tuple[int, int]:
    if match is not None:
        at = next((n for n, message in enumerate(messages) if message["id"] >= match), len(messages) - 1)
        return max(0, at - SHOWN // 3), min(len(messages), at + SHOWN)
    return max(0, len(messages) - SHOWN), len(messages)


def _head(db: SessionDB, session: SessionRow, zone: tzinfo | None) -> Text:
    text = Text()
    text.append((one_line(session["title"]) or one_line(session["preview"]) or "No title") + "\n", "bold")
    facts = [one_line(session["source"]), ago(session["last_active"] or session["started_at"], zone)]
    if session["model"]:
        facts.append(one_line(session["model"]))
    facts.append(counted(message_count(db, session), "message"))
    tags = db.get_tags(session["id"])
    text.append(" · ".join(facts) + "\n", "dim")
    text.append(session["id"] + "\n", "dim")
    if tags:
        text.append(" ".join(f"#{one_line(tag)}" for tag in tags) + "\n", "cyan")
    text.append("\n")
    return text


def _message(text: Text, message: MessageRow, hit: bool) -> None:
    name, style = _WHO[message["role"]]
    text.append(name, style)
    if hit:
        text.append("  ← found here", "bold magenta")
    text.append("\n")
    content = message["content"]
    body = (
        harmless(content if isinstance(content, str) else plain_parts(content) if content else "").expandtabs(4).strip()
    )
    if len(body) > CHARACTERS:
        body = body[:CHARACTERS].rstrip() + " …"
    if body:
        text.append(body + "\n")
    if cut_off := unfinished(message):
        text.append(f"✂ {cut_off}\n", "dim")
    if calls := tool_names(message["tool_calls"]):
        text.append(f"[{counted(len(calls), 'tool call')}: {one_line(', '.join(dict.fromkeys(calls)))}]\n", "dim")
    text.append("\n")
