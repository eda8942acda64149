"""The browser's main screen: an input line, the list, the preview, and the keys that change a conversation; and its dialogs.

Everything that reads or writes the store runs in a thread, for a worker that a newer request cancels. Typing always goes to
the filter, so the other keys are control keys.
"""

from __future__ import annotations

import asyncio
import os
import re
from collections.abc import Awaitable, Callable
from contextlib import suppress
from datetime import tzinfo
from functools import wraps
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from rich.text import Text
from textual import events, on, work
from textual.app import App, ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Horizontal, Vertical, VerticalScroll
from textual.css.query import NoMatches
from textual.geometry import Size
from textual.screen import ModalScreen, Screen
from textual.widgets import Footer, Input, Static

from hermes.agent.history import NEAREST
from hermes.chat.browse.panes import ListLine, Preview, SessionList, found_inside, line_of, matching, preview
from hermes.errors import HermesError, InvalidInput
from hermes.home import write_whole
from hermes.texts import counted, shortened

if TYPE_CHECKING:
    from hermes.store.api.session_db import SessionDB

FIRST_PAGE, PAGE, LARGEST_PAGE = 100, 1000, 4000  # growing pages: few queries, and none of them long
PREVIEW_FROM, PREVIEW_LINES = 80, 16  # cells and lines the terminal needs for the preview
WAIT_TO_SEARCH, WAIT_TO_PREVIEW = 0.15, 0.06  # seconds without a key

KEYS = """\
Typing         filters by title, first words, id, source
Tab            search inside the conversations, and back
Enter          resume the conversation (or double-click)
↑ ↓ PgUp PgDn  move; Ctrl+Home, Ctrl+End: first, last
Shift+↑ ↓      scroll the preview (or the mouse wheel)
Ctrl+R         rename
Ctrl+X         delete: move to the trash
Ctrl+P         pin or unpin; pinned ones are never pruned
Ctrl+E         export to a file
Ctrl+T         show or hide the preview
Esc            clear the line; leave
"""


DELETED = "This conversation was deleted."
_OURS = {"enter", "ctrl+x", "ctrl+e", "ctrl+c"}


def _while_open(method: Callable[..., Awaitable[None]]) -> Callable[..., Awaitable[None]]:
    """Let a worker end quietly when the screen it would change has closed meanwhile."""

    @wraps(method)
    async def run(*args: Any, **options: Any) -> None:
        with suppress(NoMatches):
            await method(*args, **options)

    return run


def _on_line(method: Callable[[Any, ListLine], None]) -> Callable[[Any], None]:
    """An action on the line under the cursor; without one it does nothing."""

    @wraps(method)
    def run(self: Picker) -> None:
        if (line := self.lines.current) is not None:
            method(self, line)

    return run


class BrowseQuery(Input, inherit_bindings=False):
    """The input line, without the keys that mean something else here."""

    BINDINGS: ClassVar[list[BindingType]] = [
        *(
            binding
            for binding in Input.BINDINGS
            if isinstance(binding, Binding) and not _OURS & set(binding.key.split(","))
        ),
        Binding("end", "end", show=False),
    ]


