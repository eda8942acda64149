"""The agent's own tools, made once for the whole server: the built-in ones, and those of MCP servers."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from hermes.errors import HermesError

if TYPE_CHECKING:
    from hermes.agent.tools.base import Tool
    from hermes.config import Config

_log = logging.getLogger("hermes.serve")


class Toolbox:
    """Gives the tools; the first to ask has them made, the others wait for it."""

    def __init__(self, config: Config, given: Callable[[], list[Tool]] | None) -> None:
        self._config, self._given = config, given
        self._mcp: Any = None
        self._made: asyncio.Future[list[Tool]] | None = None

    async def tools(self) -> list[Tool]:
        """All tools."""
        if self._made is None:
            self._made = asyncio.ensure_future(asyncio.to_thread(self._make))
        return await asyncio.shield(self._made)

    def _make(self) -> list[Tool]:
        if self._given is not None:
            return self._given()
        from hermes.agent.tools.collection import builtin_tools

        tools = builtin_tools(self._config)
        if self._config.mcp_servers:
            from hermes.agent.tools.mcp import connect

            try:
                self._mcp = connect(self._config)
            except HermesError as error:
                _log.warning("%s", error)
            else:
                for problem in self._mcp.problems:
                    _log.warning("%s", problem)
                tools += self._mcp.tools
        return tools

    def close(self) -> None:
        """End the servers we started."""
        if self._mcp is not None:
            self._mcp.close()
