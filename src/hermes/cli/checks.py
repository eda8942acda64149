"""The doctor's checks of this machine: the program, files, the record, model files, other programs, the terminal."""

from __future__ import annotations

import hashlib
import os
import platform
import re
import shlex
import shutil
import sys
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING

from hermes.cli.doctor import Found, remark, well, wrong
from hermes.config import Config, config_path
from hermes.config.loading import read_env, read_text
from hermes.errors import StoreLocked
from hermes.home import default_database, get_hermes_home
from hermes.install_line import install_line, pip_line
from hermes.store.engines.sqlite.connection import has_guard_locks
from hermes.store.search.meaning.encoders import installed
from hermes.store.upkeep.check import Health, agent_store, look
from hermes.texts import counted

if TYPE_CHECKING:
    from hermes.store.api.session_db import SessionDB

_EXTRAS = ("chat", "embedded", "encryption")  # those of the platforms are checked with them
_REQUIREMENT = re.compile(r"([\w.-]+)(?:>=([\d.]+))?(?:.*extra == ['\"](\w+)['\"])?")
_MEGABYTE = 1 << 20
LITTLE_SPACE, NO_SPACE = 1 << 30, 50 * _MEGABYTE
LONG_WAL = 200 * _MEGABYTE
LONG_TAIL = 5000  # messages


# ------------------------------------------------------------------------------------------------ the program


def program(config: Config) -> Found:
    """The versions of the program and of Python."""
    from hermes import __version__

    yield well(f"hermes {__version__} on Python {platform.python_version()}")


def libraries(config: Config) -> Found:
    """The libraries that the package asks for, and those of optional features."""
    wanted: dict[str, list[str]] = {}
    for line in metadata.requires("hermes-sessions") or ():
        found = _REQUIREMENT.match(line)
        if found is None or found[3] not in (None, *_EXTRAS):
            continue
        name, least, extra = found[1], found[2] or "0", found[3] or ""
        try:
            version = metadata.version(name)
        except metadata.PackageNotFoundError:
            version = ""
        if not version and not extra:
            yield wrong(f"{name} is not installed", install_line(options="--force-reinstall"))
        elif version and _number(version) < _number(least):
            yield wrong(f"{name} {version} is too old, {least} is needed", pip_line(f'"{name}>={least}"', "--upgrade"))
        wanted.setdefault(extra, []).append(f"{name} {version}".strip() if version else f"!{name}")
    for extra, names in wanted.items():
        missing = [name[1:] for name in names if name.startswith("!")]
        if not extra:
            yield well(f"{', '.join(names[:3])} and {len(names) - 3} more")
        elif missing:
            yield well(f"not installed, optional ({', '.join(missing)}): {install_line(extra)}", f"extra {extra}")
        else:
            yield well(", ".join(names), f"extra {extra}")


def _number(version: str) -> list[int]:
    return [int(part) for part in re.findall(r"\d+", version)[:3]]


# ------------------------------------------------------------------------------------------------ files


def home(config: Config) -> Found:
    """The folder with all files. Its mode protects every file in it."""
    folder = get_hermes_home()
    if not folder.exists():
        yield well(f"{folder} does not exist yet; the first conversation creates it")
        return
    if not folder.is_dir():
        yield wrong(f"{folder} is a file, not a folder", "move it away, or set HERMES_HOME to another place")
        return
    if not os.access(folder, os.R_OK | os.W_OK | os.X_OK):
        yield wrong(f"{folder} can't be written", f"chmod u+rwx {folder}, or set HERMES_HOME to another place")
        return
    mode, free = folder.stat().st_mode & 0o777, shutil.disk_usage(folder).free
    if mode & 0o077:
        yield remark(f"{folder} is open to other users (mode {mode:04o})", f"chmod 700 {folder}")
    if free < LITTLE_SPACE:
        say = wrong if free < NO_SPACE else remark
        yield say(f"{folder}: only {_size(free)} are free on that disk", "free some space")
    elif not mode & 0o077:
        yield well(f"{folder}, {_size(free)} free")


def configuration(config: Config) -> Found:
    """config.yaml: every mistake in it, and every variable that has no value."""
    from hermes.config.reading import check_text

    path, edit = config_path(), "`hermes config edit` opens and checks it"
    text = read_text(path)
    if text is None:
        yield well(f"{path} does not exist: every key has its default")
        return
    read, problems = check_text(text, path)
    if agent_store(default_database()) and (theirs := [one for one in problems if one.unknown]):
        problems = [one for one in problems if not one.unknown]
        yield well(f"{path}: {counted(len(theirs), 'setting')} of Hermes Agent, ignored here")
    for problem in problems[:10]:
        if problem.unknown:
            yield remark(f"{path} {problem} (ignored)", f"hermes config unset {problem.unknown}")
        else:
            yield wrong(f"{path} {problem}", edit)
    if len(problems) > 10:
        yield wrong(f"{path}: {len(problems) - 10} more problems", edit)
    if any(not one.unknown for one in problems):
        return
    for one in read.unset:
        said = f"{one.key} needs ${{{one.variable}}}, which is not set: the parts that use it do not start"
        yield wrong(said, f"put it into {path.parent / '.env'}")
    if not read.unset and not problems:
        yield well(f"{path} is fine")


