"""`hermes sessions show`: one conversation as lines of text, and with --follow its new messages as they arrive.

Author, time, text; tool calls one line each, their results short. On a terminal the assistant's Markdown is rendered; in a
pipe it is printed as it is.
"""

from __future__ import annotations

import os
import shlex
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import redirect_stdout
from dataclasses import dataclass
from io import StringIO
from typing import TYPE_CHECKING, Any

import click

from hermes.cli.common import find_session, json_option
from hermes.cli.completers import complete_session
from hermes.cli.shared import (
    BOLD,
    CYAN,
    DIM,
    GOLD,
    GREEN,
    colourful,
    opened,
    print_json,
    put,
    recover_drafts,
    styled,
    zone,
)
from hermes.cli.table import cut, screen_width, wrap
from hermes.store.session_events import described, woven
from hermes.texts import content_text, counted, harmless, one_line, unfinished
from hermes.times import clock

if TYPE_CHECKING:
    from datetime import tzinfo

    from hermes.store.db import SessionDB
    from hermes.store.rows import SessionEvent

Message = Mapping[str, Any]  # one of the store's, or of a file
_MARKS = {"user": ("●", GOLD), "assistant": ("◆", GREEN), "tool": ("↳", DIM), "system": ("○", DIM)}
_INDENT = "  "


def calls(message: Message) -> list[tuple[str, str]]:
    """(name, arguments as `key=value, …`) of each tool call of a message."""
    given = message.get("tool_calls")
    out = []
    for call in given if isinstance(given, list) else [given] if isinstance(given, dict) else []:
        if not isinstance(call, dict):
            continue
        inner = call.get("function")
        function = inner if isinstance(inner, dict) else call
        arguments = function.get("arguments", function.get("input"))
        out.append((one_line(str(function.get("name") or "tool")), _arguments(arguments)))
    return out


def _arguments(value: Any) -> str:
    from hermes.interop.json_reading import decoded
    from hermes.interop.jsonl import encoded

    if isinstance(value, str):
        try:
            value = decoded(value.encode("utf-8", "surrogatepass"))
        except ValueError:
            return one_line(value)
    if not isinstance(value, dict):
        return "" if value is None else one_line(str(value))
    shown = [f"{key}={item if isinstance(item, str) else encoded(item).decode()}" for key, item in value.items()]
    return one_line(", ".join(shown))


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
        about = [
            session["id"],
            session["source"],
            session.get("model"),
            f"began {clock(session['started_at'], self.zone)}",
        ]
        about.append(counted(messages, "message"))
        if session.get("ended_at") is not None:
            reason = f" ({one_line(session['end_reason'])})" if session.get("end_reason") else ""
            notes = [f"ended {clock(session['ended_at'], self.zone)}{reason}", *notes]
        width = max(8, self.width)
        out = [styled(one, BOLD, on=self.colour) for one in wrap(one_line(session.get("title")) or "—", width)]
        for text in (" · ".join(one_line(str(one)) for one in about if one), *notes):
            out += [styled(one, DIM, on=self.colour) for one in wrap(text, width)]
        return [*out, styled("─" * min(width, 200), DIM, on=self.colour)]

    def message(self, message: Message) -> list[str]:
        """A message's lines; a blank one precedes them, except for the short form of a tool's result."""
        role = str(message.get("role") or "?")
        if role == "tool" and not self.full:
            return self._result(message)
        mark, code = _MARKS.get(role, ("·", CYAN))
        name = f"{role} {message['tool_name']}" if message.get("tool_name") else role
        when = clock(message.get("timestamp"), self.zone)
        top = styled(f"{mark} {one_line(name)}", code, BOLD, on=self.colour) + styled(f" · {when}", DIM, on=self.colour)
        out = ["", top]
        if self.full:
            thought = message.get("reasoning_content") or message.get("reasoning")
            out += [styled(one, DIM, on=self.colour) for one in self._body(thought or "", plain=True)]
        text = content_text(message.get("content"))
        if role == "system" and not self.full:
            out += self._short(text)
        else:
            out += self._body(text, plain=role != "assistant")
        if cut_off := unfinished(message):
            out.append(styled(f"{_INDENT}✂ {cut_off}", DIM, on=self.colour))
        for called, arguments in calls(message):
            whole = f"⚙ {called}({arguments})"
            lines = wrap(whole, self.width - 4) if self.full else [cut(whole, max(8, self.width - 2))]
            out += [styled(_INDENT + one, CYAN, on=self.colour) for one in lines]
        return out

    def between(self, text: str) -> list[str]:
        """A remark between messages."""
        return ["", *(styled(one, DIM, on=self.colour) for one in wrap(f"┄ {text} ┄", max(8, self.width)))]

    def _result(self, message: Message) -> list[str]:
        name = one_line(message.get("tool_name")) or "result"
        first, more = _first_line(content_text(message.get("content")))
        tail = f" (+{counted(more, 'line')})" if more else ""
        room = max(8, self.width - len(tail))
        return [styled(cut(f"  ↳ {name}: {first}", room) + tail, DIM, on=self.colour)]

    def _short(self, text: str) -> list[str]:
        first, more = _first_line(text)
        tail = f" (+{counted(more, 'line')})" if more else ""
        return [styled(_INDENT + cut(first, max(8, self.width - 2 - len(tail))) + tail, DIM, on=self.colour)]

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


