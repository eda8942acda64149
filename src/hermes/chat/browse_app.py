"""The browser as an application of its own: one screen, and what ends it."""

from __future__ import annotations

import os
from datetime import tzinfo
from typing import TYPE_CHECKING

from textual.app import App

from hermes.chat.browse_screen import Picker
from hermes.errors import HermesError

if TYPE_CHECKING:
    from hermes.store.db import SessionDB


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
