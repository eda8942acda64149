"""Messages on their way from a platform to the store: parsing pushed payloads, and losing none.

A payload that is not JSON is dropped with one line in the log, which never has its content. Vendors' objects may hold anything:
`dict_of` and its like give a value of the wanted kind, empty where it is another.

Messages of platforms that do not send them again are on the disk until the store has them (`Keeper`). A mark in a small file
says how far the messages of an account are stored: the next connection reads the messages after it.
"""

from __future__ import annotations

import asyncio
import json
import logging
import time
from collections.abc import Callable
from contextlib import suppress
from datetime import datetime
from pathlib import Path
from typing import Any, Generic, TypeVar

import msgspec

from hermes.gateway.adapter import Link
from hermes.gateway.events import Event, Revision, as_masked_json, from_json
from hermes.home import in_encrypted_home, sync_folder, write_whole

_MOST = 10_000  # files: messages beyond these are not acknowledged


class Spool:
    """A folder of messages in order of arrival. Only the user can read its files; they are removed once the store has them."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def waiting(self) -> list[tuple[Path, Event]]:
        """The file and the content of each message in it, the oldest first; unreadable files stay where they are."""
        found = []
        for file in sorted(self._folder.glob("*.json")):
            with suppress(OSError, ValueError):
                found.append((file, from_json(file.read_text("utf-8"), Event)))
        return found

    def put(self, event: Event) -> Path:
        """Write a message to the disk and sync it; its file. OSError if that fails."""
        if in_encrypted_home(self._folder):
            raise OSError("the record is encrypted, so no message is written to a file")
        self._folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        if sum(1 for _ in self._folder.iterdir()) >= _MOST:
            raise OSError(f"{_MOST:,} messages already wait there for the store")
        file = self._folder / f"{time.time_ns():020d}.json"
        write_whole(file, as_masked_json(event))
        sync_folder(self._folder)
        return file


Log = logging.Logger | logging.LoggerAdapter[Any]
LOG = logging.getLogger("hermes.gateway")


def read_object(
    data: str | bytes, platform: str, log: Log = LOG, *, parse: Callable[[Any], Any] = json.loads
) -> dict[str, Any] | None:
    """The JSON object of a pushed frame; None, and a line in the log, if it is none."""
    try:
        found = parse(data)
        why = "it is not a JSON object"
    except RecursionError:
        found, why = None, "its JSON is nested too deeply"
    except ValueError as error:  # its text may have a part of the frame: only the place is reported
        place = getattr(error, "pos", getattr(error, "start", None))
        found, why = None, "it is not JSON" + ("" if place is None else f" (character {place})")
    if isinstance(found, dict):
        return found
    dropped(data, platform, why, log)
    return None


def dropped(data: str | bytes, platform: str, why: str, log: Log = LOG) -> None:
    """Write the log line for a frame that can't be read."""
    size = len(data) if isinstance(data, bytes) else len(data.encode("utf-8", "replace"))
    log.warning("%s: a frame of %d bytes can't be read and is dropped: %s", platform, size, why)


def dict_of(value: Any) -> dict[str, Any]:
    """The value, if it is an object; else {}."""
    return value if isinstance(value, dict) else {}


def dicts_of(value: Any) -> list[dict[str, Any]]:
    """The objects in a list; [] if the value is none."""
    return [one for one in value if isinstance(one, dict)] if isinstance(value, list) else []


def text_of(value: Any) -> str:
    """The value, if it is a text; else ""."""
    return value if isinstance(value, str) else ""


def parsed(content: Any) -> dict[str, Any]:
    """The JSON object in a text or in bytes; {} if there is none."""
    try:
        return dict_of(json.loads(content))
    except (TypeError, ValueError, RecursionError):
        return {}


def moment_of(value: Any, unit: int = 1000) -> float | None:
    """A vendor's time, a number or a text of digits, as Unix seconds; None if it is none. `unit` of it are a second."""
    if isinstance(value, str) and value.isascii() and value.isdigit():
        value = int(value[:20])
    number = isinstance(value, int | float) and not isinstance(value, bool) and abs(value) < 1e13 * unit
    return value / unit if number else None


def iso_moment(value: Any) -> float | None:
    """A vendor's time in ISO 8601 as Unix seconds; None if it is none."""
    try:
        return datetime.fromisoformat(text_of(value)).timestamp()
    except (ValueError, OverflowError, OSError):
        return None


