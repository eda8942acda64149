"""The input line: history, completion, several lines, and pastes of any size.

A long paste is shown as a short placeholder and expanded when the line is sent, so that a megabyte costs the screen
nothing. Enter sends, Alt-Enter and Ctrl-J begin a new line.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hermes.chat.file_mentions import typed_path
from hermes.commands.registry import ALIASES, Command, Host, is_known, known, load
from hermes.texts import counted, harmless

if TYPE_CHECKING:
    from prompt_toolkit import PromptSession
    from prompt_toolkit.completion import Completer
    from prompt_toolkit.history import FileHistory
    from prompt_toolkit.key_binding import KeyBindings


_LONG_PASTE = 1_000  # characters
_MANY_LINES = 8
_HISTORY_UP_TO = 20_000  # characters of a line worth keeping in the history
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


def prompt_session(
    host: Host, home: Path | None, pastes: Pastes, mask: Callable[[str], str], edge: Callable[[], str]
) -> PromptSession[str]:
    """The prompt, ready to ask. Lines are stored in `<home>/history` (None: nowhere), which only the owner can read.

    `mask` masks secrets in the file; until the program ends, arrow-up gives a line as it was typed. `edge` is the text at the
    right end of the line, removed when the line is sent.
    """
    from prompt_toolkit import PromptSession
    from prompt_toolkit.application import get_app
    from prompt_toolkit.filters import Condition
    from prompt_toolkit.history import InMemoryHistory
    from prompt_toolkit.shortcuts import CompleteStyle

    return PromptSession(
        history=InMemoryHistory() if home is None else _history(home / "history", pastes, mask),
        enable_open_in_editor=True,  # Ctrl-X Ctrl-E
        tempfile_suffix=".md",
        completer=completer(host),
        complete_style=CompleteStyle.COLUMN,
        complete_while_typing=Condition(lambda: opens_menu(get_app().current_buffer.document.text_before_cursor)),
        complete_in_thread=True,  # the names of models come from a server
        reserve_space_for_menu=8,  # only while a menu may open
        key_bindings=_keys(pastes, host),
        multiline=True,
        rprompt=lambda: [("class:edge fg:ansibrightblack", "" if get_app().is_done else edge())],
        prompt_continuation=lambda width, number, wrapped: " " * width,
    )


def _keys(pastes: Pastes, host: Host) -> KeyBindings:
    from prompt_toolkit.application import run_in_terminal
    from prompt_toolkit.key_binding import KeyBindings
    from prompt_toolkit.keys import Keys

    from hermes.chat.keyboard import suspend

    keys = KeyBindings()

    @keys.add("enter")
    def _(event: Any) -> None:
        buffer = event.current_buffer
        meant = unfinished_command(host, buffer.text)
        if meant is not None:  # the command the menu shows first; a second Enter runs it
            buffer.cancel_completion()
            buffer.text = meant
            buffer.cursor_position = len(meant)
            if meant.endswith(" "):
                buffer.start_completion(select_first=False)
            return
        buffer.validate_and_handle()

    @keys.add("tab")
    def _(event: Any) -> None:
        from prompt_toolkit.buffer import CompletionState
        from prompt_toolkit.completion import CompleteEvent

        buffer = event.current_buffer
        if buffer.complete_state is not None and buffer.complete_state.completions:  # an empty one is being filled
            buffer.complete_next()
            return
        # The menu that opens while typing may not be there yet: Tab takes the first completion all the same.
        found = list(buffer.completer.get_completions(buffer.document, CompleteEvent(completion_requested=True)))
        if len(found) == 1:
            buffer.apply_completion(found[0])
        elif found:
            buffer.complete_state = CompletionState(buffer.document, found)
            buffer.go_to_completion(0)

    @keys.add("c-o")
    def _(event: Any) -> None:
        if not event.current_buffer.text:
            event.current_buffer.text = "/show"
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

        def append_string(self, string: str) -> None:
            whole = readable(pastes.expand(string))
            if 0 < len(whole) <= _HISTORY_UP_TO:
                super().append_string(readable(string))

        def load_history_strings(self) -> Iterable[str]:
            try:
                return [pastes.mark(one, "earlier") for one in super().load_history_strings()]
            except OSError:
                return []

        def store_string(self, string: str) -> None:
            whole = mask(readable(pastes.expand(string))).encode(errors="replace").decode()
            with suppress(OSError):  # a full disk must not stop a conversation here: the message itself is what matters
                super().store_string(whole)

    try:
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        os.close(os.open(path, os.O_CREAT | os.O_RDWR | os.O_APPEND, 0o600))
    except OSError:
        return InMemoryHistory()  # type: ignore[return-value]
    return History(str(path))


def readable(line: str) -> str:
    """The typed line as valid text: bytes that are not UTF-8 become replacement characters."""
    return line.encode("utf-8", "surrogateescape").decode("utf-8", "replace")


def completer(host: Host) -> Completer:
    """Completes slash commands and their arguments, and paths after an @."""
    from prompt_toolkit.completion import CompleteEvent, Completer, Completion, PathCompleter
    from prompt_toolkit.document import Document

    paths = PathCompleter(get_paths=lambda: [str(host.agent.cwd)], expanduser=True)

    class Slash(Completer):
        def get_completions(self, document: Document, complete_event: CompleteEvent) -> Iterable[Completion]:
            before = document.text_before_cursor
            path = None if opens_commands(before) else typed_path(before)
            if path is not None:
                for one in paths.get_completions(Document(path), complete_event):
                    hidden = one.display_text.startswith(".") and not path.rpartition("/")[2].startswith(".")
                    text = path + one.text + "/" * one.display_text.endswith("/")
                    quoted = " " in text and not before[: len(before) - len(path)].endswith('"')
                    if not hidden and '"' not in text:
                        yield Completion(f'"{text}"' if quoted else text, -len(path), display=one.display)
                return
            name, space, rest = before.partition(" ")
            for text, shown, about in completions(host, before):
                replaced = len(rest) if space else len(name)
                yield Completion(text, start_position=-replaced, display=shown, display_meta=about)

    return Slash()


def completions(host: Host, before: str) -> Iterator[tuple[str, str, str]]:
    """(text, display text, description) for the text before the cursor."""
    if not before.startswith("/") or before.startswith("//") or "\n" in before:
        return
    name, space, rest = before.partition(" ")
    if not space:
        for one in matching_commands(host, name[1:]):
            yield f"/{one.name}" + (" " if one.arguments else ""), f"/{one.name}", one.help
        return
    found = load().get(ALIASES.get(name[1:].casefold(), name[1:].casefold()))
    if found is None or found.complete is None:
        return
    for option in sorted(found.complete(host), key=lambda option: fuzzy(rest, option) or 0):
        if fuzzy(rest, option) is not None:
            yield option, harmless(option), ""


def opens_menu(before: str) -> bool:
    """Whether completions are offered while typing: of commands, and of paths after an @."""
    return opens_commands(before) or typed_path(before) is not None


def opens_commands(before: str) -> bool:
    """Whether the line is a command, or the beginning of one."""
    return before.startswith("/") and not before.startswith("//") and "\n" not in before


def matching_commands(host: Host, typed: str) -> list[Command]:
    """The commands whose name, or another name of theirs, resembles what was typed; the best first."""
    others: dict[str, list[str]] = {}
    for alias, name in ALIASES.items():
        others.setdefault(name, []).append(alias)
    found = []
    for place, one in enumerate(known(host.where)):
        names = (one.name, *others.get(one.name, ()))
        ranks = [(rank, name != one.name) for name in names if (rank := fuzzy(typed, name)) is not None]
        if ranks:  # a name comes before another command's other name
            found.append((min(ranks), place, one))
    return [one for _, _, one in sorted(found, key=lambda entry: entry[:2])]


def fuzzy(typed: str, name: str) -> int | None:
    """How well typed letters fit a name: 0 its beginning, 1 a part of it, 2 its letters in this order; None: not."""
    typed, name = typed.casefold(), name.casefold()
    if name.startswith(typed):
        return 0
    if typed in name:
        return 1
    rest = iter(name)
    return 2 if all(letter in rest for letter in typed) else None


def unfinished_command(host: Host, line: str) -> str | None:
    """The command that an incomplete name most likely means, to put on the line; None for any other line."""
    if not opens_commands(line) or len(line) < 2 or not line[1:].isalpha() or is_known(line[1:].casefold(), host.where):
        return None
    found = matching_commands(host, line[1:])
    return f"/{found[0].name}" + (" " if found[0].arguments else "") if found else None