def env_file(config: Config) -> Found:
    """The file for secrets."""
    path = get_hermes_home() / ".env"
    if path.exists():
        yield well(f"{path}, {counted(len(read_env(path)), 'variable')}")


# ------------------------------------------------------------------------------------------------ the record


def store(config: Config) -> Found:
    """The record: whether it opens, is sound, has a complete index, and which processes have it open."""
    from hermes.store.api.configured import store_file

    path = store_file(config)
    if path is None:
        yield from _on_a_server(config)
        return
    if theirs := agent_store(default_database()):
        bring = f"hermes sessions import {shlex.quote(str(theirs.path))}"
        if path == theirs.path:
            said = f"{path} belongs to {theirs}; it is only read here"
            yield remark(said, f"`{bring}` brings its sessions into a record of your own beside it")
            return
        yield well(f"{theirs.path} belongs to {theirs}; `{bring}` brings in what is new there", "other store")
    if not path.exists():
        yield well(f"{path} does not exist yet: no conversation so far")
        return
    if path.is_dir():
        yield wrong(f"{path} is a folder, not a database", "move it away")
        return
    try:
        health = look(path)
    except StoreLocked as error:
        yield wrong(str(error), "hermes sessions encrypt --help")
        return
    if health.kind == "foreign-application":
        yield wrong(f"{path} is a database of another program", "move it away")
        return
    for damage in health.damage:
        yield wrong(f"{path} is damaged: {' '.join(damage.split())}", "hermes sessions repair")
    if not os.access(path, os.W_OK):
        yield wrong(f"{path} can't be written", f"chmod u+rw {path}")
    if not health.damage:
        yield from _contents(str(path), health)


def _on_a_server(config: Config) -> Found:
    from hermes.store.api.configured import open_existing, store_url
    from hermes.store.engines.postgres.migrate import rehearse

    db = open_existing(config)
    if db is None:
        rehearse(str(store_url(config)))
        yield well("the database that store.url names is empty: no conversation so far")
        return
    with db:
        total, vectors = rows_with_vectors(db)
        health = Health(
            "current", db.size(), 0, db.session_count(), total, db.index_status()["pending"], vectors, total
        )
    yield from _contents(db.where, health)


def _contents(where: str, health: Health) -> Found:
    if health.kind == "newer":
        said = f"{where} was written by a newer Hermes Sessions: it is read-only"
        yield remark(said, install_line(options="--upgrade"))
    elif health.kind != "current":
        old = health.kind == "old"
        yield well(f"{where} " + ("is of an earlier version; the next conversation upgrades it" if old else "is empty"))
    else:
        counts = f"{counted(health.sessions, 'session')}, {counted(health.messages, 'message')}"
        quick = "" if health.finished else " (too large for a full check: `hermes sessions check` is thorough)"
        yield well(f"{where}: {counts}, {_size(health.bytes)}{quick}")
        if health.pending > LONG_TAIL:
            said = f"{health.pending} messages are not indexed yet: search is slower"
            yield remark(said, "hermes sessions optimize", "index")
        else:
            left = f"{counted(health.pending, 'message')} to index; search finds them all the same"
            yield well(left if health.pending else "complete", "index")
        yield from meaning(health.all_rows, health.vectors)
    if health.wal_bytes > LONG_WAL:
        yield remark(f"{where}-wal has grown to {_size(health.wal_bytes)}", "hermes sessions optimize", "log")
    if health.used_by:
        yield well(f"also open in {health.used_by}", "in use")
    if not has_guard_locks():
        said = "this system lacks the locks that keep the WAL safe from other code in a process that has the store open"
        yield remark(said, "use SessionDB.sql() there, not another library (docs/format.md)", "locks")


def rows_with_vectors(db: SessionDB) -> tuple[int, dict[str, tuple[int, int]] | None]:
    """How many messages there are; by model, how many of them it has read and how many vectors it made. None: switched off."""
    total = db.message_count()
    found = {one["model"]: (total - one["pending"], one["vectors"]) for one in db.meaning_status() if one["on"]}
    return total, found or None


