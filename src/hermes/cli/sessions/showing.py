"""`hermes sessions show`: one conversation as lines of text, and with --follow its new messages as they arrive.

Author, time, text; tool calls one line each, their results short. On a terminal the assistant's Markdown is rendered; in a
pipe it is printed as it is.
"""

from __future__ import annotations

import os
import shutil
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import nullcontext, redirect_stdout, suppress
from dataclasses import dataclass
from io import StringIO
from typing import TYPE_CHECKING, Any

import click

from hermes.cli.completion import complete_session
from hermes.cli.options import find_session, flag, json_option
from hermes.cli.output import BOLD, CYAN, DIM, GOLD, GREEN, colourful, cut, print_json, put, screen_width, styled, wrap
from hermes.cli.record import opened, zone
from hermes.interop.json_reading import encoded
from hermes.store.records.sessions import described_event, interleaved
from hermes.texts import content_text, counted, harmless, one_line, unfinished
from hermes.times import clock

if TYPE_CHECKING:
    from datetime import tzinfo

    from hermes.store.api.session_db import SessionDB
    from hermes.store.records.rows import MessageRow

_MARKS = {"user": ("●", GOLD), "assistant": ("◆", GREEN), "tool": ("↳", DIM), "system": ("○", DIM)}
_INDENT = "  "


def calls(message: MessageRow) -> Iterator[str]:
    """Each tool call of a message, as `name(key=value, …)`."""
    from hermes.interop.documents import calls_of
    from hermes.store.records.codec import from_json

    for name, text in calls_of(message):
        arguments = from_json(text)
        if isinstance(arguments, dict):
            values = (one if isinstance(one, str) else encoded(one).decode() for one in arguments.values())
            text = ", ".join(f"{key}={value}" for key, value in zip(arguments, values, strict=True))
        yield one_line(f"{name}({text})")


@dataclass(frozen=True, slots=True)
class TextRenderer:
    """Renders a conversation: width, colour, and whether in full or in short form."""

    width: int
    colour: bool = False
    markdown: bool = False
    full: bool = False
    zone: tzinfo | None = None

    def head(self, session: Mapping[str, Any], messages: int, notes: list[str]) -> list[str]:
        """The lines above the conversation."""
        began = f"began {clock(session['started_at'], self.zone)}"
        about = [session["id"], session["source"], session.get("model"), began, counted(messages, "message")]
        if session.get("ended_at") is not None:
            reason = f" ({one_line(session['end_reason'])})" if session.get("end_reason") else ""
            notes = [f"ended {clock(session['ended_at'], self.zone)}{reason}", *notes]
        width = max(8, self.width)
        out = [styled(one, BOLD, on=self.colour) for one in wrap(one_line(session.get("title")) or "—", width)]
        for text in (" · ".join(one_line(str(one)) for one in about if one), *notes):
            out += [styled(one, DIM, on=self.colour) for one in wrap(text, width)]
        return [*out, styled("─" * min(width, 200), DIM, on=self.colour)]

    def message(self, message: MessageRow) -> list[str]:
        """A message's lines; a blank one precedes them, except for the short form of a tool's result."""
        role = str(message.get("role") or "?")
        text = content_text(message.get("content"))
        if role == "tool" and not self.full:
            return [self._short(f"  ↳ {one_line(message.get('tool_name')) or 'result'}: ", text)]
        mark, code = _MARKS.get(role, ("·", CYAN))
        name = f"{role} {message['tool_name']}" if message.get("tool_name") else role
        when = clock(message.get("timestamp"), self.zone)
        top = styled(f"{mark} {one_line(name)}", code, BOLD, on=self.colour) + styled(f" · {when}", DIM, on=self.colour)
        out = ["", top]
        if self.full:
            thought = message.get("reasoning_content") or message.get("reasoning")
            out += [styled(one, DIM, on=self.colour) for one in self._body(thought or "", plain=True)]
        if role == "system" and not self.full:
            out.append(self._short(_INDENT, text))
        else:
            out += self._body(text, plain=role != "assistant")
        if cut_off := unfinished(message):
            out.append(styled(f"{_INDENT}✂ {cut_off}", DIM, on=self.colour))
        for call in calls(message):
            lines = wrap(f"⚙ {call}", self.width - 4) if self.full else [cut(f"⚙ {call}", max(8, self.width - 2))]
            out += [styled(_INDENT + one, CYAN, on=self.colour) for one in lines]
        return out

    def between(self, text: str) -> list[str]:
        """A remark between messages."""
        return ["", *(styled(one, DIM, on=self.colour) for one in wrap(f"┄ {text} ┄", max(8, self.width)))]

    def _short(self, before: str, text: str) -> str:
        """The first line of a text, and how many follow."""
        first, *others = [one for one in harmless(text).split("\n") if one.strip()] or ["(empty)"]
        tail = f" (+{counted(len(others), 'line')})" if others else ""
        shown = cut(before + one_line(first), max(8, self.width - len(tail))) + tail
        return styled(shown, DIM, on=self.colour)

    def _body(self, text: str, *, plain: bool) -> list[str]:
        text = harmless(text).expandtabs(4).strip("\n")
        if not text.strip():
            return []
        room = max(4, self.width - len(_INDENT))
        if self.markdown and not plain:
            lines = list(_markdown(text, room, self.colour))
        else:
            lines = [part for row in text.split("\n") for part in wrap(row, room)]
        return [(_INDENT + one).rstrip() for one in lines]


