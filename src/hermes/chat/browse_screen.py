"""The browser's main screen: an input line, the list, the preview, and the keys that change a conversation.

Everything that reads or writes the store runs in a thread and comes back with `call_later`; the result of an outdated
request is dropped. Typing always goes to the filter, so the other keys are control keys.
"""

from __future__ import annotations

import os
from datetime import tzinfo
from typing import TYPE_CHECKING, Any, ClassVar

from rich.cells import cell_len
from textual import events, on
from textual.app import App, ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Horizontal, VerticalScroll
from textual.geometry import Size
from textual.timer import Timer
from textual.widgets import Footer, Input, Static

from hermes.chat.browse_changes import BrowseChanges, KeyHelp
from hermes.chat.browse_list import ListLine, SessionList, by_folder, found_inside, line_of, matching
from hermes.chat.browse_preview import Preview, preview
from hermes.errors import HermesError
from hermes.texts import counted

if TYPE_CHECKING:
    from hermes.store.db import SessionDB

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
Ctrl+X         delete: into the trash
Ctrl+P         pin, or unpin; pinned ones are not pruned
Ctrl+E         export into a file
Ctrl+T         preview on or off
F2             group by folder, or by time again
Esc            clear what was typed; leave
"""


_OURS = {"enter", "ctrl+x", "ctrl+e", "ctrl+c"}


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


class KeyBar(Footer):
    """The keys at the bottom: as many whole ones as fit, the important ones first; F1 lists them all."""

    IMPORTANT = ("resume", "keys", "back", "inside", "delete", "rename", "pin", "folders", "export", "preview")

    def compose(self) -> ComposeResult:
        made: list[Any] = list(super().compose())  # Textual does not export the class of the keys
        room, kept = self.app.size.width, []
        for key in sorted(made, key=lambda one: (*self.IMPORTANT, one.action).index(one.action)):
            room -= cell_len(f"{key.key_display} {key.description} ")
            if room < -1:  # the blank after the last one may be cut
                break
            kept.append(key)
        yield from (one for one in made if one in kept)

    def on_resize(self) -> None:
        self.refresh(recompose=True)


class Picker(BrowseChanges, inherit_bindings=False):
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
        Binding("enter", "resume", "Resume", key_display="↵", priority=True),
        Binding("tab", "inside", "Inside", key_display="⇥", priority=True),
        Binding("ctrl+r", "rename", "Rename", priority=True),
        Binding("ctrl+x", "delete", "Delete", priority=True),
        Binding("ctrl+p", "pin", "Pin", priority=True),
        Binding("ctrl+e", "export", "Export", priority=True),
        Binding("f1", "keys", "Keys", priority=True),
        Binding("f2", "folders", "Folders", priority=True),
        Binding("escape", "back", "Back", key_display="esc", priority=True),
        Binding("ctrl+t", "preview", "Preview", priority=True),
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
        self._fresh: list[ListLine] = []  # the list that is being reloaded
        self.loaded = False
        self.is_inside = False
        self.found: list[ListLine] = []
        self._more_found = False  # the best of them are listed
        self.searching = False
        self._list_round = self._search_round = self._preview_round = 0
        self._soon_search: Timer | None = None
        self._soon_preview: Timer | None = None
        self._leaving = False
        self._note = ""
        self._wants_preview, self._room_for_preview = True, False

    def compose(self) -> ComposeResult:
        with Horizontal(id="ask"):
            yield Static("Filter", id="mode")
            yield BrowseQuery(id="query", compact=True, placeholder="title, first words, id …")
        with Horizontal(id="middle"):
            yield SessionList(self.zone, id="list")
            with VerticalScroll(id="preview", can_focus=False):
                yield Static("", id="conversation", markup=False)
        yield Static("", id="status", markup=False)
        yield KeyBar(show_command_palette=False, compact=True)

    def on_mount(self) -> None:
        self.query_one("#query", Input).focus()
        self._fit(self.app.size)
        self._reload()

    def on_unmount(self) -> None:
        self._leaving = True

    def on_resize(self, event: events.Resize) -> None:
        self._fit(event.size)

    def _fit(self, size: Size) -> None:
        """Hide what the terminal has no room for."""
        self._room_for_preview = size.width >= PREVIEW_FROM and size.height >= PREVIEW_LINES
        self.query_one("#preview").display = self._room_for_preview and self._wants_preview
        self.query_one(KeyBar).display = size.height >= 8
        self.query_one("#mode").display = size.width >= 40

    @property
    def query_text(self) -> str:
        return self.query_one("#query", Input).value

    # ------------------------------------------------------------------------------------------ the list

    def _reload(self) -> None:
        """Reload the list, page by page; the old list is shown until then."""
        self._list_round += 1
        turn = self._list_round
        self.loaded, self._fresh = False, []
        self.run_worker(lambda: self._load(turn), thread=True, group="load")

    def _load(self, turn: int) -> None:
        offset, size = 0, FIRST_PAGE
        seen: set[str] = set()
        try:
            while not self._leaving and turn == self._list_round:
                rows = self.db.list_sessions_rich(
                    limit=size, offset=offset, order_by_last_active=True, include_archived=False
                )
                lines = [line_of(row) for row in rows if row["id"] not in seen]
                seen.update(line.id for line in lines)
                self.call_later(self._take_page, turn, lines, len(rows) < size)
                if len(rows) < size:
                    return
                offset, size = offset + size, min(LARGEST_PAGE, PAGE if size == FIRST_PAGE else size * 2)
        except HermesError as error:
            self.call_later(self._give_up, error)

    def _take_page(self, turn: int, lines: list[ListLine], done: bool) -> None:
        if turn != self._list_round:
            return
        self._fresh += lines
        self.loaded = done
        if done or len(self._fresh) > len(self.all):  # the new list replaces the old one once it is longer
            self.all = self._fresh
        if not self.is_inside:
            self._show()
        self._say()

    def _show(self, *, keep: bool = True) -> None:
        """Fill the list according to the input line."""
        current = self.lines.current
        shown = self.found if self.is_inside else matching(self.all, self.query_text)
        if self.lines.grouped:
            shown = by_folder(shown)
        kept = current.id if keep and current is not None else None
        self.lines.show(shown, keep=kept, nothing="" if shown else self._nothing())
        self._say()

    def _nothing(self) -> str:
        text = self.query_text.strip()
        if self.is_inside:
            if not text:
                return "Type words from a message; Tab goes back to the list."
            return "Searching …" if self.searching else "No messages match."
        if not self.loaded:
            return "Loading …"
        if not self.all:
            return "No conversations yet. Esc leaves, and `hermes` starts one."
        return "No title, id or first words match. Tab searches inside."

    def _say(self, note: str | None = None) -> None:
        """The status line: a note about the last change (until the next key), else the number of conversations."""
        if note is not None:
            self._note = note
        total, shown = len(self.all), len(self.lines.lines)
        if self._note:
            text = self._note
        elif self.is_inside:
            text = (
                "searching …"
                if self.searching
                else f"found in {'more than ' if self._more_found else ''}{counted(shown, 'conversation')}"
                if self.query_text.strip()
                else ""
            )
        elif self.query_text.strip():
            text = f"{shown:,} of {counted(total, 'conversation')}"
        else:
            text = counted(total, "conversation")
        if not self.loaded and not self.is_inside and not self._note:
            text += " · loading …"
        self.query_one("#status", Static).update(text)

    def _give_up(self, error: HermesError) -> None:
        self.app.exit(message=None)
        self.app.problem = error  # type: ignore[attr-defined]

    # ------------------------------------------------------------------------------------------ filter and search

    @on(Input.Changed, "#query")
    def typed(self) -> None:
        self._note = ""
        if not self.is_inside:
            self._show(keep=False)
            return
        if self._soon_search is not None:
            self._soon_search.stop()
        self._search_round += 1
        self.searching = bool(self.query_text.strip())
        if not self.searching:
            self.found = []
            self._show(keep=False)
            return
        self._say()
        self._soon_search = self.set_timer(WAIT_TO_SEARCH, self._search)

    def _search(self) -> None:
        turn, text = self._search_round, self.query_text
        self.run_worker(lambda: self._look(turn, text), thread=True, group="search")

    def _look(self, turn: int, text: str) -> None:
        if turn != self._search_round or self._leaving:
            return
        try:
            self.call_later(self._take_found, turn, *found_inside(self.db, text))
        except HermesError as error:
            self.call_later(self._take_found, turn, [], False, str(error))

    def _take_found(self, turn: int, lines: list[ListLine], more: bool, wrong: str | None = None) -> None:
        if turn != self._search_round or not self.is_inside:
            return
        self.searching = False
        self.found, self._more_found = lines, more
        self._show(keep=False)
        if wrong is not None:
            self._say(wrong)

    def action_inside(self) -> None:
        """Search inside the conversations, or filter the list again; the typed text stays."""
        self.is_inside = not self.is_inside
        self._note = ""
        self.found = []
        self._search_round += 1
        self.query_one("#mode", Static).update("Search inside" if self.is_inside else "Filter")
        query = self.query_one("#query", Input)
        query.placeholder = "words from a message …" if self.is_inside else "title, first words, id …"
        self.searching = self.is_inside and bool(self.query_text.strip())
        self._show(keep=False)
        if self.searching:
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
            self._say("no room for the preview; make the window larger")
        self._preview_soon()

    @on(SessionList.Moved)
    def moved(self) -> None:
        self._preview_soon()

    def _preview_soon(self) -> None:
        if self._soon_preview is not None:
            self._soon_preview.stop()
        self._preview_round += 1
        self._soon_preview = self.set_timer(WAIT_TO_PREVIEW, self._preview)

    def _preview(self) -> None:
        line, turn = self.lines.current, self._preview_round
        if line is None:
            self.query_one("#conversation", Static).update("")
        elif self.query_one("#preview").display:
            self.run_worker(lambda: self._read(turn, line), thread=True, group="preview")

    def _read(self, turn: int, line: ListLine) -> None:
        if turn != self._preview_round or self._leaving:
            return
        from rich.text import Text

        try:
            shown = preview(self.db, line, self.zone, light=not self.app.current_theme.dark)
        except HermesError as error:
            shown = Preview(Text(str(error)))
        self.call_later(self._take_preview, turn, shown)

    def _take_preview(self, turn: int, shown: Preview) -> None:
        if turn != self._preview_round:
            return
        self.query_one("#conversation", Static).update(shown.text)
        pane = self.query_one("#preview", VerticalScroll)
        pane.scroll_to(y=shown.top(pane.scrollable_content_region.width), animate=False)

    # ------------------------------------------------------------------------------------------ actions

    def action_resume(self) -> None:
        if self.lines.current is not None:
            self.app.exit(self.lines.current.id)

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

    def action_folders(self) -> None:
        """Group the list by the folders of the conversations, or list them by time again."""
        self.lines.grouped = not self.lines.grouped
        self._show()

    def action_keys(self) -> None:
        self.app.push_screen(KeyHelp(KEYS))


class Browser(App[str]):
    """Ends with the id of the chosen session, or None; `problem` is set when the store could not be read."""

    TITLE = "Conversations"
    ENABLE_COMMAND_PALETTE = False

    def __init__(self, db: SessionDB, zone: tzinfo | None = None, *, light: bool = False) -> None:
        # Without colour the terminal's own two are used, not shades of grey.
        super().__init__(ansi_color=True if os.environ.get("NO_COLOR") else None)
        self.db, self.zone = db, zone
        self.problem: HermesError | None = None
        if light and not os.environ.get("NO_COLOR"):
            self.theme = "textual-light"

    def on_mount(self) -> None:
        self.push_screen(Picker(self.db, self.zone))
