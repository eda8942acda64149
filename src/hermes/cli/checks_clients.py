"""The programs on this machine that can use the record (`hermes mcp`) or the agent (`hermes acp`), and the line for each.

The guide (docs/guide/mcp.md, docs/guide/acp.md) has the same lines.
"""

from __future__ import annotations

import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from hermes.cli.doctor import Found, well

if TYPE_CHECKING:
    from hermes.config import Config

_JETBRAINS = ("idea", "pycharm", "webstorm", "goland", "clion", "rider", "phpstorm", "rubymine", "datagrip")


@dataclass(frozen=True, slots=True)
class Client:
    """A program that speaks one of the protocols."""

    protocol: str  # "mcp" or "acp"
    name: str
    programs: tuple[str, ...]
    line: str
    file: str = ""  # where the line goes; a command to run when empty
    folder: str = ""  # a folder in the user's home that shows that the program is used


CLIENTS = (
    Client("mcp", "Claude Code", ("claude",), "claude mcp add --scope user hermes -- hermes mcp"),
    Client("mcp", "Codex", ("codex",), "codex mcp add hermes -- hermes mcp"),
    Client("mcp", "VS Code", ("code",),
           """code --add-mcp '{"name":"hermes","command":"hermes","args":["mcp"]}'"""),
    Client("mcp", "Zed", ("zed", "zeditor"),
           '"context_servers": {"hermes": {"command": "hermes", "args": ["mcp"]}}',
           "~/.config/zed/settings.json", ".config/zed"),
    Client("acp", "Zed", ("zed", "zeditor"),
           '"agent_servers": {"Hermes": {"type": "custom", "command": "hermes", "args": ["acp"]}}',
           "~/.config/zed/settings.json", ".config/zed"),
    Client("acp", "JetBrains", _JETBRAINS,
           '"agent_servers": {"Hermes": {"command": "hermes", "args": ["acp"]}}',
           "~/.jetbrains/acp.json", ".jetbrains"),
    Client("acp", "Neovim (avante)", ("nvim",),
           'provider = "hermes", acp_providers = { hermes = { command = "hermes", args = { "acp" } } }',
           "avante's setup{…}"),
)  # fmt: skip


def clients(config: Config) -> Found:
    """For every such program that is found: the line that connects it."""
    from hermes.cli.gateway_setup import guide_page

    for protocol, what in (
        ("mcp", "`hermes mcp` lets other agents search the record"),
        ("acp", "`hermes acp` is the agent for editors"),
    ):
        known = [one for one in CLIENTS if one.protocol == protocol]
        found = [one for one in known if _is_there(one)]
        for one in found:
            where = f"in {one.file}: " if one.file else ""
            yield well(protocol, f"{one.name}: {where}{one.line}")
        if not found:
            page = guide_page(f"{protocol}.md") or f"docs/guide/{protocol}.md"
            yield well(protocol, f"{what}: {', '.join(one.name for one in known)}; {page} has the line for each")


def _is_there(client: Client) -> bool:
    if any(shutil.which(program) for program in client.programs):
        return True
    try:
        return bool(client.folder) and (Path.home() / client.folder).is_dir()
    except (OSError, RuntimeError):
        return False
