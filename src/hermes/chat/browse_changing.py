"""What can be done with a conversation from within the browser: rename, pin, export, delete.

Each change is made in a thread and shown when it is done; what could not be done is said in the status line, or in the
window that asked.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from textual import on
from textual.message import Message
from textual.screen import Screen

from hermes.chat import browse_export
from hermes.chat.browse_dialogs import Ask, Sure
from hermes.chat.browse_list import SessionList
from hermes.chat.browse_rows import Line
from hermes.errors import HermesError

if TYPE_CHECKING:
    from hermes.store.db import SessionDB


class Changing(Screen[None], inherit_bindings=False):
    """A screen with a list of conversations that can be changed; browse_screen.py says how it looks."""

    db: SessionDB
    all: list[Line]
    found: list[Line]

    class Changed(Message):
        """Something was done; `then` says what that means for the screen."""

        def __init__(self, then: Callable[[], None] | None, wrong: str | None) -> None:
            super().__init__()
            self.then, self.wrong = then, wrong

    @property
    def lines(self) -> SessionList:
        """The list."""
        return self.query_one("#list", SessionList)

    def _show(self, *, keep: bool = True) -> None:
        raise NotImplementedError

    def _say(self, note: str | None = None) -> None:
        raise NotImplementedError

    def _reload(self) -> None:
        raise NotImplementedError

    def action_rename(self) -> None:
        line = self.lines.current
        if line is None:
            return

        def attempt(text: str) -> str:
            if not self.db.set_session_title(line.id, text):
                raise HermesError("this conversation is gone")
            return self.db.get_session_title(line.id) or ""

        def renamed(title: str | None) -> None:
            if title is not None:
                for one in (line, *(other for other in self.all if other.id == line.id)):
                    one.renamed(title)
                self._show()

        self.app.push_screen(Ask("Title (empty: none)", line.title, attempt), renamed)

    def action_export(self) -> None:
        line = self.lines.current
        if line is None:
            return

        def attempt(text: str) -> str:
            return str(browse_export.export(self.db, line.id, Path(text.strip()).expanduser()))

        def exported(path: str | None) -> None:
            if path is not None:
                self._say(f"exported into {path}")

        where = browse_export.suggested(line.name)
        self.app.push_screen(Ask("Export into which file? (.jsonl, .md or .html)", where, attempt), exported)

    def action_pin(self) -> None:
        line = self.lines.current
        if line is None:
            return
        pinned = not line.pinned

        def done() -> None:
            for one in (line, *(other for other in self.all if other.id == line.id)):
                one.pinned = pinned
            self.lines.refresh()
            self._say("pinned" if pinned else "not pinned any more")

        self._do(lambda: self.db.pin_session(line.id, pinned), done)

    def action_delete(self) -> None:
        line = self.lines.current
        if line is None:
            return

        parts: list[str] = []

        def work() -> bool:
            parts[:] = self.db.get_compression_chain(line.id)
            if any(self.db.is_live(part) for part in parts):
                raise HermesError("this conversation is in use right now; leave it there first")
            return self.db.trash_session(line.id, by="browse", whole=True)

        def answered(yes: bool | None) -> None:
            if yes:
                self._do(work, lambda: self._gone(parts))

        name = line.name if len(line.name) <= 200 else line.name[:200] + "…"
        whole = ", with what was said before it was compressed" if line.compressed else ""
        hint = f"y: into the trash{whole} (`hermes sessions restore {line.id}` brings it back) · n: keep it"
        self.app.push_screen(Sure(f"Delete “{name}”?", hint), answered)

    def _gone(self, parts: list[str]) -> None:
        """Take a conversation off the list; a search may have found several of its parts."""
        at = self.lines.cursor
        self.all = [one for one in self.all if one.id not in parts]
        self.found = [one for one in self.found if one.id not in parts]
        self._show(keep=False)
        self.lines.move(at)
        self._say(f"in the trash: hermes sessions restore {parts[-1]}")
        self._reload()  # pages that are still being read may have moved

    def _do(self, work: Callable[[], bool], then: Callable[[], None]) -> None:
        """Change the store in a thread, then the screen."""

        def run() -> None:
            try:
                gone = not work()
                self.post_message(self.Changed(None if gone else then, "this conversation is gone" if gone else None))
            except HermesError as error:
                self.post_message(self.Changed(None, str(error)))

        self.run_worker(run, thread=True, group="change")

    @on(Changed)
    def changed(self, event: Changed) -> None:
        if event.then is not None:
            event.then()
        if event.wrong is not None:
            self._say(event.wrong)
