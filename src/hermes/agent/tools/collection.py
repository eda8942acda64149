"""The tools every agent has."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from hermes.agent.tools.base import Tool
    from hermes.config import Config


def builtin_tools(config: Config) -> list[Tool]:
    """session_search, skills, terminal and process; memory unless the configuration turns it off."""
    from hermes.agent.recall import session_search
    from hermes.agent.tools.memory import memory
    from hermes.agent.tools.processes import process
    from hermes.agent.tools.skills import skills
    from hermes.agent.tools.terminal import terminal

    return [session_search, *([memory] if config.memory.enabled else []), skills, terminal, process]
