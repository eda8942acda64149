"""Changing a conversation from within the browser: rename, pin, export, delete; and the dialogs for it.

Each change runs in a thread and is shown when it is done; an error is shown in the status line, or in the dialog
that asked.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar

from textual import on
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Vertical
from textual.screen import ModalScreen, Screen
from textual.widgets import Input, Static

from hermes.chat.browse_list import ListLine, SessionList
from hermes.errors import HermesError, InvalidInput
from hermes.texts import shortened

if TYPE_CHECKING:
    from hermes.store.db import SessionDB

_WINDOW = """
{name} {{ align: center middle; }}
{name} > Vertical {{
    width: 64; max-width: 100%; height: auto; max-height: 100%;
    border: round $primary; padding: 0 1; background: $surface;
}}
{name} Static {{ height: auto; }}
{name} .hint {{ color: $text-muted; }}
{name} .wrong {{ color: $error; }}
"""


class Ask(ModalScreen[str | None]):
    """A dialog with a line to type. The typed text is tried at once; when that fails, the reason is shown and the
    dialog stays. Its result is what the attempt returned, or None."""

    CSS = _WINDOW.format(name="Ask")
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("escape", "leave", "Back", priority=True),
        Binding("ctrl+c", "leave", show=False, priority=True),
    ]

    def __init__(self, question: str, value: str, attempt: Callable[[str], str]) -> None:
        super().__init__()
        self.question, self.value, self.attempt = question, value, attempt
        self.busy = False

    def compose(self) -> ComposeResult:
        with Vertical():
            yield Static(self.question, markup=False)
            yield Input(self.value, compact=True, select_on_focus=False)
            yield Static("", id="wrong", classes="wrong", markup=False)
            yield Static("Enter confirms · Esc cancels", classes="hint", markup=False)

    def on_mount(self) -> None:
        self.query_one(Input).focus()

    @on(Input.Submitted)
    def try_it(self, event: Input.Submitted) -> None:
        event.stop()
        if not self.busy:
            self.busy = True
            text = event.value
            self.run_worker(lambda: self._attempt(text), thread=True)

    def _attempt(self, text: str) -> None:
        try:
            self.call_later(self._end, self.attempt(text))
        except HermesError as error:
            self.call_later(self._refuse, str(error))
        except OSError as error:
            self.call_later(self._refuse, f"{error.filename or text}: {error.strerror or error}")

    def _end(self, result: str) -> None:
        self.dismiss(result)

    def _refuse(self, wrong: str) -> None:
        self.busy = False
        self.query_one("#wrong", Static).update(wrong)

    def action_leave(self) -> None:
        if not self.busy:
            self.dismiss(None)


class Sure(ModalScreen[bool]):
    """Yes or no; anything but y is no."""

    CSS = _WINDOW.format(name="Sure")
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("y,Y", "answer(True)", "Yes", priority=True),
        Binding("n,N,escape,enter,ctrl+c", "answer(False)", "No", priority=True),
    ]

    def __init__(self, question: str, hint: str) -> None:
        super().__init__()
        self.question, self.hint = question, hint

    def compose(self) -> ComposeResult:
        with Vertical():
            yield Static(self.question, markup=False)
            yield Static(self.hint, classes="hint", markup=False)

    def action_answer(self, yes: bool) -> None:
        self.dismiss(yes)


class KeyHelp(ModalScreen[None]):
    """The list of keys, until one is pressed."""

    CSS = _WINDOW.format(name="KeyHelp")

    def __init__(self, text: str) -> None:
        super().__init__()
        self.text = text

    def compose(self) -> ComposeResult:
        with Vertical():
            yield Static(self.text, markup=False)
            yield Static("Any key goes back", classes="hint", markup=False)

    def on_key(self) -> None:
        self.dismiss(None)

    def on_click(self) -> None:
        self.dismiss(None)


def suggested(name: str) -> str:
    """A file name for a conversation with this name."""
    words = re.sub(r"[^\w.-]+", "-", name).strip("-.")
    return f"{words[:60] or 'conversation'}.jsonl"


def export(db: SessionDB, session_id: str, path: Path) -> Path:
    """Write the conversation into a new file and return it. An existing file is never overwritten."""
    from hermes.interop import formats

    chosen = formats.writer_for(path)
    if chosen is None:
        *others, last = formats.endings()
        raise InvalidInput(f"the name must end with {', '.join(others)} or {last}: the ending chooses the format")
    data = db.export_session(session_id)
    if data is None:
        raise HermesError("this conversation was deleted")
    title = str(data.get("title") or "A conversation")
    chunks = formats.written(chosen, formats.Export(sessions=[data], title=title, attachments=db.read_attachment))
    try:
        file = os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600), "wb")
    except FileExistsError:
        raise InvalidInput(f"{path} exists already; give another name") from None
    try:
        with file:
            for chunk in chunks:
                file.write(chunk)
    except BaseException:
        os.unlink(path)  # a partial file would look like a complete one
        raise
    return path.resolve()


class BrowseChanges(Screen[None], inherit_bindings=False):
    """A screen with a list of conversations that can be changed; browse_screen.py says how it looks."""

    db: SessionDB
    all: list[ListLine]
    found: list[ListLine]

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
                raise HermesError("this conversation was deleted")
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
            return str(export(self.db, line.id, Path(text.strip()).expanduser()))

        def exported(path: str | None) -> None:
            if path is not None:
                self._say(f"exported into {path}")

        where = suggested(line.name)
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
            self._say("pinned" if pinned else "no longer pinned")

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

        name = shortened(line.name, 201)
        whole = ", with the messages from before it was compressed" if line.compressed else ""
        hint = f"y: into the trash{whole} (`hermes sessions restore {line.id}` brings it back) · n: keep it"
        self.app.push_screen(Sure(f"Delete “{name}”?", hint), answered)

    def _gone(self, parts: list[str]) -> None:
        """Remove a conversation from the list; a search may have found several of its parts."""
        at = self.lines.cursor
        self.all = [one for one in self.all if one.id not in parts]
        self.found = [one for one in self.found if one.id not in parts]
        self._show(keep=False)
        self.lines.move(at)
        self._say(f"in the trash: hermes sessions restore {parts[-1]}")
        self._reload()  # pages that are still loading may have moved

    def _do(self, work: Callable[[], bool], then: Callable[[], None]) -> None:
        """Change the store in a thread, then the screen."""

        def run() -> None:
            try:
                if work():
                    self.call_later(then)
                else:
                    self.call_later(self._say, "this conversation was deleted")
            except HermesError as error:
                self.call_later(self._say, str(error))

        self.run_worker(run, thread=True, group="change")
