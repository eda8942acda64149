"""The tools every agent has."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any

from hermes.errors import HermesError

if TYPE_CHECKING:
    from hermes.agent.tools.tool import Tool
    from hermes.config import Config


def builtin_tools(config: Config) -> list[Tool]:
    """session_search, skills, terminal, process, files, cron, delegate; memory unless the configuration turns it off."""
    from hermes.agent.recall.search_tool import session_search
    from hermes.agent.tools.cron_tool import cron
    from hermes.agent.tools.delegate import delegate
    from hermes.agent.tools.file_tools import FILE_TOOLS
    from hermes.agent.tools.memory import memory
    from hermes.agent.tools.processes import process
    from hermes.agent.tools.skills import skills
    from hermes.agent.tools.terminal import terminal

    return [
        session_search,
        *([memory] if config.memory.enabled else []),
        skills,
        terminal,
        process,
        *FILE_TOOLS,
        cron,
        delegate,
    ]


FOR_EVERYONE = frozenset(("session_search", "memory", "skills"))


class Toolbox:
    """Gives the tools. The servers are connected on the first call, or in the background from `start` on."""

    def __init__(self, config: Config) -> None:
        self.problems: list[str] = []  # servers that could not be reached, and why
        self._config = config
        self._mcp: Any = None
        self._lock = threading.Lock()
        self._tried = not config.mcp_servers
        self._thread: threading.Thread | None = None

    def start(self) -> None:
        """Begin to connect to the servers, without waiting for them."""
        if not self._tried and self._thread is None:
            self._thread = threading.Thread(target=self._reach, name="hermes-mcp", daemon=True)
            self._thread.start()

    def _reach(self) -> None:
        with self._lock:
            if self._tried:
                return
            self._tried = True
            from hermes.agent.tools.mcp_client import connect

            try:
                self._mcp = connect(self._config)
                self.problems = list(self._mcp.problems)
            except HermesError as error:
                self.problems = [str(error)]

    def tools(self, *, owner: bool = True) -> list[Tool]:
        """All tools, once the servers answered or failed; for users other than the owner those without machine access."""
        self._reach()
        return [tool for tool in self.known() if owner or tool.name in FOR_EVERYONE]

    def known(self) -> list[Tool]:
        """The owner's tools as far as they are known now; those of servers that have not answered yet are missing."""
        return [*builtin_tools(self._config), *(self._mcp.tools if self._mcp is not None else [])]

    def close(self) -> None:
        """End the servers; those that are still starting notice the end of the program themselves."""
        if self._thread is not None:
            self._thread.join(2)
        if self._mcp is not None:
            self._mcp.close()
