"""`hermes sessions show`: one conversation, and with --follow what is added to it while it is being held."""

from __future__ import annotations

import sys
import time
from typing import TYPE_CHECKING, Any

import click

from hermes.cli.common import find_session, json_option
from hermes.cli.completing import complete_session
from hermes.cli.sessions.conversation import Message, Renderer
from hermes.cli.sessions.shared import colourful, counted, opened, print_json, put, zone
from hermes.cli.table import screen_width
from hermes.harmless import one_line
from hermes.store.events import described, woven

if TYPE_CHECKING:
    from hermes.store.db import SessionDB
    from hermes.store.rows import SessionEvent

POLL_SECONDS = 0.25


@click.command(help="A conversation, rendered. ID is an id, the beginning of one, or a title.")
@click.argument("words", nargs=-1, required=True, metavar="ID", shell_complete=complete_session)
@click.option(
    "--last", "--limit", "-n", "last", type=click.IntRange(min=0), metavar="N", help="Only the last N messages."
)
@click.option("--full", is_flag=True, help="Tool results, system prompts and reasoning in full.")
@click.option("--follow", "-f", is_flag=True, help="Then wait, and show new messages as they come (Ctrl-C ends it).")
@json_option("The session with its messages as JSON; with --follow one message a line.")
def show(words: tuple[str, ...], last: int | None, full: bool, follow: bool, as_json: bool) -> None:
    with opened() as db:
        session_id = find_session(db, " ".join(words))
        if as_json and not follow:
            session = db.export_session(session_id) or {}
            if last is not None:
                session["messages"] = session["messages"][len(session["messages"]) - last :] if last else []
            print_json(session)
            return
        terminal = sys.stdout.isatty()
        renderer = Renderer(screen_width(), colourful(), terminal, full, zone())
        view = _Lines(db, session_id) if as_json else _Screen(db, session_id, renderer)
        try:
            view.begin(last)
            while follow:
                time.sleep(POLL_SECONDS)
                view.look()
        except KeyboardInterrupt:
            if not follow:
                raise


class _View:
    """What has been shown of a session, and what is new."""

    def __init__(self, db: SessionDB, session_id: str) -> None:
        self.db, self.session_id = db, session_id
        self.seen: set[int] = set()
        self.state: tuple[Any, ...] = ()
        self.ended: float | None = None
        self.events = 0  # shown

    def begin(self, last: int | None) -> None:
        """Show what there is (the last so many messages of it)."""
        session = self.db.get_session(self.session_id) or {}
        messages = self.db.get_messages(self.session_id)
        left_out = 0 if last is None else max(0, len(messages) - last)
        self.state, self.ended = _state(session), session.get("ended_at")
        self.seen = {message["id"] for message in messages}
        self.open(session, left_out)
        happened = self.db.get_session_events(self.session_id)
        self.events = len(happened)
        for is_event, item in woven(messages[left_out:], _later(happened, messages[:left_out])):
            if is_event:
                self.remark(described(item))
            else:
                self.add([item])

    def look(self) -> None:
        """Show what has come since."""
        session = self.db.get_session(self.session_id)
        if session is None:
            self.remark("the session is gone")
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
            self.remark(f"{counted(len(gone), 'message')} taken back")
            self.seen -= gone
        fresh = [message for message in messages if message["id"] not in self.seen]
        self.seen |= {message["id"] for message in fresh}
        self.add(fresh)
        self._notice_end(session)

    def _notice_end(self, session: dict[str, Any]) -> None:
        if session["ended_at"] == self.ended:
            return
        self.ended = session["ended_at"]
        following = self.db.get_compression_tip(self.session_id)
        if following != self.session_id:
            self.remark(f"compressed; it goes on as {following}")
            carried = {message["id"] for message in self.db.get_messages(following)} & self.seen
            self.session_id, self.state, self.ended = following, (), None
            self.events = len(self.db.get_session_events(following))
            self.seen = carried
        elif self.ended is not None:
            reason = f" ({one_line(session['end_reason'])})" if session["end_reason"] else ""
            self.remark(f"the session ended{reason}")

    def open(self, session: dict[str, Any], left_out: int) -> None:
        """Before the first message."""

    def add(self, messages: list[Message]) -> None:
        """Show messages."""

    def remark(self, text: str) -> None:
        """Say something between messages."""


def _later(events: list[SessionEvent], left_out: list[Message]) -> list[SessionEvent]:
    """The events that did not come before the messages that are shown."""
    before = {message["id"] for message in left_out[:-1]}
    return [event for event in events if event["after"] not in before]


def _state(session: dict[str, Any]) -> tuple[Any, ...]:
    """What changes when a session does."""
    return session.get("message_count"), session.get("last_active"), session.get("ended_at")


class _Lines(_View):
    """One JSON object a message."""

    def add(self, messages: list[Message]) -> None:
        from hermes.interop.jsonl import encoded

        for message in messages:
            put(encoded(message) + b"\n")


class _Screen(_View):
    """Text for people."""

    def __init__(self, db: SessionDB, session_id: str, renderer: Renderer) -> None:
        super().__init__(db, session_id)
        self.renderer = renderer
        self.owner: str | None = None

    def open(self, session: dict[str, Any], left_out: int) -> None:
        notes = []
        parent = session.get("parent_session_id")
        if parent:
            how = {"compression": "continues", "branch": "branched from", "reset": "follows"}.get(
                str(session.get("kind")), "child of"
            )
            notes.append(f"{how} {parent}")
        following = self.db.get_compression_tip(self.session_id)
        if following != self.session_id:
            notes.append(f"compressed; it goes on as {following}")
        tags = self.db.get_tags(self.session_id)
        if tags:
            notes.append("tags: " + ", ".join(map(one_line, tags)))
        self._print(self.renderer.head(session, notes))
        if left_out:
            self._print(self.renderer.between(f"{counted(left_out, 'earlier message')}"))

    def add(self, messages: list[Message]) -> None:
        for message in messages:
            owner = message.get("session_id", self.session_id)
            if owner != (self.owner or self.session_id):
                carried = owner != self.session_id
                self._print(self.renderer.between(f"carried over from {owner}" if carried else "said here"))
            self.owner = owner
            self._print(self.renderer.message(message))

    def remark(self, text: str) -> None:
        self._print(self.renderer.between(one_line(text)))

    def _print(self, lines: list[str]) -> None:
        print("\n".join(lines), flush=True)
