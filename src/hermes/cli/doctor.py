"""`hermes doctor`: what is configured, reachable, wrong, and how to fix it, one line each.

`checks_for` is the table: a name, a function that yields findings, and the hint for the errors it raises. A check changes
nothing, and waits a few seconds at most for another program or server. Wrong (✗) keeps something from working; a remark (!)
is a warning. The checks of this machine are here, those of what can be reached in `checks_online`.
"""

from __future__ import annotations

import os
import platform
import shlex
import shutil
import sys
import warnings
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from itertools import chain
from typing import TYPE_CHECKING, NamedTuple

import click

from hermes.cli.options import json_option
from hermes.cli.output import colourful, message_lines, print_json, screen_width, size_of
from hermes.config import Config, config_path, load_config
from hermes.config.loading import read_text
from hermes.errors import HermesError, MissingExtra, StoreLocked, install_line
from hermes.home import default_database, get_hermes_home
from hermes.texts import counted, one_line

if TYPE_CHECKING:
    from hermes.store.api.session_db import SessionDB
    from hermes.store.upkeep.check import Health

LITTLE_SPACE, NO_SPACE = 1 << 30, 50 << 20  # bytes
LONG_TAIL = 5000  # messages
EDIT = "`hermes config edit` opens and checks it"


class DoctorFinding(NamedTuple):
    """One line of the report; without a name, that of the check."""

    state: str  # "well", "remark" or "wrong"
    text: str
    hint: str = ""
    name: str = ""


Found = Iterator[DoctorFinding]


well = partial(DoctorFinding, "well")  # everything is in order
remark = partial(DoctorFinding, "remark")  # a warning: it works, but should be looked at
wrong = partial(DoctorFinding, "wrong")  # an error: it keeps something from working


class Check(NamedTuple):
    """A part of the report."""

    name: str
    run: Callable[[Config], Found]
    hint: str = EDIT  # where it raises an error


def checks_for(config: Config) -> list[Check]:
    """Every check of this home, in the order of the report."""
    from hermes.cli import checks_online as online
    from hermes.gateway.settings import setup_command

    side = {task: getattr(config.auxiliary, task) for task in ("title", "summary", "compression")}
    tasks = [task for task, own in side.items() if own is not None and (own.model or own.base_url)]
    mend = "check store.url (hermes config show) and the server" if config.store.url else "hermes sessions repair"
    servers = [name for name in config.mcp_servers if not config.unset_in(f"mcp_servers.{name}")]
    return [
        Check("program", program),
        Check("home", home, "set HERMES_HOME to a folder of your own"),
        Check("config", configuration, "`hermes config path` prints its path"),
        Check("store", store, mend),
        Check("model", partial(online.model, task=None), "hermes model"),
        *(Check(f"auxiliary {task}", partial(online.model, task=task), "hermes model") for task in tasks),
        *(Check(f"MCP {name}", partial(online.mcp_server, name=name)) for name in servers),
        Check("gateway", online.gateway),
        *(Check(name, partial(online.platform, name=name), setup_command(name)) for name in config.enabled_platforms),
        Check("webhooks", online.servers),
    ]


_INDENT = 19  # cells before the text of a check: a mark, and names up to "auxiliary summary"
_MARKS = {"well": ("✓", "green"), "remark": ("!", "yellow"), "wrong": ("✗", "red")}


@click.command()
@json_option()
def command(as_json: bool) -> int:
    """Run checks: what is configured, what can be reached, what is wrong and how to fix it. Changes nothing."""
    findings: list[DoctorFinding] = []
    for finding in _examine():
        findings.append(finding)
        if not as_json:
            _print(finding)
    bad, remarks = (sum(finding.state == state for finding in findings) for state in ("wrong", "remark"))
    if as_json:
        print_json({"ok": not bad, "checks": [one._asdict() for one in findings]})
    else:
        counts = [f"{counted(bad, 'problem')} (✗)"] * bool(bad) + [f"{counted(remarks, 'warning')} (!)"] * bool(remarks)
        click.echo(f"\n{', '.join(counts) or 'No problems found'}.")
    return 1 if bad else 0


