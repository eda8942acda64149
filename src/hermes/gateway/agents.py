"""The agents of a gateway: one for each conversation that is under way, kept for a while, never shared.

Whose tools an agent has depends on who speaks: those that reach into the machine are the owner's alone, and what the
agent remembers of one person lies in a folder of that person's.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from contextlib import suppress
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING

from hermes.agent.loop import Agent
from hermes.agent.tools.toolbox import Toolbox

if TYPE_CHECKING:
    from hermes.agent.model import Model
    from hermes.config import Config
    from hermes.store.db import SessionDB

KEPT = 256  # agents that are kept between turns


class Agents:
    """Agents by session key."""

    def __init__(self, db: SessionDB, config: Config, model: Model, home: Path) -> None:
        self._db, self._config, self._home = db, config, home
        self.model = model
        self.toolbox = Toolbox(config)
        self._lock = threading.Lock()
        self._agents: dict[str, Agent] = {}

    def get(self, key: str) -> Agent | None:
        """The agent of a key, if one is kept."""
        with self._lock:
            return self._agents.get(key)

    def take(
        self, key: str, session_id: str, *, source: str, home: Path, confirm: Callable[[str], bool], user_id: str | None,
        parent: str | None = None,
    ) -> Agent:  # fmt: skip
        """The agent for a session under a key; one that talked in another session there is let go."""
        with self._lock:
            agent = self._agents.pop(key, None)
        if agent is not None and agent.session_id != session_id:
            agent.close(patience=0)
            agent = None
        if agent is None:
            agent = Agent(
                self._db, self._config, self.model, session_id=session_id, source=source, confirm=confirm, home=home,
                cwd=Path.home(), user_id=user_id, parent_session_id=parent, kind="reset" if parent else None,
            )  # fmt: skip
            agent.gathers = True
        with self._lock:
            self._agents[key] = agent  # as the newest
        self._thin_out()
        return agent

    def _thin_out(self) -> None:
        """Let the longest unused go, except those that are at work or have something running."""
        with self._lock:
            over = len(self._agents) - KEPT
            if over <= 0:
                return
            idle = (key for key, agent in self._agents.items() if not agent.busy and not agent.background_running())
            gone = [self._agents.pop(key) for key in list(islice(idle, over))]
        for agent in gone:
            agent.close(patience=0)  # its title comes all the same: this process lives on

    def drop(self, key: str) -> None:
        """Let go of a key's agent and what it runs."""
        with self._lock:
            agent = self._agents.pop(key, None)
        if agent is not None:
            agent.close(patience=0)

    def close(self, seconds: float = 5.0) -> None:
        """Let go of everything, within this time: of what does not let go by then nobody waits for the end."""
        end = time.monotonic() + seconds
        with self._lock:
            agents, self._agents = list(self._agents.values()), {}

        def work() -> None:
            with suppress(IndexError):
                while True:
                    agents.pop().close(patience=max(0.0, end - time.monotonic()))

        closing = [threading.Thread(target=work, daemon=True) for _ in range(min(8, len(agents)))]
        closing.append(threading.Thread(target=self.toolbox.close, daemon=True))
        for thread in closing:
            thread.start()
        for thread in closing:
            thread.join(max(0.0, end - time.monotonic()))


def home_of(home: Path, platform: str, who: str | None, *, owner: bool) -> Path:
    """Where an agent keeps what it remembers of somebody: the owner's home, or a folder of their own below it.

    Two people never get one folder, whatever their ids are and however a file system reads names.
    """
    if owner:
        return home
    import hashlib
    import re

    shown = re.sub(r"[^A-Za-z0-9@+_-]+", "-", who or "everyone")[:60].strip("-")
    exact = hashlib.sha256(b"" if who is None else b":" + who.encode(errors="surrogatepass")).hexdigest()[:16]
    return home / "people" / re.sub(r"[^a-z0-9_-]+", "-", platform) / f"{shown}-{exact}".lstrip("-")