_FIRST_PAUSE, _LONGEST_PAUSE = 1.0, 30.0  # seconds between two tries to store a message


async def hand_over(link: Link, what: Event | Revision) -> None:
    """Give a message or a revision to the gateway. When this returns it is stored."""
    await (link.revised(what) if isinstance(what, Revision) else link.received(what))


async def keep(link: Link, what: Event | Revision) -> None:
    """Retry until it is stored, for platforms that do not send it again."""
    pause = _FIRST_PAUSE
    while True:
        try:
            return await hand_over(link, what)
        except Exception as error:
            link.log.warning("a message could not be stored (%s); next try in %g s", type(error).__name__, pause)
            await asyncio.sleep(pause)
            pause = min(pause * 2, _LONGEST_PAUSE)


class Keeper:
    """Messages that their platform does not send again: each is on the disk from its arrival until the store has it."""

    def __init__(self, home: Path, platform: str) -> None:
        self._spool = Spool(home / platform / "unkept")

    def write(self, event: Event) -> Path | None:
        """Write a message that has arrived to the disk: its file, or None where that fails, and beside an encrypted store."""
        try:
            return self._spool.put(event)
        except OSError as error:
            LOG.debug("a message is not on the disk until it is stored (%s)", error)
            return None

    async def restore(self, link: Link) -> None:
        """Hand over what an earlier connection left on the disk."""
        for file, event in self._spool.waiting():
            await self.keep(link, event, file)

    async def keep(self, link: Link, event: Event, file: Path | None = None) -> None:
        """Hand over a message, which may be in this file. It is stored when this returns."""
        file = file or await asyncio.to_thread(self.write, event)
        await keep(link, event)
        if file is not None:
            _remove(file)


def _remove(file: Path) -> None:
    """Remove the file of a message that the store has. One that can't be removed is read again, and recognised by its id."""
    with suppress(OSError):
        file.unlink(missing_ok=True)


_PAUSE = 1.0  # seconds between two writes of `changed`; what a crash loses is only read again

State = TypeVar("State", bound=msgspec.Struct)
Value = TypeVar("Value")


def put_last(known: dict[str, Value], key: str, value: Value, most: int) -> None:
    """Put an entry at the end of a dictionary of bounded size: the oldest are forgotten first."""
    known.pop(key, None)
    known[key] = value
    while len(known) > most:
        del known[next(iter(known))]


class Since(msgspec.Struct):
    """The moment (in the server's own unit) up to which everything is stored; None at the very first connection."""

    since: int | None = None


class MarkFile(Generic[State]):
    """The state of one account (`account` tells it from others) in a file. Without a readable one it is a new `kind()`."""

    def __init__(self, file: Path, account: str, kind: type[State]) -> None:
        self._file, self._account = file, account
        self._written, self._outdated = 0.0, False
        self.state = kind()
        with suppress(OSError, ValueError):
            owner, state = msgspec.json.decode(file.read_bytes(), type=tuple[str, kind])  # type: ignore[valid-type]
            if owner == account:
                self.state = state

    def changed(self) -> None:
        """Note that `state` has changed; it is written soon, and by `save` at the latest."""
        self._outdated = True
        if time.monotonic() - self._written > _PAUSE:
            self.save()

    def save(self) -> None:
        """Write the file, if it is outdated. If the disk refuses it, messages are read again after a restart."""
        if self._outdated:
            with suppress(OSError):
                self.write(sync=False)

    def write(self, *, sync: bool = True) -> None:
        """Write the file now; OSError if that fails."""
        self._written = time.monotonic()
        self._file.parent.mkdir(parents=True, exist_ok=True)
        write_whole(self._file, msgspec.json.encode((self._account, self.state)), sync=sync)
        self._outdated = False


class SinceFile(MarkFile[Since]):
    """How far the messages of a server are stored, by the server's own clock."""

    def __init__(self, file: Path, account: str) -> None:
        super().__init__(file, account, Since)

    def note(self, moment: Any) -> None:
        """Note that everything up to this moment is stored. An older one costs only repetitions."""
        if isinstance(moment, int) and not isinstance(moment, bool) and moment > (self.state.since or -1):
            self.state.since = moment
            self.changed()