def _examine() -> Iterator[DoctorFinding]:
    """Every finding about this home, in order, as soon as it is known; one cause gives one line."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # an unknown key has a line of its own
        try:
            config = load_config()
        except HermesError:
            config = Config()  # the check of config.yaml reports what is wrong with it
    checks = checks_for(config)
    reported: set[str] = set()
    with ThreadPoolExecutor(max_workers=len(checks)) as pool:
        for one in chain.from_iterable(pool.map(lambda check: _findings(check, config), checks)):
            if one.state != "wrong" or one.text not in reported:
                yield one
            reported.add(one.text)


def _findings(check: Check, config: Config) -> list[DoctorFinding]:
    """The findings of a check; its error is one more finding, so that it does not hide the others."""
    from hermes.store.redact import redact

    found: list[DoctorFinding] = []
    try:
        found.extend(check.run(config))
    except MissingExtra as error:
        found.append(wrong("its library is not installed", error.install))
    except HermesError as error:
        found.append(wrong(one_line(redact(str(error)))[:300], check.hint))
    except OSError as error:
        found.append(wrong(f"{error.filename or check.name} can't be reached ({error.strerror})", check.hint))
    except Exception as error:
        found.append(wrong(f"this check failed ({type(error).__name__}: {error})", "please report it"))
    return [one._replace(name=one.name or check.name) for one in found]


def _print(finding: DoctorFinding) -> None:
    mark, colour = _MARKS[finding.state]
    if colourful():
        mark = click.style(mark, fg=colour, bold=True)
    text = finding.text + (f" → {finding.hint}" if finding.hint else "")
    text = text.replace(f"{os.path.expanduser('~')}/", "~/")
    lines = message_lines(text, screen_width() - _INDENT) if sys.stdout.isatty() else [text]
    click.echo(f"{mark} {finding.name:<{_INDENT - 3}} " + f"\n{' ' * _INDENT}".join(lines))


# ------------------------------------------------------------------------------------------------ this machine


def program(_: Config) -> Found:
    """Report the versions of the program and of Python."""
    from hermes import __version__

    yield well(f"hermes {__version__} on Python {platform.python_version()}")


def home(_: Config) -> Found:
    """Check the home folder, whose mode protects every file in it."""
    folder = get_hermes_home()
    if not folder.exists():
        yield well(f"{folder} does not exist yet; the first conversation creates it")
    elif not folder.is_dir():
        yield wrong(f"{folder} is a file, not a folder", "move it away, or set HERMES_HOME to another place")
    elif not os.access(folder, os.R_OK | os.W_OK | os.X_OK):
        yield wrong(f"{folder} can't be written", f"chmod u+rwx {folder}, or set HERMES_HOME to another place")
    else:
        mode, free = folder.stat().st_mode & 0o777, shutil.disk_usage(folder).free
        if is_open := bool(mode & 0o077):
            yield remark(f"{folder} is open to other users (mode {mode:04o})", f"chmod 700 {folder}")
        if free < LITTLE_SPACE:
            say = wrong if free < NO_SPACE else remark
            yield say(f"{folder}: only {size_of(free)} are free on that disk", "free some space")
        elif not is_open:
            yield well(f"{folder}, {size_of(free)} free")


def configuration(_: Config) -> Found:
    """Check config.yaml: report every mistake, and every variable without a value."""
    from hermes.config.reading import check_text
    from hermes.store.upkeep.check import agent_store

    path = config_path()
    text = read_text(path)
    if text is None:
        yield well(f"{path} does not exist: every key has its default")
        return
    read, problems = check_text(text, path)
    unknown = [one for one in problems if one.unknown]
    mistakes = [one for one in problems if not one.unknown]
    if unknown and agent_store(default_database()):
        yield well(f"{path}: {counted(len(unknown), 'setting')} of Hermes Agent, ignored here")
        unknown = []
    for one in unknown:
        yield remark(f"{path} {one} (ignored)", f"hermes config unset {one.unknown}")
    for one in mistakes:
        yield wrong(f"{path} {one}", EDIT)
    for missing in read.unset if not mistakes else ():
        needs = f"{missing.key} needs ${{{missing.variable}}}, which is not set"
        yield wrong(f"{needs}: the parts that use it do not start", f"put it into {path.parent / '.env'}")
    if not (unknown or mistakes or read.unset):
        yield well(f"{path} is fine")


# ------------------------------------------------------------------------------------------------ the record


def store(config: Config) -> Found:
    """Check that the record opens, is sound and has a complete index; report which processes have it open."""
    from hermes.store.api.configured import store_file
    from hermes.store.upkeep.check import agent_store, look

    path = store_file(config)
    if path is None:
        yield from _on_a_server(config)
        return
    if theirs := agent_store(default_database()):
        bring = f"hermes sessions import {shlex.quote(str(theirs.path))}"
        if path == theirs.path:
            text = f"{path} belongs to {theirs}; it is only read here"
            yield remark(text, f"`{bring}` brings its sessions into a record of your own beside it")
            return
        yield well(f"{theirs.path} belongs to {theirs}; `{bring}` brings in what is new there", name="other store")
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
        yield wrong(f"{path} is damaged: {one_line(damage)}", "hermes sessions repair")
    if not os.access(path, os.W_OK):
        yield wrong(f"{path} can't be written", f"chmod u+rw {path}")
    if health.kind == "newer":
        text = f"{path} was written by a newer Hermes Sessions: it is read-only"
        yield remark(text, install_line(options="--upgrade"))
    elif health.kind != "current":
        old = "is of an earlier version; the next conversation upgrades it"
        yield well(f"{path} {old if health.kind == 'old' else 'is empty'}")
    elif not health.damage:
        yield from _contents(str(path), health)
    if health.used_by:
        yield well(f"also open in {health.used_by}", name="in use")


def _on_a_server(config: Config) -> Found:
    from hermes.store.api.configured import open_existing, store_url
    from hermes.store.engines.postgres.migrate import rehearse
    from hermes.store.upkeep.check import Health

    db = open_existing(config)
    if db is None:
        rehearse(str(store_url(config)))
        yield well("the database that store.url names is empty: no conversation so far")
        return
    with db:
        total, vectors = rows_with_vectors(db)
        pending = db.index_status()["pending"]
        health = Health("current", db.size(), db.session_count(), total, pending, vectors, total)
    yield from _contents(db.where, health)


def _contents(where: str, health: Health) -> Found:
    counts = f"{counted(health.sessions, 'session')}, {counted(health.messages, 'message')}"
    yield well(f"{where}: {counts}, {size_of(health.bytes)}")
    if health.pending > LONG_TAIL:
        text = f"{health.pending} messages are not indexed yet: search is slower"
        yield remark(text, "hermes sessions optimize", "index")
    else:
        left = f"{counted(health.pending, 'message')} to index; search finds them all the same"
        yield well(left if health.pending else "complete", name="index")
    yield from meaning(health.all_rows, health.vectors)


def rows_with_vectors(db: SessionDB) -> tuple[int, dict[str, tuple[int, int]] | None]:
    """The number of messages; by model, how many it has read and how many vectors it made. None: switched off."""
    total = db.message_count()
    found = {one["model"]: (total - one["pending"], one["vectors"]) for one in db.meaning_status() if one["on"]}
    return total, found or None


def meaning(total: int, vectors: dict[str, tuple[int, int]] | None) -> Found:
    """Report the state of search by meaning: not set up, or how many messages each model has read."""
    from hermes.store.search.encoders import installed

    here = [encoder.name for encoder in installed()]
    if vectors is None:
        what = f"{', '.join(here)} installed, not switched on" if here else "not installed"
        yield well(f"{what}: questions are answered by words; `hermes search setup` sets it up", name="meaning")
        return
    for model in dict.fromkeys([*here, *vectors]):
        rows, count = vectors.get(model, (0, 0))
        left, made = total - rows, f"{counted(count, 'vector')} of {model}"
        progress = f"indexing: {rows} of {counted(total, 'message')}, {made}"
        if model not in here:
            option = "" if model.startswith("arctic") else " --multilingual"
            text = f"{made}, which is not installed here: questions are answered by words"
            yield remark(text, f"hermes search setup{option}", "meaning")
        elif left > LONG_TAIL or (left > 0 and not count):
            yield remark(progress, "hermes search setup", "meaning")
        else:
            yield well(progress if left > 0 else f"ready: {made}", name="meaning")
