"""What the commands of `hermes sessions` share: the store, the clock, colour, JSON, progress, and choosing sessions."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any, TextIO

import click

from hermes.config import Config, load_config

if TYPE_CHECKING:
    from datetime import tzinfo

    from hermes.store.db import SessionDB

_CONFIG = "hermes.config"
EVERY = 1 << 40  # a limit that is none

BOLD, DIM, GOLD, GREEN, CYAN, RED = "1", "2", "33", "32", "36", "31"


def configuration() -> Config:
    """config.yaml, read once a command."""
    meta = click.get_current_context().meta
    if _CONFIG not in meta:
        meta[_CONFIG] = load_config()
    config: Config = meta[_CONFIG]
    return config


@contextmanager
def opened(*, writing: bool = False, in_bulk: bool = False) -> Iterator[SessionDB]:
    """The user's store, closed afterwards. What there is to say about its file goes to stderr, one line.

    `in_bulk` is for work that can simply be done again: it goes to the disk at the end, not step by step.
    """
    import warnings

    from hermes.store.opening import open_configured

    config = configuration()
    if in_bulk:
        import msgspec

        config = msgspec.structs.replace(config, store=msgspec.structs.replace(config.store, durability="normal"))
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        db = open_configured(config, read_only=not writing)
    for one in said:
        note(str(one.message))
    with db:
        yield db
    if in_bulk:  # only now that it is closed: closing a file lets go of every lock this process has on it
        for end in ("", "-wal"):
            with suppress(FileNotFoundError), open(f"{db.path}{end}", "rb") as stream:
                os.fsync(stream.fileno())


def zone() -> tzinfo | None:
    """The time zone times are shown in."""
    from hermes.times import zone_of

    return zone_of(configuration().timezone)


# ------------------------------------------------------------------------------------------------ printing


def note(text: str) -> None:
    """A line beside the result."""
    print(f"hermes: {text}", file=sys.stderr)


def colourful(stream: TextIO | None = None) -> bool:
    """Whether colour is wanted there: a terminal, and no NO_COLOR."""
    stream = stream or sys.stdout
    return stream.isatty() and not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"


def styled(text: str, *codes: str, on: bool) -> str:
    """The text in a style, if styles are on."""
    return f"\x1b[{';'.join(codes)}m{text}\x1b[0m" if on and text else text


def print_json(value: Any) -> None:
    """One JSON value on standard output, indented."""
    import msgspec

    from hermes.interop.jsonl import encoded

    put(msgspec.json.format(encoded(value), indent=2) + b"\n")


def put(data: bytes) -> None:
    """Bytes to standard output."""
    sys.stdout.flush()
    sys.stdout.buffer.write(data)
    sys.stdout.buffer.flush()


def size_of(count: int) -> str:
    """A number of bytes, in MB."""
    return f"{count / 1_048_576:.1f} MB"


def counted(number: int, what: str) -> str:
    """ "1 session", "2 sessions"."""
    return f"{number} {what}" if number == 1 else f"{number} {what}s"


@contextmanager
def progress(label: str, total: int | None) -> Iterator[Callable[[int], None]]:
    """A bar on a terminal's stderr while something long runs, nothing in a pipe. Call with how much is done in all."""
    shown = sys.stderr.isatty() and os.environ.get("TERM") != "dumb"
    started = last = time.monotonic()
    drawn = False

    def step(done: int) -> None:
        nonlocal last, drawn
        moment = time.monotonic()
        if not shown or moment - last < 0.1 or moment - started < 0.3:
            return
        last, drawn = moment, True
        if total:
            filled = min(20, done * 20 // total)
            text = f"{label} {'█' * filled}{'░' * (20 - filled)} {min(100, done * 100 // total)}%"
        else:
            text = f"{label} {done}"
        sys.stderr.write(f"\r\x1b[K{text}")
        sys.stderr.flush()

    try:
        yield step
    finally:
        if drawn:
            sys.stderr.write("\r\x1b[K")
            sys.stderr.flush()


def index(db: SessionDB) -> int:
    """Finish the full-text index, so that the next search is fast; how many messages that were."""
    with progress("indexing", db.index_status()["pending"]) as step:
        return db.catch_up(progress=lambda done, total: step(done))


# ------------------------------------------------------------------------------------------------ arguments


def days(value: str | float) -> float:
    """An age in days: 90, 90d, 2w, 12h."""
    text = str(value).strip().lower()
    unit = {"h": 1 / 24, "d": 1.0, "w": 7.0}.get(text[-1:])
    try:
        number = float(text) if unit is None else float(text[:-1]) * unit
    except ValueError:
        number = -1.0
    if not 0 <= number < 1_000_000:
        raise click.BadParameter(f"{value!r} is no age: give days (90), or 12h, 90d, 2w")
    return number


def age(of: float) -> str:
    """An age in days as it was meant: 90 days, 12 hours."""
    if 0 < of < 1:
        return counted(round(of * 24), "hour")
    return f"{of:g} day" if of == 1 else f"{of:g} days"


def moment(end: bool) -> Callable[[click.Context, click.Parameter, str | None], float | None]:
    """A callback for --since and --until: the first, or the last, moment of what was named."""

    def parsed(context: click.Context, parameter: click.Parameter, value: str | None) -> float | None:
        from hermes.times import span

        if value is None:
            return None
        try:
            return span(value, zone())[1 if end else 0]
        except ValueError as error:
            raise click.BadParameter(str(error), context, parameter) from None

    return parsed


# ------------------------------------------------------------------------------------------------ choosing

Filtered = dict[str, Any]


def filters(function: Callable[..., Any]) -> Callable[..., Any]:
    """The options that choose several sessions at once."""
    for option in (
        click.option("--search", "query", metavar="QUERY", help="Those in which this was said."),
        click.option("--with-tag", metavar="TAG", help="Those with this tag."),
        click.option("--older-than", type=days, metavar="D", help="Those without activity for so many days."),
        click.option("--source", metavar="S", help="Those of this source."),
    ):
        function = option(function)
    return function


def is_filter(filtered: Filtered) -> bool:
    """Whether any of the options of `filters` was given."""
    return any(value is not None for value in filtered.values())


def filtered_ids(db: SessionDB, filtered: Filtered) -> list[str]:
    """The conversations the options of `filters` choose together; of a compressed one the newest part."""
    source, query, older = filtered["source"], filtered["query"], filtered["older_than"]
    rows = db.list_sessions_rich(
        source=source, tag=filtered["with_tag"], limit=EVERY, include_children=True, project_compression_tips=False,
        order_by_last_active=True,
    )  # fmt: skip
    rows = [row for row in rows if row["end_reason"] != "compression" or db.get_compression_tip(row["id"]) == row["id"]]
    if older is not None:
        before = time.time() - older * 86_400
        rows = [row for row in rows if row["last_active"] < before]
    if query is not None:
        hits = db.search_messages(query, limit=100_000)
        # What only resembles the question is good to read, not to act upon.
        found = {db.get_compression_tip(one) for one in {hit["session_id"] for hit in hits if not hit["relaxed"]}}
        rows = [row for row in rows if row["id"] in found]
    return [row["id"] for row in rows]
