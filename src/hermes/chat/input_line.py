"""The input line: history, completion, several lines, and pastes of any size.

A long paste is shown as a short placeholder and expanded when the line is sent, so that a megabyte costs the screen
nothing. Enter sends, Alt-Enter and Ctrl-J begin a new line.
"""

from __future__ import annotations

import os
import re
import tempfile
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hermes.commands.registry import Host, known, load
from hermes.texts import counted, harmless

if TYPE_CHECKING:
    from prompt_toolkit import PromptSession
    from prompt_toolkit.completion import Completer
    from prompt_toolkit.history import FileHistory
    from prompt_toolkit.key_binding import KeyBindings


_LONG_PASTE = 1_000  # characters; or more lines than
_MANY_LINES = 8
_HISTORY_UP_TO = 20_000  # characters of a line worth keeping in the history
_ENTRY = re.compile(r"^\+[^\n]*(?:\n\+[^\n]*)*", re.MULTILINE)  # an entry of prompt_toolkit's FileHistory
_MARK = re.compile(r"\[((?:pasted|earlier) text \d+): [^\]\n]*\]")


class Pastes:
    """Long texts and their placeholders: pasted ones, and those of earlier conversations in the history."""

    def __init__(self) -> None:
        self._texts: dict[str, str] = {}
        self._numbers = {"pasted": 0, "earlier": 0}

    def mark(self, text: str, kind: str = "pasted") -> str:
        """The placeholder of a text; a short text itself. A line break at the end begins no further line."""
        lines = text.removesuffix("\n").count("\n") + 1
        if len(text) <= _LONG_PASTE and lines <= _MANY_LINES:
            return text
        self._numbers[kind] += 1
        name = f"{kind} text {self._numbers[kind]}"
        self._texts[name] = text
        return f"[{name}: {counted(lines, 'line')}, {counted(len(text), 'character')}]"

    def expand(self, line: str) -> str:
        """The line with every placeholder replaced by its text."""
        return _MARK.sub(lambda match: self._texts.get(match[1], match[0]), line)


def prompt_session(host: Host, home: Path | None, pastes: Pastes, mask: Callable[[str], str]) -> PromptSession[str]:
    """The prompt, ready to ask. Lines are stored in `<home>/history` (None: nowhere), which only the owner can read.

    `mask` masks secrets in the file; until the program ends, arrow-up gives a line as it was typed.
    """
    from prompt_toolkit import PromptSession
    from prompt_toolkit.history import InMemoryHistory
    from prompt_toolkit.shortcuts import CompleteStyle

    return PromptSession(
        history=InMemoryHistory() if home is None else _history(home / "history", pastes, mask),
        enable_open_in_editor=True,  # Ctrl-X Ctrl-E
        tempfile_suffix=".md",
        completer=completer(host),
        complete_style=CompleteStyle.READLINE_LIKE,  # a menu would reserve lines of the screen
        complete_while_typing=False,
        key_bindings=_keys(pastes),
        multiline=True,
        prompt_continuation=lambda width, number, wrapped: " " * width,
    )


def _keys(pastes: Pastes) -> KeyBindings:
    from prompt_toolkit.application import run_in_terminal
    from prompt_toolkit.key_binding import KeyBindings
    from prompt_toolkit.keys import Keys

    from hermes.chat.keyboard import suspend

    keys = KeyBindings()

    @keys.add("enter")
    def _(event: Any) -> None:
        event.current_buffer.validate_and_handle()

    @keys.add("escape", "enter")
    @keys.add("c-j")
    def _(event: Any) -> None:
        event.current_buffer.insert_text("\n")

    @keys.add("c-z")
    def _(event: Any) -> None:
        run_in_terminal(suspend)

    @keys.add(Keys.BracketedPaste)
    def _(event: Any) -> None:
        text = event.data.replace("\r\n", "\n").replace("\r", "\n")
        event.current_buffer.insert_text(pastes.mark(text))

    return keys


def _history(path: Path, pastes: Pastes, mask: Callable[[str], str]) -> FileHistory:
    from prompt_toolkit.history import FileHistory, InMemoryHistory

    class History(FileHistory):
        """Stores whole texts instead of placeholders, and no enormous ones; arrow-up shows long ones folded."""

        def load_history_strings(self) -> Iterable[str]:
            return (pastes.mark(one, "earlier") for one in super().load_history_strings())

        def append_string(self, string: str) -> None:
            whole = readable(pastes.expand(string))
            if 0 < len(whole) <= _HISTORY_UP_TO:
                super().append_string(readable(string))

        def store_string(self, string: str) -> None:
            try:
                super().store_string(mask(readable(pastes.expand(string))))
            except OSError:
                pass  # a full disk must not stop a conversation here: the message itself is what matters

    try:
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        os.close(os.open(path, os.O_CREAT | os.O_RDWR | os.O_APPEND, 0o600))
    except OSError:
        return InMemoryHistory()  # type: ignore[return-value]
    try:
        _mask_earlier(path, mask)
    except OSError:
        pass  # for the same reason
    return History(str(path))


def _mask_earlier(path: Path, mask: Callable[[str], str]) -> None:
    """Mask earlier entries of the file: they may be older than the masking, or from a time when it was off."""
    text = path.read_text(encoding="utf-8", errors="replace")
    masked = _ENTRY.sub(lambda entry: _as_entry(mask(entry[0][1:].replace("\n+", "\n"))), text)
    if masked == text:
        return
    handle, name = tempfile.mkstemp(dir=path.parent, prefix=".history.")  # made with mode 0600
    try:
        with os.fdopen(handle, "w", encoding="utf-8", errors="replace", newline="") as file:
            file.write(masked)
        os.replace(name, os.path.realpath(path))
    except BaseException:
        os.unlink(name)
        raise


def _as_entry(line: str) -> str:
    return "+" + line.replace("\n", "\n+")


def readable(line: str) -> str:
    """The typed line as valid text: bytes that are not UTF-8 become replacement characters."""
    return line.encode("utf-8", "surrogateescape").decode("utf-8", "replace")


def completer(host: Host) -> Completer:
    """Completes slash commands and their arguments."""
    from prompt_toolkit.completion import CompleteEvent, Completer, Completion
    from prompt_toolkit.document import Document

    class Slash(Completer):
        def get_completions(self, document: Document, complete_event: CompleteEvent) -> Iterable[Completion]:
            before = document.text_before_cursor
            for text, shown, about in completions(host, before):
                yield Completion(text, start_position=-_replaced(before), display=shown, display_meta=about)

    return Slash()


def _replaced(before: str) -> int:
    """How many characters before the cursor a completion replaces."""
    name, space, rest = before.partition(" ")
    return len(rest) if space else len(name)


def completions(host: Host, before: str) -> Iterator[tuple[str, str, str]]:
    """(text, display text, description) for the text before the cursor."""
    if not before.startswith("/") or before.startswith("//") or "\n" in before:
        return
    name, space, rest = before.partition(" ")
    if not space:
        for one in known(host.where):
            if f"/{one.name}".startswith(name.casefold()):
                yield f"/{one.name}" + (" " if one.arguments else ""), f"/{one.name}", one.help
        return
    found = load().get(name[1:].casefold())
    if found is None or found.complete is None:
        return
    for option in found.complete(host):
        if rest.casefold() in option.casefold():
            yield option, harmless(option), ""
