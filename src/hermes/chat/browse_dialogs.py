"""The small windows of the browser: a question with a line to type, a yes or no, and the keys."""

from __future__ import annotations

from collections.abc import Callable
from typing import ClassVar

from textual import on
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Vertical
from textual.message import Message
from textual.screen import ModalScreen
from textual.widgets import Input, Static

from hermes.errors import HermesError

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
    """A question with a line to type. What was typed is tried at once; when that fails, the reason is shown and the
    window stays. Its result is what the trial returned, or None."""

    CSS = _WINDOW.format(name="Ask")
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("escape", "leave", "Back", priority=True),
        Binding("ctrl+c", "leave", show=False, priority=True),
    ]

    class Tried(Message):
        """The trial is over."""

        def __init__(self, result: str | None, wrong: str | None) -> None:
            super().__init__()
            self.result, self.wrong = result, wrong

    def __init__(self, question: str, value: str, attempt: Callable[[str], str]) -> None:
        super().__init__()
        self.question, self.value, self.attempt = question, value, attempt
        self.busy = False

    def compose(self) -> ComposeResult:
        with Vertical():
            yield Static(self.question, markup=False)
            yield Input(self.value, compact=True, select_on_focus=False)
            yield Static("", id="wrong", classes="wrong", markup=False)
            yield Static("Enter does it · Esc leaves it as it is", classes="hint", markup=False)

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
            result, wrong = self.attempt(text), None
        except HermesError as error:
            result, wrong = None, str(error)
        except OSError as error:
            result, wrong = None, f"{error.filename or text}: {error.strerror or error}"
        self.post_message(self.Tried(result, wrong))

    @on(Tried)
    def tried(self, event: Tried) -> None:
        self.busy = False
        if event.wrong is None:
            self.dismiss(event.result)
        else:
            self.query_one("#wrong", Static).update(event.wrong)

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


class Keys(ModalScreen[None]):
    """Every key, until one is pressed."""

    CSS = _WINDOW.format(name="Keys")

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