def _first_line(text: str) -> tuple[str, int]:
    """The first non-empty line, and how many non-empty lines follow."""
    lines = [one for one in harmless(text).split("\n") if one.strip()]
    return (one_line(lines[0]), len(lines) - 1) if lines else ("(empty)", 0)


def _markdown(text: str, width: int, colour: bool) -> Iterator[str]:
    """The lines of a reply, as the chat shows it."""
    from io import StringIO

    from hermes.chat.render import console
    from hermes.chat.terminal_markdown import blocks, markdown

    for number, block in enumerate(one for one in blocks(text + "\n") if one.strip()):
        page = StringIO()
        console(file=page, width=width, force_terminal=True, no_color=not colour).print(markdown(block))
        lines = [one.rstrip() for one in page.getvalue().split("\n")]
        written = [at for at, one in enumerate(lines) if one]
        yield from [""] * (number > 0)
        yield from lines[written[0] : written[-1] + 1] if written else []


POLL_SECONDS = 0.25


@click.command(help="Show a conversation. ID is an id, the beginning of one, or a title.")
@click.argument("words", nargs=-1, required=True, metavar="ID", shell_complete=complete_session)
@click.option(
    "--last", "--limit", "-n", "last", type=click.IntRange(min=0), metavar="N", help="Only the last N messages."
)
@click.option("--full", is_flag=True, help="Show tool results, system prompts and reasoning in full.")
@click.option("--follow", "-f", is_flag=True, help="Wait for new messages and show them as they arrive; Ctrl-C stops.")
@json_option("Print the session with its messages as JSON; with --follow, one message per line.")
def show(words: tuple[str, ...], last: int | None, full: bool, follow: bool, as_json: bool) -> None:
    with opened() as db:
        session_id = find_session(db, " ".join(words))
        recover_drafts(db, session_id)
        if as_json and not follow:
            session = db.export_session(session_id)
            if session is not None and last is not None:
                session["messages"] = session["messages"][len(session["messages"]) - last :] if last else []
            print_json(session or {})
            return
        terminal = sys.stdout.isatty()
        renderer = TextRenderer(screen_width(), colourful(), terminal, full, zone())
        view = _Lines(db, session_id) if as_json else _Screen(db, session_id, renderer)
        try:
            if terminal and not follow and not as_json:
                text = StringIO()
                with redirect_stdout(text):
                    view.begin(last)
                paged(text.getvalue())
                return
            view.begin(last)
            while follow:
                time.sleep(POLL_SECONDS)
                view.look()
        except KeyboardInterrupt:
            if not follow:
                raise


def paged(text: str) -> None:
    """Print a text; through $PAGER (less) where it is longer than the screen. PAGER=cat, or an empty one, prints it whole."""
    pager = os.environ.get("PAGER", "less")
    height = shutil.get_terminal_size().lines
    words = shlex.split(pager) if text.count("\n") >= height else []
    if not words or words == ["cat"] or shutil.which(words[0]) is None:
        print(text, end="")
        return
    # R: colours as they are · F, X would leave the text on the screen; the terminal's scrollback is for what was asked
    process = subprocess.Popen(
        words,
        stdin=subprocess.PIPE,
        env={**os.environ, "LESS": f"{os.environ.get('LESS', '')} -R"},
        text=True,
        errors="replace",
    )
    try:
        process.communicate(text)
    except KeyboardInterrupt:  # Ctrl-C belongs to the pager
        process.wait()


