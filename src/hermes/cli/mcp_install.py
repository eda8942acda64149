"""`hermes mcp install`: adds and removes the entry for `hermes mcp` in the settings of other programs.

`PROGRAMS` is the table: the settings file that a program reads for this user, and the shape of an entry there.

In a settings file (JSON with comments, or TOML) only the text of the entry changes; comments, order and formatting of the rest
stay. The result is read again before it is written: a change that can't be made in the text is refused, and so is a file that
is not valid before.
"""

from __future__ import annotations

import json
import os
import re
import sys
import tomllib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import click

from hermes.cli.options import flag
from hermes.cli.output import note
from hermes.errors import HermesError, InvalidInput, MissingExtra
from hermes.home import get_hermes_home, write_whole

_STRING = r'"(?:[^"\\]|\\.)*"'
_COMMENT = re.compile(rf"{_STRING}|//[^\r\n]*|/\*.*?\*/", re.S)
_LAST_COMMA = re.compile(rf"{_STRING}|,(?=\s*[}}\]])", re.S)
_SPACE = re.compile(r"\s*")
_read_value = json.JSONDecoder(strict=False).raw_decode


class SettingsFile:
    """A settings file, and in it the entry `name` of the object `section`."""

    def __init__(self, path: Path, section: str, name: str) -> None:
        self.path, self._section, self._name = path, section, name
        self._is_toml = path.suffix == ".toml"
        try:
            self.text = path.read_bytes().decode() if path.exists() else ""
            self._data = self._parsed(self.text)
        except OSError as error:
            raise InvalidInput(f"{path} can't be read ({error.strerror})") from None
        except (ValueError, RecursionError):
            kind = "TOML" if self._is_toml else "JSON"
            raise InvalidInput(f"{path} is not valid {kind} with a table {section}; mend it and try again") from None
        self.entry = self._data.get(section, {}).get(name)

    def text_with(self, value: Mapping[str, Any] | None) -> str:
        """The text with this entry instead of the present one; None: without an entry."""
        without, put = (_without_toml, _with_toml) if self._is_toml else (_without_json, _with_json)
        text = self.text if self.entry is None else without(self.text, self._section, self._name)
        text = text if value is None else put(text, self._section, self._name, value)
        entries = {key: one for key, one in self._data.get(self._section, {}).items() if key != self._name}
        entries |= {} if value is None else {self._name: value}
        try:
            found = self._parsed(text)
        except ValueError:
            found = {}
        wanted = {**self._data, self._section: entries}
        if {self._section: {}, **found} != wanted:  # a table without entries may be left out
            problem = f"{self.path}: {self._section} is written in a way that can't be changed here; edit it by hand"
            raise InvalidInput(problem)
        return text

    def write(self, text: str) -> None:
        """Replace the file in one step. A link stays one, and the file keeps its mode."""
        target = Path(os.path.realpath(self.path))
        try:
            target.parent.mkdir(parents=True, exist_ok=True)
            mode = target.stat().st_mode & 0o777 if target.exists() else 0o600
            if not mode & 0o200:
                raise InvalidInput(f"{target} is read-only; nothing was changed")
            write_whole(target, text)
            target.chmod(mode)
        except OSError as error:
            raise InvalidInput(f"{target} can't be written ({error.strerror}); nothing was changed") from None

    def _parsed(self, text: str) -> dict[str, Any]:
        data = tomllib.loads(text) if self._is_toml else json.loads(_plain(text).strip() or "{}", strict=False)
        if not isinstance(data, dict) or not isinstance(data.get(self._section, {}), dict):
            raise ValueError("not a table of tables")
        return data


# ------------------------------------------------------------------------------------------------ JSON


def _blank(match: re.Match[str]) -> str:
    return match[0] if match[0].startswith('"') else re.sub(r"[^\r\n]", " ", match[0])


def _without_comments(text: str) -> str:
    return _COMMENT.sub(_blank, text.replace("\ufeff", " "))


