"""The dialogs of the session browser, and the export that one of them asks for."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar

from textual import events, on, work
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Vertical
from textual.screen import ModalScreen
from textual.widgets import Input, Static

from hermes.errors import HermesError, InvalidInput
from hermes.home import write_whole

if TYPE_CHECKING:
    from hermes.store.api.session_db import SessionDB

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