class _View:
    """What has been shown of a session, and what is new."""

    def __init__(self, db: SessionDB, session_id: str) -> None:
        self.db, self.session_id = db, session_id
        self.seen: set[int] = set()
        self.state: tuple[Any, ...] = ()
        self.ended: float | None = None
        self.events = 0  # shown

    def begin(self, last: int | None) -> None:
        """Show the messages so far (the last ones only, if so many are asked for)."""
        session: Mapping[str, Any] = self.db.get_session(self.session_id) or {}
        messages = self.db.get_messages(self.session_id)
        left_out = 0 if last is None else max(0, len(messages) - last)
        self.state, self.ended = _state(session), session.get("ended_at")
        self.seen = {message["id"] for message in messages}
        self.open(session, len(messages), left_out)
        happened = self.db.get_session_events(self.session_id)
        self.events = len(happened)
        for is_event, item in woven(messages[left_out:], _later(happened, messages[:left_out])):
            if is_event:
                self.remark(described(item))
            else:
                self.add([item])

    def look(self) -> None:
        """Show new messages and events."""
        session = self.db.get_session(self.session_id)
        if session is None:
            self.remark("the session was deleted")
            raise KeyboardInterrupt
        for event in self.db.get_session_events(self.session_id)[self.events :]:
            self.events += 1
            self.remark(described(event))
        state = _state(session)
        if state == self.state:
            return
        self.state = state
        messages = self.db.get_messages(self.session_id)
        gone = self.seen - {message["id"] for message in messages}
        if gone:
            self.remark(f"{counted(len(gone), 'message')} withdrawn")
            self.seen -= gone
        fresh = [message for message in messages if message["id"] not in self.seen]
        self.seen |= {message["id"] for message in fresh}
        self.add(fresh)
        self._notice_end(session)

    def _notice_end(self, session: Mapping[str, Any]) -> None:
        if session["ended_at"] == self.ended:
            return
        self.ended = session["ended_at"]
        following = self.db.get_compression_tip(self.session_id)
        if following != self.session_id:
            self.remark(f"compressed; continues as {following}")
            carried = {message["id"] for message in self.db.get_messages(following)} & self.seen
            self.session_id, self.state, self.ended = following, (), None
            self.events = len(self.db.get_session_events(following))
            self.seen = carried
        elif self.ended is not None:
            reason = f" ({one_line(session['end_reason'])})" if session["end_reason"] else ""
            self.remark(f"the session ended{reason}")

    def open(self, session: Mapping[str, Any], messages: int, left_out: int) -> None:
        """Before the first message."""

    def add(self, messages: Sequence[Message]) -> None:
        """Show messages."""

    def remark(self, text: str) -> None:
        """Print a remark between messages."""


def _later(events: list[SessionEvent], left_out: Sequence[Message]) -> list[SessionEvent]:
    """The events after the messages that are left out."""
    before = {message["id"] for message in left_out[:-1]}
    return [event for event in events if event["after"] not in before]


def _state(session: Mapping[str, Any]) -> tuple[Any, ...]:
    """The fields that change when a session does."""
    return session.get("message_count"), session.get("last_active"), session.get("ended_at")


class _Lines(_View):
    """One JSON object a message."""

    def add(self, messages: Sequence[Message]) -> None:
        from hermes.interop.jsonl import encoded

        for message in messages:
            put(encoded(message) + b"\n")


class _Screen(_View):
    """Text for people."""

    def __init__(self, db: SessionDB, session_id: str, renderer: TextRenderer) -> None:
        super().__init__(db, session_id)
        self.renderer = renderer
        self.owner: str | None = None

    def open(self, session: Mapping[str, Any], messages: int, left_out: int) -> None:
        notes = []
        parent = session.get("parent_session_id")
        if parent:
            how = {"compression": "continues", "branch": "branched from", "reset": "follows"}.get(
                str(session.get("kind")), "child of"
            )
            notes.append(f"{how} {parent}")
        following = self.db.get_compression_tip(self.session_id)
        if following != self.session_id:
            notes.append(f"compressed; continues as {following}")
        tags = self.db.get_tags(self.session_id)
        if tags:
            notes.append("tags: " + ", ".join(map(one_line, tags)))
        self._print(self.renderer.head(session, messages, notes))
        if left_out:
            self._print(self.renderer.between(f"{counted(left_out, 'earlier message')}"))

    def add(self, messages: Sequence[Message]) -> None:
        for message in messages:
            owner = message.get("session_id", self.session_id)
            if owner != (self.owner or self.session_id):
                carried = owner != self.session_id
                self._print(self.renderer.between(f"carried over from {owner}" if carried else "new here"))
            self.owner = owner
            self._print(self.renderer.message(message))

    def remark(self, text: str) -> None:
        self._print(self.renderer.between(one_line(text)))

    def _print(self, lines: list[str]) -> None:
        print("\n".join(lines), flush=True)