class Picker(Screen[None], inherit_bindings=False):
    """Choose a conversation; the app ends with its id."""

    CSS = """
    #ask { height: 1; }
    #mode { width: auto; padding: 0 1; color: $text-primary; text-style: bold; }
    #query { width: 1fr; }
    #middle { height: 1fr; }
    #list { width: 1fr; }
    #preview { width: 45%; border-left: vkey $primary; padding: 0 1; scrollbar-size-vertical: 1; }
    #status { height: 1; padding: 0 1; color: $text-muted; }
    """
    BINDINGS: ClassVar[list[BindingType]] = [
        # The footer has room for these in 60 columns; F1 lists all keys.
        Binding("enter", "resume", "Resume", key_display="↵", priority=True),
        Binding("f1", "keys", "Keys", priority=True),
        Binding("escape", "back", "Back", key_display="esc", priority=True),
        Binding("tab", "inside", "Inside", key_display="⇥", priority=True),
        Binding("ctrl+x", "delete", "Delete", priority=True),
        Binding("ctrl+r", "rename", "Rename", priority=True),
        Binding("ctrl+p", "pin", show=False, priority=True),
        Binding("ctrl+e", "export", show=False, priority=True),
        Binding("ctrl+t", "preview", show=False, priority=True),
        Binding("ctrl+c", "app.quit", show=False, priority=True),
        Binding("up", "move(-1)", show=False, priority=True),
        Binding("down", "move(1)", show=False, priority=True),
        Binding("pageup", "page(-1)", show=False, priority=True),
        Binding("pagedown", "page(1)", show=False, priority=True),
        Binding("ctrl+home", "end(False)", show=False, priority=True),
        Binding("ctrl+end", "end(True)", show=False, priority=True),
        Binding("shift+up,ctrl+up", "scroll_preview(-3)", show=False, priority=True),
        Binding("shift+down,ctrl+down", "scroll_preview(3)", show=False, priority=True),
    ]

    def __init__(self, db: SessionDB, zone: tzinfo | None) -> None:
        super().__init__()
        self.db, self.zone = db, zone
        self.all: list[ListLine] = []
        self.loaded = False
        self.is_inside = False
        self.found: list[ListLine] = []
        self._more_found = False  # there are more matches than the listed best ones
        self.searching = False
        self._note = ""
        self._wants_preview, self._room_for_preview = True, False

    def compose(self) -> ComposeResult:
        with Horizontal(id="ask"):
            yield Static("Filter", id="mode")
            yield BrowseQuery(id="query", compact=True, placeholder="title, first words, id…")
        with Horizontal(id="middle"):
            yield SessionList(self.zone, id="list")
            with VerticalScroll(id="preview", can_focus=False):
                yield Static("", id="conversation", markup=False)
        yield Static("", id="status", markup=False)
        yield Footer(show_command_palette=False, compact=True)

    def on_mount(self) -> None:
        self.query_one("#query", Input).focus()
        self._fit(self.app.size)
        self._reload()

    def on_resize(self, event: events.Resize) -> None:
        self._fit(event.size)

    def _fit(self, size: Size) -> None:
        """Hide what the terminal has no room for."""
        self._room_for_preview = size.width >= PREVIEW_FROM and size.height >= PREVIEW_LINES
        self.query_one("#preview").display = self._room_for_preview and self._wants_preview
        self.query_one(Footer).display = size.height >= 8
        self.query_one("#mode").display = size.width >= 40

    @property
    def lines(self) -> SessionList:
        """The list."""
        return self.query_one("#list", SessionList)

    @property
    def query_text(self) -> str:
        return self.query_one("#query", Input).value

    # ------------------------------------------------------------------------------------------ the list

    @work(exclusive=True, group="load")
    @_while_open
    async def _reload(self) -> None:
        """Reload the list, page by page; the old list is shown until the new one is longer, or complete."""
        self.loaded = False
        offset, size = 0, FIRST_PAGE
        fresh: dict[str, ListLine] = {}  # pages overlap when a conversation moves up meanwhile
        while not self.loaded:
            try:
                rows = await asyncio.to_thread(
                    self.db.list_sessions_rich,
                    limit=size, offset=offset, order_by_last_active=True, include_archived=False, automated=False,
                )  # fmt: skip
            except HermesError as error:
                self.app.problem = error  # type: ignore[attr-defined]
                self.app.exit(message=None)
                return
            for row in rows:
                fresh.setdefault(row["id"], line_of(row))
            self.loaded = len(rows) < size
            if self.loaded or len(fresh) > len(self.all):
                self.all = list(fresh.values())
            if not self.is_inside:
                self._show()
            self._say()
            offset, size = offset + size, min(LARGEST_PAGE, PAGE if size == FIRST_PAGE else size * 2)

    def _show(self, *, keep: bool = True) -> None:
        """Fill the list according to the input line."""
        current = self.lines.current
        shown = self.found if self.is_inside else matching(self.all, self.query_text)
        kept = current.id if keep and current is not None else None
        self.lines.show(shown, keep=kept, nothing="" if shown else self._nothing())
        self._say()

    def _nothing(self) -> str:
        text = self.query_text.strip()
        if self.is_inside:
            if not text:
                return "Type words from a message; Tab goes back to the list."
            return "Searching…" if self.searching else "No messages match."
        if not self.loaded:
            return "Loading…"
        if not self.all:
            return "No conversations yet. Esc leaves, and `hermes` starts one."
        return "No title, id or first words match. Tab searches inside."

    def _say(self, note: str | None = None) -> None:
        """The status line: a note about the last change (until the next key), else the number of conversations."""
        if note is not None:
            self._note = note
        self.query_one("#status", Static).update(self._note or self._counts())

    def _counts(self) -> str:
        shown = len(self.lines.lines)
        if self.is_inside:
            if self.searching or not self.query_text.strip():
                return "Searching…" if self.searching else ""
            if shown and all(line.is_weak for line in self.found):
                return NEAREST
            return f"Found in {'more than ' if self._more_found else ''}{counted(shown, 'conversation')}"
        of = f"{shown:,} of " if self.query_text.strip() else ""
        return f"{of}{counted(len(self.all), 'conversation')}{'' if self.loaded else ' · loading…'}"

    # ------------------------------------------------------------------------------------------ filter and search

    @on(Input.Changed, "#query")
    def typed(self) -> None:
        self._note = ""
        if self.is_inside:
            self._search(WAIT_TO_SEARCH)
        else:
            self._show(keep=False)

    @work(exclusive=True, group="search")
    @_while_open
    async def _search(self, wait: float = 0.0) -> None:
        """Search inside the conversations for what was typed."""
        text = self.query_text.strip()
        self.searching = self.is_inside and bool(text)
        if not self.searching:
            self.found = []
            self._show(keep=False)
            return
        self._say()
        await asyncio.sleep(wait)
        wrong = None
        try:
            self.found, self._more_found = await asyncio.to_thread(found_inside, self.db, text)
        except HermesError as error:
            self.found, self._more_found, wrong = [], False, str(error)
        self.searching = False
        self._show(keep=False)
        self._say(wrong)

    def action_inside(self) -> None:
        """Search inside the conversations, or filter the list again; the typed text stays."""
        self.is_inside = not self.is_inside
        self._note = ""
        self.found = []
        self.query_one("#mode", Static).update("Search inside" if self.is_inside else "Filter")
        query = self.query_one("#query", Input)
        query.placeholder = "words from a message…" if self.is_inside else "title, first words, id…"
        self._search()

    # ------------------------------------------------------------------------------------------ cursor and preview

    def action_move(self, by: int) -> None:
        self._go(self.lines.cursor + by)

    def action_page(self, by: int) -> None:
        self._go(self.lines.cursor + by * max(1, self.lines.page - 1))

    def action_end(self, last: bool) -> None:
        self._go(len(self.lines.lines) - 1 if last else 0)

    def _go(self, to: int) -> None:
        self.lines.move(to)
        if self._note:
            self._say("")

    def action_scroll_preview(self, by: int) -> None:
        self.query_one("#preview", VerticalScroll).scroll_relative(y=by, animate=False)

    def action_preview(self) -> None:
        self._wants_preview = not self._wants_preview
        self.query_one("#preview").display = self._room_for_preview and self._wants_preview
        if not self._room_for_preview:
            self._say("No room for the preview; make the window larger.")
        self._preview()

    @on(SessionList.Moved)
    def moved(self) -> None:
        self._preview()

    @work(exclusive=True, group="preview")
    @_while_open
    async def _preview(self) -> None:
        """Show the conversation under the cursor."""
        await asyncio.sleep(WAIT_TO_PREVIEW)
        line, pane = self.lines.current, self.query_one("#preview", VerticalScroll)
        if line is not None and not pane.display:
            return
        try:
            shown = Preview(Text()) if line is None else await asyncio.to_thread(preview, self.db, line, self.zone)
        except HermesError as error:
            shown = Preview(Text(str(error)))
        self.query_one("#conversation", Static).update(shown.text)
        pane.scroll_to(y=shown.top(pane.scrollable_content_region.width), animate=False)

    # ------------------------------------------------------------------------------------------ actions

    @_on_line
    def action_resume(self, line: ListLine) -> None:
        self.app.exit(line.id)

    @on(SessionList.Chosen)
    def chosen(self, event: SessionList.Chosen) -> None:
        self.app.exit(event.line.id)

    def action_back(self) -> None:
        """One step back: clear the text, then leave the search, then leave."""
        if self.query_text:
            self.query_one("#query", Input).value = ""
        elif self.is_inside:
            self.action_inside()
        else:
            self.app.exit(None)

    def action_keys(self) -> None:
        self.app.push_screen(Press(KEYS, "Press any key to go back"))

    # ------------------------------------------------------------------------------------------ changes

    def _same(self, line: ListLine) -> list[ListLine]:
        """The line, and the line of the same conversation in the whole list: a search makes its own lines."""
        return [line, *(other for other in self.all if other.id == line.id)]

    @_on_line
    def action_rename(self, line: ListLine) -> None:
        def attempt(text: str) -> str:
            if not self.db.set_session_title(line.id, text):
                raise HermesError(DELETED)
            return self.db.get_session_title(line.id) or ""

        def renamed(title: str | None) -> None:
            if title is not None:
                for one in self._same(line):
                    one.renamed(title)
                self._show()

        self.app.push_screen(Ask("Title (leave empty for none)", line.title, attempt), renamed)

    @_on_line
    def action_export(self, line: ListLine) -> None:
        def attempt(text: str) -> str:
            return str(export(self.db, line.id, Path(text.strip()).expanduser()))

        def exported(path: str | None) -> None:
            if path is not None:
                self._say(f"Exported to {path}")

        question = Ask("Export to which file? (.jsonl, .md or .html)", suggested(line.name), attempt)
        self.app.push_screen(question, exported)

    @_on_line
    def action_pin(self, line: ListLine) -> None:
        pinned = not line.pinned

        def done() -> None:
            for one in self._same(line):
                one.pinned = pinned
            self.lines.refresh()
            self._say("Pinned." if pinned else "Unpinned.")

        self._change(lambda: self.db.pin_session(line.id, pinned), done)

    @_on_line
    def action_delete(self, line: ListLine) -> None:
        parts: list[str] = []

        def trash() -> bool:
            parts[:] = self.db.get_compression_chain(line.id)
            if any(self.db.is_live(part) for part in parts):
                raise HermesError("This conversation is open elsewhere; close it there first.")
            return self.db.trash_session(line.id, by="browse", whole=True)

        def answered(key: str | None) -> None:
            if key in ("y", "Y"):
                self._change(trash, lambda: self._drop_lines(parts))

        whole = ", with the messages from before it was compressed" if line.compressed else ""
        hint = f"y: move it to the trash{whole} (`hermes sessions restore {line.id}` brings it back) · n: keep it"
        self.app.push_screen(Press(f"Delete “{shortened(line.name, 201)}”?", hint), answered)

    def _drop_lines(self, parts: list[str]) -> None:
        """Remove a conversation from the list; a search may have found several of its parts."""
        at = self.lines.cursor
        self.all = [one for one in self.all if one.id not in parts]
        self.found = [one for one in self.found if one.id not in parts]
        self._show(keep=False)
        self.lines.move(at)
        self._say(f"In the trash: hermes sessions restore {parts[-1]}")
        self._reload()  # pages that are still loading may have moved

    @work(group="change")
    @_while_open
    async def _change(self, change: Callable[[], bool], then: Callable[[], None]) -> None:
        """Change the store, then the screen."""
        try:
            if await asyncio.to_thread(change):
                then()
            else:
                self._say(DELETED)
        except HermesError as error:
            self._say(str(error))