def _markdown(text: str, width: int, colour: bool) -> Iterator[str]:
    """The lines of a reply, as the chat shows it."""
    from hermes.chat.render import blocks, console, markdown

    for number, block in enumerate(one for one in blocks(text + "\n") if one.strip()):
        page = StringIO()
        console(file=page, width=width, force_terminal=True, no_color=not colour).print(markdown(block))
        lines = [one.rstrip() for one in page.getvalue().split("\n")]
        written = [at for at, one in enumerate(lines) if one]
        yield from [""] * (number > 0)
        yield from lines[written[0] : written[-1] + 1] if written else []


POLL_SECONDS = 0.25


@click.command()
@click.argument("words", nargs=-1, required=True, metavar="ID", shell_complete=complete_session)
@click.option("--last", "--limit", "-n", "last", type=click.IntRange(0), metavar="N", help="Only the last N messages.")
@flag("--full", "Show tool results, system prompts and reasoning in full.")
@flag("--follow", "Wait for new messages and show them as they arrive; Ctrl-C stops.", "-f")
@json_option("Print the session with its messages as JSON; with --follow, one message per line.")
def show(words: tuple[str, ...], last: int | None, full: bool, follow: bool, as_json: bool) -> None:
    """Show a conversation. ID is an id, the beginning of one, or a title."""
    with opened() as db:
        session_id = find_session(db, " ".join(words))
        if as_json and not follow:
            session = db.export_session(session_id)
            if session is not None and last is not None:
                session["messages"] = session["messages"][len(session["messages"]) - last :] if last else []
            print_json(session or {})
            return
        terminal = sys.stdout.isatty()
        renderer = None if as_json else TextRenderer(screen_width(), colourful(), terminal, full, zone())
        view = _View(db, session_id, renderer)
        if terminal and renderer and not follow:
            with redirect_stdout(StringIO()) as page:
                view.begin(last)
            paged(page.getvalue())
            return
        with suppress(KeyboardInterrupt) if follow else nullcontext():
            view.begin(last)
            while follow and view.look():
                time.sleep(POLL_SECONDS)


def paged(text: str) -> None:
    """Print a text; through $PAGER (less) if it is longer than the screen. PAGER=cat prints it whole."""
    if text.count("\n") < shutil.get_terminal_size().lines or os.environ.get("PAGER", "less") in ("", "cat"):
        print(text, end="")
        return
    os.environ["LESS"] = f"{os.environ.get('LESS', '')} -R"  # colours as they are
    click.echo_via_pager(text, color=True)


