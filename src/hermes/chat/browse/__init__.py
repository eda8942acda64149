"""`hermes sessions browse`: a full-screen picker over every conversation.

`browse` loads the screen's library only when it is called, runs the screen, and returns the chosen session.
"""

from __future__ import annotations

import os
import signal
from typing import TYPE_CHECKING

from hermes.chat.keyboard import handled
from hermes.errors import MissingExtra

if TYPE_CHECKING:
    from datetime import tzinfo

    from hermes.store.api.session_db import SessionDB


def browse(db: SessionDB, zone: tzinfo | None = None) -> str | None:
    """Let a person choose a session; its id, or None when they left without choosing. Needs a terminal.

    Dates are those of `zone`; None is the machine's own.
    """
    no_color = os.environ.get("NO_COLOR")
    try:
        from hermes.chat.browse.screen import Browser
    except ModuleNotFoundError as error:
        if error.name is None or error.name.partition(".")[0] not in ("textual", "rich"):
            raise
        raise MissingExtra("the session browser", "chat") from error
    app = Browser(db, zone)
    try:
        # Under nohup, too: the library would read a lost terminal without pause.
        with handled({signal.SIGHUP: signal.SIG_DFL}):
            chosen = app.run()
    finally:
        if no_color is not None:
            os.environ["NO_COLOR"] = no_color  # the library removes it; later code must see it
    if app.problem is not None:
        raise app.problem
    return None if chosen is None else db.get_compression_tip(chosen)