def meaning(total: int, vectors: dict[str, tuple[int, int]] | None) -> Found:
    """How far search by meaning is: not set up, or of each model how many messages it has read."""
    here = [encoder.name for encoder in installed()]
    if vectors is None:
        what = f"{', '.join(here)} installed, not switched on" if here else "not installed"
        yield well(f"{what}: questions are answered by words; `hermes search setup` sets it up", "meaning")
        return
    for model in dict.fromkeys([*here, *vectors]):
        rows, count = vectors.get(model, (0, 0))
        left, made = total - rows, f"{counted(count, 'vector')} of {model}"
        if model not in here:
            option = "" if model.startswith("arctic") else " --multilingual"
            said = f"{made}, which is not installed here: questions are answered by words"
            yield remark(said, f"hermes search setup{option}", "meaning")
        elif left <= 0:
            yield well(f"ready: {made}", "meaning")
        elif left > LONG_TAIL or not count:
            yield remark(f"indexing: {rows} of {counted(total, 'message')}, {made}", "hermes search setup", "meaning")
        else:
            yield well(f"indexing: {rows} of {counted(total, 'message')}, {made}", "meaning")


def model_files(config: Config) -> Found:
    """The models that need no network: whether their files are intact."""
    from hermes.agent.models.files import MODELS, models_folder

    for known in MODELS.values():
        label = "embedded model" if known.purpose == "chat" else "meaning"
        for one in known.files:
            path = models_folder() / one.name
            if not path.exists():
                continue
            with path.open("rb") as file:
                intact = hashlib.file_digest(file, "sha256").hexdigest() == one.sha256
            if not intact:
                yield wrong(f"{path} is damaged (its hash is wrong)", f"hermes model install {known.name}", label)
            elif one.name == known.file:
                yield well(f"{known.name} in {path}", label)


# ------------------------------------------------------------------------------------------------ around it

# Programs that can use the agent (`hermes acp`): name, what shows that one is installed (programs, or a folder in the user's
# home), and the line that connects it. The guide (acp.md) has the same lines.
_ZED = ("zed", "zeditor", "~/.config/zed")
_JETBRAINS = tuple("idea pycharm webstorm goland clion rider phpstorm rubymine datagrip ~/.jetbrains".split())
CLIENTS = (
    ("Zed", _ZED, 'in ~/.config/zed/settings.json: "agent_servers": {"Hermes": {"type": "custom",'
     ' "command": "hermes", "args": ["acp"]}}'),
    ("JetBrains", _JETBRAINS,
     'in ~/.jetbrains/acp.json: "agent_servers": {"Hermes": {"command": "hermes", "args": ["acp"]}}'),
    ("Neovim (avante)", ("nvim",), "in avante's setup{…}: "
     'provider = "hermes", acp_providers = { hermes = { command = "hermes", args = { "acp" } } }'),
)  # fmt: skip


def watch(_: Config) -> Found:
    """The service that follows other programs' histories, where it is installed."""
    from hermes.cli.services import WATCH, status

    state = status(get_hermes_home(), WATCH)
    if state == "installed, not running":
        yield remark(state, "hermes sessions watch --install")
    elif state != "not installed":
        yield well(state)


def clients(config: Config) -> Found:
    """Other agents and editors on this machine: whether they are connected, and how to connect them."""
    from hermes.cli.gateway_setup import guide_page
    from hermes.cli.mcp_install import PROGRAMS, is_there, state

    agents = [one for one in PROGRAMS.values() if is_there(one.signs)]
    for one in agents:
        yield well(f"{one.title}: {state(one).replace('not connected', f'hermes mcp install {one.key}')}", "mcp")
    if not agents:
        names = ", ".join(one.title for one in PROGRAMS.values())
        yield well(f"`hermes mcp` lets other agents search the record: {names}", "mcp")
    editors = [(name, line) for name, signs, line in CLIENTS if is_there(signs)]
    for name, line in editors:
        yield well(f"{name}: {line}", "acp")
    if not editors:
        page = guide_page("acp.md") or Path("docs/guide/acp.md")
        names = ", ".join(name for name, *_ in CLIENTS)
        yield well(f"`hermes acp` is the agent for editors: {names}; {page} has the line for each", "acp")


def terminal(config: Config) -> Found:
    """Whether the terminal can show our output."""
    import locale

    encoding, kind = locale.getpreferredencoding(False), os.environ.get("TERM", "")
    if encoding.lower().replace("-", "") not in ("utf8", "cp65001"):
        yield remark(f"the locale's encoding is {encoding}: some letters can't be shown", "export LANG=C.UTF-8")
    elif not sys.stdout.isatty():
        yield well(f"{encoding}, output goes to a pipe or file")
    elif kind in ("", "dumb"):
        yield remark(f"TERM is {kind or 'not set'}: no colour, no full screen", "export TERM=xterm-256color")
    else:
        yield well(f"{kind}, {shutil.get_terminal_size().columns} columns, {encoding}")


def _size(size: float) -> str:
    for unit in ("bytes", "KB", "MB"):
        if size < 1024:
            return f"{size:.0f} {unit}" if unit == "bytes" else f"{size:.1f} {unit}"
        size /= 1024
    return f"{size:.1f} GB"
