"""The agents of a gateway: one for each active conversation, kept for a while, never shared.

An agent's tools depend on who speaks: only the owner's reach into the machine, and the memory of each person lies in
that person's own folder.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from hermes.agent.conversations import Conversations
from hermes.agent.loop import Agent
from hermes.agent.tools.tool import Toolbox

if TYPE_CHECKING:
    from hermes.agent.models.model import Model
    from hermes.agent.tools.permission import Answer
    from hermes.config import Config
    from hermes.store.api.session_db import SessionDB


class ChatAgent(Agent):
    """An agent of a conversation in a chat."""

    chosen_early = False  # whether its model was chosen before the session's first message


class Agents(Conversations[ChatAgent]):
    """Agents by session key."""

    def __init__(self, db: SessionDB, config: Config, model: Model, home: Path) -> None:
        super().__init__()
        self._db, self._config, self._home = db, config, home
        self.model = model
        self.toolbox = Toolbox(config)

    def of(
        self, key: str, session_id: str, *, source: str, home: Path, confirm: Callable[[str], bool | Answer], user_id: str | None,
        parent: str | None = None,
    ) -> ChatAgent:  # fmt: skip
        """The agent for a session under a key; one that talked in another session there is closed."""

        def make() -> ChatAgent:
            model, early = self._chosen(key, session_id)
            agent = ChatAgent(
                self._db, self._config, model, session_id=session_id, source=source, confirm=confirm, home=home,
                cwd=Path.home(), user_id=user_id, parent_session_id=parent, kind="reset" if parent else None,
            )  # fmt: skip
            agent.gathers, agent.chosen_early = True, early
            return agent

        return self.take(key, session_id, make)

    def _chosen(self, key: str, session_id: str) -> tuple[Model, bool]:
        """The model chosen for a conversation, else the configured one; and whether it was chosen before the first message."""
        name = self._db.chosen_model(session_id)
        early = name is None and (name := self._db.chosen_model(key)) is not None
        from hermes.agent.models.choice import model_of_choice

        return model_of_choice(self._config, name, self.model), early

    def close(self, seconds: float = 5.0) -> None:
        """Close all agents and the tools within this time; what takes longer is abandoned."""
        closing = threading.Thread(target=self.toolbox.close, daemon=True)
        closing.start()
        end = time.monotonic() + seconds
        super().close(seconds)
        closing.join(max(0.0, end - time.monotonic()))


def home_of(home: Path, platform: str, who: str | None, *, owner: bool) -> Path:
    """The folder with an agent's memory of a person: the owner's home, or a folder of the person's own below it.

    Two people never get one folder, whatever their ids are and however a file system reads names.
    """
    if owner:
        return home
    import hashlib
    import re

    shown = re.sub(r"[^A-Za-z0-9@+_-]+", "-", who or "everyone")[:60].strip("-")
    exact = hashlib.sha256(b"" if who is None else b":" + who.encode(errors="surrogatepass")).hexdigest()[:16]
    return home / "people" / re.sub(r"[^a-z0-9_-]+", "-", platform) / f"{shown}-{exact}".lstrip("-")