class _View:
    """Shows a session: its messages so far, then new ones. Without a renderer, one JSON object per message."""

    def __init__(self, db: SessionDB, session_id: str, renderer: TextRenderer | None) -> None:
        self.db, self.session_id, self.renderer = db, session_id, renderer
        self.owner = session_id  # the session of the last message shown
        self.seen: set[int] = set()
        self.state: tuple[Any, ...] = ()
        self.ended: float | None = None
        self.events = 0  # shown

    def begin(self, last: int | None) -> None:
        """Show the messages so far (the last ones only, if so many are asked for)."""
        session: Mapping[str, Any] = self.db.get_session(self.session_id) or {}
        messages = self.db.get_messages(self.session_id)
        left_out = messages[: 0 if last is None else max(0, len(messages) - last)]
        self.ended, self.seen = session.get("ended_at"), {message["id"] for message in left_out}
        before = {message["id"] for message in left_out[:-1]}
        self.events = sum(event["after"] in before for event in self.db.get_session_events(self.session_id))
        if self.renderer is not None:
            self._print(self.renderer.head(session, len(messages), self._notes(session)))
        if left_out:
            self._remark(counted(len(left_out), "earlier message"))
        self.look()

    def look(self) -> bool:
        """Show new messages and events; False when the session was deleted."""
        session = self.db.get_session(self.session_id)
        if session is None:
            self._remark("the session was deleted")
            return False
        happened = self.db.get_session_events(self.session_id)[self.events :]
        state = session["message_count"], session["last_active"], session["ended_at"]
        if state == self.state and not happened:
            return True
        self.state = state
        self.events += len(happened)
        messages = self.db.get_messages(self.session_id)
        if gone := self.seen - {message["id"] for message in messages}:
            self._remark(f"{counted(len(gone), 'message')} withdrawn")
            self.seen -= gone
        fresh = [message for message in messages if message["id"] not in self.seen]
        self.seen |= {message["id"] for message in fresh}
        for is_event, item in interleaved(fresh, happened):
            if is_event:
                self._remark(described_event(item))
            else:
                self._add(item)
        if session["ended_at"] != self.ended:
            self._end(session)
        return True

    def _end(self, session: Mapping[str, Any]) -> None:
        """Show that the session ended, or was compressed, and follow its continuation."""
        self.ended = session["ended_at"]
        following = self.db.get_compression_tip(self.session_id)
        if following != self.session_id:
            self._remark(f"compressed; continues as {following}")
            self.seen &= {message["id"] for message in self.db.get_messages(following)}  # those carried over
            self.session_id, self.state, self.ended = following, (), None
            self.events = len(self.db.get_session_events(following))
        elif self.ended is not None:
            self._remark("the session ended" + (f" ({session['end_reason']})" if session["end_reason"] else ""))

    def _notes(self, session: Mapping[str, Any]) -> list[str]:
        """How the session is related to others, and its tags."""
        notes = []
        if parent := session.get("parent_session_id"):
            how = {"compression": "continues", "branch": "branched from", "reset": "follows"}
            notes.append(f"{how.get(str(session.get('kind')), 'child of')} {parent}")
        if (following := self.db.get_compression_tip(self.session_id)) != self.session_id:
            notes.append(f"compressed; continues as {following}")
        if tags := self.db.get_tags(self.session_id):
            notes.append("tags: " + ", ".join(map(one_line, tags)))
        return notes

    def _add(self, message: MessageRow) -> None:
        if self.renderer is None:
            put(encoded(message) + b"\n")
            return
        owner = message.get("session_id", self.session_id)
        if owner != self.owner:
            self._remark(f"carried over from {owner}" if owner != self.session_id else "new here")
        self.owner = owner
        self._print(self.renderer.message(message))

    def _remark(self, text: str) -> None:
        """Print a remark between messages."""
        if self.renderer is not None:
            self._print(self.renderer.between(one_line(text)))

    def _print(self, lines: list[str]) -> None:
        print("\n".join(lines), flush=True)
