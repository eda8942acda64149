"""Shared by the commands: the store, the clock, colour, JSON and progress."""

from __future__ import annotations

import json
import os
import socket
import sys
import time
import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any, TextIO

import click
import msgspec

from hermes.config import Config, load_config
from hermes.config.loading import RECORD
from hermes.errors import HermesError
from hermes.home import has_key_file
from hermes.texts import counted

if TYPE_CHECKING:
    from datetime import tzinfo
    from pathlib import Path

    from hermes.cli.table import Column
    from hermes.store.api.session_db import SessionDB

_CONFIG = "hermes.config"
EVERY = 1 << 40  # a limit beyond any number of rows

BOLD, DIM, GOLD, GREEN, CYAN = "1", "2", "33", "32", "36"


def configuration() -> Config:
    """config.yaml, read once a command. What is wrong in parts that the record does not need is a warning."""
    context = click.get_current_context(silent=True)
    if context is None:
        return load_config(needs=RECORD)
    if _CONFIG not in context.meta:
        context.meta[_CONFIG] = load_config(needs=RECORD)
    config: Config = context.meta[_CONFIG]
    return config


@contextmanager
def opened(*, writing: bool = False, in_bulk: bool = False, path: Path | None = None) -> Iterator[SessionDB]:
    """The user's store, or the one in the file `path`, closed afterwards. Warnings about its file go to stderr, one line.

    `in_bulk` is for work that can simply be repeated: it is synced to the disk at the end, not step by step.
    """
    from hermes.store.api.configured import open_configured

    config = configuration()
    if in_bulk:
        config = config.changed(store=msgspec.structs.replace(config.store, durability="normal"))
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        db = open_configured(config, read_only=not writing, path=path)
    for one in caught:
        note(str(one.message))
    with db:
        yield db
    if in_bulk and not db.is_shared:
        # Only now that it is closed: closing a file releases every lock this process has on it.
        for end in ("", "-wal"):
            with suppress(FileNotFoundError), open(f"{db.path}{end}", "rb") as stream:
                os.fsync(stream.fileno())


def is_encrypted() -> bool:
    """Whether the user's store is encrypted, or is being encrypted or decrypted."""
    from hermes.store.api.configured import store_file

    file = store_file(configuration())
    return file is not None and has_key_file(file)


def typed(text: str) -> str:
    """An argument that is text, not a path: UTF-8 is read as such also where the locale (LC_ALL=C) does not say so."""
    try:
        escaped = any("\udc80" <= sign <= "\udcff" for sign in text)  # bytes that the locale's encoding could not read
        return os.fsencode(text).decode("utf-8") if escaped else text
    except UnicodeError:
        return text


def zone() -> tzinfo | None:
    """The time zone times are shown in."""
    from hermes.times import zone_of

    return zone_of(configuration().timezone)


# ------------------------------------------------------------------------------------------------ printing


def note(text: str) -> None:
    """A line beside the result."""
    from hermes.cli import streams

    streams.complain(text)


def colourful(stream: TextIO | None = None) -> bool:
    """Whether colour is wanted there: a terminal, and no NO_COLOR."""
    stream = stream or sys.stdout
    return stream.isatty() and not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"


def styled(text: str, *codes: str, on: bool) -> str:
    """The text in a style, if styles are on."""
    return f"\x1b[{';'.join(codes)}m{text}\x1b[0m" if on and text else text


def print_json(value: Any) -> None:
    """One JSON value on standard output, indented."""
    from hermes.interop.jsonl import encoded

    try:
        text = msgspec.json.format(encoded(value), indent=2)
    except ValueError:  # msgspec reads no escaped half of a surrogate pair
        text = json.dumps(value, indent=2).encode()
    put(text + b"\n")


def print_rows(
    values: Sequence[Any], columns: Sequence[Column], rows: Iterable[Sequence[str]], *, none: str, as_json: bool
) -> int:
    """The rows of a list as a table, or its values as JSON; `none` is said where there are none. Exit status 0."""
    from hermes.cli.table import message, printed

    if as_json:
        print_json(msgspec.to_builtins(values))
    else:
        print(printed(columns, rows) if values else message(none, sys.stdout))
    return 0


def put(data: bytes) -> None:
    """Bytes to standard output."""
    sys.stdout.flush()
    view = memoryview(data)
    while view:  # an unbuffered stream takes a part of it
        view = view[sys.stdout.buffer.write(view) :]
    sys.stdout.buffer.flush()


