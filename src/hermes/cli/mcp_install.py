"""`hermes mcp install`: the entry for `hermes mcp` in the settings of other programs, put in and taken out.

`PROGRAMS` is the table: what shows that a program is installed, the settings file it reads for this user, and the shape of an
entry there. Everything else is the same for all.
"""

from __future__ import annotations

import difflib
import os
import shutil
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import click

from hermes.cli.table import Column, printed
from hermes.errors import HermesError, InvalidInput, MissingExtra
from hermes.home import get_hermes_home
from hermes.interop.settings_files import SettingsFile

NAME = "hermes"  # of the entry
_LINUX = "" if sys.platform == "darwin" else "XDG_CONFIG_HOME"
_STDIO = {"type": "stdio"}


@dataclass(frozen=True, slots=True)
class Program:
    """A program that can use MCP servers."""

    key: str
    title: str
    signs: tuple[str, ...]  # programs, or folders in the user's home; one of them shows that it is installed
    path: Callable[[], Path]
    section: str = "mcpServers"
    more: dict[str, Any] = field(default_factory=dict)  # what an entry has besides its command

    def file(self) -> SettingsFile:
        """Its settings file."""
        return SettingsFile(self.path(), self.section, NAME)

    def entry(self, there: Mapping[str, Any]) -> dict[str, Any]:
        """The entry that starts `hermes mcp` with this home. The options and settings of the one that is `there` stay."""
        from hermes.chat.resume import command_words

        # Programs started from the desktop do not have the shell's PATH.
        own = _words(there)
        words = [*command_words(os.defpath), "mcp", *(own[own.index("mcp") + 1 :] if own else [])]
        in_one, variables = (True, "environment") if self.key == "opencode" else (False, "env")
        made = {**self.more, **there, **({"command": words} if in_one else {"command": words[0], "args": words[1:]})}
        own_env = there.get(variables) or {}
        if not isinstance(own_env, dict):
            raise InvalidInput(f"{self.path()}: {variables} of the entry {NAME} is not an object; mend it there first")
        env = {name: value for name, value in own_env.items() if name != "HERMES_HOME"}
        if (home := get_hermes_home().absolute()) != Path.home() / ".hermes":
            env["HERMES_HOME"] = str(home)
        return {**made, variables: env} if env or variables in there else made


def _under(variable: str, default: str, *parts: str) -> Callable[[], Path]:
    """A path below the folder that a variable names."""
    return lambda: Path(os.environ.get(variable) or os.path.expanduser(default), *parts)


def _application(name: str, *parts: str) -> Callable[[], Path]:
    """A path in the folder of a desktop program."""
    if sys.platform == "darwin":
        return lambda: Path.home().joinpath("Library", "Application Support", name, *parts)
    return _under(_LINUX, "~/.config", name, *parts)


def _opencode() -> Path:
    folder = _under("XDG_CONFIG_HOME", "~/.config", "opencode")()
    return folder / ("opencode.jsonc" if (folder / "opencode.jsonc").exists() else "opencode.json")


PROGRAMS = {one.key: one for one in (
    Program("claude-code", "Claude Code", ("claude",), _under("CLAUDE_CONFIG_DIR", "~", ".claude.json"), more=_STDIO),
    Program("claude-desktop", "Claude Desktop", ("claude-desktop", "/Applications/Claude.app"),
            _application("Claude", "claude_desktop_config.json")),
    Program("codex", "Codex", ("codex",), _under("CODEX_HOME", "~/.codex", "config.toml"), "mcp_servers"),
    Program("copilot", "Copilot CLI", ("copilot",), _under("COPILOT_HOME", "~/.copilot", "mcp-config.json"),
            more={"type": "local", "tools": ["*"]}),
    Program("cursor", "Cursor", ("cursor", "cursor-agent", "~/.cursor"), _under("", "~", ".cursor", "mcp.json")),
    Program("gemini", "Gemini CLI", ("gemini",), _under("GEMINI_CLI_HOME", "~", ".gemini", "settings.json")),
    Program("opencode", "OpenCode", ("opencode",), _opencode, "mcp", {"type": "local", "enabled": True}),
    Program("qwen", "Qwen Code", ("qwen",), _under("QWEN_HOME", "~/.qwen", "settings.json")),
    Program("vscode", "VS Code", ("code", "/Applications/Visual Studio Code.app"), _application("Code", "User", "mcp.json"),
            "servers", _STDIO),
    Program("windsurf", "Windsurf", ("windsurf", "~/.codeium/windsurf"),
            _under("", "~", ".codeium", "windsurf", "mcp_config.json")),
    Program("zed", "Zed", ("zed", "zeditor", "~/.config/zed"), _under(_LINUX, "~/.config", "zed", "settings.json"),
            "context_servers"),
)}  # fmt: skip