class Browser(App[str]):
    """Ends with the id of the chosen session, or None; `problem` is set when the store could not be read."""

    TITLE = "Conversations"
    ENABLE_COMMAND_PALETTE = False

    def __init__(self, db: SessionDB, zone: tzinfo | None = None) -> None:
        # Without colour the terminal's own two are used, not shades of grey.
        super().__init__(ansi_color=True if os.environ.get("NO_COLOR") else None)
        self.db, self.zone = db, zone
        self.problem: HermesError | None = None

    def on_mount(self) -> None:
        self.push_screen(Picker(self.db, self.zone))


# ------------------------------------------------------------------------------------------------ dialogs

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
    """A dialog with a line to type. The typed text is tried at once; if that fails, the dialog shows the reason and
    stays. Its result is what the attempt returned, or None."""

    CSS = _WINDOW.format(name="Ask")
    BINDINGS: ClassVar[list[BindingType]] = [Binding("escape,ctrl+c", "leave", priority=True)]

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
    def submitted(self, event: Input.Submitted) -> None:
        event.stop()
        if not self.busy:
            self.busy = True
            self._try(event.value)

    @work
    async def _try(self, text: str) -> None:
        try:
            self.dismiss(await asyncio.to_thread(self.attempt, text))
            return
        except HermesError as error:
            wrong = str(error)
        except OSError as error:
            wrong = f"{error.filename or text}: {error.strerror or error}"
        self.busy = False
        self.query_one("#wrong", Static).update(wrong)

    def action_leave(self) -> None:
        if not self.busy:
            self.dismiss(None)


class Press(ModalScreen[str]):
    """A dialog with a text that waits for a key; its result is the name of the key ("" for a click)."""

    CSS = _WINDOW.format(name="Press")

    def __init__(self, text: str, hint: str) -> None:
        super().__init__()
        self.text, self.hint = text, hint

    def compose(self) -> ComposeResult:
        with Vertical():
            yield Static(self.text, markup=False)
            yield Static(self.hint, classes="hint", markup=False)

    def on_key(self, event: events.Key) -> None:
        self.dismiss(event.key)

    def on_click(self) -> None:
        self.dismiss("")


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
        raise InvalidInput(f"the name must end with {', '.join(others)} or {last}, which chooses the format")
    data = db.export_session(session_id)
    if data is None:
        raise HermesError("This conversation was deleted.")
    title = str(data.get("title") or "A conversation")
    chunks = formats.written(chosen, formats.Export(sessions=[data], title=title, attachments=db.read_attachment))
    if path.exists():
        raise InvalidInput(f"{path} already exists; choose another name")
    write_whole(path, chunks)
    return path.resolve()