def size_of(count: int) -> str:
    """A number of bytes, in MB."""
    return f"{count / 1_048_576:.1f} MB"


@contextmanager
def status_line(wait: float = 0.3) -> Iterator[Callable[[Callable[[], str]], None]]:
    """A line on a terminal's stderr that is drawn again and again while something long runs; nothing in a pipe.

    Call it with a function that makes the text; it is called at most ten times a second, and not in the first `wait` seconds.
    """
    shown = sys.stderr.isatty() and os.environ.get("TERM") != "dumb"
    last, drawn = time.monotonic() + wait - 0.1, False

    def show(text: Callable[[], str]) -> None:
        nonlocal last, drawn
        if shown and time.monotonic() - last >= 0.1:
            sys.stderr.write(f"\r\x1b[K{text()}")
            sys.stderr.flush()
            last, drawn = time.monotonic(), True

    try:
        yield show
    finally:
        if drawn:
            sys.stderr.write("\r\x1b[K")
            sys.stderr.flush()


def bar(done: int, total: int) -> str:
    """A bar of twenty cells."""
    filled = min(20, done * 20 // max(1, total))
    return f"{'█' * filled}{'░' * (20 - filled)}"


def amount(label: str, done: int, total: int | None) -> str:
    """How much of something is done: a bar and a percentage where the total is known."""
    return f"{label} {bar(done, total)} {min(100, done * 100 // total)}%" if total else f"{label} {done}"


@contextmanager
def progress(label: str, total: int | None) -> Iterator[Callable[[int], None]]:
    """A progress bar; call it with the amount done so far."""
    with status_line() as show:
        yield lambda done: show(lambda: amount(label, done, total))


def index(db: SessionDB) -> int:
    """Finish the full-text index, so that the next search is fast; returns how many messages were indexed."""
    with progress("indexing", db.index_status()["pending"]) as step:
        return db.catch_up(progress=lambda done, total: step(done))


def age(of: float) -> str:
    """An age in days in its natural unit: 90 days, 12 hours."""
    if 0 < of < 1:
        return counted(round(of * 24), "hour")
    return f"{of:g} day" if of == 1 else f"{of:g} days"


def note_the_terminal(command: str, clients: str) -> None:
    """Say on a terminal that this command waits for a program there, not for a person."""
    if not sys.stdin.isatty():
        return
    from hermes.cli.table import message

    note = (
        f"`{command}` is started by {clients} and waits for messages on standard input; `hermes doctor` shows how to set"
        " that up. Ctrl-C stops it."
    )
    print(message(note, sys.stderr), file=sys.stderr)


def listening_socket(host: str, port: int, *, change: str) -> socket.socket:
    """A socket that listens, so that a client that is quicker than the server waits. `change`: the options to try others."""
    try:
        family, kind, number, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
    except (OSError, UnicodeError) as error:
        raise click.ClickException(
            f"{host!r} is not an address of this machine ({error}); name another with --host"
        ) from None
    made = socket.socket(family, kind, number)
    made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        made.bind(address)
        made.listen(512)
    except OSError as error:
        made.close()
        raise click.ClickException(f"can't listen on {host}:{port} ({error.strerror}); name another {change}") from None
    return made


def serve_http(app: Any, listening: socket.socket, connections: int = 256) -> None:
    """Serve an application on a socket until Ctrl-C, with at most so many connections at once."""
    import uvicorn

    from hermes.serve.http import Door, Limits, protocol_behind

    door = Door(Limits(connections, connections // 2), "{}:{}".format(*listening.getsockname()[:2]))
    settings = uvicorn.Config(
        app, http=protocol_behind(door), log_level="warning", access_log=False, proxy_headers=False, server_header=False,
        timeout_graceful_shutdown=2,
    )  # fmt: skip
    uvicorn.Server(settings).run(sockets=[listening])


def recover_drafts(db: SessionDB, session_id: str | None = None) -> None:
    """Store what crashed processes left of replies in a session (None: in every one), so that reading it shows every word.

    The next question there would store them, too. Where that fails, the drafts stay.
    """
    wanted = [one for one in db.drafts.sessions() if session_id in (None, one)]
    if not wanted:
        return
    from hermes.agent.turn_session import recover_abandoned

    try:
        with opened(writing=True) as writer:
            for one in wanted:
                recover_abandoned(writer, one)
    except (HermesError, OSError):
        return  # e.g. a file that can only be read: what is stored can be shown all the same
