"""Resuming a session, and leaving one: finding it, whether another process has it, restoring its folder and model, the recap,
and the line that resumes it.

The recap is the end of the conversation, shown before the prompt: the last exchanges in a dim panel, with the user's messages
(gold ●), the agent's (green ◆), and its tool calls. System messages, tool results and reasoning are left out.
"""

from __future__ import annotations

import os
import re
import shlex
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from hermes.chat.file_mentions import without_files
from hermes.commands.info_commands import message_count, tool_names
from hermes.commands.session_commands import continued, exchanges, is_summary
from hermes.errors import InvalidInput
from hermes.home import project_folder
from hermes.store.leases import is_gone, is_ours
from hermes.store.records.sessions import RECALLED, described_event, interleaved
from hermes.texts import content_text, counted, harmless, shortened_line, unfinished
from hermes.times import ago, duration, zone_of

if TYPE_CHECKING:
    from collections.abc import Sequence

    from rich.console import RenderableType

    from hermes.agent.models.model import Model
    from hermes.config import Config
    from hermes.store.api.session_db import SessionDB
    from hermes.store.records.rows import MessageRow, SessionEvent, SessionRow

EXCHANGES = 10
USER_CHARACTERS = 300
ASSISTANT_CHARACTERS = 200
ASSISTANT_LINES = 3
_MARKS = {"user": ("●", "gold1"), "assistant": ("◆", "green"), "event": ("✗", "red"), "tools": (" ", "default")}
_PANEL_FROM = 24  # columns; below, a frame would take more room than its content


def latest(db: SessionDB, folder: Path | None, *, once: bool) -> str:
    """The `cli` session used last (in `folder`), where it continues; InvalidInput where there is none.

    A single question continues any session; a conversation continues a single question only if there is nothing else.
    """
    for automated in (None,) if once else (False, None):
        rows = db.list_sessions_rich(
            source="cli", limit=1, order_by_last_active=True, cwd=None if folder is None else str(folder),
            automated=automated,
        )  # fmt: skip
        if rows:
            break
    else:
        where = "" if folder is None else f"in {folder} "
        raise InvalidInput(f"there is no conversation {where}to continue yet: `hermes` starts one")
    return continued(db, rows[0]["id"])


def other_folder(db: SessionDB, session_id: str) -> str | None:
    """A note that the session belongs to another project than the current folder; None where it does not."""
    row = db.get_session(session_id)
    project = project_folder(Path.cwd())
    if row is None or not row["cwd"] or f"{row['cwd']}/".startswith(f"{project}/".replace("//", "/")):
        return None
    return (
        f"This conversation belongs to {shortened_line(row['cwd'], 200)}; `hermes -c --here` continues the latest one of"
        f" {project}."
    )


def is_elsewhere(db: SessionDB, session_id: str) -> bool:
    """Whether another running process holds the session. One that crashed on another machine counts until its lease expires."""
    holder = db.session_holder(session_id)
    return holder is not None and not is_gone(holder) and not is_ours(holder)


@dataclass(slots=True)
class Restored:
    """The folder and the model of a resumed session, and notices about them."""

    cwd: Path
    model: Model
    notices: list[str] = field(default_factory=list)


def model_used(db: SessionDB, row: SessionRow) -> str | None:
    """The model that answered last in a session: the user may have changed it since the session began.

    Endpoints report other names than the requested ones: with a date, or the name behind an alias.
    """
    models = [message["model"] for message in db.get_messages(row["id"]) if message["role"] == "assistant"]
    named = [name for name in models if name]
    first = row["model"]
    if not named or (first and (named[0] == named[-1] or re.fullmatch(re.escape(first) + r"-\d[\d-]*", named[-1]))):
        return first
    return named[-1]


def restore(row: SessionRow, model: Model, *, cwd: bool, keep_model: bool, used: str | None) -> Restored:
    """The folder and the model a session used, as far as they still exist; `used` is the model."""
    back = Restored(Path.cwd(), model)
    if cwd and row["cwd"]:
        if os.path.isdir(row["cwd"]):
            back.cwd = Path(row["cwd"])
        else:
            back.notices.append(f"The folder {shortened_line(row['cwd'], 200)} is gone; continuing in {back.cwd}.")
    if used and not keep_model:
        from hermes.agent.models.choice import model_again

        again, remedy = model_again(model, used, row["model_config"] if used == row["model"] else None)
        if again is not None:
            back.model = again
        else:
            was = f"{shortened_line(used, 80)}, which is not available{f' ({remedy})' if remedy else ''}"
            back.notices.append(f"This conversation used {was}; continuing with {model.name}.")
    return back


@dataclass(slots=True, frozen=True)
class Entry:
    """One entry of the recap."""

    role: str  # "user", "assistant", "tools" or "event"
    text: str


def recap(db: SessionDB, session_id: str, config: Config, width: int) -> RenderableType:
    """The recap of a resumed session, `width` columns wide (config: display.resume_display)."""
    from rich.console import Group
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
    lines = [_drawn(entry) for entry in entries]
    if earlier:
        lines.insert(0, Text(f"... {counted(earlier, 'earlier message')} ...", style="dim"))
    if not lines:
        lines.append(Text("No messages here yet.", style="dim"))
    if width < _PANEL_FROM:
        return Group(*lines)
    title = Text(name, style="dim")
    return Panel(Group(*lines), title=title, title_align="left", border_style="dim", width=width)


def _drawn(entry: Entry) -> RenderableType:
    from rich.table import Table
    from rich.text import Text

    mark, colour = _MARKS[entry.role]
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
    events = [event for event in events if event["kind"] != RECALLED]
    last = [event for is_event, event in interleaved(rows, events)][-1:]
    return described_event(last[0]) if last and last[0] in events else None


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


def farewell(db: SessionDB, session_id: str, since: float) -> list[str]:
    """The lines shown on leaving: id, duration, messages, and the command that resumes it. [] without messages."""
    row = db.get_session(session_id)
    if row is None:
        return []
    return [
        f"Session   {session_id}",
        f"Title     {harmless(row['title'] or '—')}",
        f"Duration  {duration(time.time() - since)}",
        f"Messages  {message_count(db, row):,}",
        f"Resume    {resume_line(session_id)}",
    ]


def resume_line(session_id: str) -> str:
    """The shell command that continues a session, in any shell of this user."""
    return f"{program()} -r {shlex.quote(session_id)}"


def program() -> str:
    """The shell words that start this program: its name where the shell finds this one under it, else its path."""
    words = command_words()
    inside = words[0].removeprefix(os.path.expanduser("~") + os.sep)
    is_below = len(words) == 1 and os.sep in words[0] and not os.path.isabs(inside)
    return f"~/{shlex.quote(inside)}" if is_below else shlex.join(words)


def command_words(search: str | None = None) -> list[str]:
    """The words that start this program: its name where PATH (`search`, if given) has this one under it, else its path."""
    import shutil

    path = os.path.abspath(sys.argv[0])
    if os.path.basename(path) not in ("hermes", "hermes-sessions"):  # python -m
        path = os.path.join(os.path.dirname(sys.executable), "hermes")
    if not os.access(path, os.X_OK):
        return [sys.executable, "-m", "hermes.cli.main"]
    found = shutil.which(os.path.basename(path), path=search)
    is_found = found is not None and os.path.realpath(found) == os.path.realpath(path)
    return [os.path.basename(path) if is_found else path]