def is_there(signs: tuple[str, ...]) -> bool:
    """Whether one of these programs or folders is on this machine."""
    return any(os.path.isdir(os.path.expanduser(one)) if "/" in one else shutil.which(one) for one in signs)


def _words(entry: Any) -> list[str]:
    """The command of an entry; [] for one without."""
    command, more = (entry.get("command"), entry.get("args")) if isinstance(entry, dict) else (None, None)
    return [str(one) for part in (command, more) for one in (part if isinstance(part, list) else [part]) if one]


def _is_ours(entry: Any) -> bool:
    """Whether an entry starts `hermes mcp`, with whatever options."""
    words = _words(entry)
    return "mcp" in words and (Path(words[0]).name in ("hermes", "hermes-sessions") or "hermes.cli.main" in words)


def state(program: Program) -> str:
    """How far a program is connected, or what is in the way."""
    try:
        entry = program.file().entry
    except HermesError as error:
        return f"its file {str(error).removeprefix(f'{program.path()} ').partition(';')[0]}"
    if entry is None:
        return "not connected"
    return "connected" if _is_ours(entry) else f"has another entry {NAME}"


@click.command()
@click.argument("program", nargs=-1, metavar="[PROGRAM]...", type=click.Choice(list(PROGRAMS)))
@click.option("--remove", is_flag=True, help="Take the entry out.")
@click.option("--print", "is_dry", is_flag=True, help="Show what would change in the file; write nothing.")
def install(program: tuple[str, ...], remove: bool, is_dry: bool) -> int:
    """Connect other programs to the record: put `hermes mcp` into their settings.

    Without PROGRAM: list the programs found on this machine and whether they are connected.
    """
    if not program:
        if remove or is_dry:
            raise click.UsageError(f"name a program: {', '.join(PROGRAMS)}")
        home = f"{Path.home()}/"
        rows = [
            (one.key, state(one), str(one.path()).replace(home, "~/", 1))
            for one in PROGRAMS.values()
            if is_there(one.signs)
        ]
        columns = [Column("Program"), Column("State", 20), Column("File", 20)]
        click.echo(printed(columns, rows) if rows else f"Found none of {', '.join(PROGRAMS)}.")
        return 0
    status = 0
    for name in program:
        try:
            click.echo(_change(PROGRAMS[name], remove, is_dry))
        except HermesError as error:
            click.echo(f"hermes: {error}", err=True)
            status = 1
    return status


def _change(program: Program, remove: bool, is_dry: bool) -> str:
    """Put the entry in, bring it up to date, or take it out; returns what to tell the user."""
    file = program.file()
    there = file.entry
    if there is not None and not _is_ours(there):
        does = " ".join(_words(there)) or (isinstance(there, dict) and there.get("url")) or "no command"
        raise InvalidInput(f"{file.path} has another entry {NAME} ({does}); rename or remove it there first")
    if not remove and find_spec("mcp") is None:
        raise MissingExtra("hermes mcp", "chat")
    wanted = None if remove else program.entry(there or {})
    if wanted == there:
        return f"{program.title}: nothing to do, {file.path} has {'no' if remove else 'this'} entry {NAME}."
    text = file.text_with(wanted)
    if is_dry:
        name = str(file.path)
        return "\n".join(difflib.unified_diff(file.text.splitlines(), text.splitlines(), name, name, lineterm=""))
    file.write(text)
    does = "removed from" if wanted is None else "added to" if there is None else "brought up to date in"
    return f"{program.title}: {does} {file.path}. This counts from the program's next start."
