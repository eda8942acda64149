"""One question, one answer: `hermes chat -q`, and whatever is piped in.

In a pipe the answer alone is on standard output, as bare text; everything else goes to standard error.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING

from hermes.chat.render import console, display_for
from hermes.chat.resume import resume_line
from hermes.chat.signals import Terminated
from hermes.chat.terminal_conversation import TerminalConversation
from hermes.store import housekeeping
from hermes.texts import harmless, shortened_line

if TYPE_CHECKING:
    from hermes.agent.model import Model
    from hermes.chat.render import TerminalDisplay
    from hermes.config import Config
    from hermes.store.db import SessionDB


class PipeVoice:
    """Writes everything but the answer to standard error; asks questions only if standard input is a terminal."""

    def __init__(self) -> None:
        self.screen = console()

    def say(self, text: str) -> None:
        print(harmless(text), file=sys.stderr)

    def note(self, text: str) -> None:
        print(shortened_line(text, 1000), file=sys.stderr)

    def ask(self, question: str) -> bool:
        if sys.stdin is None or not sys.stdin.isatty() or not sys.stderr.isatty():
            self.note(f"{question} Answered no, since no terminal is attached. (--yes answers yes to every question)")
            return False
        print(f"{harmless(question)} [y/N] ", end="", file=sys.stderr, flush=True)
        return sys.stdin.readline().strip().casefold() in ("y", "yes")

    def permission(self, question: str) -> bool:
        return self.ask(question)

    def choose(self, question: str, options: Sequence[str]) -> int | None:
        return None

    def clear(self) -> None:
        """None: nothing is on a screen here."""

    def typing(self) -> None:
        """None: typed keys are not read while one question is answered."""

    def display(self) -> TerminalDisplay:
        return display_for(self.screen)

    def recap(self, db: SessionDB, session_id: str, config: Config) -> None:
        """None: only the answer is printed."""


def piped_text() -> str:
    """The piped text, if any; bytes that are not UTF-8 become replacement characters."""
    if sys.stdin is None or sys.stdin.closed or sys.stdin.isatty():
        return ""
    return sys.stdin.buffer.read().decode("utf-8", "replace")


def joined(question: str | None, piped: str) -> str:
    """The question and the piped text, as one text."""
    parts = [part for part in ((question or "").strip(), piped.strip("\n")) if part.strip()]
    return "\n\n".join(parts)


def ask(
    db: SessionDB,
    config: Config,
    model: Model,
    question: str,
    *,
    session_id: str | None,
    restore_cwd: bool,
    yes: bool,
    keep_model: bool,
) -> int:
    """Ask once and print the answer; the exit status."""
    voice = PipeVoice()
    conversation = TerminalConversation(
        db, config, model, voice, yes=yes, keep_model=keep_model, restore_cwd=restore_cwd,
        titles_by_model=False,  # the shell waits for the answer alone
    )  # fmt: skip
    status = 0
    try:
        if session_id is not None and not conversation.open(session_id):
            return 1
        housekeeping.start(db, config)
        status = 130 if conversation.talk(question) else 0
    except Terminated as ended:
        status = 128 + ended.number
    finally:
        lines = conversation.close()
    if lines and sys.stderr.isatty():
        voice.note(f"{resume_line(conversation.session_id)}  continues this conversation")
    return status
