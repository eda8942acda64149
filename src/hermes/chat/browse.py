"""`hermes sessions browse`: a full-screen picker over every conversation.

This file is the entry point: it loads the screen's library only now, runs the screen, and returns the chosen session.
"""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from hermes.errors import MissingExtra

if TYPE_CHECKING:
    from datetime import tzinfo

    from hermes.store.db import SessionDB

LOOK_SECONDS = 1.0  # between two looks at whether the terminal is still there


def browse(db: SessionDB, zone: tzinfo | None = None) -> str | None:
    """Let a person choose a session; its id, or None when they left without choosing. Needs a terminal.

    Dates are those of `zone`; None is the machine's own.
    """
    no_color = os.environ.get("NO_COLOR")
    if no_color == "":
        del os.environ["NO_COLOR"]  # empty means "not set"; the library would switch colours off
    try:
        from hermes.chat.browse_screen import Browser
    except ModuleNotFoundError as error:
        if error.name is None or error.name.partition(".")[0] not in ("textual", "rich"):
            raise
        raise MissingExtra("the session browser", "chat") from error
    app = Browser(db, zone, light=_terminal_is_light())
    try:
        with _ending_with_the_terminal():
            chosen = app.run()
    finally:
        if no_color is not None:
            os.environ["NO_COLOR"] = no_color  # the library removes it; later code must see it
    if app.problem is not None:
        raise app.problem
    return None if chosen is None else db.get_compression_tip(chosen)


@contextmanager
def _ending_with_the_terminal() -> Iterator[None]:
    """End the process when its terminal is gone. SIGHUP does that, unless it is ignored (nohup) or reaches only the shell.

    The library can't: it reads the end of the input without pause, and its shutdown waits for the screen to be written.
    The store needs no farewell.
    """
    terminal = [number for number in (0, 1) if os.isatty(number)]
    over = threading.Event()

    def look() -> None:
        while not over.wait(LOOK_SECONDS):
            if not all(os.isatty(number) for number in terminal):
                os._exit(128 + signal.SIGHUP)

    threading.Thread(target=look, name="terminal-watch", daemon=True).start()
    try:
        yield
    finally:
        over.set()


def _terminal_is_light() -> bool:
    """Whether the terminal says in COLORFGBG that its background is light; most terminals say nothing, and are dark."""
    return os.environ.get("COLORFGBG", "").rpartition(";")[2] in ("7", "15")