def _plain(text: str) -> str:
    """Strict JSON, each character in its place: comments and commas before a closing bracket become spaces."""
    return _LAST_COMMA.sub(_blank, _without_comments(text))


def _skipped(text: str, at: int) -> int:
    found = _SPACE.match(text, at)
    return found.end() if found else at


def _members(plain: str, at: int) -> dict[str, tuple[int, int, int]]:
    """The members of the object that begins at a place: where the key begins, where the value begins and ends."""
    found = {}
    at = _skipped(plain, at + 1)
    while plain[at] != "}":
        key, end = _read_value(plain, at)
        value = _skipped(plain, _skipped(plain, end) + 1)
        found[key] = (at, value, end := _read_value(plain, value)[1])
        at = _skipped(plain, end)
        at = _skipped(plain, at + 1) if plain[at] == "," else at
    return found


def _with_json(text: str, section: str, name: str, value: Any) -> str:
    """The text with an entry at the beginning of its section; what follows stays unchanged."""
    if not _plain(text).strip():
        text = f"{text.rstrip()}\n{{}}\n".lstrip()
    plain = _plain(text)
    at = _skipped(plain, 0)
    if section in (members := _members(plain, at)):
        at = members[section][1]
        members = _members(plain, at)
    else:
        name, value = section, {name: value}
    line = "\r\n" if "\r\n" in text else "\n"
    unit = found[1] if (found := re.search(r'^([ \t]+)"', text, re.M)) else "  "
    outer = re.match(r"[ \t]*", text[text.rfind("\n", 0, at) + 1 :])[0]  # type: ignore[index]
    body = json.dumps({name: value}, ensure_ascii=False, indent=unit)[1:-2].replace("\n", line + outer)
    return text[: at + 1] + body + ("," if members else line + outer) + text[at + 1 :]


def _without_json(text: str, section: str, name: str) -> str:
    """The text without an entry. Its section stays, even if empty: some programs require it."""
    bare, plain = _without_comments(text), _plain(text)
    begin = _members(plain, _skipped(plain, 0))[section][1]
    start, _, end = _members(plain, begin)[name]
    after, before = _skipped(bare, end), bare.rfind(",", begin, start)
    if bare[after] == ",":
        return text[:start].rstrip() + text[after + 1 :]
    if before < 0:  # it is the only one
        return text[:start].rstrip() + text[end:]
    return text[:before] + text[before + 1 : start].rstrip() + text[end:]


# ------------------------------------------------------------------------------------------------ TOML


def _with_toml(text: str, section: str, name: str, value: Mapping[str, Any]) -> str:
    """The text with a table at its end."""
    line = "\r\n" if "\r\n" in text else "\n"
    gap = ("" if text.endswith("\n") else line) + line if text.strip() else ""
    return text + gap + line.join([f"[{section}.{name}]", *(f"{key} = {_toml(one)}" for key, one in value.items()), ""])


def _toml(value: Any) -> str:
    if not isinstance(value, dict):
        return json.dumps(value)
    return f"{{ {', '.join(f'{json.dumps(key)} = {_toml(one)}' for key, one in value.items())} }}"


def _without_toml(text: str, section: str, name: str) -> str:
    """The text without a table and those below it; comments before the next table stay."""
    head = rf"[ \t]*\[[ \t]*{section}[ \t]*\.[ \t]*(?:{name}|\"{name}\")[ \t]*(?:\.[^\n]*)?\][^\n]*"
    own = r"(?:\n(?:[ \t]*(?:#[^\n]*)?\n)*(?![ \t]*[\[#\r\n])[^\n]+)*"  # up to the last line that is no comment
    return re.sub(rf"(?:^[ \t]*\r?\n)?^{head}{own}\n?", "", text, flags=re.M)


NAME = "hermes"  # of the entry
_LINUX = "" if sys.platform == "darwin" else "XDG_CONFIG_HOME"
_STDIO = {"type": "stdio"}


@dataclass(frozen=True, slots=True)
class Program:
    """A program that can use MCP servers."""

    key: str
    title: str
    path: Callable[[], Path]
    section: str = "mcpServers"
    more: dict[str, Any] = field(default_factory=dict)  # what an entry has besides its command

    def file(self) -> SettingsFile:
        """Its settings file."""
        return SettingsFile(self.path(), self.section, NAME)

    def entry(self, there: Mapping[str, Any]) -> dict[str, Any]:
        """The entry that starts `hermes mcp` with this home. Options and settings of the entry `there` are kept."""
        from hermes.chat.resume import command_words

        # Programs started from the desktop do not have the shell's PATH.
        own = _words(there)
        words = [*command_words(os.defpath), "mcp", *(own[own.index("mcp") + 1 :] if own else [])]
        in_one, variables = (True, "environment") if self.key == "opencode" else (False, "env")
        made = {**self.more, **there, **({"command": words} if in_one else {"command": words[0], "args": words[1:]})}
        env = {name: value for name, value in (there.get(variables) or {}).items() if name != "HERMES_HOME"}
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


_TABLE = (
    Program("claude-code", "Claude Code", _under("CLAUDE_CONFIG_DIR", "~", ".claude.json"), more=_STDIO),
    Program("claude-desktop", "Claude Desktop", _application("Claude", "claude_desktop_config.json")),
    Program("codex", "Codex", _under("CODEX_HOME", "~/.codex", "config.toml"), "mcp_servers"),
    Program("copilot", "Copilot CLI", _under("COPILOT_HOME", "~/.copilot", "mcp-config.json"),
            more={"type": "local", "tools": ["*"]}),
    Program("cursor", "Cursor", _under("", "~", ".cursor", "mcp.json")),
    Program("gemini", "Gemini CLI", _under("GEMINI_CLI_HOME", "~", ".gemini", "settings.json")),
    Program("opencode", "OpenCode", _opencode, "mcp", {"type": "local", "enabled": True}),
    Program("qwen", "Qwen Code", _under("QWEN_HOME", "~/.qwen", "settings.json")),
    Program("vscode", "VS Code", _application("Code", "User", "mcp.json"), "servers", _STDIO),
    Program("windsurf", "Windsurf", _under("", "~", ".codeium", "windsurf", "mcp_config.json")),
    Program("zed", "Zed", _under(_LINUX, "~/.config", "zed", "settings.json"), "context_servers"),
)  # fmt: skip
PROGRAMS = {one.key: one for one in _TABLE}


def _words(entry: Any) -> list[str]:
    """The command of an entry; [] for one without."""
    command, more = (entry.get("command"), entry.get("args")) if isinstance(entry, dict) else (None, None)
    return [str(one) for part in (command, more) for one in (part if isinstance(part, list) else [part]) if one]


def _is_ours(entry: Any) -> bool:
    """Whether an entry starts `hermes mcp`, with any options and variables."""
    words = _words(entry)
    is_hermes = "mcp" in words and (Path(words[0]).name in ("hermes", "hermes-sessions") or "hermes.cli.main" in words)
    return is_hermes and all(isinstance(entry.get(one) or {}, dict) for one in ("env", "environment"))


@click.command()
@click.argument("program", nargs=-1, required=True, type=click.Choice(list(PROGRAMS)))
@flag("--remove", "Take the entry out.")
def install(program: tuple[str, ...], remove: bool) -> int:
    """Connect other programs to the record: put `hermes mcp` into their settings."""
    status = 0
    for name in program:
        try:
            click.echo(_change(PROGRAMS[name], remove))
        except HermesError as error:
            note(str(error))
            status = 1
    return status


def _change(program: Program, remove: bool) -> str:
    """Add, update or remove the entry; returns the message for the user."""
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
    file.write(file.text_with(wanted))
    does = "removed from" if wanted is None else "added to" if there is None else "brought up to date in"
    return f"{program.title}: {does} {file.path}. This counts from the program's next start."
